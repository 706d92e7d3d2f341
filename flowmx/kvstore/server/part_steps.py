"""Steps of a part: a part changes one step at a time; a step is computed, confirmed by the backup, and then visible.

A step is chosen when the part is idle. Its changes become visible only when its computation is done and the backup has
it; then all waiting requests are checked again, and the next step is chosen. Therefore everything that a worker has
received is on two servers, and a value is never read while it is being computed.
"""

from __future__ import annotations

from typing import Any

from flowmx.kvstore.server.machine_state import State
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

__all__ = ["Steps"]


class Steps:
    """Both roles in a step: the primary's and the backup's."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.primaries: dict[Part, tuple[str, int]] = {}
        """The primary of each part, and its epoch, to notify once the step that it sent is computed here."""

    # -- the primary -----------------------------------------------------------------------------------

    def advance(self, slot: Slot) -> None:
        """Answer the requests of an idle part that can be answered, and begin the next step, if any."""
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
        """Send the part to a new backup, unless a step in progress does so."""
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
        """Stop counting workers that have left, and refuse their pushes that can no longer be applied."""
        assert self.state.view is not None
        evicted_workers = slot.evict(self.state.view)
        for request, (worker, sequence) in list(slot.pushes.items()):
            if worker in evicted_workers and not slot.has_push(worker, sequence):
                slot.forget(request)
                self.state.reply(request, Refused("not_counted", f"worker {worker} is not in view {self.state.epoch}"))

    def replicate(self, slot: Slot) -> None:
        """Send the step in progress to the backup: the step itself, or a copy of the part if needed."""
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
        """Handle the backup's confirmation of a step or a copy."""
        step = slot.step
        if step is None or (sender, message.epoch) != (self.state.backup(slot.part), slot.sent_epoch):
            return
        if message.number == step.number:
            slot.mirrored = slot.confirmed = True
            self._finish(slot)
            self.advance(slot)

    def behind(self, slot: Slot, sender: str, message: Behind) -> None:
        """Send a copy to a backup that cannot apply the step."""
        if (sender, message.epoch) == (self.state.backup(slot.part), slot.sent_epoch) and not slot.confirmed:
            slot.mirrored = False
            self.replicate(slot)

    def _answer(self, slot: Slot) -> None:
        if slot.pushes:
            self._acknowledge(slot)
        if slot.pulls:
            self._show(slot)
        while slot.admin and slot.number and self._is_applied(slot, slot.admin[0].step):
            admin = slot.admin.popleft()
            self.state.reply(admin.request, Acknowledged(slot.marks.get(admin.step.worker, 0)))

    def _acknowledge(self, slot: Slot) -> None:
        marks = slot.marks
        for request, (worker, sequence) in list(slot.pushes.items()):
            if sequence <= marks.get(worker, 0):
                del slot.pushes[request]
                if request not in slot.pulls:  # a request that also waits for the value is answered with it
                    self.state.reply(request, Acknowledged(sequence))

    def _show(self, slot: Slot) -> None:
        may_pull = self.state.mode.may_pull
        for request, (worker, minimum) in list(slot.pulls.items()):
            if may_pull(slot, worker, minimum):
                del slot.pulls[request]
                self.state.reply(request, Content(slot.value, slot.round))

    def _is_applied(self, slot: Slot, step: PartStep) -> bool:
        return step.kind == "create" or step.turn <= slot.turns.get(step.worker, 0)

    def _next(self, slot: Slot) -> PartStep | None:
        number = slot.number + 1
        if not slot.number:
            # Workers that enrol before there is a value wait for the first one with a value.
            first = next((admin.step for admin in slot.admin if admin.step.kind == "create"), None)
            return None if first is None else first._replace(number=number)
        if slot.admin:
            step = slot.admin[0].step
            return step._replace(number=number, start=self.state.mode.start(slot, step.worker))
        marks = tuple(self.state.mode.choose(slot))
        return PartStep("update", number, marks=marks) if marks else None

    def _begin(self, slot: Slot, step: PartStep) -> None:
        slot.step, slot.confirmed = step, False
        if step.computes:
            slot.computing = True
            slot.ticket += 1
            self._compute(slot, step)
            return
        if step.kind == "create":
            slot.term = max(slot.term, self.state.epoch)  # later than a previous primary's term
        slot.apply(step)
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

    # -- results of computations -----------------------------------------------------------------------

    def merged(self, slot: Slot, ticket: int, merged: object) -> None:
        """Handle the sum of a step's gradients."""
        if ticket != slot.ticket or slot.step is None:
            return
        slot.step = slot.step._replace(merged=merged)
        self.state.effects.append(Update(slot.part, ticket, slot.value, merged))
        self.replicate(slot)

    def updated(self, slot: Slot, ticket: int, value: Any) -> None:
        """Handle the new value."""
        if ticket != slot.ticket or slot.step is None:
            return
        self.record_lag(slot, slot.step)
        slot.apply(slot.step)
        slot.value = value
        slot.computing = False
        if slot.part in self.primaries:
            slot.step = None
            sender, epoch = self.primaries.pop(slot.part)
            self.state.send(sender, Have(epoch, slot.part, slot.number))
        elif slot.part.home in self.state.active:
            if not slot.mirrored:
                self.replicate(slot)  # a copy, which had to wait for the value
            self._finish(slot)
            self.advance(slot)
        else:  # another server is the primary now, and asks for the part
            slot.step = None

    def failed(self, slot: Slot, ticket: int, why: str) -> None:
        """Mark a part as unusable after an error in its computation, since its value is undefined."""
        if ticket != slot.ticket:
            return
        slot.abandon_step()
        slot.error = why
        if slot.part in self.primaries:
            sender, epoch = self.primaries.pop(slot.part)
            self.state.send(sender, Behind(epoch, slot.part))
        self.advance(slot)

    def record_lag(self, slot: Slot, step: PartStep) -> None:
        """Record how far a step brings a worker ahead of the slowest."""
        slowest = slot.slowest()
        if step.marks and slowest is not None and slot.part.home in self.state.active:
            lag = max([sequence for _, sequence in step.marks]) - slowest
            self.state.largest_lag = max(self.state.largest_lag, lag)

    # -- the backup ------------------------------------------------------------------------------------

    def take_step(self, sender: str, message: StepSent) -> None:
        """Apply the primary's step, if it is the next one."""
        slot, step = self.state.slot(message.part), message.step
        running_step = slot.step.number if slot.computing and slot.step and slot.part in self.primaries else None
        if message.term == slot.term and step.number == running_step:
            epoch = max(message.epoch, self.primaries[slot.part][1])  # sent again after a change of the view
            self.primaries[slot.part] = (sender, epoch)
        elif message.term == slot.term and step.number <= slot.number:
            if step.number == slot.number:  # an older step is a repetition, confirmed before
                self.state.send(sender, Have(message.epoch, slot.part, slot.number))
        elif message.term != slot.term or not self._is_next(slot, step) or slot.computing or slot.error:
            self.state.send(sender, Behind(message.epoch, slot.part))
        elif not step.computes:
            slot.apply(step)
            self.state.send(sender, Have(message.epoch, slot.part, slot.number))
        else:
            slot.step, slot.computing = step, True
            slot.ticket += 1
            self.primaries[slot.part] = (sender, message.epoch)
            self.state.effects.append(Update(slot.part, slot.ticket, slot.value, step.merged))

    def _is_next(self, slot: Slot, step: PartStep) -> bool:
        return step.number == slot.number + 1 and (step.kind == "create") == (slot.number == 0)

    def step_down(self, slot: Slot) -> None:
        """Stop being the primary: drop the unacknowledged step, unless it is already in the value."""
        slot.mirrored = False
        if slot.step is None:
            return
        if not slot.computing:
            slot.step = None
        elif slot.step.merged is None:
            slot.abandon_step()

    def take_copy(self, sender: str, message: Copy) -> None:
        """Replace a part with another server's record, unless the part is at least as new.

        A copy may arrive twice, the second time much later; so the last one is not always the newest.
        """
        record, slot = message.record, self.state.slot(message.record.part)
        if (record.term, record.number) < slot.version or slot.part.home in self.state.active:
            return
        if (record.term, record.number) > slot.version or slot.error:
            self.primaries.pop(slot.part, None)
            slot.load(record)
        self.state.send(sender, Have(message.epoch, slot.part, slot.number))

    def _send(self, slot: Slot, target: str, message: StepSent | Copy) -> None:
        slot.sent_epoch = self.state.epoch
        self.state.send(target, message)
