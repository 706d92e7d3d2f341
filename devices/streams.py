"""Streams and tokens: execution and synchronization of asynchronous devices (GPUs and simulated devices).

A *stream* is a queue of work on a device. Launching returns at once, so the scheduler considers an operation complete
once it is launched. A *token* is a point in a stream. Each variable has :class:`Marks`: the token of its last write
and, by stream, the tokens of later reads. To launch an operation, its stream waits for the tokens of other streams in
its variables' marks; after the launch, its own token is stored there. The host waits for a token only if a value is
read, or if an operation of a host actor uses a variable with marks.

:class:`StreamActor` does this for every backend; a backend implements :class:`Stream`. A device has one event loop, in
a separate thread, which launches on all its streams: launches are short, and a single thread makes their order
reproducible. An operation that reads a result of the operation pushed just before it gets the same stream; otherwise
streams are used in turn.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from flowmx import forks
from flowmx.engine.actor import BatchActor
from flowmx.engine.bookkeeping import inherited_failure
from flowmx.engine.failure import DependencyFailed, Failure, failure_of
from flowmx.engine.loops import create_hidden_task
from flowmx.engine.running import call_in_layers
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.engine.workers import ThreadActor

if TYPE_CHECKING:
    from flowmx.devices.block_pool import Block
    from flowmx.devices.device import Device

T = TypeVar("T")

_MAX_HOST_MEMORY_LAUNCHES = 256
"""Launches whose host memory a stream keeps alive; more launches wait."""
_USER_THREADS = 16
"""Maximum number of threads for user code on a device."""


class Token:
    """A point in a stream, after all work launched there before it.

    Attributes:
        stream: the stream.
        serial: its number in the stream, from 1.
        op_serial: the serial number of the operation that ends here (0 if none).
        failure: a failure on the device, set by the backend when the token is done.
        sources: the tokens whose values the operation read; their failures fail this token too.
        event: data of the backend.
    """

    __slots__ = ("event", "failure", "op_serial", "serial", "sources", "stream")

    def __init__(self, stream: Stream, serial: int, op_serial: int = 0, sources: Sequence[Token] = ()) -> None:
        self.stream = stream
        self.serial = serial
        self.op_serial = op_serial
        self.sources = tuple(sources)
        self.failure: Failure | None = None
        self.event: Any = None

    def done(self) -> bool:
        """Return whether the host knows that the device has passed the token. Never blocks."""
        return self.stream.is_done(self)

    def finish(self) -> Failure | None:
        """Block this thread until the device has passed the token; return the failure, if any."""
        if not self.stream.is_done(self):
            if thread_streams.launch is not None:  # no other operation may launch in this thread meanwhile
                self.stream.finish(self)
            else:
                with engine.slot_released():
                    self.stream.finish(self)
        self.stream.on_host_wait(self)
        return self.failure

    def wait(self) -> None:
        """Block this thread until the device has passed the token.

        Raises:
            Exception: the operation's error on the device, with its notes.
        """
        failure = self.finish()
        if failure is not None:
            failure.throw()

    async def wait_in_thread(self) -> None:
        """Wait in a thread until the device has passed the token, without blocking the event loop or raising errors."""
        if not self.done():
            await _call_in_thread(self.finish)
        self.finish()

    def __repr__(self) -> str:
        return f"<Token {self.serial} of {self.stream.name}>"


class Launch:
    """A launch of an operation on a stream.

    Attributes:
        op: the operation.
        function, arguments: the call that launches the work.
        reads, writes: its variables.
        stream: its stream.
        waited: the tokens for which the stream was made to wait.
        sources: the tokens of the values that the operation reads.
        token: its token, once recorded.
        blocks: the memory allocated during the launch.
        work: data of the backend.
    """

    __slots__ = (
        "arguments", "blocks", "function", "op", "reads", "sources", "stream", "token", "waited", "work", "writes",
    )  # fmt: skip

    def __init__(self, op: Operation, stream: Stream, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.op = op
        self.stream = stream
        self.function = function
        self.arguments = arguments
        self.reads, self.writes = op.reads, op.writes
        self.waited: list[Token] = []
        self.sources: list[Token] = []
        self.token: Token | None = None
        self.blocks: list[Block] = []
        self.work: Any = None

    def call(self) -> Any:
        """Call the operation's function."""
        op = self.op
        if not op.layers or op.runs_user_code:  # user code is already wrapped
            return self.function(*self.arguments)
        return call_in_layers(op.layers, op, self.function, self.arguments)


