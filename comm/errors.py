"""Errors between peers. Each message contains the value, the allowed values, and the peer that refused it."""

from __future__ import annotations

from collections.abc import Mapping

from flowmx.errors import MXNetError

__all__ = ["CommError", "PeerGone", "Refused", "TooLarge", "Unauthorized", "WireError", "from_header", "to_header"]


class CommError(MXNetError):
    """Base of all errors of communication.

    Attributes:
        kind: the error's name on the wire, for programs; the text is for people.
        status: the status of an HTTP response with this error.
    """

    kind = "error"
    status = 500


class PeerGone(CommError, ConnectionError):
    """A peer that cannot be reached, or a broken connection: the request may or may not have been carried out."""

    kind = "gone"
    status = 502


class Refused(CommError):
    """A refusal by the peer, with the peer's text.

    Args:
        text: the reason.
        kind: a name for programs, such as ``"stale"``.
    """

    kind = "refused"
    status = 409

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        if kind:
            self.kind = kind


class Failed(Refused):
    """A failure of the peer's handler: it raised an exception that is not a refusal."""

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
    """A transfer that paused for too long, or was slower than the limit."""

    kind = "slow"
    status = 408


class Unauthorized(Refused, PermissionError):
    """A request or a response without a valid signature, or from an address that is not allowed."""

    kind = "unauthorized"
    status = 401


class CrossSite(Refused, PermissionError):
    """A request that a browser sent for a page of another site."""

    kind = "cross_site"
    status = 403


class WireError(CommError, ValueError):
    """A malformed message, or one that is not allowed."""

    kind = "malformed"
    status = 400


class TooLarge(WireError):
    """A header, a tensor or a message above its limit."""

    kind = "too_large"
    status = 413


class MediaTypeError(WireError):
    """A body whose media type is not that of a frame."""

    kind = "media_type"
    status = 415


_CLASSES: dict[str, type[CommError]] = {
    cls.kind: cls
    for cls in (Refused, Failed, Unknown, Busy, TooSlow, Unauthorized, CrossSite, WireError, TooLarge, MediaTypeError)
}


def to_header(error: CommError) -> dict[str, object]:
    """The header of a frame with an error."""
    return {"error": {"kind": error.kind, "text": str(error)}}


def from_header(header: Mapping[str, object]) -> CommError | None:
    """Return the error in a frame's header, or None; unknown kinds become refusals."""
    entry = header.get("error")
    if not isinstance(entry, dict):
        return None
    kind, text = str(entry.get("kind", "")), str(entry.get("text", ""))
    if kind in _CLASSES:
        return _CLASSES[kind](text)
    return Refused(text, kind)
