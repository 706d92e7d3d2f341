"""The dependency scheduler: a pure state machine.

Events go in (:meth:`Scheduler.push`, :meth:`Scheduler.complete`), operations that may start now are handed over.
There is no asyncio, no thread, no clock and no I/O in this module, so that a test can drive millions of
interleavings without a loop; whoever calls it from several threads brings a lock.

Dependencies
------------
A variable remembers its last pending *writer* and the pending *readers* pushed since. A pushed operation waits for

* the pending writer of each variable that it reads,
* the pending readers of each variable that it writes, or where there are none, its pending writer

(the readers wait for the writer themselves, so naming them is enough). ``Operation.blockers`` are those it still
waits for, ``Operation.dependents`` those that wait for it. That is Law 1: each variable sees its reads and writes in
the order pushed, and reads between two writes may run together. Only operations pushed earlier are ever waited for,
so there can be no cycle.

Steps
-----
A push and a completion are *steps*: they change several things, and the interpreter may let other code in between
two of them, on the same thread. A garbage collection runs finalisers and a signal runs its handler, which may push
and wait themselves, and either may raise. So every step can be done over: each change is made only where it has not
been made, by statements between which nothing is called. Whoever comes upon a step that has begun finishes it first
(:meth:`Scheduler.settle`), and where the one that began it goes on later, it finds nothing left to do.
(CPython lets other code in after a call, at the beginning of a function and of each turn of a loop, and until 3.11
also where an object is made that the garbage collector tracks.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from flowmx.engine.attributes import KnownAttributes

if TYPE_CHECKING:
    from flowmx.engine.failure import Failure


class Marks(Protocol):
    """State that asynchronous devices keep on a variable; there, an operation is complete once it was launched."""

    def finish(self) -> Failure | None:
        """Block until the device has made the last write; returns its failure, if any."""

    def finish_reads(self) -> None:
        """Block until its reads are done too."""

    def done(self) -> bool:
        """True once the device has finished the last write."""

    # For the devices alone.
    write: Any
    reads: Any
    note: Any

    def before(self, writing: bool) -> list[Any]:
        """The tokens that a read, or a write, must come after."""


class Token(Protocol):
    """Completion of one operation that was launched on a device, as a stream's event."""

    def done(self) -> bool:
        """True once the operation has finished."""

    def finish(self) -> Failure | None:
        """Block until it has finished; returns its failure, if any."""

    def wait(self) -> None:
        """Block until it has finished; raises its failure, if any."""


class State(IntEnum):
    """The life cycle of an operation; the state only moves forward."""

    WAITING = 0
    READY = 1
    RUNNING = 2
    DONE = 3


# Plain ints: an enum member costs a dictionary look-up each time it is used.
WAITING, READY, RUNNING, DONE = (int(state) for state in State)


class Variable(KnownAttributes):
    """A tag for anything that can be read or written: an array's storage, a generator's state, a file.

    Args:
        name: what error messages and ``repr`` call it.
        fingerprint: for the checking mode, a function that returns a value which changes when the
            variable's content changes (a checksum, a version).

    Attributes:
        version: how many writes have been pushed so far.
        writer, readers: the scheduler's.
        failure: what poisoned it, or None.
        marks: the tokens of asynchronous devices that use it (:class:`flowmx.devices.streams.Marks`), or None.
        recorded: the number of its last writer in the profiler's records; 0: none.
        deleted: True after :func:`flowmx.engine.delete_variable`; pushing on it is then refused.
    """

    # Defaults on the class: what most variables never change costs nothing when one is made.
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
        """A value that changes with the content (None where nothing is known of it)."""
        return self._fingerprint() if self._fingerprint is not None else None

    def pending(self) -> Iterator[Operation]:
        """The pushed operations on this variable that have not completed and that a writer would wait for."""
        if self.writer is not None and self.writer.state != DONE:
            yield self.writer
        yield from (reader for reader in list(self.readers or ()) if reader.state != DONE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or hex(id(self))} version {self.version}>"


Layer = Callable[["Operation", Callable[[], Any]], Any]
"""A function around an operation's own, as ``layer(op, proceed)``: it calls ``proceed()`` and returns what that
returns. For an operation that is a coroutine both return an awaitable."""


class Operation(KnownAttributes):
    """A piece of work with the variables it reads and writes, the actor that runs it, and its origin.

    ``function(*arguments)`` is called when every dependency is met; where it is a coroutine function, it
    is awaited on the engine's loop. The object is also the handle of the pushed work: ``await`` it, or
    call its methods, in the form that :func:`flowmx.engine.push` returns (:class:`flowmx.engine.Handle`).

    Attributes:
        priority: higher runs earlier among what is ready.
        nbytes: memory that it will allocate, for the run-ahead limit.
        light: True when running it takes microseconds, so that an ``await`` may do it in place.
        short: True when to hand it to another thread would gain less than it costs.
        is_coroutine: the function is a coroutine function.
        bulkable: it may be gathered with others into one operation.
        runs_user_code: the function may do anything: use arrays, push, wait.
        settles: the function settles the failures of its variables itself, part by part.
        layers: what is done around the function, the innermost first.
        context: the context variables that user code runs with.
        state, blockers, dependents, serial: the scheduler's.
        waits_inside: how many waits its function is in, on any thread; its slot is given up meanwhile.
        waiters: called when it is complete, by whom they belong to.
        failure, result: how it ended.
        token: where an asynchronous device was launched, what completes when the work is done there.
        began: when it began to run, in seconds of :func:`time.monotonic`; 0 where it was run at its push.
    """

    priority = 0
    is_coroutine = False
    bulkable = True
    runs_user_code = False
    settles = False
    short = False
    layers: tuple[Layer, ...] = ()
    context: Context | None = None
    state = WAITING
    blockers: dict[Any, None] | None = None
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
        """Add an outermost layer around the function; only before the push."""
        self.layers = (*self.layers, layer)

    def tell(self, key: object, wake: Callable[[], None]) -> None:
        """Add a callback for its completion, which may be called twice (locked, or before the push)."""
        if self.waiters is None:
            self.waiters = {}
        self.waiters[key] = wake
        if self.state == DONE:  # a signal handler that waited here may have let another thread complete it
            wake()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} #{self.serial} {State(self.state).name.lower()}>"