class ThreadStreams(threading.local):
    """Thread-local state: the entered streams, the current launch, and whether this is a device's thread."""

    is_device_thread = False

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.launch: Launch | None = None


thread_streams = ThreadStreams()


def current_stream() -> Stream | None:
    """Return the calling thread's current stream, or None."""
    return thread_streams.streams[-1] if thread_streams.streams else None


class Stream(ABC):
    """A queue of work on a device, in the order launched.

    Attributes:
        name: its name in messages and timelines, for example ``sim(0) compute 1``.
        device: the device; None for the host's stream.
        priority: the device prefers streams of higher priority.
        serial: the number of recorded tokens.
        newest: the last recorded token.
    """

    def __init__(self, name: str, device: Device | None, priority: int = 0) -> None:
        self.name = name
        self.device = device
        self.priority = priority
        self.serial = 0
        self.newest: Token | None = None
        self._record_lock = forks.lock()
        self._waited_serials: dict[Stream, int] = {}
        self._kept_alive: deque[tuple[Token, tuple[Variable, ...]]] = deque()

    def wait(self, token: Token) -> None:
        """Make later launches on this stream start after a token. The host does not wait."""
        is_ordered = token.stream is not HOST  # tokens of the host have no order
        if is_ordered and (token.stream is self or self._waited_serials.get(token.stream, 0) >= token.serial):
            return
        self._wait(token)
        if is_ordered:  # later waits for this token and earlier ones can be skipped
            self._waited_serials[token.stream] = token.serial
        if thread_streams.launch is not None and thread_streams.launch.stream is self:
            thread_streams.launch.waited.append(token)

    def record(self, launch: Launch | None = None) -> Token:
        """Record a token after all work launched on this stream so far."""
        with self._record_lock:  # user threads launch too, and tokens must be in serial order
            self.serial += 1
            token = Token(
                self, self.serial, 0 if launch is None else launch.op.serial, launch.sources if launch else ()
            )
            if launch is not None:
                launch.token = token
            self._record(token, launch)
            self.newest = token
        return token

    def run(self, launch: Launch) -> Any:
        """Launch an operation on this stream, which must be current; return the function's result."""
        return launch.call()

    def keep_alive(self, token: Token, variables: tuple[Variable, ...]) -> None:
        """Keep host memory alive until the device has passed a token."""
        if variables:
            self._kept_alive.append((token, variables))
        while self._kept_alive and self._kept_alive[0][0].done():
            self._kept_alive.popleft()[0].finish()

    def token_before_next_launch(self) -> Token | None:
        """Return the token that the next launch must wait for, to limit host memory, or None."""
        return self._kept_alive[0][0] if len(self._kept_alive) > _MAX_HOST_MEMORY_LAUNCHES else None

    def can_wait_for(self, token: Token) -> bool:
        """Return whether the device itself can wait for a token."""
        return token.stream is HOST or token.done()

    def synchronize(self) -> None:
        """Block this thread until all work on this stream is done; errors stay in the tokens."""
        self.record().finish()
        self._kept_alive.clear()

    def on_host_wait(self, token: Token) -> None:
        """Record that the calling thread has waited for a token (a hook for backends)."""

    def __enter__(self) -> Stream:
        thread_streams.streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        thread_streams.streams.pop()

    @abstractmethod
    def _wait(self, token: Token) -> None:
        """Make the device wait for a token (the backend's part of :meth:`wait`)."""

    @abstractmethod
    def _record(self, token: Token, launch: Launch | None) -> None:
        """Record a token on the device."""

    @abstractmethod
    def is_done(self, token: Token) -> bool:
        """Return whether the host knows that the device has passed one of its tokens."""

    @abstractmethod
    def finish(self, token: Token) -> None:
        """Block until the device has passed a token."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class HostStream(Stream):
    """The host's stream; its operations are done when they return."""

    def _wait(self, token: Token) -> None:
        token.finish()

    def _record(self, token: Token, launch: Launch | None) -> None:
        return None

    def is_done(self, token: Token) -> bool:
        return True

    def finish(self, token: Token) -> None:
        return None


