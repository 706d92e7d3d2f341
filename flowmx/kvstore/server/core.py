"""The state machine of one server: events in, effects out; no clock, no I/O, no arrays.

Requests of workers, messages of other servers, views and finished computations go in by a method each; what the shell
is to do comes out as a list of effects (see :mod:`flowmx.kvstore.server.protocol`). The rest of the machine stands in
``slot`` (a part's state), ``modes`` (when a push is applied), ``steps`` (how it is applied and copied to a backup),
``rounds`` (the same for many parts at once) and ``recovery`` (who answers for what).

What holds, whatever is delayed, repeated, reordered or crashes (``tests/test_kvserver_model.py``):

* A push is applied exactly once: it is known by its worker, part and sequence number.
* Nothing is acknowledged or shown to a worker before two servers have it, as long as two are alive.
* Gradients of a round are summed in the order of their workers' ranks.
* A worker that left, or rests, holds nobody up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.protocol import (
    Acknowledged,
    Ask,
    Behind,
    Configure,
    Copy,
    Effect,
    Fetch,
    Have,
    Haves,
    Member,
    Message,
    Part,
    PartStep,
    Record,
    Refused,
    Request,
    StepSent,
    StepsSent,
    Tell,
    View,
)
from flowmx.kvstore.server.recovery import Recovery
from flowmx.kvstore.server.rounds import Rounds
from flowmx.kvstore.server.slot import Admin, Pending, Slot
from flowmx.kvstore.server.state import State
from flowmx.kvstore.server.steps import Steps

__all__ = ["MOST_AHEAD", "Core"]

MOST_AHEAD = 4096
"""Pushes of a worker for a part that may wait: numbers without end would take memory without end."""

Act: TypeAlias = Callable[..., None]
"""Action on a request, called with the request and its part once this server answers for the part's home."""


