"""Access control of a server: it admits the workers and servers of the newest view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from flowmx.comm.errors import Refused
from flowmx.comm.exchange import Caller, Handler
from flowmx.comm.frames import Message
from flowmx.comm.notifier import Notifier
from flowmx.comm.view import ROLES, Role, View

__all__ = ["Callers", "identity", "identity_of"]

PATIENCE = 5.0
"""Seconds that a caller waits until a view contains it: it may know a newer view than this server."""


def identity(node: str, incarnation: int) -> str:
    """Return the identity of one start of a node in the state machine; it changes with every restart."""
    return f"{node}:{incarnation}"


def identity_of(caller: Caller) -> str:
    """Return the identity of a caller.

    Raises:
        Refused: the request names no node.
    """
    if not caller.node:
        raise Refused("a request must name its node: the header's 'node', with its 'incarnation'", "invalid")
    return identity(caller.node, caller.incarnation)


class Callers:
    """The nodes of the newest view.

    Args:
        patience: seconds to wait for a view that contains the caller.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._view: View | None = None
        self._alive: dict[Role, frozenset[str]] = {role: frozenset() for role in ROLES}
        self._former: set[str] = set()
        self._notifier = Notifier()

    def update_view(self, view: View) -> None:
        """Use a new view of the job."""
        old = frozenset().union(*self._alive.values())
        self._view = view
        self._alive = {role: frozenset(_identities(view, role)) for role in ROLES}
        new = frozenset().union(*self._alive.values())
        self._former = (self._former if len(self._former) < 65536 else set()) | (old - new)
        self._notifier.notify()

    def restrict_to(self, role: Role | None, handler: Handler) -> Handler:
        """Wrap a handler so that it admits only nodes of a role."""

        def admit(caller: Caller, message: Message) -> Message | Awaitable[Message]:
            if role is None or identity(caller.node, caller.incarnation) in self._alive[role]:
                return handler(caller, message)
            return answer_later(role, caller, message)

        async def answer_later(role: Role, caller: Caller, message: Message) -> Message:
            await self._wait(role, caller)
            result = handler(caller, message)
            return result if isinstance(result, Message) else await result

        return admit

    async def _wait(self, role: Role, caller: Caller) -> None:
        """Wait for a view that contains the caller.

        Raises:
            Refused: the request names no node, no such view arrives in time, or the caller has left the job.
        """
        caller_id = identity_of(caller)
        try:
            async with asyncio.timeout(self.patience):
                while caller_id not in self._alive[role]:
                    if caller_id in self._former or any(caller_id in alive for alive in self._alive.values()):
                        raise self._refusal(role, caller_id)
                    await self._notifier.next()
        except TimeoutError:
            raise self._refusal(role, caller_id) from None

    def _refusal(self, role: Role, caller_id: str) -> Refused:
        epoch = self._view.epoch if self._view is not None else "none"
        return Refused(f"{caller_id[:160]} is not in view {epoch} as a {role}: nodes join the job first", "not_member")


def _identities(view: View, role: Role) -> list[str]:
    return [identity(member.id, member.incarnation) for member in view.alive(role)]
