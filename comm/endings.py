"""Errors that a node raises when the job, or a part of it that it needs, has ended."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.comm.errors import PeerGone
from flowmx.comm.view import Member

__all__ = ["NodeGone", "SchedulerGone"]


class NodeGone(PeerGone):
    """A lost node of the job, without which the operation can not be done.

    Attributes:
        members: the nodes that are gone, each with what it was last known to do and why it is gone.
    """

    def __init__(self, text: str, members: Sequence[Member] = ()) -> None:
        super().__init__(text)
        self.members = tuple(members)


class SchedulerGone(NodeGone):
    """A scheduler that could not be reached within the nodes' reconnect time."""
