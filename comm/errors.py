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
    """A peer that can not be reached, or a broken connection: the request may or may not have been carried out."""

    kind = "gone"
    status = 502


class Refused(CommError):
    """A refusal of the peer's; the text is the peer's.

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
    """A failure of the peer's handler: it raised an exception that is no refusal."""

    kind = "failed"
    status = 500


class Unknown(Refused):
    """An operation that the peer does not have."""

    kind = "unknown"
    status = 404


class Busy(Refused):
    """A peer at its limit of requests; a later call may succeed."""

    kind = "busy"
    status = 503


class TooSlow(Refused):
    """A transfer that paused for longer than allowed, or that was slower than the limit."""

    kind = "slow"
    status = 408


class Unauthorized(Refused, PermissionError):
    """A request or an answer without a valid signature, or from an address that is not allowed."""

    kind = "unauthorized"
    status = 401


class WireError(CommError, ValueError):
    """A malformed message, or one that is not allowed."""

    kind = "malformed"
    status = 400


class TooLarge(WireError):
    """A header, a tensor or a message above its limit."""

    kind = "too_large"
    status = 413


class MediaTypeError(WireError):
    """A body of another media type than a frame's."""

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