HOST = HostStream("host", None)
_marks_lock = forks.lock()


class Marks:
    """The synchronization state of a variable: the token of its last write and, by stream, of later reads."""

    __slots__ = ("note", "reads", "write")

    def __init__(self) -> None:
        self.write: Token | None = None
        self.reads: dict[Stream, Token] = {}
        self.note: Any = None

    def dependencies(self, writing: bool) -> list[Token]:
        """Return the tokens that must come before a read or a write."""
        reads = list(self.reads.values()) if writing else []
        return reads if self.write is None else [self.write, *reads]

    def finish(self) -> Failure | None:
        """Block until the last write is done; return its failure, if any."""
        return None if self.write is None else self.write.finish()

    def finish_reads(self) -> None:
        """Block until the last write and all later reads are done."""
        for token in self.dependencies(writing=True):
            token.finish()

    def done(self) -> bool:
        """Return whether the host knows that the last write is done."""
        return self.write is None or self.write.done()


def _tokens_of(variables: Iterable[Variable], writing: bool) -> Iterator[Token]:
    for variable in variables:
        if variable.marks is not None:
            yield from variable.marks.dependencies(writing)


def mark(reads: Iterable[Variable], writes: Iterable[Variable], token: Token) -> None:
    """Mark variables as read and written by an operation that ends at a token."""
    with _marks_lock:
        for variable in reads:
            if variable.marks is None:
                variable.marks = Marks()
            variable.marks.reads[token.stream] = token
        for variable in writes:
            if variable.marks is None:
                variable.marks = Marks()
            variable.marks.write = token
            variable.marks.reads = {}


