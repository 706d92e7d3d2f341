"""Detection of requests that a browser sends for a page of another site.

A page may send a request to any address that its visitor can reach, including a service on localhost. The browser then
adds ``Sec-Fetch-Site``, or at least ``Origin``, which every POST and every WebSocket handshake has. Programs such as
curl, and the nodes of a job, send neither header.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["ANY", "check_origins", "is_cross_site"]

ANY = "*"
"""Allows pages of all sites."""


def is_cross_site(headers: Mapping[str, str], allowed: Collection[str] = ()) -> bool:
    """Return whether a browser sent a request for a page of another site.

    Args:
        headers: the request's headers; a case-insensitive mapping, or one with lower-case names.
        allowed: the origins whose pages may send requests, such as ``"https://app.example"``; :data:`ANY` for all.
    """
    origin, site = headers.get("origin", "").lower(), headers.get("sec-fetch-site")
    if ANY in allowed or (origin and origin in allowed):
        return False
    if site is not None:  # also correct behind a proxy that changes Host
        return site not in ("none", "same-origin")
    scheme, _, authority = origin.partition("://")
    return bool(origin) and not (scheme in ("http", "https") and authority == headers.get("host", "").lower())


def check_origins(origins: Collection[str]) -> frozenset[str]:
    """Return the origins in lower case.

    Raises:
        ValueError: an origin is neither ``SCHEME://HOST``, ``SCHEME://HOST:PORT`` nor :data:`ANY`.
    """
    for origin in origins:
        scheme, separator, authority = origin.partition("://")
        if origin != ANY and not (scheme and separator and authority and "/" not in authority):
            raise ValueError(f"{origin!r} is not an origin; expected one such as 'https://app.example', or '*'")
    return frozenset(origin.lower() for origin in origins)
