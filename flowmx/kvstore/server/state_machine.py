"""The state machine of one server: events in, effects out; no clock, no I/O, no arrays.

Each kind of event has a method: requests of workers, messages of other servers, views and finished computations. The
methods return lists of effects for the shell to carry out (see :mod:`flowmx.kvstore.server.protocol`). The other
modules of the machine are ``slot`` (a part's state), ``modes`` (when a push is applied), ``part_steps`` (how it is
applied and copied to a backup), ``rounds`` (the same for many parts at once) and ``recovery`` (which server answers for
which home).

These invariants hold under any delay, repetition, reordering and crash (``tests/kvstore/test_server_model.py``):

* A push is applied exactly once: it is identified by its worker, part and sequence number.
* Nothing is acknowledged or shown to a worker before two servers have it, as long as two are alive.
* Gradients of a round are summed in the order of their workers' ranks.
* A worker that has left or paused blocks no other worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from flowmx.kvstore.server.machine_state import State
from flowmx.kvstore.server.modes import Mode
from flowmx.kvstore.server.part_steps import Steps
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

__all__ = ["MAX_AHEAD", "Core"]

MAX_AHEAD = 4096
"""Maximum number of waiting pushes of a worker for a part: without a bound they could use unbounded memory."""

Inherit: TypeAlias = Callable[[], Record | Refused | None]
"""Returns the state of a part in an earlier job, if any."""

Act: TypeAlias = Callable[..., None]
"""Action on a request, called with the request and its part once this server answers for the part's home."""


