"""Access control of the dashboard: local viewers only, or viewers with the secret. This module does no I/O.

Without a secret, a request must come from this machine and address it by a loopback name, which protects against DNS
rebinding. With a secret, a browser sends it once, in the URL, and receives a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from flowmx.comm.browser_origins import is_cross_site
from flowmx.comm.security import InsecureAddress, host_of, is_loopback

__all__ = ["COOKIE", "Guard", "Verdict", "check_address"]

COOKIE = "flowmx-dashboard"
_MIN_LENGTH = 16
"""Minimum length of a secret."""


class Verdict(NamedTuple):
    """The decision on a request: 200 admits, 302 sets the cookie, other statuses refuse with the reason ``text``."""

    status: int
    text: str = ""


class Guard:
    """Decides on requests.

    Args:
        secret: the viewers' secret, at least 16 characters; None admits only local viewers.

    Raises:
        ValueError: the secret is too short.
    """

    def __init__(self, secret: str | None = None) -> None:
        if secret is not None and len(secret) < _MIN_LENGTH:
            raise ValueError(
                f"secret has {len(secret)} characters, expected at least {_MIN_LENGTH}: secrets.token_urlsafe(24)"
            )
        self._secret = secret

    @property
    def cookie(self) -> str:
        """Value of the cookie: an HMAC of the secret, which does not disclose it."""
        return hmac.new((self._secret or "").encode(), b"flowmx dashboard", hashlib.sha256).hexdigest()

    def judge(self, remote: str | None, headers: Mapping[str, str], token: str | None) -> Verdict:
        """Decide on a request.

        Args:
            remote: the client's address.
            headers: its headers.
            token: the query parameter ``token``.
        """
        if is_cross_site(headers) and headers.get("Sec-Fetch-Mode") != "navigate":  # following a link is harmless
            return Verdict(403, "the request comes from a page of another site: open the dashboard itself")
        if self._secret is None:
            return self._judge_local(remote, headers.get("Host", ""))
        if token is not None:
            return Verdict(302) if _equal(token, self._secret) else Verdict(403, "the token is wrong")
        if self._is_authorized(headers):
            return Verdict(200)
        return Verdict(401, "this dashboard has a secret: open it as .../?token=SECRET, or send Authorization: Bearer")

    def _judge_local(self, remote: str | None, host: str) -> Verdict:
        if remote is not None and not is_loopback(remote):
            return Verdict(403, "the dashboard admits only local viewers: give it a secret to admit others")
        if not is_loopback(host_of(host)):
            return Verdict(
                403, f"the Host header is {host!r}, expected localhost or 127.0.0.1: give the dashboard a secret to "
                "use other names",
            )  # fmt: skip
        return Verdict(200)

    def _is_authorized(self, headers: Mapping[str, str]) -> bool:
        bearer = headers.get("Authorization", "")
        if bearer and _equal(bearer, f"Bearer {self._secret}"):
            return True
        try:
            cookie = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self.cookie)


def check_address(host: str, secret: str | None) -> None:
    """Check that the dashboard may be served on an address.

    Raises:
        InsecureAddress: the address is not a loopback address, and there is no secret.
    """
    if secret is None and not is_loopback(host):
        raise InsecureAddress(
            f"serving the dashboard on {host!r}, which other machines may reach, requires a secret: "
            "start(host, port, secret=...), or use 127.0.0.1"
        )


def _equal(actual: str, expected: str) -> bool:
    return hmac.compare_digest(actual.encode("utf-8", "surrogateescape"), expected.encode())
