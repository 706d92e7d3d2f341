"""The dependency scheduler: a pure state machine.

Events go in (:meth:`Scheduler.push`, :meth:`Scheduler.complete`), operations that may start now come
out. There is no asyncio, no thread, no clock and no I/O in this module, so that a test can drive millions
of interleavings without a loop; whoever calls it from several threads brings a lock.

How it works
------------
A variable remembers its last pending *writer* and the pending *readers* pushed since. A pushed operation
waits for

* the pending writer of each variable that it reads,
* the pending readers of each variable that it writes, or where there are none, its pending writer

(the readers wait for the writer themselves, so naming them is enough). ``Operation.blockers`` counts what
an operation still waits for; when an operation completes, each of its ``dependents`` counts one down.

That is Law 1: each variable sees its reads and writes in the order pushed, and reads between two writes
may run together. Both lists only ever name operations pushed earlier, so there can be no cycle.

Completed readers stay in a variable's list until a writer or a prune clears them: a reader then costs one
append when pushed and nothing when it completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from flowmx.engine.attributes import KnownAttributes

if TYPE_CHECKING:
    from flowmx.engine.failure import Failure

_PRUNE_AT = 32


class Marks(Protocol):
    """What asynchronous devices leave on a variable: an operation there is complete when it has been launched."""

    def finish(self) -> Failure | None:
        """Block until the device has made the last write; returns what went wrong with it."""

    def finish_reads(self) -> None:
        """Block until its reads are done too."""

    def done(self) -> bool:
        """Whether the last write is done."""

    # For the devices alone.
    write: Any
    reads: Any
    note: Any

    def before(self, writing: bool) -> list[Any]:
        """The tokens that a read, or a write, must come after."""


class Token(Protocol):
    """What completes when the device is done with an operation that was launched there."""

    def done(self) -> bool:
        """Whether it is."""

    def finish(self) -> Failure | None:
        """Block until it is; returns what went wrong."""

    def wait(self) -> None:
        """Block until it is; raises what went wrong."""


class State(IntEnum):
    """Where an operation is in its life; it only moves forward."""

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
        failure: what poisoned it, or None.
        marks: the tokens of asynchronous devices that use it (:class:`flowmx.devices.streams.Marks`), or None.
        recorded: the number of its last writer in the profiler's records; 0: none.
        deleted: True after :func:`flowmx.engine.delete_variable`; pushing on it is then refused.
    """

    # Defaults on the class: what most variables never change costs nothing when one is made.
    name = ""
    version = 0
    writer: Operation | None = None
    readers: list[Operation] | None = None
    prune_at = _PRUNE_AT
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


class Operation(KnownAttributes):
    """A piece of work with the variables it reads and writes, the actor that runs it, and its origin.

    ``function(*arguments)`` is called when every dependency is met; where it is a coroutine function, it
    is awaited on the engine's loop. The object is also the handle of the pushed work: ``await`` it, or
    call its methods, in the form that :func:`flowmx.engine.push` returns (:class:`flowmx.engine.Handle`).

    Attributes:
        priority: higher runs earlier among what is ready.
        nbytes: memory that it will allocate, for the run-ahead limit.
        light: True when running it takes microseconds, so that an ``await`` may do it in place.
        is_coroutine: the function is a coroutine function.
        bulkable: it may be gathered with others into one operation.
        state, blockers, held, dependents, serial: the scheduler's.
        waiters: called when it is complete.
        failure, result: how it ended.
        token: where an asynchronous device was launched, what completes when the work is done there.
        began: when it began to run, in seconds of :func:`time.monotonic`; 0 where it was run at its push.
    """

    priority = 0
    is_coroutine = False
    bulkable = True
    state = WAITING
    blockers = 0
    held = 0
    dependents: list[Operation] | None = None
    waiters: list[Callable[[], None]] | None = None
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} #{self.serial} {State(self.state).name.lower()}>"


def _wait_for(op: Operation, earlier: Operation) -> None:
    """Count one more operation that ``op`` waits for."""
    if earlier.dependents is None:
        earlier.dependents = [op]
    else:
        earlier.dependents.append(op)
    op.blockers += 1


