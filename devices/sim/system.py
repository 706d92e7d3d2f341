"""A simulated machine: devices, their streams, one clock, one race checker, and the execution of work.

Work is either executed at its launch, as in a serial program, or *deferred*: it stays in its stream's queue until the
host waits for it, and a seeded random generator selects the next stream to continue. Like a real device, deferred work
uses the memory that its launch looked up, without keeping it alive. So a missing wait, or memory that is reused too
early, leads to wrong numbers.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowmx import forks
from flowmx.devices.sim.clock import Clock, Event, Span
from flowmx.devices.sim.races import Clock as VectorClock
from flowmx.devices.sim.races import RaceChecker, Uses, clock_of, label, merge
from flowmx.devices.streams import HOST, Launch, Stream, Token, observers
from flowmx.engine.failure import failure_of
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.errors import RaceError

_MAX_PENDING_EVENTS = 2048
_MAX_TASKS_PER_LAUNCH = 3
"""Maximum number of deferred tasks that run at each launch; the number is random."""


class Statistics(NamedTuple):
    """Statistics of a simulated machine, in virtual time.

    Attributes:
        seconds: the time until the last stream and the host are done.
        host_seconds: the host's time.
        busy: seconds of work by stream.
        utilization: by device, the share of the time in which it computed.
        peak_bytes: by device, the maximum memory in use at one time.
        holders: by device, the current holders of memory, largest first.
        spans: the newest intervals of the timeline.
    """

    seconds: float
    host_seconds: float
    busy: dict[str, float]
    utilization: dict[str, float]
    peak_bytes: dict[str, int]
    holders: dict[str, list[tuple[str, int]]]
    spans: list[Span]

    def timeline(self, width: int = 72) -> str:
        """Return one line of text for each stream; a digit is the busy share of a column's time, in tenths."""
        lines = []
        scale = width / self.seconds if self.seconds else 0.0
        for stream in sorted(self.busy):
            busy = [0.0] * width
            for span in self.spans:
                if span.stream == stream:
                    _fill(busy, span.start * scale, span.end * scale)
            row = "".join("." if part < 0.05 else str(min(9, int(part * 10))) for part in busy)
            lines.append(f"{stream:>24} |{row}|")
        return "\n".join(lines)


def _fill(columns: list[float], start: float, end: float) -> None:
    for index in range(int(start), min(len(columns), int(end) + 1)):
        columns[index] += max(0.0, min(end, index + 1) - max(start, index))


class Work:
    """The recorded device work of one launch.

    Attributes:
        parts: seconds on the device, by limiting resource.
        kernels: the number of launches by the host.
    """

    __slots__ = ("kernels", "parts")

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.kernels = 0

    def add(self, seconds: float, kind: str) -> None:
        """Add a kernel or a copy."""
        self.parts[kind] = self.parts.get(kind, 0.0) + seconds
        self.kernels += 1


class _Point:
    """The event of a token on the clock, and its vector clock."""

    __slots__ = ("clock", "event")

    def __init__(self, clock: VectorClock, event: Event) -> None:
        self.clock = clock
        self.event = event


class _Task(NamedTuple):
    """An entry of a stream's queue: work that ends at a token, or a wait for another stream's token."""

    token: Token | None
    waits_for: Token | None
    function: Callable[[], Any]
    op: Operation | None


class _ThreadState(threading.local):
    """The state of a thread: whether it executes deferred work, and the clock of its waits."""

    executing = False

    def __init__(self) -> None:
        self.clock: VectorClock = {}


