"""Streams and tokens: how operations of an asynchronous device (a GPU, a simulated one) run and are waited for.

A *stream* is a queue of work on a device. Launching returns at once, so an operation is complete for the scheduler
when it has been launched. What keeps the laws is carried by the variables: each has :class:`Marks`, the token of its
last write and, by stream, of the reads since. An operation first makes its stream wait for the tokens of other streams
that its variables carry, then is launched, then marks them with its own. The host waits for a token only where a
value is asked for, or where an operation of a host's actor touches a variable that has marks.

:class:`StreamActor` does this for every backend; a backend implements :class:`Stream`. A device has an event loop in a
thread of its own, which launches for all its streams: launches are short, and in one order they repeat. Which stream
an operation gets follows from what it depends on: the stream of the operation pushed just before it, where it reads
what that one wrote, else the next one in turn.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from flowmx.engine.actor import BatchActor
from flowmx.engine.bookkeeping import carried
from flowmx.engine.failure import Failure, Inherited, failure_of
from flowmx.engine.running import call_in
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.engine.workers import ThreadActor

if TYPE_CHECKING:
    from flowmx.devices.device import Device

T = TypeVar("T")

_MOST_HELD = 256
"""Launches whose host memory a stream keeps alive, before more are launched."""
_USER_THREADS = 16


class Token:
    """A point in a stream, which stands for all that was launched there before it.

    Attributes:
        stream: the stream.
        serial: which of its tokens it is, from 1.
        op_serial: the number of the operation that it ends, in the order pushed (0: none).
        failure: what went wrong on the device, once it is done; a backend sets it.
        sources: the tokens whose values the operation read: what failed there fails here too.
        event: the backend's own.
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
        """True where the device has passed it, as far as the host knows. Never blocks."""
        return self.stream.is_done(self)

    def finish(self) -> Failure | None:
        """Block this thread until the device has come past it; returns what went wrong there."""
        if not self.stream.is_done(self):
            if here.launch is not None:  # no other operation is to launch here meanwhile
                self.stream.finish(self)
            else:
                with engine.standing_aside():
                    self.stream.finish(self)
        self.stream.finished(self)
        return self.failure

    def wait(self) -> None:
        """Block this thread until the device has come past it.

        Raises:
            Exception: what the operation failed with on the device, with its notes.
        """
        failure = self.finish()
        if failure is not None:
            failure.throw()

    async def passed(self) -> None:
        """Wait until the device has passed it, in a thread, so that the event loop goes on; errors stay here."""
        if not self.done():
            await _in_thread(self.finish)
        self.finish()

    def __repr__(self) -> str:
        return f"<Token {self.serial} of {self.stream.name}>"


class Launch:
    """An operation on its way to a stream.

    Attributes:
        op: the operation.
        function, arguments: what launches its work.
        reads, writes: its variables.
        stream: where it goes.
        waited: the tokens that the stream was made to wait for.
        sources: those of them whose values it reads.
        token: its own, once recorded.
        blocks: the memory that was allocated meanwhile.
        work: what a backend notes of it.
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
        self.blocks: list[Any] = []
        self.work: Any = None

    def call(self) -> Any:
        """Call the operation's function."""
        op = self.op
        if not op.layers or op.runs_user_code:  # around user code they are already
            return self.function(*self.arguments)
        return call_in(op.layers, op, self.function, self.arguments)


class ThreadStreams(threading.local):
    """The streams that the calling thread has entered, what it launches, and whether it is a device's own thread."""

    is_devices = False

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.launch: Launch | None = None


here = ThreadStreams()


def current_stream() -> Stream | None:
    """The stream that the calling thread's launches go to; None outside of any."""
    return here.streams[-1] if here.streams else None


