"""The dependency scheduler: a pure state machine.

It receives events (:meth:`Scheduler.push`, :meth:`Scheduler.complete`) and hands over the operations that may start.
This module has no asyncio, threads, clock or I/O, so tests can run millions of interleavings without a loop. Callers
on several threads must use a lock.

Dependencies
------------
A variable remembers its last pending *writer* and the pending *readers* pushed since. A pushed operation waits for

* the pending writer of each variable that it reads,
* the pending readers of each variable that it writes, or the pending writer if there are no readers

(readers wait for the writer themselves). ``Operation.blockers`` are the operations that it still waits
for, ``Operation.dependents`` those that wait for it. This is Law 1: each variable sees its reads and writes in the
order pushed, and reads between two writes may run concurrently. Operations wait only for earlier ones, so
there can be no cycle.

Steps
-----
A push and a completion are *steps*: they change several things, and the interpreter may run other code between two of
the changes, on the same thread. A garbage collection runs finalizers and a signal runs its handler. Both may push and
wait, and both may raise. So every step is repeatable: it skips finished changes, and calls nothing between
the statements of one change. Code that enters while a step is in progress finishes it first
(:meth:`Scheduler.recover`); when the interrupted code continues, nothing is left to do. (CPython runs other code after
a call, at the start of a function and of each loop iteration, and up to 3.11 also when it creates an object that the
garbage collector tracks.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from flowmx.engine.concurrent_attributes import DeclaredAttributes

if TYPE_CHECKING:
    from flowmx.engine.failure import Failure


class Marks(Protocol):
    """The state of a variable on asynchronous devices, whose operations count as complete once launched."""

    def finish(self) -> Failure | None:
        """Block until the device has completed the last write; return its failure, if any."""

    def finish_reads(self) -> None:
        """Block until the reads are complete too."""

    def done(self) -> bool:
        """Return whether the device has completed the last write."""

    # Used only by the devices, which know the types.
    write: Any
    reads: Any
    note: Any

    def dependencies(self, writing: bool) -> list[Any]:
        """Return the tokens that must come before a read or a write."""


class Token(Protocol):
    """The completion of an operation that was launched on a device, such as a stream's event."""

    def done(self) -> bool:
        """Return whether the operation has finished."""

    def finish(self) -> Failure | None:
        """Block until it has finished; return its failure, if any."""

    def wait(self) -> None:
        """Block until it has finished; raise its failure, if any."""


class State(IntEnum):
    """The life cycle of an operation; the state only moves forward."""

    WAITING = 0
    READY = 1
    RUNNING = 2
    DONE = 3


# Plain ints: enum members cost a dictionary lookup at each use.
WAITING, READY, RUNNING, DONE = (int(state) for state in State)


class Variable(DeclaredAttributes):
    """A tag for content that operations read and write: an array's storage, a generator's state, a file.

    Args:
        name: its name in error messages and ``repr``.
        fingerprint: for the checking mode, a function that returns a checksum or version of the
            variable's content.

    Attributes:
        version: the number of writes pushed so far.
        writer, readers: used by the scheduler.
        failure: the failure that poisoned it, or None.
        marks: the tokens of asynchronous devices that use it (:class:`flowmx.devices.streams.Marks`), or None.
        recorded: the index of its last writer in the profiler's records, or 0.
        deleted: whether :func:`flowmx.engine.delete_variable` was called; later pushes raise an error.
    """

    # Defaults on the class: most variables never change these attributes, which then cost nothing.
    name = ""
    version = 0
    writer: Operation | None = None
    readers: dict[Operation, None] | None = None
    failure: Failure | None = None
    marks: Marks | None = None
    recorded = 0
    deleted = False
    _fingerprint: Callable[[], object] | None = None

    def __init__(self, name: str = "", fingerprint: Callable[[], object] | None = None) -> None:
        self.name = name
        self._fingerprint = fingerprint

    def fingerprint(self) -> object:
        """Return a value that changes with the content, or None if there is no fingerprint function."""
        return self._fingerprint() if self._fingerprint is not None else None

    def pending(self) -> Iterator[Operation]:
        """Iterate over the incomplete operations on this variable that a writer would wait for."""
        if self.writer is not None and self.writer.state != DONE:
            yield self.writer
        yield from (reader for reader in list(self.readers or ()) if reader.state != DONE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or hex(id(self))} version {self.version}>"