_HOLD = object()
"""A blocker of an operation that is held back, in addition to other operations."""


_Step = tuple[Callable[[Any], None], Operation, tuple[Variable, ...], tuple[Variable, ...]]
"""A change that has begun: what carries it out, however much of it has been done, the operation that it is about, and
those of its variables that are read and written."""


def _is_used_later(op: Operation, variables: tuple[Variable, ...], writing: bool) -> bool:
    """Tell whether reading, or writing, variables would make an operation wait for one that was pushed later."""
    for variable in variables:
        earlier = (variable.writer, *(variable.readers or ())) if writing else (variable.writer,)
        if any(each is not None and each.state != DONE and each.serial > op.serial for each in earlier):
            return True
    return False


class Scheduler:
    """Resolves operations by the variables that they read and write. Not locked: the caller's business.

    Args:
        hand_over: is called with each operation that may start; perhaps twice, where a step was done over.

    Attributes:
        pending: every operation pushed and not complete, the oldest first.
        pending_bytes: what they will allocate.
        serial: how many operations were pushed.
        step: the step that has begun and not ended.
        inside: the operation that is run at its push just now.
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
        """Number of operations that have completed."""
        return self.serial - len(self.pending)

    # -- pushing ---------------------------------------------------------------------------------------

    def push(self, op: Operation, hold: bool = False) -> None:
        """Add an operation, which is handed over when it may start.

        Args:
            op: the operation, in state WAITING.
            hold: let it wait for :meth:`unhold` too.
        """
        blockers: dict[Any, None] = {_HOLD: None} if hold else {}
        dependents: dict[Operation, None] = {}
        step = (self._tag, op, op.reads, op.writes)
        # From here on nothing is called.
        op.blockers, op.dependents = blockers, dependents
        self.serial = op.serial = self.serial + 1
        self.pending[op] = None
        self.pending_bytes += op.nbytes
        self.step = step
        self._tag(step)

    def is_held(self, op: Operation) -> bool:
        """Tell whether an operation waits for :meth:`unhold`."""
        return op.blockers is not None and _HOLD in op.blockers

    def extend(self, op: Operation, part: Operation, parts: list[Operation]) -> bool:
        """Let an operation that is held back read and write what another one does too, which is added to its parts.

        False where it can not: it is not held back, or it would wait for what was pushed later and may wait for it.
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
        """Make an operation the newest reader and writer of variables, waiting for the ones before it."""
        _, op, reads, writes = step
        blockers = op.blockers
        if blockers is None:  # somebody came in between, and by now it has even run
            return
        for variable in reads:
            readers = variable.readers
            if readers is None:
                readers = {}
            if self.step is not step:  # somebody came in between, and has finished it
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
            variable.version += 1  # for each write, also where one operation stands for several
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
        """Begin an operation at its push, where it has nothing to wait for; False: it is to be pushed.

        It counts as complete. Nothing else is pushed until :meth:`leave`, but by what comes in between, which finds
        it pending.
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
        """End an operation that was begun at its push; False: it has become pending, and is to be completed."""
        if self.inside is not op:
            return False
        self.inside = None
        return True

    # -- completing ------------------------------------------------------------------------------------

    def start(self, op: Operation) -> None:
        """Mark a ready operation as running."""
        op.state = RUNNING

    def complete(self, op: Operation) -> None:
        """Say that an operation has ended, well or not; those that may start now are handed over, in push order.

        One that still waits can not end: what was pushed after it relies on what was pushed before it.
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

    # -- what comes in between -------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish what has begun and was broken off, or is being done further down on this thread's stack.

        Whoever enters the books calls this first.
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
        """Let an operation that is run at its push be one that runs, so that what is pushed now comes after it."""
        _, op, reads, writes = step
        blockers: dict[Any, None] = {}
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

    # -- looking ---------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts itself (for tests; walks everything pending)."""
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
        for op, found in blockers.items():
            named = set(op.blockers or ())
            assert named - {_HOLD} == found, f"{op} names {len(named)} blockers, {len(found)} name it"
            assert (op.state == WAITING) == bool(named), f"{op} has {len(named)} blockers"
        running = [op for op in self.pending if op.state in (READY, RUNNING)]
        held = any(_HOLD in (op.blockers or ()) for op in self.pending)
        assert running or held or not self.pending, "operations are pending and none may run"
        written: set[Variable] = set()
        touched: set[Variable] = set()
        for op in running:
            writes, reads = set(op.writes), set(op.reads) - set(op.writes)
            assert not (writes & touched) and not (reads & written), f"{op} runs with one that it conflicts with"
            written |= writes
            touched |= writes | reads
