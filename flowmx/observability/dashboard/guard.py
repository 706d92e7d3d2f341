"""Access control of the dashboard: this machine alone, or whoever knows the secret. Pure.

Without a secret, a request must come from this machine and be made to a name of it: a page of another site that has its
own name point here (DNS rebinding) is refused. With one, a browser shows it once, in the address, and gets a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from flowmx.comm.security import InsecureAddress, host_of, is_loopback

__all__ = ["COOKIE", "Guard", "Verdict", "check_address"]

COOKIE = "flowmx-dashboard"
_LEAST = 16
"""Letters of a secret."""


class Verdict(NamedTuple):
    """The answer to a request: status 200 admits; 302 sets the cookie; others refuse, and ``text`` is the reason."""

    status: int
    text: str = ""


class Guard:
    """Decides on requests.

    Args:
        secret: what viewers must know, at least 16 letters; None: only this machine may look.

    Raises:
        ValueError: the secret is too short.
    """

    def __init__(self, secret: str | None = None) -> None:
        if secret is not None and len(secret) < _LEAST:
            raise ValueError(f"secret has {len(secret)} letters, expected at least {_LEAST}: secrets.token_urlsafe(24)")
        self._secret = secret

    @property
    def cookie(self) -> str:
        """Value of the cookie: an HMAC of the secret, which does not disclose it."""
        return hmac.new((self._secret or "").encode(), b"flowmx dashboard", hashlib.sha256).hexdigest()

    def judge(self, remote: str | None, headers: Mapping[str, str], token: str | None) -> Verdict:
        """Decide on a request.

        Args:
            remote: the address that it comes from.
            headers: its headers.
            token: what its address says as ``token``.
        """
        is_foreign = headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if is_foreign and headers.get("Sec-Fetch-Mode") != "navigate":  # to follow a link is no harm
            return Verdict(403, "a page of another site asked for this: open the dashboard itself")
        if self._secret is None:
            return self._judge_local(remote, headers.get("Host", ""))
        if token is not None:
            return Verdict(302) if _equal(token, self._secret) else Verdict(403, "the token is wrong")
        if self._knows(headers):
            return Verdict(200)
        return Verdict(401, "this dashboard has a secret: open it as .../?token=SECRET, or send Authorization: Bearer")

    def _judge_local(self, remote: str | None, host: str) -> Verdict:
        if remote is not None and not is_loopback(remote):
            return Verdict(403, "the dashboard answers its own machine alone: give it a secret to be seen from others")
        if not is_loopback(host_of(host)):
            return Verdict(
                403, f"the dashboard was asked for as {host!r}, expected localhost or 127.0.0.1: give it a secret to "
                "be seen under other names",
            )  # fmt: skip
        return Verdict(200)

    def _knows(self, headers: Mapping[str, str]) -> bool:
        bearer = headers.get("Authorization", "")
        if bearer and _equal(bearer, f"Bearer {self._secret}"):
            return True
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and _equal(found.value, self.cookie)


def check_address(host: str, secret: str | None) -> None:
    """Check that the dashboard may be served on an address.

    Raises:
        InsecureAddress: other machines reach it, and there is no secret.
    """
    if secret is None and not is_loopback(host):
        raise InsecureAddress(
            f"serving the dashboard on {host!r}, which other machines may reach, takes a secret: "
            "start(host, port, secret=...); without one there is 127.0.0.1"
        )


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