class StreamActor(BatchActor):
    """An actor that launches operations on the streams of a device, from the device's event loop.

    Where the host must wait before a launch, the actor awaits, so that other streams can continue. User code that is
    pushed to the device may block, so it runs on separate threads.

    Args:
        name: its name in messages and profiles.
        streams: its streams.
        urgent: a separate stream for operations with a priority above 0, if any.
        user: a separate stream for user code, if any: work on the other streams may be captured as a graph.
        home: the name of the device; its actors share an event loop.
    """

    launches = True
    on_push: Callable[[Operation], None] | None = None
    """Called with each operation when it is pushed, on the pushing thread."""

    def __init__(
        self,
        name: str,
        streams: Sequence[Stream],
        urgent: Stream | None = None,
        user: Stream | None = None,
        home: str = "",
    ) -> None:
        super().__init__(name)
        self.home = home or name
        self.streams = tuple(streams)
        self.urgent = urgent
        self.user = user
        self._first_serial = engine.scheduler.serial  # so that a program gets the same streams in each run
        self._user_threads = _UserThreads(f"user code on {name}", _USER_THREADS)
        self._delayed_launches: set[asyncio.Task[None]] = set()
        _open_actors.add(self)
        engine.use_watch(_prepare_push, "tokens")

    def close(self) -> None:
        """Close the actor after its last operation; without open actors, pushes have no extra cost."""
        engine.retire(self)
        engine.retire(self._user_threads)
        _open_actors.discard(self)
        if not _open_actors:
            engine.use_watch(None, "tokens")

    def all_streams(self) -> tuple[Stream, ...]:
        """Return all streams, including the separate ones."""
        return (*self.streams, *(stream for stream in (self.urgent, self.user) if stream is not None))

    def accept(self, op: Operation) -> None:
        if op.runs_user_code:
            if self._user_threads.engine is None:
                engine.hosting.start_actor(self._user_threads)
            self._user_threads.accept(op)
        else:
            super().accept(op)

    def open_slot(self) -> None:
        self._user_threads.open_slot()

    def close_slot(self) -> None:
        self._user_threads.close_slot()

    def choose_stream(self, op: Operation, dependencies: Sequence[Token]) -> Stream:
        """Return the stream for an operation that comes after these tokens."""
        if op.priority > 0 and self.urgent is not None:
            return self.urgent
        if len(self.streams) > 1:
            for token in dependencies:
                if token.op_serial == op.serial - 1 and token.stream in self.streams:
                    return token.stream
        return self.streams[(op.serial - self._first_serial) % len(self.streams)]

    # -- the coroutine ---------------------------------------------------------------------------------

    async def run(self) -> None:
        thread_streams.is_device_thread = True
        await super().run()

    async def begin(self, batch: Sequence[Operation]) -> None:
        books = engine.books
        with engine.guard():
            for op in batch:
                op.began = monotonic()
                failure = inherited_failure(op) if books.is_poisoned else None
                if failure is None:
                    sources, dependencies = _tokens_before(op)
                    stream = self.choose_stream(op, dependencies)
                    host_waits = (
                        [token for token in dependencies if not stream.can_wait_for(token)] if dependencies else []
                    )
                    limiting_token = stream.token_before_next_launch()
                    if limiting_token is not None:
                        host_waits.append(limiting_token)
                    if host_waits:
                        self._spawn(self._launch_after(host_waits, op, stream, sources, dependencies))
                        continue
                    failure = self._try_launch(op, stream, sources, dependencies)
                engine.end(op, failure)  # before the next operation allocates

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = create_hidden_task(asyncio.get_running_loop(), coroutine)
        self._delayed_launches.add(task)
        task.add_done_callback(self._delayed_launches.discard)

    async def _launch_after(
        self,
        host_waits: Sequence[Token],
        op: Operation,
        stream: Stream,
        sources: list[Token],
        dependencies: list[Token],
    ) -> None:
        for token in host_waits:
            await token.wait_in_thread()
        with engine.guard():
            engine.end(op, self._try_launch(op, stream, sources, dependencies))

    def _try_launch(
        self, op: Operation, stream: Stream, sources: list[Token], dependencies: list[Token]
    ) -> Failure | None:
        """Launch an operation; return its failure, if any."""
        try:
            launch = Launch(op, stream, op.function, op.arguments)
            op.result = self.launch(launch, sources, dependencies)
        except BaseException as error:  # whatever user code raises fails the operation
            return failure_of(error, op)
        return None

    def launch(self, launch: Launch, sources: list[Token], dependencies: list[Token]) -> Any:
        """Wait on the stream, launch, record a token, and mark the variables."""
        for token in sources:
            if token.failure is not None:
                raise DependencyFailed(token.failure)
        stream = launch.stream
        if sources:
            launch.sources = [token for token in sources if not token.done()]
        outer, thread_streams.launch = thread_streams.launch, launch
        try:
            with stream:
                for token in dependencies:
                    stream.wait(token)
                try:
                    return stream.run(launch)
                finally:
                    self.finish_launch(launch)
        finally:
            thread_streams.launch = outer

    def launch_user_code(self, op: Operation, proceed: Callable[[], object]) -> Any:
        """Run user code that was pushed to the device; it may use its arrays on any stream."""
        sources, dependencies = _tokens_before(op)
        for token in dependencies:
            token.finish()
        stream = self.user or self.choose_stream(op, dependencies)
        return self.launch(Launch(op, stream, proceed, ()), sources, dependencies)

    def finish_launch(self, launch: Launch) -> None:
        """Record the token of a launch, even one that failed, and mark its variables and blocks."""
        token = launch.stream.record(launch)
        launch.op.token = token
        mark(launch.reads, launch.writes, token)
        host_variables: list[Variable] = []
        for variable in launch.reads + launch.writes:
            device = getattr(variable, "device", None)
            if device is None:
                continue
            if device.is_asynchronous:
                device.record_use(variable, token)
            else:
                host_variables.append(variable)
        for block in launch.blocks:
            block.uses[token.stream] = token
            block.launch = None
            block.uses_are_known = block.uses_are_known or block.is_released()  # no further use is possible
        launch.stream.keep_alive(token, tuple(host_variables))


async def _call_in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call a blocking function in a thread, without blocking the event loop."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:  # the interpreter is exiting, and no thread can be started
        return function(*arguments)
    return await future


class _UserThreads(ThreadActor):
    """The threads for user code on a device. A waiting thread does not help them: the code may wait for that thread."""

    accepts_help = False