class Stream(ABC):
    """A queue of work on a device, in the order launched.

    Attributes:
        name: as in messages and timelines, for example ``sim(0) compute 1``.
        device: the device; None for the host's.
        priority: higher is preferred by the device where it can choose.
        serial: how many tokens were recorded.
        newest: the last of them.
    """

    def __init__(self, name: str, device: Device | None, priority: int = 0) -> None:
        self.name = name
        self.device = device
        self.priority = priority
        self.serial = 0
        self.newest: Token | None = None
        self._recording = threading.RLock()
        self._seen: dict[Stream, int] = {}
        self._held: deque[tuple[Token, tuple[Variable, ...]]] = deque()

    def wait(self, token: Token) -> None:
        """Let what is launched here from now on start after a token. The host does not wait."""
        is_ordered = token.stream is not HOST  # operations of the host are in no order among each other
        if is_ordered and (token.stream is self or self._seen.get(token.stream, 0) >= token.serial):
            return
        self._wait(token)
        if is_ordered:  # from here on another thread need not wait too
            self._seen[token.stream] = token.serial
        if here.launch is not None and here.launch.stream is self:
            here.launch.waited.append(token)

    def record(self, launch: Launch | None = None) -> Token:
        """A token for all that was launched here so far."""
        with self._recording:  # threads with user code launch too, and tokens stand in the order of their numbers
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
        """Launch an operation on this stream, which is the current one; returns what its function does."""
        return launch.call()

    def hold(self, token: Token, variables: tuple[Variable, ...]) -> None:
        """Keep host memory alive that the device uses up to a token."""
        if variables:
            self._held.append((token, variables))
        while self._held and self._held[0][0].done():
            self._held.popleft()[0].finish()

    def held_too_long(self) -> Token | None:
        """The token to wait for before the next launch, where much memory of the host is kept alive."""
        return self._held[0][0] if len(self._held) > _MOST_HELD else None

    def can_wait_for(self, token: Token) -> bool:
        """Tell whether the device can wait for a token, so that the host need not."""
        return token.stream is HOST or token.done()

    def synchronize(self) -> None:
        """Block this thread until all that was launched here is done; errors stay with their tokens."""
        self.record().finish()
        self._held.clear()

    def finished(self, token: Token) -> None:
        """Note that the calling thread knows that one of its tokens is done (for devices that keep account of it)."""

    def __enter__(self) -> Stream:
        here.streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        here.streams.pop()

    @abstractmethod
    def _wait(self, token: Token) -> None:
        """Make the device wait (a backend's part of :meth:`wait`)."""

    @abstractmethod
    def _record(self, token: Token, launch: Launch | None) -> None:
        """Record a token on the device."""

    @abstractmethod
    def is_done(self, token: Token) -> bool:
        """True where the device has passed one of its tokens, as far as the host knows."""

    @abstractmethod
    def finish(self, token: Token) -> None:
        """Block until the device has passed a token."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class HostStream(Stream):
    """The stream of the host, whose operations are done when they return."""

    def _wait(self, token: Token) -> None:
        token.finish()

    def _record(self, token: Token, launch: Launch | None) -> None:
        return None

    def is_done(self, token: Token) -> bool:
        return True

    def finish(self, token: Token) -> None:
        return None


HOST = HostStream("host", None)
_marking = threading.RLock()


class Marks:
    """The synchronisation state of a variable: the token of its last write and, by stream, those of the reads since."""

    __slots__ = ("note", "reads", "write")

    def __init__(self) -> None:
        self.write: Token | None = None
        self.reads: dict[Stream, Token] = {}
        self.note: Any = None

    def before(self, writing: bool) -> list[Token]:
        """The tokens that a read, or a write, must come after."""
        found = list(self.reads.values()) if writing else []
        return found if self.write is None else [self.write, *found]

    def finish(self) -> Failure | None:
        """Block until the last write is done; returns what went wrong with it."""
        return None if self.write is None else self.write.finish()

    def finish_reads(self) -> None:
        """Block until the reads since are done too."""
        for token in self.before(writing=True):
            token.finish()

    def done(self) -> bool:
        """True where the last write is done, as far as the host knows."""
        return self.write is None or self.write.done()


def _carried_before(variables: Iterable[Variable], writing: bool) -> Iterator[Token]:
    for variable in variables:
        if variable.marks is not None:
            yield from variable.marks.before(writing)


def mark(reads: Iterable[Variable], writes: Iterable[Variable], token: Token) -> None:
    """Mark variables as read and written by an operation that ends with a token."""
    with _marking:
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
    """Launches operations onto the streams of a device, from the device's own event loop.

    What the host must wait for before a launch is awaited, so that the other streams of the device go on. Code of the
    user's that is pushed to the device may block, and runs on threads of its own.

    Args:
        name: as in messages and profiles.
        streams: where operations go.
        urgent: where those of a priority above 0 go, if not to one of the others.
        home: the name of the device, whose actors share an event loop.
    """

    launches = True
    on_push: Callable[[Operation], None] | None = None
    """Called with each operation at its push, on the pushing thread."""

    def __init__(self, name: str, streams: Sequence[Stream], urgent: Stream | None = None, home: str = "") -> None:
        super().__init__(name)
        self.home = home or name
        self.streams = tuple(streams)
        self.urgent = urgent
        self._first = engine.scheduler.serial  # so that the same program gets the same streams again
        self._user_threads = _UserThreads(f"user code on {name}", _USER_THREADS)
        self._later: set[asyncio.Task[None]] = set()
        _open.add(self)
        engine.use_watch(_prepare, "tokens")

    def close(self) -> None:
        """Close it, after its last operation; once none is open, pushes cost no more than without any."""
        engine.retire(self)
        engine.retire(self._user_threads)
        _open.discard(self)
        if not _open:
            engine.use_watch(None, "tokens")

    def all_streams(self) -> tuple[Stream, ...]:
        """Every stream that it launches onto."""
        return self.streams if self.urgent is None else (*self.streams, self.urgent)

    def accept(self, op: Operation) -> None:
        if op.runs_user_code:
            if self._user_threads.engine is None:
                engine.hosting.adopt(self._user_threads)
            self._user_threads.accept(op)
        else:
            super().accept(op)

    def open_slot(self) -> None:
        self._user_threads.open_slot()

    def close_slot(self) -> None:
        self._user_threads.close_slot()

    def choose(self, op: Operation, before: Sequence[Token]) -> Stream:
        """The stream for an operation that comes after these tokens."""
        if op.priority > 0 and self.urgent is not None:
            return self.urgent
        if len(self.streams) > 1:
            for token in before:
                if token.op_serial == op.serial - 1 and token.stream in self.streams:
                    return token.stream
        return self.streams[(op.serial - self._first) % len(self.streams)]

    # -- the coroutine ---------------------------------------------------------------------------------

    async def run(self) -> None:
        here.is_devices = True
        await super().run()

    async def begin(self, batch: Sequence[Operation]) -> None:
        books = engine.books
        with engine.guard():
            for op in batch:
                op.began = monotonic()
                failure = carried(op) if books.is_poisoned else None
                if failure is None:
                    sources, before = _tokens_before(op)
                    stream = self.choose(op, before)
                    awaited = [token for token in before if not stream.can_wait_for(token)] if before else []
                    held = stream.held_too_long()
                    if held is not None:
                        awaited.append(held)
                    if awaited:
                        self._spawn(self._launch_after(awaited, op, stream, sources, before))
                        continue
                    failure = self._try(op, stream, sources, before)
                engine.end(op, failure)  # before the next one allocates

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _launch_after(
        self, awaited: Sequence[Token], op: Operation, stream: Stream, sources: list[Token], before: list[Token]
    ) -> None:
        for token in awaited:
            await token.passed()
        with engine.guard():
            engine.end(op, self._try(op, stream, sources, before))

    def _try(self, op: Operation, stream: Stream, sources: list[Token], before: list[Token]) -> Failure | None:
        """Launch an operation; returns how it failed, if it did."""
        try:
            launch = Launch(op, stream, op.function, op.arguments)
            op.result = self.launch(launch, sources, before)
        except BaseException as error:
            return failure_of(error, op)
        return None

    def launch(self, launch: Launch, sources: list[Token], before: list[Token]) -> Any:
        """Wait on the stream, launch, record, mark."""
        for token in sources:
            if token.failure is not None:
                raise Inherited(token.failure)
        stream = launch.stream
        if sources:
            launch.sources = [token for token in sources if not token.done()]
        outer, here.launch = here.launch, launch
        try:
            with stream:
                for token in before:
                    stream.wait(token)
                try:
                    return stream.run(launch)
                finally:
                    self.after(launch)
        finally:
            here.launch = outer

    def launch_user_code(self, op: Operation, proceed: Callable[[], Any]) -> Any:
        """A layer of what the user pushed to the device, which may do anything with its arrays, on any stream."""
        sources, before = _tokens_before(op)
        for token in before:
            token.finish()
        return self.launch(Launch(op, self.choose(op, before), proceed, ()), sources, before)

    def after(self, launch: Launch) -> None:
        """Record the token of what was launched, also where it broke off half-way, and mark what it touches."""
        token = launch.stream.record(launch)
        launch.op.token = token
        mark(launch.reads, launch.writes, token)
        host: list[Variable] = []
        for variable in launch.reads + launch.writes:
            device = getattr(variable, "device", None)
            if device is None:
                continue
            if device.is_asynchronous:
                device.used(variable, token)
            else:
                host.append(variable)
        for block in launch.blocks:
            block.uses[token.stream] = token
            block.launch = None
            block.is_followed = block.is_followed or block.is_let_go()  # nobody can use it any more
        launch.stream.hold(token, tuple(host))


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a blocking function in a thread, so that the event loop goes on."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError:  # the interpreter exits, and no thread can be started any more
        return function(*arguments)
    return await future


class _UserThreads(ThreadActor):
    """The threads of user code on a device. No other thread runs its operations, since that code may wait for it."""

    may_lend = False


def _tokens_before(op: Operation) -> tuple[list[Token], list[Token]]:
    """The tokens whose values an operation reads, and all that it comes after."""
    sources = [each.marks.write for each in op.reads if each.marks is not None and each.marks.write is not None]
    before = list(sources)
    for variable in op.writes:
        if variable.marks is not None:
            before += variable.marks.before(writing=True)
    return sources, before


# -- operations of the host --------------------------------------------------------------------------------

observers: list[Callable[[Operation, Token], None]] = []
"""Called as ``observe(op, token)`` after each host operation that touches variables with marks."""


_open: set[StreamActor] = set()
"""Open actors; while there are any, operations of the host's actors are made to wait for the devices."""