class Scheduler:
    """Resolves operations by the variables that they read and write. Not locked: the caller's business."""

    __slots__ = ("pending", "serial")

    def __init__(self) -> None:
        self.pending: dict[Operation, None] = {}
        """Every operation pushed and not complete, oldest first."""
        self.serial = 0
        """How many operations were pushed."""

    @property
    def completed(self) -> int:
        """How many operations have completed."""
        return self.serial - len(self.pending)

    def push(self, op: Operation, hold: int = 0) -> bool:
        """Add an operation; True when it may start now.

        Args:
            op: the operation, in state WAITING.
            hold: extra blockers, for an operation that is to wait for :meth:`unhold` too.
        """
        self.serial = op.serial = self.serial + 1
        self.pending[op] = None
        if hold:
            op.held = op.blockers = hold
        self.tag(op, op.reads, op.writes)
        if op.blockers:
            return False
        op.state = READY
        return True

    def tag(self, op: Operation, reads: tuple[Variable, ...], writes: tuple[Variable, ...]) -> None:
        """Make ``op`` the newest reader and writer of these variables, waiting for the ones before it."""
        for variable in reads:
            writer = variable.writer
            if writer is not None and writer.state != DONE and writer is not op:
                _wait_for(op, writer)
            readers = variable.readers
            if readers is None:
                variable.readers = [op]
            else:
                if len(readers) >= variable.prune_at:
                    readers[:] = [reader for reader in readers if reader.state != DONE]
                    variable.prune_at = max(_PRUNE_AT, 2 * len(readers))
                readers.append(op)
        for variable in writes:
            readers = variable.readers
            if readers:
                for reader in readers:
                    if reader.state != DONE and reader is not op:
                        _wait_for(op, reader)
                variable.readers = None
            else:
                writer = variable.writer
                if writer is not None and writer.state != DONE and writer is not op:
                    _wait_for(op, writer)
            variable.writer = op
            variable.version += 1

    def is_free(self, op: Operation) -> bool:
        """True when an operation not pushed yet would have nothing to wait for."""
        for variable in op.reads:
            writer = variable.writer
            if writer is not None and writer.state != DONE:
                return False
        for variable in op.writes:
            if variable.readers or variable.writer is not None:
                for _ in variable.pending():
                    return False
        return True

    def pass_through(self, op: Operation) -> None:
        """Count a free operation as pushed and complete: it runs before anything else can be pushed."""
        self.serial = op.serial = self.serial + 1
        op.state = DONE
        for variable in op.writes:
            variable.version += 1

    def unhold(self, op: Operation) -> bool:
        """Take away one extra blocker; True when the operation may start now."""
        op.held -= 1
        op.blockers -= 1
        if op.blockers == 0 and op.state == WAITING:
            op.state = READY
            return True
        return False

    def start(self, op: Operation) -> None:
        """Say that a ready operation runs now."""
        op.state = RUNNING

    def complete(self, op: Operation) -> Sequence[Operation]:
        """Say that an operation has ended, well or not; returns those that may start now, in push order.

        One that still waits can not end: what was pushed after it relies on what was pushed before it.
        """
        op.state = DONE
        self.pending.pop(op, None)
        for variable in op.writes:
            if variable.writer is op:
                variable.writer = None
        dependents = op.dependents
        if dependents is None:
            return ()
        op.dependents = None
        ready = []
        for dependent in dependents:
            dependent.blockers -= 1
            if dependent.blockers == 0 and dependent.state == WAITING:
                dependent.state = READY
                ready.append(dependent)
        return ready

    def rebuild(self) -> list[Operation]:
        """Resolve everything pending anew, where a push or a completion was broken off; returns what is ready.

        What operations declare, in push order, says all there is to know.
        """
        versions: dict[Variable, int] = {}
        for op in list(self.pending):
            for variable in (*op.reads, *op.writes):
                versions[variable] = variable.version
                variable.writer = variable.readers = None
            op.dependents = None
            op.blockers = op.held
            if op.state == DONE:
                del self.pending[op]
        for op in self.pending:
            self.tag(op, op.reads, op.writes)
            if op.state == WAITING and not op.blockers:
                op.state = READY
        for variable, version in versions.items():
            variable.version = version
        return [op for op in self.pending if op.state == READY]

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts itself (for tests; walks everything pending)."""
        counted: dict[Operation, int] = dict.fromkeys(self.pending, 0)
        serials = [op.serial for op in self.pending]
        assert serials == sorted(serials), "pending operations must stand in push order"
        for op in self.pending:
            assert op.state != DONE, f"{op} is complete and still pending"
            for dependent in op.dependents or ():
                assert dependent.serial > op.serial, f"{dependent} waits for the later {op}"
                assert dependent in counted, f"{dependent} waits for {op} but is not pending"
                counted[dependent] += 1
        for op, blockers in counted.items():
            assert op.blockers == blockers + op.held, f"{op} counts {op.blockers} blockers, {blockers} name it"
            assert (op.state == WAITING) == (op.blockers > 0), f"{op} has {op.blockers} blockers"
        running = [op for op in self.pending if op.state in (READY, RUNNING)]
        held = any(op.held for op in self.pending)
        assert running or held or not self.pending, "operations are pending and none may run"
        written: set[Variable] = set()
        touched: set[Variable] = set()
        for op in running:
            writes, reads = set(op.writes), set(op.reads) - set(op.writes)
            assert not (writes & touched) and not (reads & written), f"{op} may run beside one it conflicts with"
            written |= writes
            touched |= writes | reads
