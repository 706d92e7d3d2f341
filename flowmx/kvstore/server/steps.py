"""Steps of a part: changed one step at a time, computed here, confirmed by the backup, and only then visible.

A step is chosen when the part is idle. Its changes become visible only when its computation is done and the backup has
it; then all waiting requests are looked at again, and the next step is chosen. So whatever a worker was sent is in two
places, and a value is never read while it is being computed.
"""

from __future__ import annotations

from typing import Any

from flowmx.kvstore.server.protocol import (
    Acknowledged,
    Behind,
    Content,
    Copy,
    Have,
    Merge,
    Part,
    PartStep,
    Refused,
    StepSent,
    Update,
)
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.state import State

__all__ = ["Steps"]


class Steps:
    """Both roles in a step: the primary's and the backup's."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tell: dict[Part, tuple[str, int]] = {}
        """The primary, and its epoch, to tell once the step that it sent is computed here."""

    # -- the primary -----------------------------------------------------------------------------------

    def advance(self, slot: Slot) -> None:
        """Answer what can be answered at an idle part, and begin the next step if there is one."""
        while slot.step is None and slot.part.home in self.state.active:
            if slot.error:
                self.state.refuse_all(slot, Refused("update_failed", slot.error))
                return
            self._answer(slot)
            step = self._next(slot)
            if step is None:
                return
            self._begin(slot, step)

    def mirror(self, slot: Slot) -> None:
        """Bring a backup that knows nothing of the part up to date, unless a step in progress does so anyway."""
        slot.mirrored = False
        if slot.error or not slot.number:
            return
        slot.confirmed = False
        if slot.step is None:
            slot.step = PartStep("mirror", slot.number)
        self.replicate(slot)
        self._finish(slot)
        self.advance(slot)

    def evict(self, slot: Slot) -> None:
        """Stop counting workers that have left, and refuse their pushes that can not be applied any more."""
        assert self.state.view is not None
        evicted = slot.evict(self.state.view)
        for request, (worker, sequence) in list(slot.pushes.items()):
            if worker in evicted and not slot.knows(worker, sequence):
                slot.forget(request)
                self.state.reply(request, Refused("not_counted", f"worker {worker} is not in view {self.state.epoch}"))

    def replicate(self, slot: Slot) -> None:
        """Send the step in progress to the backup: the step itself, or all of the part where that would not do."""
        step, backup = slot.step, self.state.backup(slot.part)
        if step is None or slot.confirmed:
            return
        if backup is None:
            slot.confirmed = True
        elif slot.mirrored and step.kind != "mirror":
            if not step.computes or step.merged is not None:
                self._send(slot, backup, StepSent(self.state.epoch, slot.part, slot.term, step))
        elif not slot.computing:
            self._send(slot, backup, Copy(self.state.epoch, slot.record()))

    def have(self, slot: Slot, sender: str, message: Have) -> None:
        """Take the backup's confirmation of a step or a copy."""
        step = slot.step
        if step is None or (sender, message.epoch) != (self.state.backup(slot.part), slot.sent_epoch):
            return
        if message.number == step.number:
            slot.mirrored = slot.confirmed = True
            self._finish(slot)
            self.advance(slot)

    def behind(self, slot: Slot, sender: str, message: Behind) -> None:
        """Send a copy to a backup that can not take the step."""
        if (sender, message.epoch) == (self.state.backup(slot.part), slot.sent_epoch) and not slot.confirmed:
            slot.mirrored = False
            self.replicate(slot)

    def _answer(self, slot: Slot) -> None:
        if slot.pushes:
            self._acknowledge(slot)
        if slot.pulls:
            self._show(slot)
        while slot.admin and slot.number and self._is_done(slot, slot.admin[0].step):
            admin = slot.admin.popleft()
            self.state.reply(admin.request, Acknowledged(slot.marks.get(admin.step.worker, 0)))

    def _acknowledge(self, slot: Slot) -> None:
        marks = slot.marks
        for request, (worker, sequence) in list(slot.pushes.items()):
            if sequence <= marks.get(worker, 0):
                del slot.pushes[request]
                if request not in slot.pulls:  # who waits for the value too is answered by that
                    self.state.reply(request, Acknowledged(sequence))

    def _show(self, slot: Slot) -> None:
        may_pull = self.state.mode.may_pull
        for request, (worker, wanted) in list(slot.pulls.items()):
            if may_pull(slot, worker, wanted):
                del slot.pulls[request]
                self.state.reply(request, Content(slot.value, slot.round))

    def _is_done(self, slot: Slot, step: PartStep) -> bool:
        return step.kind == "create" or step.turn <= slot.turns.get(step.worker, 0)

    def _next(self, slot: Slot) -> PartStep | None:
        number = slot.number + 1
        if not slot.number:
            # Those who enrol before there is a value wait for the first who brings one.
            first = next((admin.step for admin in slot.admin if admin.step.kind == "create"), None)
            return None if first is None else first._replace(number=number)
        if slot.admin:
            step = slot.admin[0].step
            return step._replace(number=number, start=self.state.mode.start(slot, step.worker))
        chosen = tuple(self.state.mode.choose(slot))
        return PartStep("update", number, marks=chosen) if chosen else None

    def _begin(self, slot: Slot, step: PartStep) -> None:
        slot.step, slot.confirmed = step, False
        if step.computes:
            slot.computing = True
            slot.ticket += 1
            self._compute(slot, step)
            return
        if step.kind == "create":
            slot.term = max(slot.term, self.state.epoch)  # later than if another primary created the part before
        slot.take(step)
        self.replicate(slot)
        self._finish(slot)

    def _compute(self, slot: Slot, step: PartStep) -> None:
        if step.kind == "load":
            self.merged(slot, slot.ticket, step.merged)
        else:
            gradients = [slot.gradients.pop(push).gradient for push in step.marks]
            self.state.effects.append(Merge(slot.part, slot.ticket, gradients))

    def _finish(self, slot: Slot) -> None:
        if slot.confirmed and not slot.computing:
            slot.step = None

    # -- what is computed ------------------------------------------------------------------------------

    def merged(self, slot: Slot, ticket: int, merged: Any) -> None:
        """Take the sum of a step's gradients."""
        if ticket != slot.ticket or slot.step is None:
            return
        slot.step = slot.step._replace(merged=merged)
        self.state.effects.append(Update(slot.part, ticket, slot.value, merged))
        self.replicate(slot)

    def updated(self, slot: Slot, ticket: int, value: Any) -> None:
        """Take the new value."""
        if ticket != slot.ticket or slot.step is None:
            return
        self.measure_lag(slot, slot.step)
        slot.take(slot.step)
        slot.value = value
        slot.computing = False
        if slot.part in self.tell:
            slot.step = None
            sender, epoch = self.tell.pop(slot.part)
            self.state.send(sender, Have(epoch, slot.part, slot.number))
        elif slot.part.home in self.state.active:
            if not slot.mirrored:
                self.replicate(slot)  # a copy, which had to wait for the value
            self._finish(slot)
            self.advance(slot)
        else:  # another server has become the primary meanwhile, and asks for it
            slot.step = None

    def failed(self, slot: Slot, ticket: int, why: str) -> None:
        """Mark a part whose computation raised as unusable, since its value is unknown."""
        if ticket != slot.ticket:
            return
        slot.give_up()
        slot.error = why
        if slot.part in self.tell:
            sender, epoch = self.tell.pop(slot.part)
            self.state.send(sender, Behind(epoch, slot.part))
        self.advance(slot)

    def measure_lag(self, slot: Slot, step: PartStep) -> None:
        """Note by how much a step brings a worker ahead of the slowest."""
        slowest = slot.slowest()
        if step.marks and slowest is not None and slot.part.home in self.state.active:
            lag = max([sequence for _, sequence in step.marks]) - slowest
            self.state.largest_lag = max(self.state.largest_lag, lag)

    # -- the backup ------------------------------------------------------------------------------------

    def take_step(self, sender: str, message: StepSent) -> None:
        """Take the primary's step, if it is the next one."""
        slot, step = self.state.slot(message.part), message.step
        busy_with = slot.step.number if slot.computing and slot.step and slot.part in self.tell else None
        if message.term == slot.term and step.number == busy_with:
            epoch = max(message.epoch, self.tell[slot.part][1])  # sent once more, since the view has changed
            self.tell[slot.part] = (sender, epoch)
        elif message.term == slot.term and step.number <= slot.number:
            if step.number == slot.number:  # what is older was confirmed long ago, and comes a second time
                self.state.send(sender, Have(message.epoch, slot.part, slot.number))
        elif message.term != slot.term or not self._is_next(slot, step) or slot.computing or slot.error:
            self.state.send(sender, Behind(message.epoch, slot.part))
        elif not step.computes:
            slot.take(step)
            self.state.send(sender, Have(message.epoch, slot.part, slot.number))
        else:
            slot.step, slot.computing = step, True
            slot.ticket += 1
            self.tell[slot.part] = (sender, message.epoch)
            self.state.effects.append(Update(slot.part, slot.ticket, slot.value, step.merged))

    def _is_next(self, slot: Slot, step: PartStep) -> bool:
        return step.number == slot.number + 1 and (step.kind == "create") == (slot.number == 0)

    def stand_down(self, slot: Slot) -> None:
        """Another server is the primary now: drop unacknowledged steps, but for those already in the value."""
        slot.mirrored = False
        if slot.step is None:
            return
        if not slot.computing:
            slot.step = None
        elif slot.step.merged is None:
            slot.give_up()

    def take_copy(self, sender: str, message: Copy) -> None:
        """Take another server's record in place of what is here, unless that is as new or newer.

        A copy may come twice, the second time long after; so the last word is not always the newest.
        """
        record, slot = message.record, self.state.slot(message.record.part)
        if (record.term, record.number) < slot.version or slot.part.home in self.state.active:
            return
        if (record.term, record.number) > slot.version or slot.error:
            self.tell.pop(slot.part, None)
            slot.load(record)
        self.state.send(sender, Have(message.epoch, slot.part, slot.number))

    def _send(self, slot: Slot, to: str, message: StepSent | Copy) -> None:
        slot.sent_epoch = self.state.epoch
        self.state.send(to, message)
