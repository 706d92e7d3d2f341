"""A simulated machine: devices, their streams, one clock, one race checker, and how their work is carried out.

Work is either carried out when it is launched, as the serial program would, or *deferred*: it stays in its stream's
queue until the host waits for it, and which stream goes on next is drawn from a seed. Deferred work runs on memory
that its launch looked up, without keeping it alive, as a device does: where an operation forgot to wait, or memory
was handed out too early, wrong numbers come out.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowmx.devices.sim.clock import Clock, Event, Span
from flowmx.devices.sim.races import Clock as VectorClock
from flowmx.devices.sim.races import RaceChecker, Uses, clock_of, label, merge
from flowmx.devices.streams import HOST, Launch, Stream, Token, observers
from flowmx.engine.failure import failure_of
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.errors import RaceError

_SETTLE_AT = 2048
_MOST_AHEAD = 3
"""Deferred work that may run, drawn by the seed, whenever some is launched."""


class Statistics(NamedTuple):
    """Statistics of a simulated machine, in virtual time.

    Attributes:
        seconds: from the beginning until the last stream and the host are done.
        host_seconds: the host's time.
        busy: seconds of work by stream.
        utilisation: by device, the part of the time in which it computed.
        peak_bytes: by device, the most memory in use at one time.
        holders: by device, who holds memory now, the largest first.
        spans: the newest pieces of the timeline.
    """

    seconds: float
    host_seconds: float
    busy: dict[str, float]
    utilisation: dict[str, float]
    peak_bytes: dict[str, int]
    holders: dict[str, list[tuple[str, int]]]
    spans: list[Span]

    def timeline(self, width: int = 72) -> str:
        """The streams' work as text, a line each; a digit says how much (of ten) of a column's time was busy."""
        lines = []
        scale = width / self.seconds if self.seconds else 0.0
        for stream in sorted(self.busy):
            filled = [0.0] * width
            for span in self.spans:
                if span.stream == stream:
                    _fill(filled, span.start * scale, span.end * scale)
            row = "".join("." if part < 0.05 else str(min(9, int(part * 10))) for part in filled)
            lines.append(f"{stream:>24} |{row}|")
        return "\n".join(lines)


def _fill(columns: list[float], start: float, end: float) -> None:
    for index in range(int(start), min(len(columns), int(end) + 1)):
        columns[index] += max(0.0, min(end, index + 1) - max(start, index))


class Work:
    """The device work of one launch, as recorded so far.

    Attributes:
        parts: seconds on the device, by what they are bound by.
        kernels: how many launches the host makes for it.
    """

    __slots__ = ("kernels", "parts")

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.kernels = 0

    def add(self, seconds: float, kind: str) -> None:
        """Let it run one more kernel, or copy."""
        self.parts[kind] = self.parts.get(kind, 0.0) + seconds
        self.kernels += 1


class _Point:
    """The event of a token on the clock, and its vector clock."""

    __slots__ = ("clock", "event")

    def __init__(self, clock: VectorClock, event: Event) -> None:
        self.clock = clock
        self.event = event


class _Task(NamedTuple):
    """An entry of a stream's queue: work that ends with a token, or a wait for another stream's token."""

    token: Token | None
    waits_for: Token | None
    function: Callable[[], Any]
    op: Operation | None


class _Here(threading.local):
    """State of the calling thread: whether it executes deferred work, and the work that it has waited for."""

    executing = False

    def __init__(self) -> None:
        self.clock: VectorClock = {}


class System:
    """A machine of simulated devices.

    Args:
        seed: defer work, and draw from this seed in which order streams go on; None: carry it out at its launch.
        races: check for races.

    Attributes:
        clock: the virtual time.
        checker: the race checker, with the streams' clocks; None where races are not checked.
        devices: by number.
        operators: seconds of kernels by operator.
    """

    def __init__(self, seed: int | None = None, races: bool = True) -> None:
        self.clock = Clock()
        self.checker = RaceChecker() if races else None
        self.devices: dict[int, Any] = {}
        self.operators: dict[str, float] = defaultdict(float)
        self._has_warned = False
        self.lock = threading.RLock()
        self._here = _Here()
        observers.append(self.check_host)
        self.restart(seed)

    def restart(self, seed: int | None) -> None:
        """From now on defer work by this seed, or carry it out at once; nothing may be in flight."""
        self.rng = None if seed is None else random.Random(seed)
        self._queues: dict[Stream, deque[_Task]] = {}
        self._passed: VectorClock = {}
        """Up to where the host has waited for each stream."""

    @property
    def executing(self) -> bool:
        """True while the calling thread carries out deferred work."""
        return self._here.executing

    # -- streams ---------------------------------------------------------------------------------------

    def wait(self, stream: Stream, token: Token) -> None:
        """Make a stream wait for a token."""
        with self.lock:
            if self.checker is not None:
                self.checker.join(stream, token)
            if self.rng is not None and self._is_pending(token):
                self._queues.setdefault(stream, deque()).append(_Task(None, token, _nothing, None))

    def record(self, token: Token, launch: Launch | None, engine_name: str) -> None:
        """Record a token: give it its place on the clock, and queue deferred work."""
        work: Work = launch.work if launch is not None and launch.work is not None else Work()
        waited = launch.waited if launch is not None else []
        device: Any = token.stream.device
        event = Event(
            token.op_serial or engine.scheduler.serial, launch.op.name if launch is not None else "", token.stream.name,
            engine_name, work.parts, work.kernels * (device.description.launch_seconds if device is not None else 0),
            [each.event.event for each in _on_streams(waited)],
        )  # fmt: skip
        with self.lock:
            clock = dict(self.checker.begin(token.stream)) if self.checker is not None else {}
            clock[token.stream] = token.serial
            token.event = _Point(clock, event)
        self.clock.add(event)
        if self.clock.waiting() > _SETTLE_AT:
            self.settle()
        if self.rng is not None:
            function = launch.work.task if launch is not None and isinstance(launch.work, Deferred) else _nothing
            with self.lock:
                task = _Task(token, None, function, launch.op if launch is not None else None)
                self._queues.setdefault(token.stream, deque()).append(task)
        else:
            self._inherit(token)

    def is_done(self, token: Token) -> bool:
        """True where the host knows that a token is done."""
        return self._passed.get(token.stream, 0) >= token.serial

    def finish(self, token: Token) -> None:
        """Make the host wait for a token."""
        with self.lock:
            if self.rng is not None:
                self._run_until(token)
            self.clock.add(_host_waits(token))
            merge(self._passed, token.event.clock)

    def read(self, stream: Any, seconds: float) -> None:
        """Make the host wait for a copy to itself."""
        if self.executing:
            return
        serial = engine.scheduler.serial
        copied = Event(serial, "read", stream.name, stream.engine, {"copies out": seconds}, 0.0)
        self.clock.add(copied)
        self.clock.add(Event(serial, "", "", "", {}, 0.0, [copied]))

    def finished(self, token: Token) -> None:
        """Note that the calling thread knows that a token is done."""
        if self._here.clock.get(token.stream, 0) >= token.serial:
            return
        known = dict(self._here.clock)  # a new one: operations that were pushed keep the old one
        merge(known, token.event.clock)
        self._here.clock = known

    def pushed(self, op: Operation) -> None:
        """Note the push of an operation, which comes after what this thread has waited for."""
        op.after_wait = self._here.clock  # type: ignore[attr-defined]

    def settle(self) -> float:
        """Bring the clock up to the oldest operation that is still to be launched; returns the host's time."""
        with engine.lock:
            oldest = next(iter(engine.pending), None)
            before = float("inf") if oldest is None else oldest.serial
        return self.clock.settle(before)

    # -- carrying work out -----------------------------------------------------------------------------

    def progress(self) -> None:
        """At a launch, let some deferred work happen, or none."""
        if self.rng is None:
            return
        with self.lock:
            for _ in range(self.rng.randrange(_MOST_AHEAD + 1)):
                if not self._step():
                    return

    def run_until(self, token: Token) -> None:
        """Carry deferred work out until a token's is."""
        if self.rng is not None:
            with self.lock:
                self._run_until(token)

    def _run_until(self, token: Token) -> None:
        while self._is_pending(token):
            if not self._step():
                raise RuntimeError(f"no stream can go on: {token} waits for what was never launched")

    def _step(self) -> bool:
        """Carry out the first work of some stream that can go on; False where there is none (locked)."""
        assert self.rng is not None
        able = [queue for queue in self._queues.values() if queue and not self._is_pending(queue[0].waits_for)]
        if not able:
            return False
        queue = self.rng.choice(able)
        self._carry_out(queue[0])
        queue.popleft()
        return True

    def _is_pending(self, token: Token | None) -> bool:
        """True where work up to a token is still queued."""
        queue = self._queues.get(token.stream) if token is not None else None
        first = next((task.token for task in queue or () if task.token is not None), None)
        return first is not None and token is not None and first.serial <= token.serial

    def _carry_out(self, task: _Task) -> None:
        if task.token is None:
            return
        self._inherit(task.token)
        if task.token.failure is not None:
            return
        outer, self._here.executing = self._here.executing, True
        try:
            with np.errstate(all="ignore"):
                task.function()
        except Exception as error:
            assert task.op is not None
            task.token.failure = failure_of(error, task.op)
            with engine.lock:
                engine.report(task.token.failure)
        finally:
            self._here.executing = outer

    def _inherit(self, token: Token) -> None:
        token.failure = next((each.failure for each in token.sources if each.failure is not None), None)
        token.sources = ()

    # -- looking ---------------------------------------------------------------------------------------

    def warn_of_zeros(self, device: Any) -> None:
        """Warn, once, that values are read which nobody has computed."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"{device} is simulated without numerics: every value that is asked for is 0", set())

    def check(self, launch: Launch) -> None:
        """Check that all conflicting uses of an operation's memory are certain to be done.

        Raises:
            RaceError: something is not.
        """
        if self.checker is None:
            return
        with self.lock:
            clock = self.checker.begin(launch.stream)
            merge(clock, getattr(launch.op, "after_wait", {}))
            merge(clock, self._here.clock)
            found: RaceError | None = None
            for variables, is_write in ((launch.reads, False), (launch.writes, True)):
                for variable in variables:
                    found = self._use(variable, clock, launch.stream, is_write, label(launch)) or found
            for block in launch.blocks:
                block.note = block.note or Uses()
                found = self._check(block.note, clock, launch.stream, True, label(launch), "its workspace") or found
        if found is not None:
            raise found

    def check_host(self, op: Operation, token: Token) -> None:
        """Check an operation of the host that has run, and give its token what its thread has waited for."""
        if self.checker is None:
            return
        token.event = {**(token.event or {}), **self._here.clock}
        who = f"operation {op.name!r} (#{op.serial})"
        with self.lock:
            clock = clock_of(token)
            for variables, is_write in ((op.reads, False), (op.writes, True)):
                for variable in variables:
                    found = self._use(variable, clock, HOST, is_write, who)
                    if found is not None:
                        raise found

    def _use(
        self, variable: Variable, clock: VectorClock, stream: Stream, is_write: bool, who: str
    ) -> RaceError | None:
        device = getattr(variable, "device", None)
        block = device.block_of(variable) if device is not None and getattr(device, "system", None) is self else None
        if block is not None:
            block.note = uses = block.note or Uses()
        elif variable.marks is None:
            return None
        else:
            variable.marks.note = uses = variable.marks.note or Uses()
        what = f"the memory of an array of shape {variable.shape}" if hasattr(variable, "shape") else repr(variable)
        return self._check(uses, clock, stream, is_write, who, what)

    def _check(
        self, uses: Uses, clock: VectorClock, stream: Stream, is_write: bool, who: str, what: str
    ) -> RaceError | None:  # fmt: skip
        assert self.checker is not None
        try:
            self.checker.use(uses, clock, stream, is_write, who, what)
        except RaceError as error:
            return error
        return None

    def close(self) -> None:
        """Stop the devices."""
        observers.remove(self.check_host)
        for device in self.devices.values():
            device.close()

    def statistics(self) -> Statistics:
        """Wait for all that was pushed, and return the statistics so far."""
        engine.wait_all(throw=False)
        self.settle()
        clock = self.clock
        seconds = clock.end()[0]
        names = {device: repr(device) for device in self.devices.values()}
        computed = {
            name: sum(clock.busy[stream.name] for stream in device.compute.all_streams())
            for device, name in names.items()
        }
        return Statistics(
            seconds, clock.host, dict(clock.busy),
            {name: part / seconds if seconds else 0.0 for name, part in computed.items()},
            {name: device.pool.peak for device, name in names.items()},
            {name: device.pool.holders() for device, name in names.items()},
            list(clock.spans),
        )  # fmt: skip


class Deferred(Work):
    """Work that is carried out later."""

    __slots__ = ("task",)

    def __init__(self, task: Callable[[], Any]) -> None:
        super().__init__()
        self.task = task


def _on_streams(tokens: list[Token]) -> list[Token]:
    """The tokens of streams among some; for the host's, those that it waited for."""
    found: list[Token] = []
    for token in tokens:
        found += token.sources if token.stream is HOST else (token,)
    return [token for token in found if isinstance(token.event, _Point)]


def _host_waits(token: Token) -> Event:
    return Event(engine.scheduler.serial, "", "", "", {}, 0.0, [token.event.event])


def _nothing() -> None:
    """Do nothing: the work of a token that only marks a position in its stream."""