class Core:
    """The state machine of one server.

    Args:
        identity: this server's identity in views; it changes with every restart.
        mode: the consistency mode, until a configuration sets another one.
        mode_of: returns the consistency mode of a configuration, or None.
    """

    def __init__(self, identity: str, mode: Mode, mode_of: Callable[[Any], Mode | None] = lambda config: None) -> None:
        self.state = State(identity, mode)
        self._mode_of = mode_of
        self.steps = Steps(self.state)
        self.rounds = Rounds(self.state, self.steps)
        self.recovery = Recovery(self.state, self.steps)
        self._parked: dict[Request, tuple[Part, Act, tuple[Any, ...]]] = {}

    # -- requests of workers ---------------------------------------------------------------------------

    def enrol(
        self, request: Request, worker: str, turn: int, part: Part, member: Member, value: object = None,
        inherit: Inherit | None = None,
    ) -> list[Effect]:  # fmt: skip
        """Count a worker from now on; the response is the number after which its pushes continue.

        Args:
            request: the request to answer.
            worker: the worker's identity.
            turn: counts this worker's enrolments, rests and loads, from 1.
            part: the part.
            member: the worker's rank, and the epoch in which it joined.
            value: the initial value. Later values are ignored; the response is delayed until there is a value.
            inherit: returns the state in an earlier job; called if the part has no value. A refusal becomes the
                answer.
        """
        steps = [] if value is None else [PartStep("create", value=value)]
        steps.append(PartStep("enrol", worker=worker, turn=turn, member=member))
        return self._request(request, part, self._enqueue_admin, steps, inherit)

    def rest(self, request: Request, worker: str, turn: int, part: Part) -> list[Effect]:
        """Stop counting a worker that pauses pushing; it returns with :meth:`enrol`."""
        return self._request(request, part, self._enqueue_admin, [PartStep("rest", worker=worker, turn=turn)])

    def load(self, request: Request, worker: str, turn: int, part: Part, loaded: object) -> list[Effect]:
        """Update the value by data other than a gradient; ``Update`` gets it in place of a merged gradient."""
        steps = [PartStep("load", worker=worker, turn=turn, merged=loaded)]
        return self._request(request, part, self._enqueue_admin, steps)

    def push(
        self, request: Request, worker: str, part: Part, sequence: int, gradient: object, acknowledged: int = 0
    ) -> list[Effect]:
        """Handle a push; it is answered once the gradient is in the value.

        Args:
            request: the request to answer.
            worker: the worker's identity.
            part: the part.
            sequence: the number of this push among the worker's pushes of the part.
            gradient: the gradient.
            acknowledged: the highest acknowledged number of this worker's pushes of the part.
        """
        return self._request(request, part, self._push, worker, sequence, gradient, acknowledged)

    def pushpull(
        self, request: Request, worker: str, part: Part, sequence: int, gradient: object, acknowledged: int = 0
    ) -> list[Effect]:
        """Handle a push, as :meth:`push`; the response is the value, once it is new enough for that worker."""
        return self._request(request, part, self._push, worker, sequence, gradient, acknowledged, True)

    def pull(self, request: Request, worker: str, part: Part, minimum: int, acknowledged: int = 0) -> list[Effect]:
        """Handle a pull; it is answered once the value is new enough for a worker whose last push is `minimum`."""
        return self._request(request, part, self._pull, worker, minimum, acknowledged)

    def push_all(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], sequences: Sequence[int],
        gradients: Sequence[object], acknowledged: Sequence[int], pulls: bool = False,
    ) -> list[Effect]:  # fmt: skip
        """Handle pushes of many parts, each as :meth:`push`, or as :meth:`pushpull` if `pulls`."""
        remaining = self.rounds.push(requests, worker, parts, sequences, gradients, acknowledged, pulls)
        for position in remaining:
            arguments = worker, sequences[position], gradients[position], acknowledged[position], pulls
            self._route(requests[position], parts[position], self._push, arguments)
        return self._effects()

    def pull_all(
        self, requests: Sequence[Request], worker: str, parts: Sequence[Part], minimum: Sequence[int],
        acknowledged: Sequence[int],
    ) -> list[Effect]:  # fmt: skip
        """Handle pulls of many parts, each as :meth:`pull`."""
        for position in self.rounds.pull(requests, worker, parts, minimum, acknowledged):
            self._route(
                requests[position], parts[position], self._pull, (worker, minimum[position], acknowledged[position])
            )
        return self._effects()

    def cancel(self, request: Request, part: Part) -> list[Effect]:
        """Drop a request whose caller no longer waits. A pushed gradient stays pushed."""
        self._parked.pop(request, None)
        if part in self.state.slots:
            self.state.slots[part].forget(request)
        return self._effects()

    def configure(self, request: Request, config: object) -> list[Effect]:
        """Use a configuration (mode and optimizer) for every update from now on."""
        self._configure(self.recovery.common[0] + 1, config)
        self.state.reply(request, Acknowledged(self.recovery.common[0]))
        return self._effects()

    # -- other events ----------------------------------------------------------------------------------

    def can_respond(self, home: int) -> bool:
        """Return whether requests for a home can be answered now: this server is active for it, or another one is."""
        view = self.state.view
        if view is None or home in self.state.active:
            return view is not None
        return home >= len(view.servers) or view.primary(home) != self.state.identity

    def view(self, view: View) -> list[Effect]:
        """Handle a view. Views that are not newer are ignored."""
        if view.epoch > self.state.epoch:
            self.recovery.view(view)
            self._retry_parked()
        return self._effects()

    def deliver(self, sender: str, message: Message) -> list[Effect]:
        """Handle a message of another server. Messages from views older than this server's are ignored.

        Their senders get the new view too, and then resend the messages that are still needed.
        """
        if message.epoch >= self.state.epoch:
            self._deliver(sender, message)
            self.recovery.resume()
            self._retry_parked()
        return self._effects()

    def merged(self, part: Part, ticket: int, merged: object) -> list[Effect]:
        """Handle the result of a :class:`~flowmx.kvstore.server.protocol.Merge`; return effects."""
        return self._on_computed(part, self.steps.merged, ticket, merged)

    def updated(self, part: Part, ticket: int, value: object) -> list[Effect]:
        """Handle the result of an :class:`~flowmx.kvstore.server.protocol.Update`; return effects."""
        return self._on_computed(part, self.steps.updated, ticket, value)

    def merged_all(self, parts: Sequence[Part], tickets: Sequence[int], merged: Sequence[object]) -> list[Effect]:
        """Handle the results of a :class:`~flowmx.kvstore.server.protocol.Merges`; return effects."""
        self.rounds.merged(parts, tickets, merged)
        return self._effects()

    def updated_all(self, parts: Sequence[Part], tickets: Sequence[int], values: Sequence[object]) -> list[Effect]:
        """Handle the results of an :class:`~flowmx.kvstore.server.protocol.Updates`; return effects."""
        self.rounds.updated(parts, tickets, values)
        self._resume_waiting()
        return self._effects()

    def failed(self, part: Part, ticket: int, why: str) -> list[Effect]:
        """Handle the error of a merge or an update; return effects."""
        return self._on_computed(part, self.steps.failed, ticket, why)

    def restore(self, records: Iterable[Record], common: tuple[int, Any] = (0, None)) -> list[Effect]:
        """Load a snapshot; call this before the first view.

        Raises:
            ValueError: the server has had a view.
        """
        if self.state.view is not None:
            raise ValueError("restore: a snapshot must be loaded before the first view")
        for record in records:
            self.state.slot(record.part).load(record)
        if common[0]:
            self._configure(*common)
        return self._effects()

    def record(self, part: Part) -> Record | None:
        """Return the snapshot's record of a part; None while its value is being updated."""
        slot = self.state.slots[part]
        return None if slot.updating else slot.record()

    # -- internals -------------------------------------------------------------------------------------

    def _request(self, request: Request, part: Part, act: Act, *arguments: object) -> list[Effect]:
        if part.home in self.state.active:
            act(request, part, *arguments)
        else:
            self._route(request, part, act, arguments)
        return self._effects()

    def _route(self, request: Request, part: Part, act: Act, arguments: tuple[object, ...]) -> None:
        view = self.state.view
        if view is not None and not 0 <= part.home < len(view.servers):
            self.state.reply(
                request, Refused("invalid", f"home {part.home} does not exist: the job has {len(view.servers)} servers")
            )
        elif part.home in self.state.active:
            act(request, part, *arguments)
        elif view is not None and view.primary(part.home) != self.state.identity:
            self.state.reply(request, Refused("moved", f"{view.primary(part.home)} answers for home {part.home}"))
        else:
            self._parked[request] = (part, act, arguments)

    def _retry_parked(self) -> None:
        if not self._parked:
            return
        parked, self._parked = self._parked, {}
        for request, (part, act, arguments) in parked.items():
            self._route(request, part, act, arguments)

    def _enqueue_admin(
        self, request: Request, part: Part, steps: list[PartStep], inherit: Inherit | None = None
    ) -> None:
        slot, last = self.state.slot(part), steps[-1]
        if inherit is not None and not slot.number:
            record = inherit()
            if isinstance(record, Refused):
                slot.error = record.text
                self.state.reply(request, record)
                return
            if record is not None:
                slot.load(record)
                slot.term = max(self.state.epoch, 0)
                self.steps.mirror(slot)
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
        gradient: object,
        acknowledged: int,
        pulls: bool = False,
    ) -> None:
        slot = self._find_slot(request, worker, part, acknowledged)
        if slot is None:
            return
        is_known = slot.has_push(worker, sequence)
        if not is_known and worker not in slot.counted:
            text = f"worker {worker} is not counted for key {part.key!r}: it left, rests, or never enrolled; call init"
            self.state.reply(request, Refused("not_counted", text))
            return
        if sequence > slot.marks.get(worker, 0) + MAX_AHEAD:
            text = f"key {part.key!r}: push {sequence} of worker {worker} is more than {MAX_AHEAD} ahead of its turn"
            self.state.reply(request, Refused("invalid", text))
            return
        if not is_known:
            slot.gradients[worker, sequence] = Pending(slot.counted[worker].rank, gradient)
        slot.pushes[request] = (worker, sequence)
        if pulls:
            slot.pulls[request] = (worker, sequence)
        self.steps.advance(slot)

    def _pull(self, request: Request, part: Part, worker: str, minimum: int, acknowledged: int) -> None:
        slot = self._find_slot(request, worker, part, acknowledged)
        if slot is not None:
            slot.pulls[request] = (worker, minimum)
            self.steps.advance(slot)

    def _find_slot(self, request: Request, worker: str, part: Part, acknowledged: int) -> Slot | None:
        """Return the slot of a part; refuse the request if the part has no value, or acknowledged pushes are lost."""
        slot = self.state.slots.get(part)
        if slot is None or not slot.number:
            self.state.reply(
                request, self._lost(part, worker, 0, acknowledged) if acknowledged else self._unknown(part)
            )
            return None
        if worker in slot.counted and acknowledged > (count := slot.marks.get(worker, 0)):
            self.state.reply(request, self._lost(part, worker, count, acknowledged))
            return None
        return slot

    def _lost(self, part: Part, worker: str, count: int, acknowledged: int) -> Refused:
        return Refused(
            "lost",
            f"key {part.key!r} has {count} pushes of worker {worker}, and {acknowledged} were acknowledged: the "
            "servers that had them are lost; restart from a checkpoint",
        )

    def _unknown(self, part: Part) -> Refused:
        slot = self.state.slots.get(part)
        if slot is not None and slot.error:
            return Refused("invalid", slot.error)
        return Refused(
            "not_initialized", f"key {part.key!r} (part {part.piece}) has no value here: call init with it first"
        )

    def _deliver(self, sender: str, message: Message) -> None:
        if isinstance(message, Ask):
            self.recovery.ask(sender, message)
        elif isinstance(message, Tell):
            self._handle_tell(sender, message)
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

    def _handle_tell(self, sender: str, message: Tell) -> None:
        if message.common[0] > self.recovery.common[0]:
            self._configure(*message.common)
        self.recovery.collect(sender, message)

    def _configure(self, version: int, config: Any) -> None:
        self.recovery.common = (version, config)
        self.state.mode = self._mode_of(config) or self.state.mode
        self.state.effects.append(Configure(config))

    def _on_computed(
        self, part: Part, handler: Callable[[Slot, int, Any], None], ticket: int, result: object
    ) -> list[Effect]:
        slot = self.state.slots.get(part)
        if slot is not None:
            handler(slot, ticket, result)
            self._resume_waiting()
        return self._effects()

    def _resume_waiting(self) -> None:
        if self.recovery.is_waiting:
            self.recovery.resume()
            self._retry_parked()

    def _effects(self) -> list[Effect]:
        effects, self.state.effects = self.state.effects, []
        return effects
