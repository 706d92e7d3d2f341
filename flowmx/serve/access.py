"""Access control of a service: who may request predictions, and who may load and unload models."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from flowmx.comm.security import read_secret
from flowmx.serve.replies import Refusal

__all__ = ["Access"]

_MIN_LENGTH = 16


class Access:
    """Bearer tokens of a service's users and admins.

    Args:
        token: the users' token in ``Authorization: Bearer ...``; None allows everybody to predict.
        admin_token: the token for loading and unloading models; None forbids both.

    Raises:
        ValueError: a token has fewer than 16 characters.
    """

    def __init__(self, token: str | None = None, admin_token: str | None = None) -> None:
        for value in (token, admin_token):
            if value is not None and len(value) < _MIN_LENGTH:
                raise ValueError(
                    f"a token has {len(value)} characters, expected at least {_MIN_LENGTH}: `openssl rand -hex 32`"
                )
        self._token, self._admin_token = token, admin_token

    @classmethod
    def from_files(cls, token: str | None = None, admin_token: str | None = None) -> Access:
        """Read the tokens from files; surrounding whitespace is ignored.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is readable by everybody, or its token is too short.
        """
        return cls(*(None if path is None else read_secret(path).decode() for path in (token, admin_token)))

    def check(self, audience: str, headers: Mapping[str, str]) -> None:
        """Refuse a request without the necessary token.

        Args:
            audience: who may send the request: ``all``, ``users`` or ``admins``.
            headers: headers of the request.

        Raises:
            Refusal: 401, or 403 where there are no admins.
        """
        if audience == "all" or (audience == "users" and self._token is None):
            return
        if audience == "admins" and self._admin_token is None:
            raise Refusal(403, "models cannot be loaded or unloaded: the service was started without an admin token")
        tokens = [token for token in (self._admin_token, self._token if audience == "users" else None) if token]
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and any(_equal(credentials.strip(), token) for token in tokens):
            return
        kind = "an admin's token" if audience == "admins" else "a token"
        raise Refusal(401, f"expected {kind} in Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})


def _equal(credentials: str, token: str) -> bool:
    # A header may hold arbitrary bytes.
    return hmac.compare_digest(credentials.encode(errors="surrogateescape"), token.encode())