class System:
    """A machine of simulated devices.

    Args:
        seed: defer work, and order the streams randomly with this seed; None: run work at its launch.
        races: whether to check for races.

    Attributes:
        clock: the virtual time.
        checker: the race checker, with the streams' clocks; None if races are not checked.
        devices: the devices by number.
        operators: seconds of kernels by operator.
    """

    def __init__(self, seed: int | None = None, races: bool = True) -> None:
        self.clock = Clock()
        self.checker = RaceChecker() if races else None
        self.devices: dict[int, Any] = {}
        self.operators: dict[str, float] = defaultdict(float)
        self._has_warned = False
        self.lock = forks.lock()
        self._thread = _ThreadState()
        observers.append(self.check_host)
        self.restart(seed)

    def restart(self, seed: int | None) -> None:
        """Use another seed for deferred work, or run work at its launch (None); no work may be in flight."""
        self.rng = None if seed is None else random.Random(seed)
        self._queues: dict[Stream, deque[_Task]] = {}
        self._host_clock: VectorClock = {}
        """The last token of each stream for which the host has waited."""

    @property
    def executing(self) -> bool:
        """Whether the calling thread executes deferred work."""
        return self._thread.executing

    # -- streams ---------------------------------------------------------------------------------------

    def wait(self, stream: Stream, token: Token) -> None:
        """Make a stream wait for a token."""
        with self.lock:
            if self.checker is not None:
                self.checker.join(stream, token)
            if self.rng is not None and self._is_pending(token):
                self._queues.setdefault(stream, deque()).append(_Task(None, token, _do_nothing, None))

    def record(self, token: Token, launch: Launch | None, engine_name: str) -> None:
        """Record a token: add its event to the clock, and queue deferred work."""
        work: Work = launch.work if launch is not None and launch.work is not None else Work()
        waited = launch.waited if launch is not None else []
        device: Any = token.stream.device
        event = Event(
            token.op_serial or engine.scheduler.serial, launch.op.name if launch is not None else "", token.stream.name,
            engine_name, work.parts, work.kernels * (device.description.launch_seconds if device is not None else 0),
            [earlier.event.event for earlier in _stream_tokens(waited)],
        )  # fmt: skip
        with self.lock:
            clock = dict(self.checker.begin(token.stream)) if self.checker is not None else {}
            clock[token.stream] = token.serial
            token.event = _Point(clock, event)
        self.clock.add(event)
        if self.clock.pending_events() > _MAX_PENDING_EVENTS:
            self.advance_clock()
        if self.rng is not None:
            function = launch.work.task if launch is not None and isinstance(launch.work, Deferred) else _do_nothing
            with self.lock:
                task = _Task(token, None, function, launch.op if launch is not None else None)
                self._queues.setdefault(token.stream, deque()).append(task)
        else:
            self._inherit(token)

    def is_done(self, token: Token) -> bool:
        """Return whether the host knows that a token is done."""
        return self._host_clock.get(token.stream, 0) >= token.serial

    def finish(self, token: Token) -> None:
        """Make the host wait for a token."""
        with self.lock:
            if self.rng is not None:
                self._run_until(token)
            self.clock.add(_host_waits(token))
            merge(self._host_clock, token.event.clock)

    def read(self, stream: Any, seconds: float) -> None:
        """Make the host wait for a copy to the host."""
        if self.executing:
            return
        serial = engine.scheduler.serial
        copy_event = Event(serial, "read", stream.name, stream.engine, {"copies out": seconds}, 0.0)
        self.clock.add(copy_event)
        self.clock.add(Event(serial, "", "", "", {}, 0.0, [copy_event]))

    def on_host_wait(self, token: Token) -> None:
        """Record that the calling thread has waited for a token."""
        if self._thread.clock.get(token.stream, 0) >= token.serial:
            return
        clock = dict(self._thread.clock)  # a new dict: pushed operations keep the old one
        merge(clock, token.event.clock)
        self._thread.clock = clock

    def on_push(self, op: Operation) -> None:
        """Record the waits of this thread that precede the push of an operation."""
        op.after_wait = self._thread.clock

    def advance_clock(self) -> float:
        """Advance the clock to the oldest operation that is not yet launched; return the host's time."""
        with engine.lock:
            oldest = next(iter(engine.pending), None)
            before = float("inf") if oldest is None else oldest.serial
        return self.clock.advance(before)

    # -- deferred work ---------------------------------------------------------------------------------

    def progress(self) -> None:
        """Run a random number of deferred tasks; called at each launch."""
        if self.rng is None:
            return
        with self.lock:
            for _ in range(self.rng.randrange(_MAX_TASKS_PER_LAUNCH + 1)):
                if not self._step():
                    return

    def run_until(self, token: Token) -> None:
        """Run deferred work until a token is done."""
        if self.rng is not None:
            with self.lock:
                self._run_until(token)

    def _run_until(self, token: Token) -> None:
        while self._is_pending(token):
            if not self._step():
                raise RuntimeError(f"no stream can continue: {token} waits for work that was never launched")

    def _step(self) -> bool:
        """Run the first task of a random stream that can continue; return False if no stream can (locked)."""
        assert self.rng is not None
        ready = [queue for queue in self._queues.values() if queue and not self._is_pending(queue[0].waits_for)]
        if not ready:
            return False
        queue = self.rng.choice(ready)
        self._execute(queue[0])
        queue.popleft()
        return True

    def _is_pending(self, token: Token | None) -> bool:
        """Return whether work up to a token is still queued."""
        queue = self._queues.get(token.stream) if token is not None else None
        first = next((task.token for task in queue or () if task.token is not None), None)
        return first is not None and token is not None and first.serial <= token.serial

    def _execute(self, task: _Task) -> None:
        if task.token is None:
            return
        self._inherit(task.token)
        if task.token.failure is not None:
            return
        outer, self._thread.executing = self._thread.executing, True
        try:
            with np.errstate(all="ignore"):
                task.function()
        except Exception as error:  # operators may raise anything
            assert task.op is not None
            task.token.failure = failure_of(error, task.op)
            with engine.lock:
                engine.report(task.token.failure)
        finally:
            self._thread.executing = outer

    def _inherit(self, token: Token) -> None:
        token.failure = next((source.failure for source in token.sources if source.failure is not None), None)
        token.sources = ()

    # -- checks ----------------------------------------------------------------------------------------

    def warn_of_zeros(self, device: object) -> None:
        """Warn once that the program reads values that were not computed."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"{device} is simulated without numerics: every value that is read is 0", set())

    def check(self, launch: Launch) -> None:
        """Check that all conflicting uses of an operation's memory are complete.

        Raises:
            RaceError: a conflicting use may still be running.
        """
        if self.checker is None:
            return
        with self.lock:
            clock = self.checker.begin(launch.stream)
            merge(clock, launch.op.after_wait or {})
            merge(clock, self._thread.clock)
            error: RaceError | None = None
            for variables, is_write in ((launch.reads, False), (launch.writes, True)):
                for variable in variables:
                    error = self._use(variable, clock, launch.stream, is_write, label(launch)) or error
            for block in launch.blocks:
                block.note = block.note or Uses()
                error = self._check(block.note, clock, launch.stream, True, label(launch), "its workspace") or error
        if error is not None:
            raise error

    def check_host(self, op: Operation, token: Token) -> None:
        """Check an operation of the host that has run, and add the waits of its thread to its token."""
        if self.checker is None:
            return
        token.event = {**(token.event or {}), **self._thread.clock}
        who = f"operation {op.name!r} (#{op.serial})"
        with self.lock:
            clock = clock_of(token)
            for variables, is_write in ((op.reads, False), (op.writes, True)):
                for variable in variables:
                    error = self._use(variable, clock, HOST, is_write, who)
                    if error is not None:
                        raise error

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
        """Wait for all pushed operations, and return the statistics."""
        engine.wait_all(throw=False)
        self.advance_clock()
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
    """Work that is executed later."""

    __slots__ = ("task",)

    def __init__(self, task: Callable[[], Any]) -> None:
        super().__init__()
        self.task = task


def _stream_tokens(tokens: list[Token]) -> list[Token]:
    """Return the stream tokens of a list, with host tokens replaced by their sources."""
    selected: list[Token] = []
    for token in tokens:
        selected += token.sources if token.stream is HOST else (token,)
    return [token for token in selected if isinstance(token.event, _Point)]


def _host_waits(token: Token) -> Event:
    return Event(engine.scheduler.serial, "", "", "", {}, 0.0, [token.event.event])


def _do_nothing() -> None:
    """Do nothing: the work of a token that marks a position in its stream."""
