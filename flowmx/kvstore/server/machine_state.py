"""The state that the modules of a server's state machine share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.protocol import Effect, Message, Part, Refused, Reply, Request, Response, Send, View
from flowmx.kvstore.server.slot import Slot

__all__ = ["State"]


@dataclass
class State:
    """The state of one server, and the pending effects.

    Attributes:
        identity: this server's identity.
        mode: the consistency mode.
        view: the newest view, or None before the first.
        slots: the state of each part, of this server's home and of the homes that it backs up.
        active: the homes that this server answers for.
        effects: the pending effects.
        largest_lag: maximum number of pushes that a worker was ever ahead of the slowest.
    """

    identity: str
    mode: Mode
    view: View | None = None
    slots: dict[Part, Slot] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    effects: list[Effect] = field(default_factory=list)
    largest_lag: int = 0

    @property
    def epoch(self) -> int:
        """The epoch of the newest view."""
        return -1 if self.view is None else self.view.epoch

    def backup(self, part: Part) -> str | None:
        """Return the server that backs up a part of this server; None without one."""
        return None if self.view is None else self.view.backup(part.home)

    def of_home(self, home: int) -> Iterator[Slot]:
        """Iterate over the slots of a home."""
        return (slot for slot in self.slots.values() if slot.part.home == home)

    def slot(self, part: Part) -> Slot:
        """Return the slot of a part; create it if it does not exist."""
        return self.slots.setdefault(part, Slot(part))

    def reply(self, request: Request, response: Response) -> None:
        """Answer a request; do nothing for None."""
        if request is not None:
            self.effects.append(Reply(request, response))

    def refuse_all(self, slot: Slot, refusal: Refused) -> None:
        """Refuse all waiting requests of a slot, and drop its pending gradients."""
        for request in slot.waiting():
            self.reply(request, refusal)
        slot.drop_requests()

    def send(self, to: str, message: Message) -> None:
        """Send a message to another server."""
        self.effects.append(Send(to, message))