Layer = Callable[["Operation", Callable[[], Any]], Any]
"""A wrapper of an operation's function: ``layer(op, proceed)`` calls ``proceed()`` and returns the result.
For a coroutine operation both return an awaitable."""


class Operation(DeclaredAttributes):
    """A piece of work with the variables it reads and writes, the actor that runs it, and its origin.

    ``function(*arguments)`` is called when every dependency is complete; a coroutine function is awaited on the
    engine's event loop. The object is also the handle of the pushed work: await it, or call its methods, in the form
    that :func:`flowmx.engine.push` returns (:class:`flowmx.engine.Handle`).

    Attributes:
        priority: among ready operations, a higher priority runs earlier.
        nbytes: the memory that it will allocate, for the run-ahead limit.
        light: whether running it takes microseconds, so that an ``await`` may run it in place.
        short: whether handing it to another thread would cost more than it saves.
        is_coroutine: whether the function is a coroutine function.
        bulkable: whether it may be gathered with others into one operation.
        runs_user_code: whether the function may use arrays, push and wait; then the operation is not light or short.
        handles_failures: whether the function handles the failures of its variables itself, part by part.
        layers: wrappers of the function, the innermost first.
        context: the context variables that user code runs with.
        state, blockers, dependents, serial: used by the scheduler.
        waits_inside: the number of waits in progress in its function, on any thread; they release its slot.
        waiters: completion callbacks, keyed by owner.
        failure, result: its outcome.
        token: for a launch on an asynchronous device, completes when the work is done there.
        after_wait: on a simulated device, the clock of the thread that pushed it.
        began: the time when it started, in seconds of :func:`time.monotonic`; 0 if it ran when pushed.
    """

    priority = 0
    after_wait: Mapping[Any, int] | None = None
    is_coroutine = False
    bulkable = True
    runs_user_code = False
    handles_failures = False
    short = False
    layers: tuple[Layer, ...] = ()
    context: Context | None = None
    state = WAITING
    blockers: dict[object, None] | None = None
    dependents: dict[Operation, None] | None = None
    waits_inside = 0
    waiters: dict[object, Callable[[], None]] | None = None
    failure: Failure | None = None
    result: Any = None
    token: Token | None = None
    began = 0.0
    serial = 0

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        reads: tuple[Variable, ...],
        writes: tuple[Variable, ...],
        actor: Any,
        name: str,
        origin: Any = None,
        nbytes: int = 0,
        light: bool = False,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.reads = reads
        self.writes = writes
        self.actor = actor
        self.name = name
        self.origin = origin
        self.nbytes = nbytes
        self.light = light

    def wrap(self, layer: Layer) -> None:
        """Add an outermost wrapper around the function, before the push."""
        self.layers = (*self.layers, layer)

    def add_waiter(self, key: object, wake: Callable[[], None]) -> None:
        """Add a completion callback, which may be called twice. Call this with the lock, or before the push."""
        if self.waiters is None:
            self.waiters = {}
        self.waiters[key] = wake
        if self.state == DONE:  # another thread may complete it while a signal handler waits here
            wake()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} #{self.serial} {State(self.state).name.lower()}>"


_HOLD = object()
"""The blocker of an operation that waits for :meth:`Scheduler.unhold`."""


_Step = tuple[Callable[[Any], None], Operation, tuple[Variable, ...], tuple[Variable, ...]]
"""A step in progress: its method, its operation, and the variables that the operation reads and writes."""


def _is_used_later(op: Operation, variables: tuple[Variable, ...], writing: bool) -> bool:
    """Return whether an operation that reads or writes variables would wait for one that was pushed later."""
    for variable in variables:
        users = (variable.writer, *(variable.readers or ())) if writing else (variable.writer,)
        if any(user is not None and user.state != DONE and user.serial > op.serial for user in users):
            return True
    return False