def _prepare(op: Operation) -> None:
    """Prepare a push: give marks to variables that a stream will use, and make host operations wait for marks."""
    if isinstance(op.actor, StreamActor):
        for variable in (*op.reads, *op.writes):
            if variable.marks is None:
                variable.marks = Marks()
        if op.actor.on_push is not None:
            op.actor.on_push(op)
        if op.runs_user_code:
            op.wrap(op.actor.launch_user_code)
    elif any(variable.marks is not None for variable in (*op.reads, *op.writes)):
        op.light = False  # it may have to wait, which the thread that pushes it must not
        op.wrap(_on_host)


def _on_host(op: Operation, proceed: Callable[[], Any]) -> Any:
    """A layer of an operation of the host that touches what asynchronous devices use."""
    if op.is_coroutine:
        return _on_host_async(op, proceed)
    token = _arrive(op)
    try:
        return proceed()
    finally:
        _leave(op, token)


async def _on_host_async(op: Operation, proceed: Callable[[], Any]) -> Any:
    token = await _in_thread(_arrive, op)
    for each in token.sources:
        each.finish()  # done: so that what this thread pushes is known to come after it
    try:
        return await proceed()
    finally:
        _leave(op, token)


def _arrive(op: Operation) -> Token:
    """Wait for what an operation of the host must come after; returns the token that stands for it."""
    sources = list(_carried_before(op.reads, writing=False))
    for token in sources:
        failure = token.finish()
        if failure is not None:
            raise Inherited(failure)
    before = [*sources, *_carried_before(op.writes, writing=True)]
    for token in before:
        token.finish()
    return Token(HOST, 0, op.serial, _newest(before))


