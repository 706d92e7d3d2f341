"""Recovery: taking over a home when servers come and go.

The view says who the primary is; but it may answer only once it has the newest of every part. So a server that becomes
the primary asks all others of the view what they have. By answering, a server also promises to take nothing for that
home from an older view: so what the asker collects can not be overtaken by a primary that does not know yet that it was
replaced. Since every acknowledged step is on two servers, one of those that answer has it.

Of two records of a part the one of the later *term* (primary) is newer, and within a term the one with more steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowmx.kvstore.server.protocol import Ask, Copy, Fetch, Part, Refused, Tell, View
from flowmx.kvstore.server.state import State
from flowmx.kvstore.server.steps import Steps

__all__ = ["Recovery"]


@dataclass
class _Collecting:
    """The answers and copies that a new primary of a home still waits for."""

    unheard: set[str]
    best: dict[Part, tuple[tuple[int, int], str]] = field(default_factory=dict)
    fetching: set[Part] | None = None


class Recovery:
    """Takes over homes and hands them over."""

    def __init__(self, state: State, steps: Steps) -> None:
        self.state = state
        self.steps = steps
        self.common: tuple[int, Any] = (0, None)
        """The configuration that all servers share, with its version."""
        self._collecting: dict[int, _Collecting] = {}
        self._asked: list[tuple[str, Ask]] = []

    def view(self, view: View) -> None:
        """Take roles by a new view."""
        state, before = self.state, self.state.view
        state.view = view
        self._collecting.clear()
        for home in range(len(view.servers)):
            if view.primary(home) != state.me:
                self._hand_over(home, view)
            elif home in state.active and before is not None:
                self._go_on(home, changed=before.backup(home) != view.backup(home))
            else:
                self._collect(home, view)
        self.look()

    @property
    def waits(self) -> bool:
        """True if requests or a recovery may become able to proceed when a computation is done."""
        return bool(self._asked or self._collecting)

    def look(self) -> None:
        """Proceed with requests and recoveries that waited for computations."""
        asked, self._asked = self._asked, []
        for sender, ask in asked:
            self.ask(sender, ask)
        for home in list(self._collecting):
            self._try(home)

    def ask(self, sender: str, message: Ask) -> None:
        """Answer a new primary with the versions of all parts, once this server has the view and computes nothing."""
        computing = any(slot.computing for slot in self.state.of_home(message.home))
        if message.epoch > self.state.epoch or (message.epoch == self.state.epoch and computing):
            self._asked.append((sender, message))
        elif message.epoch == self.state.epoch:
            have = {slot.part: slot.version for slot in self.state.of_home(message.home) if slot.number}
            self.state.send(sender, Tell(message.epoch, message.home, have, self.common))

    def collect(self, sender: str, message: Tell) -> None:
        """Take another server's answer: the versions of the parts that it has."""
        collecting = self._collecting.get(message.home)
        if message.epoch != self.state.epoch or collecting is None or sender not in collecting.unheard:
            return
        collecting.unheard.discard(sender)
        for part, version in message.parts.items():
            if version > collecting.best.get(part, ((-1, 0), ""))[0]:
                collecting.best[part] = (version, sender)
        self._try(message.home)

    def fetch(self, sender: str, message: Fetch) -> None:
        """Send a new primary the copy of a part that it asked for."""
        slot = self.state.slots.get(message.part)
        if message.epoch == self.state.epoch and slot is not None and slot.number and not slot.computing:
            self.state.send(sender, Copy(message.epoch, slot.record()))

    def copied(self, part: Part) -> None:
        """Note the arrival of a copy, which may be one that was asked for."""
        collecting = self._collecting.get(part.home)
        if collecting is not None and collecting.fetching is not None:
            collecting.fetching.discard(part)
            self._try(part.home)

    # -- roles -----------------------------------------------------------------------------------------

    def _hand_over(self, home: int, view: View) -> None:
        self.state.active.discard(home)
        moved = Refused("moved", f"{view.primary(home)} answers for home {home} since view {view.epoch}")
        for slot in self.state.of_home(home):
            self.state.refuse_all(slot, moved)
            self.steps.stand_down(slot)

    def _go_on(self, home: int, changed: bool) -> None:
        for slot in self.state.of_home(home):
            self.steps.evict(slot)
            if changed:
                self.steps.mirror(slot)
            else:
                self.steps.replicate(slot)
                self.steps.advance(slot)

    def _collect(self, home: int, view: View) -> None:
        self.state.active.discard(home)
        others = {server for server in view.servers if server is not None} - {self.state.me}
        self._collecting[home] = _Collecting(others)
        for server in sorted(others):
            self.state.send(server, Ask(view.epoch, home))

    def _try(self, home: int) -> None:
        collecting = self._collecting[home]
        if collecting.unheard or any(slot.computing for slot in self.state.of_home(home)):
            return
        if collecting.fetching is None:
            self._fetch(collecting)
        if not collecting.fetching:
            del self._collecting[home]
            self._activate(home)

    def _fetch(self, collecting: _Collecting) -> None:
        collecting.fetching = set()
        for part, (version, sender) in collecting.best.items():
            slot = self.state.slots.get(part)
            if slot is None or version > slot.version:
                collecting.fetching.add(part)
                self.state.send(sender, Fetch(self.state.epoch, part))

    def _activate(self, home: int) -> None:
        self.state.active.add(home)
        for slot in self.state.of_home(home):
            slot.step = None
            slot.term = max(self.state.epoch, slot.term + 1)
            self.steps.evict(slot)
            self.steps.mirror(slot)
