"""Access to a service: who may ask for predictions, and who may change what is served."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from flowmx.comm.security import read_secret
from flowmx.serve.replies import Refusal

__all__ = ["Access"]

_LEAST = 16


class Access:
    """Bearer tokens of a service's users and admins.

    Args:
        token: what users show in ``Authorization: Bearer ...``; without one everybody is a user.
        admin_token: what those show who load and unload models; without one nobody does.

    Raises:
        ValueError: a token has fewer than 16 characters.
    """

    def __init__(self, token: str | None = None, admin_token: str | None = None) -> None:
        for each in (token, admin_token):
            if each is not None and len(each) < _LEAST:
                raise ValueError(
                    f"a token has {len(each)} characters, expected at least {_LEAST}: `openssl rand -hex 32`"
                )
        self._token, self._admin_token = token, admin_token

    @classmethod
    def from_files(cls, token: str | None = None, admin_token: str | None = None) -> Access:
        """Access with the tokens that files hold; blanks and line ends around them do not count.

        Raises:
            OSError: a file can not be read.
            ValueError: everybody may read a file, or its token is too short.
        """
        return cls(*(None if path is None else read_secret(path).decode() for path in (token, admin_token)))

    def check(self, wanted: str, headers: Mapping[str, str]) -> None:
        """Refuse who may not ask.

        Args:
            wanted: ``all``, ``users`` or ``admins``.
            headers: of the request.

        Raises:
            Refusal: 401, or 403 where there are no admins.
        """
        if wanted == "all" or (wanted == "users" and self._token is None):
            return
        if wanted == "admins" and self._admin_token is None:
            raise Refusal(403, "models stay as they are: the service was started without an admin token")
        tokens = [each for each in (self._admin_token, self._token if wanted == "users" else None) if each]
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and any(_equal(given.strip(), each) for each in tokens):
            return
        what = "an admin's token" if wanted == "admins" else "a token"
        raise Refusal(401, f"expected {what} in Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())  # bytes of any kind come in