def _newest(tokens: Iterable[Token]) -> tuple[Token, ...]:
    """The last token of each stream of a device among some and those that came before the host's."""
    newest: dict[Stream, Token] = {}
    for token in tokens:
        for each in (token,) if token.stream is not HOST else token.sources:
            if each.stream not in newest or newest[each.stream].serial < each.serial:
                newest[each.stream] = each
    return tuple(newest.values())


def _leave(op: Operation, token: Token) -> None:
    for device in {getattr(each, "device", None) for each in (*op.reads, *op.writes)}:
        if device is not None:
            device.finish_work_of_host()
    mark((), [each for each in op.writes if each.marks is not None], token)
    for observe in observers:
        observe(op, token)
    # User code may have launched reads of its own on the same memory, and has waited for them.
    with _marking:
        for variable in op.reads:
            if variable.marks is not None and variable not in op.writes:
                variable.marks.reads[HOST] = _joined(variable.marks.reads.get(HOST), token)


def _joined(earlier: Token | None, token: Token) -> Token:
    """A token of the host that comes after two operations of the host."""
    if earlier is None:
        return token
    joined = Token(HOST, 0, token.op_serial, _newest([earlier, token]))
    joined.event = {
        stream: max(each.get(stream, 0) for each in (earlier.event or {}, token.event or {}))
        for stream in {**(earlier.event or {}), **(token.event or {})}
    }
    return joined
