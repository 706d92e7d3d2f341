"""Recovery: taking over a home when servers join and leave.

The view determines the primary, but it may answer only once it has the newest state of every part. Therefore a new
primary asks all other servers of the view for their versions. By answering, a server also promises to accept nothing
for that home from an older view, so a former primary that does not know the new view yet cannot overtake the recovery.
Since every acknowledged step is on two servers, one of the answering servers has it.

Of two records of a part, the one with the later *term* (primary) is newer; within a term, the one with more steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowmx.kvstore.server.machine_state import State
from flowmx.kvstore.server.part_steps import Steps
from flowmx.kvstore.server.protocol import Ask, Copy, Fetch, Part, Refused, Tell, View

__all__ = ["Recovery"]


@dataclass
class _Takeover:
    """The pending answers and copies of a new primary of a home."""

    unanswered: set[str]
    newest: dict[Part, tuple[tuple[int, int], str]] = field(default_factory=dict)
    fetching: set[Part] | None = None


class Recovery:
    """The takeover of homes, and their handover to other servers."""

    def __init__(self, state: State, steps: Steps) -> None:
        self.state = state
        self.steps = steps
        self.common: tuple[int, Any] = (0, None)
        """The configuration that all servers share, with its version."""
        self._collecting: dict[int, _Takeover] = {}
        self._waiting_asks: list[tuple[str, Ask]] = []

    def view(self, view: View) -> None:
        """Take the roles of a new view."""
        state, old = self.state, self.state.view
        state.view = view
        self._collecting.clear()
        for home in range(len(view.servers)):
            if view.primary(home) != state.identity:
                self._hand_over(home, view)
            elif home in state.active and old is not None:
                self._continue(home, changed=old.backup(home) != view.backup(home))
            else:
                self._collect(home, view)
        self.resume()

    @property
    def is_waiting(self) -> bool:
        """True if requests or a recovery may proceed when a computation ends."""
        return bool(self._waiting_asks or self._collecting)

    def resume(self) -> None:
        """Resume requests and recoveries that waited for computations."""
        waiting, self._waiting_asks = self._waiting_asks, []
        for sender, ask in waiting:
            self.ask(sender, ask)
        for home in list(self._collecting):
            self._try_to_finish(home)

    def ask(self, sender: str, message: Ask) -> None:
        """Answer a new primary with the versions of all parts, once this server has the view and computes nothing."""
        computing = any(slot.computing for slot in self.state.of_home(message.home))
        if message.epoch > self.state.epoch or (message.epoch == self.state.epoch and computing):
            self._waiting_asks.append((sender, message))
        elif message.epoch == self.state.epoch:
            have = {slot.part: slot.version for slot in self.state.of_home(message.home) if slot.number}
            self.state.send(sender, Tell(message.epoch, message.home, have, self.common))

    def collect(self, sender: str, message: Tell) -> None:
        """Handle another server's response: the versions of its parts."""
        collecting = self._collecting.get(message.home)
        if message.epoch != self.state.epoch or collecting is None or sender not in collecting.unanswered:
            return
        collecting.unanswered.discard(sender)
        for part, version in message.parts.items():
            if version > collecting.newest.get(part, ((-1, 0), ""))[0]:
                collecting.newest[part] = (version, sender)
        self._try_to_finish(message.home)

    def fetch(self, sender: str, message: Fetch) -> None:
        """Send a requested copy of a part to a new primary."""
        slot = self.state.slots.get(message.part)
        if message.epoch == self.state.epoch and slot is not None and slot.number and not slot.computing:
            self.state.send(sender, Copy(message.epoch, slot.record()))

    def copied(self, part: Part) -> None:
        """Handle the arrival of a copy, which may have been requested."""
        collecting = self._collecting.get(part.home)
        if collecting is not None and collecting.fetching is not None:
            collecting.fetching.discard(part)
            self._try_to_finish(part.home)

    # -- roles -----------------------------------------------------------------------------------------

    def _hand_over(self, home: int, view: View) -> None:
        self.state.active.discard(home)
        refusal = Refused("moved", f"{view.primary(home)} answers for home {home} since view {view.epoch}")
        for slot in self.state.of_home(home):
            self.state.refuse_all(slot, refusal)
            self.steps.step_down(slot)

    def _continue(self, home: int, changed: bool) -> None:
        for slot in self.state.of_home(home):
            self.steps.evict(slot)
            if changed:
                self.steps.mirror(slot)
            else:
                self.steps.replicate(slot)
                self.steps.advance(slot)

    def _collect(self, home: int, view: View) -> None:
        self.state.active.discard(home)
        others = {server for server in view.servers if server is not None} - {self.state.identity}
        self._collecting[home] = _Takeover(others)
        for server in sorted(others):
            self.state.send(server, Ask(view.epoch, home))

    def _try_to_finish(self, home: int) -> None:
        collecting = self._collecting[home]
        if collecting.unanswered or any(slot.computing for slot in self.state.of_home(home)):
            return
        if collecting.fetching is None:
            self._fetch(collecting)
        if not collecting.fetching:
            del self._collecting[home]
            self._activate(home)

    def _fetch(self, collecting: _Takeover) -> None:
        collecting.fetching = set()
        for part, (version, sender) in collecting.newest.items():
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
