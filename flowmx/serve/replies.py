"""Replies and refusals of a service, independent of the HTTP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol

__all__ = ["JSON_TYPE", "Chunks", "Refusal", "Reply", "Stream", "allow", "json_reply"]

JSON_TYPE = "application/json"


class Reply(NamedTuple):
    """The status, body, media type and headers of a response."""

    status: int
    body: bytes | memoryview
    type: str = JSON_TYPE
    headers: Mapping[str, str] = {}


_NOT_STORED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers with which caches and proxies pass events on at once."""


class Chunks(Protocol):
    """The chunks of a body. Closing them ends what computes them, also before the first is read."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class Stream(NamedTuple):
    """The chunks, status, media type and headers of a response whose body is sent while it is computed."""

    chunks: Chunks
    status: int = 200
    type: str = "text/event-stream"
    headers: Mapping[str, str] = _NOT_STORED


class Refusal(Exception):
    """An error reply to a request."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.reply = Reply(status, json.dumps({"error": message, **more}).encode(), headers=headers)


def json_reply(status: int, value: object) -> Reply:
    """Return a JSON reply."""
    return Reply(status, json.dumps(value).encode())


def allow(method: str, *allowed: str) -> None:
    """Refuse all methods except ``allowed``.

    Raises:
        Refusal: 405, the method is not allowed.
    """
    if method not in allowed:
        raise Refusal(405, f"the method is {method[:20]}, expected {allowed[0]}", {"Allow": ", ".join(allowed)})