class Scheduler:
    """Orders operations by the variables that they read and write. Callers must hold a lock.

    Args:
        hand_over: called with each operation that may start, possibly twice if a step was repeated.

    Attributes:
        pending: the incomplete operations, the oldest first.
        pending_bytes: the memory that they will allocate.
        serial: the number of operations pushed.
        step: the step in progress.
        inside: the operation that runs during its push.
    """

    __slots__ = ("hand_over", "inside", "pending", "pending_bytes", "serial", "step")

    def __init__(self, hand_over: Callable[[Operation], object]) -> None:
        self.hand_over = hand_over
        self.pending: dict[Operation, None] = {}
        self.pending_bytes = 0
        self.serial = 0
        self.step: _Step | None = None
        self.inside: Operation | None = None

    @property
    def completed(self) -> int:
        """The number of operations that have completed."""
        return self.serial - len(self.pending)

    # -- pushing ---------------------------------------------------------------------------------------

    def push(self, op: Operation, hold: bool = False) -> None:
        """Add an operation, and hand it over when it may start.

        Args:
            op: the operation, in state WAITING.
            hold: make it wait for :meth:`unhold` too.
        """
        blockers: dict[object, None] = {_HOLD: None} if hold else {}
        dependents: dict[Operation, None] = {}
        step = (self._tag, op, op.reads, op.writes)
        # From here on nothing is called, so that no other code can run in between.
        op.blockers, op.dependents = blockers, dependents
        self.serial = op.serial = self.serial + 1
        self.pending[op] = None
        self.pending_bytes += op.nbytes
        self.step = step
        self._tag(step)

    def is_held(self, op: Operation) -> bool:
        """Return whether an operation waits for :meth:`unhold`."""
        return op.blockers is not None and _HOLD in op.blockers

    def extend(self, op: Operation, part: Operation, parts: list[Operation]) -> bool:
        """Make a held operation also read and write the variables of another one, which is added to its parts.

        Return False if the operation is not held, or would wait for a later one, which may wait for it.
        """
        reads, writes = part.reads, part.writes
        step = (self._tag, op, reads, writes)
        while True:
            serial, before = self.serial, (op.reads, op.writes)
            more_reads, more_writes = op.reads + reads, op.writes + writes
            if _is_used_later(op, reads, False) or _is_used_later(op, writes, True):
                return False
            if op.blockers is None or _HOLD not in op.blockers:
                return False
            if self.serial == serial and op.reads is before[0] and op.writes is before[1]:
                op.reads, op.writes = more_reads, more_writes
                op.nbytes += part.nbytes
                self.pending_bytes += part.nbytes
                self.step = step
                parts.append(part)
                break
        self._tag(step)
        return True

    def unhold(self, op: Operation) -> None:
        """End the hold of :meth:`push` on an operation."""
        self.step = step = (self._release, op, (), ())
        self._release(step)

    def _tag(self, step: _Step) -> None:
        """Make an operation the newest reader and writer of its variables, waiting for the earlier ones.

        For each variable, it first makes all calls (``list``, a new dictionary), then checks that the step is still in
        progress, then makes the changes without a call. Code that ran in between has finished the step.
        """
        _, op, reads, writes = step
        blockers = op.blockers
        if blockers is None:  # other code ran in between, and completed the operation
            return
        for variable in reads:
            readers = variable.readers
            if readers is None:
                readers = {}
            if self.step is not step:  # other code ran in between, and finished the step
                return
            # From here on nothing is called.
            writer = variable.writer
            if writer is not None and writer.state != DONE and writer is not op:
                blockers[writer] = writer.dependents[op] = None  # type: ignore[index]
            readers[op] = None
            variable.readers = readers
        for variable in writes:
            readers = variable.readers
            for earlier in list(readers) if readers else (variable.writer,):
                if self.step is not step:
                    return
                if earlier is not None and earlier.state != DONE and earlier is not op:
                    blockers[earlier] = earlier.dependents[op] = None  # type: ignore[index]
            if self.step is not step:
                return
            variable.writer = op
            variable.version += 1  # also for each write of an operation that combines several
            variable.readers = None
        self._end_push(step)

    def _release(self, step: _Step) -> None:
        blockers = step[1].blockers
        if blockers and _HOLD in blockers:
            del blockers[_HOLD]
        self._end_push(step)

    def _end_push(self, step: _Step) -> None:
        op = step[1]
        if self.step is not step:
            return
        if not op.blockers and op.state == WAITING:
            op.state = READY
        if op.state == READY:
            self.hand_over(op)
        if self.step is step:
            self.step = None

    # -- running at the push ---------------------------------------------------------------------------

    def enter(self, op: Operation) -> bool:
        """Start an operation right away if it has no dependencies; return False if it must be queued.

        The operation counts as complete. Until :meth:`leave`, only code that runs in between can push; then
        :meth:`recover` makes this operation pending.
        """
        serial = self.serial
        for variable in op.reads:
            writer = variable.writer
            if writer is not None and writer.state != DONE:
                return False
        for variable in op.writes:
            writer = variable.writer
            if variable.readers or (writer is not None and writer.state != DONE):
                return False
        if self.serial != serial or self.inside is not None:
            return False
        self.inside = op
        self.serial = op.serial = serial + 1
        op.state = DONE
        for variable in op.writes:
            variable.version += 1
        return True

    def leave(self, op: Operation) -> bool:
        """End an operation that was started when pushed; return False if it became pending and must be completed."""
        if self.inside is not op:
            return False
        self.inside = None
        return True

    # -- completing ------------------------------------------------------------------------------------

    def start(self, op: Operation) -> None:
        """Mark a ready operation as running."""
        op.state = RUNNING

    def complete(self, op: Operation) -> None:
        """Mark an operation as ended, successfully or not; hand over the operations that may start now, in push order.

        A waiting operation cannot end, since later operations rely on the ones before it.
        """
        step = (self._complete, op, op.reads, op.writes)
        self.step = step
        op.state = DONE
        self._complete(step)

    def _complete(self, step: _Step) -> None:
        _, op, reads, writes = step
        for variable in writes:
            if variable.writer is op:
                variable.writer = None
        for variable in reads:
            readers = variable.readers
            if readers is not None and op in readers:
                del readers[op]
        for dependent in list(op.dependents) if op.dependents else ():
            if self.step is not step:
                return
            blockers = dependent.blockers
            if blockers and op in blockers:
                del blockers[op]
            if not blockers and dependent.state == WAITING:
                dependent.state = READY
            if dependent.state == READY:
                self.hand_over(dependent)
        if self.step is not step:
            return
        if op in self.pending:
            del self.pending[op]
            self.pending_bytes -= op.nbytes
        op.dependents = op.blockers = None
        self.step = None

    # -- interruptions ---------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish a step that was interrupted, or that is in progress further down this thread's stack.

        Every caller that enters the scheduler calls this first.
        """
        inside = self.inside
        if inside is not None:
            adoption = (self._adopt, inside, inside.reads, inside.writes)
            if self.inside is inside:
                self.inside, self.step = None, adoption
        step = self.step
        if step is not None:
            step[0](step)

    def _adopt(self, step: _Step) -> None:
        """Turn an operation that runs when pushed into a pending one, so that operations pushed now come after it."""
        _, op, reads, writes = step
        blockers: dict[object, None] = {}
        dependents: dict[Operation, None] = {}
        if self.step is not step:
            return
        if op.state == DONE:
            op.blockers, op.dependents = blockers, dependents
            op.state = RUNNING
            self.pending[op] = None
            self.pending_bytes += op.nbytes
        for variable in reads:
            readers: dict[Operation, None] = {op: None}
            if self.step is not step:
                return
            if variable.readers is None:
                variable.readers = readers
            else:
                variable.readers[op] = None
        for variable in writes:
            if self.step is not step:
                return
            variable.writer = op
            variable.readers = None
        if self.step is step:
            self.step = None

    # -- checking --------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself (for tests; visits every pending operation)."""
        assert self.step is None, f"{self.step} has not ended"
        blockers: dict[Operation, set[Operation]] = {op: set() for op in self.pending}
        serials = [op.serial for op in self.pending]
        assert serials == sorted(serials), "pending operations must stand in push order"
        nbytes = sum(op.nbytes for op in self.pending)
        assert self.pending_bytes == nbytes, f"{self.pending_bytes} bytes are counted and {nbytes} pending"
        for op in self.pending:
            assert op.state != DONE, f"{op} is complete and still pending"
            for dependent in op.dependents or ():
                assert dependent.serial > op.serial, f"{dependent} waits for the later {op}"
                assert dependent in blockers, f"{dependent} waits for {op} but is not pending"
                blockers[dependent].add(op)
        for op, expected in blockers.items():
            actual = set(op.blockers or ())
            assert actual - {_HOLD} == expected, f"{op} names {len(actual)} blockers, {len(expected)} name it"
            assert (op.state == WAITING) == bool(actual), f"{op} has {len(actual)} blockers"
        running = [op for op in self.pending if op.state in (READY, RUNNING)]
        is_held = any(_HOLD in (op.blockers or ()) for op in self.pending)
        assert running or is_held or not self.pending, "operations are pending and none may run"
        written: set[Variable] = set()
        used: set[Variable] = set()
        for op in running:
            writes, reads = set(op.writes), set(op.reads) - set(op.writes)
            assert not (writes & used) and not (reads & written), f"{op} runs with one that it conflicts with"
            written |= writes
            used |= writes | reads