class Core:
    """One server.

    Args:
        me: this server's identity, as views have it; another one after every restart.
        mode: the kind of consistency, unless a configuration says otherwise.
        mode_of: reads the kind of consistency out of a configuration; None where it says nothing.
    """

    def __init__(self, me: str, mode: Mode, mode_of: Callable[[Any], Mode | None] = lambda config: None) -> None:
        self.state = State(me, mode)
        self._mode_of = mode_of
        self.steps = Steps(self.state)
        self.rounds = Rounds(self.state, self.steps)
        self.recovery = Recovery(self.state, self.steps)
        self._parked: dict[Request, tuple[Part, Act, tuple[Any, ...]]] = {}

    # -- requests of workers ---------------------------------------------------------------------------

    def enrol(
        self, request: Request, worker: str, turn: int, part: Part, member: Member, value: Any = None
    ) -> list[Effect]:
        """Let a worker count from now on; the answer is the number that its pushes continue from.

        Args:
            request: what the answer goes to.
            worker: the worker's identity.
            turn: counts this worker's enrolments, rests and loads, from 1.
            part: the part.
            member: the worker's rank, and the epoch in which it joined.
            value: the first value. One that comes later changes nothing; without any, the answer waits for it.
        """
        steps = [] if value is None else [PartStep("create", value=value)]
        steps.append(PartStep("enrol", worker=worker, turn=turn, member=member))
        return self._request(request, part, self._administer, steps)

    def rest(self, request: Request, worker: str, turn: int, part: Part) -> list[Effect]:
        """Stop counting a worker that has no more to push for now; it returns by :meth:`enrol`."""
        return self._request(request, part, self._administer, [PartStep("rest", worker=worker, turn=turn)])

    def load(self, request: Request, worker: str, turn: int, part: Part, loaded: Any) -> list[Effect]:
        """Update the value by something other than a gradient, which reaches ``Update`` as a merged gradient would."""
        steps = [PartStep("load", worker=worker, turn=turn, merged=loaded)]
        return self._request(request, part, self._administer, steps)

    def push(
        self, request: Request, worker: str, part: Part, sequence: int, gradient: Any, acknowledged: int = 0
    ) -> list[Effect]:
        """Take a gradient; it is answered once it is in the value.

        Args:
            request: what the answer goes to.
            worker: the worker's identity.
            part: the part.
            sequence: the number of this push among the worker's pushes of the part.
            gradient: the gradient.
            acknowledged: the highest number of this worker's pushes of the part that was acknowledged.
        """
        return self._request(request, part, self._push, worker, sequence, gradient, acknowledged)

    def pushpull(
        self, request: Request, worker: str, part: Part, sequence: int, gradient: Any, acknowledged: int = 0
    ) -> list[Effect]:
        """Take a gradient, as :meth:`push`; the answer is the value, once it is new enough for that worker."""
        return self._request(request, part, self._push, worker, sequence, gradient, acknowledged, True)

    def pull(self, request: Request, worker: str, part: Part, wanted: int, acknowledged: int = 0) -> list[Effect]:
        """Ask for the value; it is answered once it is new enough for a worker whose last push was number `wanted`."""
        return self._request(request, part, self._pull, worker, wanted, acknowledged)

    def push_all(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], sequences: Sequence[int],
        gradients: Sequence[Any], acknowledged: Sequence[int], pulls: bool = False,
    ) -> list[Effect]:  # fmt: skip
        """As :meth:`push` for each of many parts, or :meth:`pushpull` if `pulls`."""
        left = self.rounds.push(requests, worker, parts, sequences, gradients, acknowledged, pulls)
        for i in left:
            arguments = worker, sequences[i], gradients[i], acknowledged[i], pulls
            self._route(requests[i], parts[i], self._push, arguments)
        return self._effects()

    def pull_all(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], wanted: Sequence[int],
        acknowledged: Sequence[int],
    ) -> list[Effect]:  # fmt: skip
        """As :meth:`pull` for each of many parts."""
        for i in self.rounds.pull(requests, worker, parts, wanted, acknowledged):
            self._route(requests[i], parts[i], self._pull, (worker, wanted[i], acknowledged[i]))
        return self._effects()

    def cancel(self, request: Request, part: Part) -> list[Effect]:
        """Drop a request whose caller no longer waits. What was pushed stays pushed."""
        self._parked.pop(request, None)
        if part in self.state.slots:
            self.state.slots[part].forget(request)
        return self._effects()

    def configure(self, request: Request, config: Any) -> list[Effect]:
        """Use a configuration (the mode, the optimizer) for every update from now on."""
        self._configure(self.recovery.common[0] + 1, config)
        self.state.reply(request, Acknowledged(self.recovery.common[0]))
        return self._effects()

    # -- everything else -------------------------------------------------------------------------------

    def is_settled(self, home: int) -> bool:
        """Tell whether requests for a home can be handled now: this server answers for it, or another one does."""
        view = self.state.view
        if view is None or home in self.state.active:
            return view is not None
        return home >= len(view.servers) or view.primary(home) != self.state.me

    def view(self, view: View) -> list[Effect]:
        """Take a view. Older ones, and the same again, are ignored."""
        if view.epoch > self.state.epoch:
            self.recovery.view(view)
            self._unpark()
        return self._effects()

    def deliver(self, sender: str, message: Message) -> list[Effect]:
        """Take a message of another server. One from a view older than this server's own is ignored.

        Its sender gets to know the new view too, and then sends what still matters again.
        """
        if message.epoch >= self.state.epoch:
            self._deliver(sender, message)
            self.recovery.look()
            self._unpark()
        return self._effects()

    def merged(self, part: Part, ticket: int, merged: Any) -> list[Effect]:
        """Take the result of a :class:`~flowmx.kvstore.server.protocol.Merge`; returns effects."""
        return self._computed(part, self.steps.merged, ticket, merged)

    def updated(self, part: Part, ticket: int, value: Any) -> list[Effect]:
        """Take the result of an :class:`~flowmx.kvstore.server.protocol.Update`; returns effects."""
        return self._computed(part, self.steps.updated, ticket, value)

    def merged_all(self, parts: Sequence[Part], tickets: Sequence[int], merged: Sequence[Any]) -> list[Effect]:
        """Take the results of a :class:`~flowmx.kvstore.server.protocol.Merges`; returns effects."""
        self.rounds.merged(parts, tickets, merged)
        return self._effects()

    def updated_all(self, parts: Sequence[Part], tickets: Sequence[int], values: Sequence[Any]) -> list[Effect]:
        """Take the results of an :class:`~flowmx.kvstore.server.protocol.Updates`; returns effects."""
        self.rounds.updated(parts, tickets, values)
        self._look_again()
        return self._effects()

    def failed(self, part: Part, ticket: int, why: str) -> list[Effect]:
        """Take the error of a merge or an update; returns effects."""
        return self._computed(part, self.steps.failed, ticket, why)

    def restore(self, records: Iterable[Record], common: tuple[int, Any] = (0, None)) -> list[Effect]:
        """Load a snapshot, before the first view.

        Raises:
            ValueError: there has been a view.
        """
        if self.state.view is not None:
            raise ValueError("restore: a server takes a snapshot before its first view, not in the middle of a job")
        for record in records:
            self.state.slot(record.part).load(record)
        if common[0]:
            self._configure(*common)
        return self._effects()

    def record(self, part: Part) -> Record | None:
        """The snapshot's record of a part; None while its value is being updated."""
        slot = self.state.slots[part]
        return None if slot.updating else slot.record()

    # -- within ----------------------------------------------------------------------------------------

    def _request(self, request: Request, part: Part, act: Act, *arguments: Any) -> list[Effect]:
        if part.home in self.state.active:
            act(request, part, *arguments)
        else:
            self._route(request, part, act, arguments)
        return self._effects()

    def _route(self, request: Request, part: Part, act: Act, arguments: tuple[Any, ...]) -> None:
        view = self.state.view
        if view is not None and not 0 <= part.home < len(view.servers):
            self.state.reply(request, Refused("invalid", f"there is no home {part.home}, only {len(view.servers)}"))
        elif part.home in self.state.active:
            act(request, part, *arguments)
        elif view is not None and view.primary(part.home) != self.state.me:
            self.state.reply(request, Refused("moved", f"{view.primary(part.home)} answers for home {part.home}"))
        else:
            self._parked[request] = (part, act, arguments)

    def _unpark(self) -> None:
        if not self._parked:
            return
        parked, self._parked = self._parked, {}
        for request, (part, act, arguments) in parked.items():
            self._route(request, part, act, arguments)

    def _administer(self, request: Request, part: Part, steps: list[PartStep]) -> None:
        slot, last = self.state.slot(part), steps[-1]
        if last.kind != "enrol" and not slot.number:
            self.state.reply(request, self._unknown(part))
        elif last.member is not None and self._has_left(last.worker, last.member):
            self.state.reply(request, Refused("not_counted", f"worker {last.worker} is not in view {self.state.epoch}"))
        else:
            slot.admin.extend(Admin(step, request if step is last else None) for step in steps)
            self.steps.advance(slot)

    def _has_left(self, worker: str, member: Member) -> bool:
        view = self.state.view
        return view is not None and worker not in view.workers and member.joined <= view.epoch

    def _push(
        self,
        request: Request,
        part: Part,
        worker: str,
        sequence: int,
        gradient: Any,
        acknowledged: int,
        pulls: bool = False,
    ) -> None:
        slot = self._existing(request, worker, part, acknowledged)
        if slot is None:
            return
        known = slot.knows(worker, sequence)
        if not known and worker not in slot.counted:
            text = f"worker {worker} does not count for key {part.key!r}: it left, rests, or never enrolled; init first"
            self.state.reply(request, Refused("not_counted", text))
            return
        if sequence > slot.marks.get(worker, 0) + MOST_AHEAD:
            text = f"key {part.key!r}: push {sequence} of worker {worker} is more than {MOST_AHEAD} ahead of its turn"
            self.state.reply(request, Refused("invalid", text))
            return
        if not known:
            slot.gradients[worker, sequence] = Pending(slot.counted[worker].rank, gradient)
        slot.pushes[request] = (worker, sequence)
        if pulls:
            slot.pulls[request] = (worker, sequence)
        self.steps.advance(slot)

    def _pull(self, request: Request, part: Part, worker: str, wanted: int, acknowledged: int) -> None:
        slot = self._existing(request, worker, part, acknowledged)
        if slot is not None:
            slot.pulls[request] = (worker, wanted)
            self.steps.advance(slot)

    def _existing(self, request: Request, worker: str, part: Part, acknowledged: int) -> Slot | None:
        """The slot of a part; where there is none, or it has lost something, the request is refused."""
        slot = self.state.slots.get(part)
        if slot is None or not slot.number:
            self.state.reply(
                request, self._lost(part, worker, 0, acknowledged) if acknowledged else self._unknown(part)
            )
            return None
        if worker in slot.counted and acknowledged > (have := slot.marks.get(worker, 0)):
            self.state.reply(request, self._lost(part, worker, have, acknowledged))
            return None
        return slot

    def _lost(self, part: Part, worker: str, have: int, acknowledged: int) -> Refused:
        return Refused(
            "lost",
            f"key {part.key!r} has {have} pushes of worker {worker}, which was told of {acknowledged}: the servers "
            "that had them are gone; start again from a checkpoint",
        )

    def _unknown(self, part: Part) -> Refused:
        return Refused(
            "not_initialized", f"key {part.key!r} (part {part.piece}) has no value here: call init with it first"
        )

    def _deliver(self, sender: str, message: Message) -> None:
        if isinstance(message, Ask):
            self.recovery.ask(sender, message)
        elif isinstance(message, Tell):
            self._learn(sender, message)
        elif isinstance(message, Fetch):
            self.recovery.fetch(sender, message)
        elif isinstance(message, StepSent):
            self.steps.take_step(sender, message)
        elif isinstance(message, StepsSent):
            self.rounds.take_steps(sender, message)
        elif isinstance(message, Haves):
            self.rounds.have(sender, message)
        elif isinstance(message, Copy):
            self.steps.take_copy(sender, message)
            self.recovery.copied(message.record.part)
        elif message.part in self.state.slots and message.part.home in self.state.active:
            slot = self.state.slots[message.part]
            if isinstance(message, Have):
                self.steps.have(slot, sender, message)
            elif isinstance(message, Behind):
                self.steps.behind(slot, sender, message)

    def _learn(self, sender: str, message: Tell) -> None:
        if message.common[0] > self.recovery.common[0]:
            self._configure(*message.common)
        self.recovery.collect(sender, message)

    def _configure(self, version: int, config: Any) -> None:
        self.recovery.common = (version, config)
        self.state.mode = self._mode_of(config) or self.state.mode
        self.state.effects.append(Configure(config))

    def _computed(self, part: Part, act: Callable[[Slot, int, Any], None], ticket: int, found: Any) -> list[Effect]:
        slot = self.state.slots.get(part)
        if slot is not None:
            act(slot, ticket, found)
            self._look_again()
        return self._effects()

    def _look_again(self) -> None:
        if self.recovery.waits:
            self.recovery.look()
            self._unpark()

    def _effects(self) -> list[Effect]:
        effects, self.state.effects = self.state.effects, []
        return effects
