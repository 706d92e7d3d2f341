"""Rounds of many parts at once: the common case of a request for many parts in mode ``sync``.

Parts in the usual state, idle and missing only this push, take their steps in one loop, with one effect and one message
for all of them. Any other part takes its step alone through :mod:`part_steps`, with the same result: both use the same
state of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.kvstore.server.machine_state import State
from flowmx.kvstore.server.modes import Sync
from flowmx.kvstore.server.part_steps import Steps
from flowmx.kvstore.server.protocol import (
    Acknowledged,
    Content,
    Have,
    Haves,
    Merges,
    Part,
    PartStep,
    Replies,
    Request,
    Response,
    StepSent,
    StepsSent,
    Updates,
)
from flowmx.kvstore.server.slot import Pending, Slot

__all__ = ["Rounds"]


class Rounds:
    """The steps of many parts.

    Args:
        state: the state of the state machine.
        steps: takes the steps of single parts.
    """

    def __init__(self, state: State, steps: Steps) -> None:
        self.state = state
        self.steps = steps

    # -- requests --------------------------------------------------------------------------------------

    def push(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], numbers: Sequence[int],
        gradients: Sequence[object], acknowledged: Sequence[int], pulls: bool,
    ) -> list[int]:  # fmt: skip
        """Handle pushes, and begin the rounds that they complete.

        Returns:
            The positions of the pushes that were not handled.
        """
        if not isinstance(self.state.mode, Sync):
            return list(range(len(parts)))
        slots, active = self.state.slots, self.state.active
        merges, remaining = Merges([], [], []), []
        for position, (part, number, acknowledged_number) in enumerate(zip(parts, numbers, acknowledged, strict=True)):
            slot, push = slots.get(part), (worker, number)
            if slot is None or part.home not in active or not _is_next(slot, push, acknowledged_number):
                remaining.append(position)
                continue
            request = requests[position]
            slot.gradients[push] = Pending(slot.counted[worker].rank, gradients[position])
            slot.pushes[request] = push
            if pulls:
                slot.pulls[request] = push
            if len(slot.gradients) >= len(slot.counted):
                self._begin(slot, number, merges)
        if merges.parts:
            self.state.effects.append(merges)
        return remaining

    def pull(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], minimum: Sequence[int],
        acknowledged: Sequence[int],
    ) -> list[int]:  # fmt: skip
        """Answer requests for values, or queue them.

        Returns:
            The positions of the requests that were not handled.
        """
        if not isinstance(self.state.mode, Sync):
            return list(range(len(parts)))
        slots, active = self.state.slots, self.state.active
        responses: list[tuple[Request, Response]] = []
        remaining = []
        for position, (part, number, acknowledged_number) in enumerate(zip(parts, minimum, acknowledged, strict=True)):
            slot = slots.get(part)
            if (
                slot is None
                or part.home not in active
                or not _is_usable(slot)
                or acknowledged_number > slot.marks.get(worker, 0)
            ):
                remaining.append(position)
            elif slot.step is None and slot.round >= number:
                responses.append((requests[position], Content(slot.value, slot.round)))
            else:
                slot.pulls[requests[position]] = (worker, number)
        self._reply(responses)
        return remaining

    def _begin(self, slot: Slot, number: int, merges: Merges) -> None:
        """Begin a round that may be complete."""
        gradients = slot.gradients
        marks = tuple([(worker, number) for worker in slot.counted])  # in the order of ranks
        if gradients.keys() != set(marks):  # a worker is ahead, or has left
            self.steps.advance(slot)
            return
        pending = [gradients[push] for push in marks]
        gradients.clear()
        slot.step = PartStep("update", slot.number + 1, "", 0, None, 0, None, None, marks)
        slot.confirmed, slot.computing = False, True
        slot.ticket += 1
        merges.parts.append(slot.part)
        merges.tickets.append(slot.ticket)
        merges.gradients.append([gradient for _, gradient in pending])

    # -- results of computations ----------------------------------------------------------------------

    def merged(self, parts: Sequence[Part], tickets: Sequence[int], merged: Sequence[object]) -> None:
        """Handle the sums of many steps."""
        slots, state = self.state.slots, self.state
        updates = Updates([], [], [], [])
        messages: dict[str, StepsSent] = {}
        for part, ticket, total in zip(parts, tickets, merged, strict=True):
            slot = slots[part]
            step = slot.step
            if ticket != slot.ticket or step is None:
                continue
            step = slot.step = PartStep("update", step.number, "", 0, None, 0, None, total, step.marks)
            _add(updates, slot, total)
            backup = state.backup(part)
            if backup is None:
                slot.confirmed = True
            elif slot.mirrored and not slot.confirmed:
                slot.sent_epoch = state.epoch
                if backup not in messages:
                    messages[backup] = StepsSent(state.epoch, [], [], [])
                message = messages[backup]
                message.parts.append(part)
                message.terms.append(slot.term)
                message.steps.append(step)
        self._update(updates)
        for backup, message in messages.items():
            state.send(backup, message)

    def updated(self, parts: Sequence[Part], tickets: Sequence[int], values: Sequence[object]) -> None:
        """Handle the new values of many parts."""
        slots, state, primaries = self.state.slots, self.state, self.steps.primaries
        responses: list[tuple[Request, Response]] = []
        confirmations: dict[tuple[str, int], Haves] = {}
        for part, ticket, value in zip(parts, tickets, values, strict=True):
            slot = slots[part]
            step = slot.step
            if ticket != slot.ticket or step is None:
                continue
            primary = primaries.get(part)
            if primary is None and (part.home not in state.active or not (slot.mirrored or slot.confirmed)):
                self.steps.updated(slot, ticket, value)
                continue
            if primary is None and not state.largest_lag:  # in rounds the lag is 1 after the first one
                self.steps.record_lag(slot, step)
            slot.apply(step)
            slot.value = value
            slot.computing = False
            if primary is not None:
                del primaries[part]
                slot.step = None
                message = confirmations.setdefault(primary, Haves(primary[1], [], []))
                message.parts.append(part)
                message.numbers.append(slot.number)
            elif slot.confirmed:
                self._complete(slot, responses)
        for (primary_name, _), message in confirmations.items():
            state.send(primary_name, message)
        self._reply(responses)

    def _complete(self, slot: Slot, responses: list[tuple[Request, Response]]) -> None:
        """Complete a step: answer the requests that waited for it, and begin the next step, if any."""
        slot.step = None
        if slot.admin or slot.error or not isinstance(self.state.mode, Sync):
            self.steps.advance(slot)
            return
        pulls, marks = slot.pulls, slot.marks
        for request, (worker, sequence) in list(slot.pushes.items()):
            if sequence <= marks.get(worker, 0):
                del slot.pushes[request]
                if request not in pulls:  # a request that also waits for the value is answered with it
                    responses.append((request, Acknowledged(sequence)))
        content = Content(slot.value, slot.round)
        for request, (_, minimum) in list(pulls.items()):
            if slot.round >= minimum:
                del pulls[request]
                responses.append((request, content))
        if len(slot.gradients) >= len(slot.counted):
            self._reply(responses)  # before the value changes
            responses.clear()
            self.steps.advance(slot)

    # -- copies ----------------------------------------------------------------------------------------

    def take_steps(self, sender: str, message: StepsSent) -> None:
        """On the backup: apply the primary's steps, all at once if they are the next steps of their parts."""
        slots, primary = self.state.slots, (sender, message.epoch)
        updates = Updates([], [], [], [])
        for part, term, step in zip(message.parts, message.terms, message.steps, strict=True):
            slot = slots.get(part)
            if slot is None or slot.term != term or not self._may_follow(slot, step):
                self.steps.take_step(sender, StepSent(message.epoch, part, term, step))
                continue
            slot.step, slot.computing = step, True
            slot.ticket += 1
            self.steps.primaries[part] = primary
            _add(updates, slot, step.merged)
        self._update(updates)

    def _may_follow(self, slot: Slot, step: PartStep) -> bool:
        follows = step.number == slot.number + 1 and step.kind == "update"
        return follows and not slot.computing and _is_usable(slot)

    def have(self, sender: str, message: Haves) -> None:
        """On the primary: handle the backup's confirmation of steps."""
        slots, state = self.state.slots, self.state
        responses: list[tuple[Request, Response]] = []
        for part, number in zip(message.parts, message.numbers, strict=True):
            slot = slots.get(part)
            if slot is None or part.home not in state.active:
                continue
            step = slot.step
            if (
                step is None or step.number != number or step.kind != "update" or slot.computing
                or slot.sent_epoch != message.epoch or state.backup(part) != sender
            ):  # fmt: skip
                self.steps.have(slot, sender, Have(message.epoch, part, number))
                continue
            slot.mirrored = slot.confirmed = True
            self._complete(slot, responses)
        self._reply(responses)

    def _update(self, updates: Updates) -> None:
        if updates.parts:
            self.state.effects.append(updates)

    def _reply(self, responses: list[tuple[Request, Response]]) -> None:
        if responses:
            self.state.effects.append(Replies(list(responses)))


def _is_usable(slot: Slot) -> bool:
    return slot.number > 0 and not slot.error


def _is_next(slot: Slot, push: tuple[str, int], acknowledged: int) -> bool:
    """Return whether a push is the next one of an idle part in the usual state."""
    worker, number = push
    current = slot.round
    return (
        slot.step is None and number == current + 1 and acknowledged <= current and worker in slot.counted
        and slot.marks.get(worker, 0) == current and push not in slot.gradients and not slot.admin and _is_usable(slot)
    )  # fmt: skip


def _add(updates: Updates, slot: Slot, merged: object) -> None:
    updates.parts.append(slot.part)
    updates.tickets.append(slot.ticket)
    updates.values.append(slot.value)
    updates.merged.append(merged)
