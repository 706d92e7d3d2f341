"""A route of a service: its path, and what answers its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowmx.serve.bodies import PendingCall
from flowmx.serve.replies import Reply
from flowmx.serve.sessions.socket_call import SocketCall
from flowmx.serve.sessions.stream_call import StreamCall

__all__ = ["Route"]


@dataclass(frozen=True)
class Route:
    """One route of the service.

    Attributes:
        path: the path; segments in braces are parameters.
        answer: called with the service, the headers and the parameters of the path; returns the reply, or a call that
            receives a body or messages.
        summary: a short description.
        is_post: whether the method is POST instead of GET.
        access: the clients that may request it: ``all``, ``users`` or ``admins``.
    """

    path: str
    answer: Callable[..., Reply | PendingCall | SocketCall | StreamCall]
    summary: str
    is_post: bool = False
    access: str = "users"

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """Return the parameters if the segments match this route's path, else None."""
        template = self.path.split("/")
        if len(template) != len(parts):
            return None
        pairs = list(zip(template, parts, strict=True))
        if any(segment != part for segment, part in pairs if not segment.startswith("{")):
            return None
        return {segment.strip("{}"): part for segment, part in pairs if segment.startswith("{")}