def _tokens_before(op: Operation) -> tuple[list[Token], list[Token]]:
    """Return the tokens whose values an operation reads, and all tokens that must come before it."""
    marks = [variable.marks for variable in op.reads if variable.marks is not None]
    sources = [mark.write for mark in marks if mark.write is not None]
    dependencies = list(sources)
    for variable in op.writes:
        if variable.marks is not None:
            dependencies += variable.marks.dependencies(writing=True)
    return sources, dependencies


# -- operations of the host --------------------------------------------------------------------------------

observers: list[Callable[[Operation, Token], None]] = []
"""Functions called as ``observe(op, token)`` after each host operation that uses marked variables."""


_open_actors: set[StreamActor] = set()
"""The open actors; while this set is not empty, operations of host actors wait for the devices."""


def _prepare_push(op: Operation) -> None:
    """Prepare a push: create the marks of a stream's variables, and make host operations wait for marks."""
    if isinstance(op.actor, StreamActor):
        for variable in (*op.reads, *op.writes):
            if variable.marks is None:
                variable.marks = Marks()
        if op.actor.on_push is not None:
            op.actor.on_push(op)
        if op.runs_user_code:
            op.wrap(op.actor.launch_user_code)
    elif any(variable.marks is not None for variable in (*op.reads, *op.writes)):
        op.light = False  # the operation may wait, and the pushing thread must not
        op.wrap(_run_on_host)


def _run_on_host(op: Operation, proceed: Callable[[], object]) -> Any:
    """Run an operation of the host that uses variables of asynchronous devices."""
    if op.is_coroutine:
        return _run_on_host_async(op, proceed)
    token = _begin_on_host(op)
    try:
        return proceed()
    finally:
        _end_on_host(op, token)


async def _run_on_host_async(op: Operation, proceed: Callable[[], Any]) -> Any:
    token = await _call_in_thread(_begin_on_host, op)
    for source in token.sources:
        source.finish()  # returns at once; records that later pushes of this thread come after it
    try:
        return await proceed()
    finally:
        _end_on_host(op, token)


def _begin_on_host(op: Operation) -> Token:
    """Wait for all tokens that must come before an operation of the host; return its token."""
    sources = list(_tokens_of(op.reads, writing=False))
    for token in sources:
        failure = token.finish()
        if failure is not None:
            raise DependencyFailed(failure)
    dependencies = [*sources, *_tokens_of(op.writes, writing=True)]
    for token in dependencies:
        token.finish()
    return Token(HOST, 0, op.serial, _newest_by_stream(dependencies))


def wait_for_values(op: Operation) -> None:
    """Make this thread wait for the values that a host operation reads, as the operation's thread did."""
    for token in _tokens_of(op.reads, writing=False):
        token.finish()


def _newest_by_stream(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """Return the newest token of each device stream among some tokens and the sources of host tokens."""
    newest: dict[Stream, Token] = {}
    for token in tokens:
        for source in (token,) if token.stream is not HOST else token.sources:
            if source.stream not in newest or newest[source.stream].serial < source.serial:
                newest[source.stream] = source
    return tuple(newest.values())


def _end_on_host(op: Operation, token: Token) -> None:
    for device in {getattr(variable, "device", None) for variable in (*op.reads, *op.writes)}:
        if device is not None:
            device.synchronize_host_work()
    mark((), [variable for variable in op.writes if variable.marks is not None], token)
    for observe in observers:
        observe(op, token)
    # User code may have launched, and waited for, further reads of the same memory.
    with _marks_lock:
        for variable in op.reads:
            if variable.marks is not None and variable not in op.writes:
                variable.marks.reads[HOST] = _join_tokens(variable.marks.reads.get(HOST), token)


def _join_tokens(earlier: Token | None, token: Token) -> Token:
    """Return a token of the host that comes after two operations of the host."""
    if earlier is None:
        return token
    result = Token(HOST, 0, token.op_serial, _newest_by_stream([earlier, token]))
    result.event = {
        stream: max(clock.get(stream, 0) for clock in (earlier.event or {}, token.event or {}))
        for stream in {**(earlier.event or {}), **(token.event or {})}
    }
    return result
