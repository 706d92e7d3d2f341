"""State that the pieces of a server's state machine share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.protocol import Answer, Effect, Message, Part, Refused, Reply, Request, Send, View
from flowmx.kvstore.server.slot import Slot

__all__ = ["State"]


@dataclass
class State:
    """The state of one server, and the effects that wait to be carried out.

    Attributes:
        me: this server's identity.
        mode: the kind of consistency.
        view: the newest view, or None before the first.
        slots: by part what this server has of it, for its own home and for those that it backs up.
        active: the homes that this server answers for.
        largest_lag: by how many pushes a worker was ever ahead of the slowest.
    """

    me: str
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
        """Identity of the server that backs up a part for which this server answers; None without one."""
        return None if self.view is None else self.view.backup(part.home)

    def of_home(self, home: int) -> Iterator[Slot]:
        """The slots of a home."""
        return (slot for slot in self.slots.values() if slot.part.home == home)

    def slot(self, part: Part) -> Slot:
        """The slot of a part, made where there is none."""
        return self.slots.setdefault(part, Slot(part))

    def reply(self, request: Request, answer: Answer) -> None:
        """Answer a request; nothing is done for None."""
        if request is not None:
            self.effects.append(Reply(request, answer))

    def refuse_all(self, slot: Slot, refusal: Refused) -> None:
        """Refuse all requests that wait at a slot, and drop its pending gradients."""
        for request in slot.waiting():
            self.reply(request, refusal)
        slot.drop_requests()

    def send(self, to: str, message: Message) -> None:
        """Send a message to another server."""
        self.effects.append(Send(to, message))
