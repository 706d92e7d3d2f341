"""Access control of a server: the job's workers and other servers, as the newest view has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from flowmx.comm.errors import Refused
from flowmx.comm.exchange import Caller, Handler
from flowmx.comm.frames import Message
from flowmx.comm.notifier import Notifier
from flowmx.comm.view import ROLES, Role, View

__all__ = ["Callers", "identity"]

PATIENCE = 5.0
"""Seconds that a caller in no view waits: it may know a newer view than this server."""


def identity(node: str, incarnation: int) -> str:
    """Identity of one start of a node in the state machine; it changes with every restart."""
    return f"{node}:{incarnation}"


class Callers:
    """The nodes that the newest view has.

    Args:
        patience: seconds to wait for a view that has the caller.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._view: View | None = None
        self._alive: dict[Role, frozenset[str]] = {role: frozenset() for role in ROLES}
        self._left: set[str] = set()
        self._notifier = Notifier()

    def know(self, view: View) -> None:
        """Take a view of the job."""
        before = frozenset().union(*self._alive.values())
        self._view = view
        self._alive = {role: frozenset(_identities(view, role)) for role in ROLES}
        now = frozenset().union(*self._alive.values())
        self._left = (self._left if len(self._left) < 65536 else set()) | (before - now)
        self._notifier.notify()

    def only(self, role: Role | None, handler: Handler) -> Handler:
        """Wrap a handler so that it admits only nodes of a role."""

        def answer(caller: Caller, message: Message) -> Message | Awaitable[Message]:
            if role is None or identity(caller.node, caller.incarnation) in self._alive[role]:
                return handler(caller, message)
            return later(role, caller, message)

        async def later(role: Role, caller: Caller, message: Message) -> Message:
            await self._wait(role, caller)
            found = handler(caller, message)
            return found if isinstance(found, Message) else await found

        return answer

    async def _wait(self, role: Role, caller: Caller) -> None:
        """Wait for a view that has the caller.

        Raises:
            Refused: it names no node, there comes none in time, or there was one and the caller is gone.
        """
        if not caller.node:
            raise Refused("a request must name its node: the header's 'node', with its 'incarnation'", "invalid")
        who = identity(caller.node, caller.incarnation)
        try:
            async with asyncio.timeout(self.patience):
                while who not in self._alive[role]:
                    if who in self._left or any(who in alive for alive in self._alive.values()):
                        raise self._refusal(role, who)
                    await self._notifier.next()
        except TimeoutError:
            raise self._refusal(role, who) from None

    def _refusal(self, role: Role, who: str) -> Refused:
        epoch = self._view.epoch if self._view is not None else "none"
        return Refused(f"{who[:160]} is not in view {epoch} as a {role}: nodes join the job first", "not_member")


def _identities(view: View, role: Role) -> list[str]:
    return [identity(member.id, member.incarnation) for member in view.alive(role)]
