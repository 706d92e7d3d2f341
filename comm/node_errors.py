"""Errors that a node raises when the job, or a node that it needs, has ended."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.comm.errors import PeerGone
from flowmx.comm.view import Member

__all__ = ["NodeGone", "SchedulerGone"]


class NodeGone(PeerGone):
    """A lost node of the job that the operation needs.

    Attributes:
        members: the lost nodes, with their last known activities and the reasons of their loss.
    """

    def __init__(self, text: str, members: Sequence[Member] = ()) -> None:
        super().__init__(text)
        self.members = tuple(members)


class SchedulerGone(NodeGone):
    """A scheduler that could not be reached within the nodes' reconnect time."""
