"""Errors between peers. Each message says what was given, what is allowed, and who refused."""

from __future__ import annotations

from typing import Any

from flowmx.errors import MXNetError

__all__ = ["CommError", "PeerGone", "Refused", "TooLarge", "Unauthorized", "WireError", "from_header", "to_header"]


class CommError(MXNetError):
    """Base of every error of the wire.

    Attributes:
        kind: the error's name on the wire, for programs; the text is for people.
        status: the status of an HTTP answer that carries the error.
    """

    kind = "error"
    status = 500


class PeerGone(CommError, ConnectionError):
    """The peer can not be reached, or the connection broke: nobody knows whether it did what was asked."""

    kind = "gone"
    status = 502


class Refused(CommError):
    """The peer was asked and said no; the text is the peer's.

    Args:
        text: why.
        kind: a name for programs to decide by, such as ``"stale"``.
    """

    kind = "refused"
    status = 409

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        if kind:
            self.kind = kind


class Failed(Refused):
    """The peer took the request, and its handler raised something that is no refusal."""

    kind = "failed"
    status = 500


class Unknown(Refused):
    """The peer has no such operation."""

    kind = "unknown"
    status = 404


class Busy(Refused):
    """The peer answers as many requests as it may; later it may have room again."""

    kind = "busy"
    status = 503


class TooSlow(Refused):
    """The sender paused for longer than allowed, or sent less in a second than it must."""

    kind = "slow"
    status = 408


class Unauthorized(Refused, PermissionError):
    """A request or an answer is not signed as it must be, or comes from where it must not."""

    kind = "unauthorized"
    status = 401


class WireError(CommError, ValueError):
    """Bytes that are no message, or no message that is allowed."""

    kind = "malformed"
    status = 400


class TooLarge(WireError):
    """A header, a tensor or a message above its limit."""

    kind = "too_large"
    status = 413


class MediaTypeError(WireError):
    """A body that does not say that it is a frame."""

    kind = "media_type"
    status = 415


_CLASSES: dict[str, type[CommError]] = {
    cls.kind: cls
    for cls in (Refused, Failed, Unknown, Busy, TooSlow, Unauthorized, WireError, TooLarge, MediaTypeError)
}


def to_header(error: CommError) -> dict[str, Any]:
    """The header of a frame that carries `error`."""
    return {"error": {"kind": error.kind, "text": str(error)}}


def from_header(header: dict[str, Any]) -> CommError | None:
    """The error that a frame's header carries, if it carries one; unknown kinds are refusals."""
    found = header.get("error")
    if not isinstance(found, dict):
        return None
    kind, text = str(found.get("kind", "")), str(found.get("text", ""))
    if kind in _CLASSES:
        return _CLASSES[kind](text)
    return Refused(text, kind)
