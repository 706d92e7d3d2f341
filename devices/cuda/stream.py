"""Streams of a GPU: CUDA streams with events as tokens.

An event of a token is used again once the token is known to be done. A thread that still holds it then waits for a
later token of the same stream, which is longer than it needs to, but never wrong; so reading needs no lock.

CUDA tells of errors that happen while work runs at some later call, and does not say whose they are. The first to find
one declares the device lost: all that was launched there and is not known to be done fails, and so does what is
launched later. Other devices go on.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from flowmx.devices.streams import HOST, Launch, Stream, Token, here
from flowmx.engine.failure import Inherited
from flowmx.engine.scheduler import Operation

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_LOOK_EVERY = 64
"""Tokens after which a stream checks which are done, where nothing else makes it."""

_NOT_READY = 600

books = threading.RLock()
"""Held while it is noted which tokens are done: one for all devices, whose tokens name each other."""


class _Thread(threading.local):
    """A thread's current stream, as CuPy sees it.

    Attributes:
        stream: the one of ours that was entered last; an actor's thread leaves it at that.
        before: the device and the stream that were current before, on other threads.
    """

    stream: CudaStream | None = None
    before: tuple[int, Any] | None = None


_thread = _Thread()


class CudaStream(Stream):
    """A stream of a GPU.

    Args:
        device: the GPU.
        name: what it is for.
        priority: 1 for work that the GPU is to prefer.
    """

    device: CudaDevice

    def __init__(self, device: CudaDevice, name: str, priority: int = 0) -> None:
        super().__init__(f"{device} {name}", device, priority)
        self._cuda = device.xp.cuda
        with device.selected():
            self.raw = self._cuda.Stream(non_blocking=True, priority=-priority)
        self._passed = 0
        self._open: deque[tuple[Token, Operation | None]] = deque()
        self._spare: list[Any] = []

    # -- being current ---------------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        if not here.streams and not here.is_devices:
            _thread.before = self._cuda.runtime.getDevice(), self._cuda.get_current_stream()
        here.streams.append(self)
        if _thread.stream is not self:
            self._make_current()
        return self

    def __exit__(self, *error: object) -> None:
        streams = here.streams
        streams.pop()
        if streams:
            outer = streams[-1]
            if isinstance(outer, CudaStream) and outer is not self:
                outer._make_current()
        elif _thread.before is not None:
            (number, stream), _thread.before, _thread.stream = _thread.before, None, None
            self._cuda.runtime.setDevice(number)
            stream.use()

    def _make_current(self) -> None:
        _thread.stream = None  # unless all goes well
        self._cuda.runtime.setDevice(self.device.number)
        self.raw.use()
        _thread.stream = self

    # -- launching -------------------------------------------------------------------------------------

    def run(self, launch: Launch) -> Any:
        if self.device.lost is not None:
            raise Inherited(self.device.lost)
        try:
            return launch.call()
        except self.device.errors as error:
            lost = self.device.lose_by(error, self, launch.op)
            if lost is None:
                raise
            raise Inherited(lost) from error

    def can_wait_for(self, token: Token) -> bool:
        return isinstance(token.stream, CudaStream) or super().can_wait_for(token)

    def _wait(self, token: Token) -> None:
        if not isinstance(token.stream, CudaStream):
            if token.stream is not HOST:
                token.finish()
            return
        event = token.event
        if event is None:
            return
        try:
            self.raw.wait_event(event)
        except self.device.errors as error:  # what it waits for does not run any more
            token.stream.device.lose(error, token.stream, None)

    def _record(self, token: Token, launch: Launch | None) -> None:
        op = None if launch is None else launch.op
        with books:
            event = self._spare.pop() if self._spare else None
        try:
            event = event or self._cuda.Event(block=True, disable_timing=True)
            event.record(self.raw)
        except self.device.errors as error:
            token.failure = self.device.lose(error, self, op)
            return
        with books:
            token.event = event
            self._open.append((token, op))
        if token.serial % _LOOK_EVERY == 0:
            self._look()

    def synchronize(self) -> None:
        with books:
            newest = self._open[-1][0] if self._open else None
        if newest is not None:
            newest.finish()
        self._held.clear()

    # -- what is done ----------------------------------------------------------------------------------

    def is_done(self, token: Token) -> bool:
        event = token.event
        if token.serial <= self._passed or event is None:
            return True
        try:
            done = self._is_past(event)
        except self.device.errors as error:
            self.device.lose(error, self, None)
            return True
        if done:
            self._pass(token.serial)
        return done

    def _is_past(self, event: Any) -> bool:
        # Not `event.done`, which takes an error for an event that is still to come.
        runtime = self._cuda.runtime
        status = runtime.eventQuery(event.ptr)
        if status not in (0, _NOT_READY):
            raise runtime.CUDARuntimeError(status)
        return bool(status == 0)

    def finish(self, token: Token) -> None:
        event = token.event
        if token.serial <= self._passed or event is None:
            return
        try:
            event.synchronize()
        except self.device.errors as error:
            self.device.lose(error, self, None)
            return
        self._pass(token.serial)

    def _look(self) -> None:
        """Query how far the stream has come: the newest token, else the one in the middle."""
        with books:
            asked = [self._open[index][0] for index in (-1, len(self._open) // 2)] if self._open else []
        any(self.is_done(token) for token in asked)

    def _pass(self, serial: int) -> None:
        """Note that all tokens up to one are done."""
        with books:
            while self._open and self._open[0][0].serial <= serial:
                token, _ = self._open.popleft()
                self._inherit(token)
                event, token.event = token.event, None
                if event is not None:
                    self._spare.append(event)
            self._passed = max(self._passed, serial)

    def _inherit(self, token: Token) -> None:
        """Carry a failure of another device over to this token, and let its sources go."""
        for source in token.sources:
            if source.stream.device is not self.device and token.failure is None:
                token.failure = source.finish()
        token.sources = ()

    def open_operations(self) -> list[Operation]:
        """The operations launched here that are not known to be done, the oldest first."""
        with books:
            return [op for _, op in self._open if op is not None]

    def handles(self) -> list[Any]:
        """The raw handles that it owns: the stream and all its events."""
        return [self.raw, *self._spare, *[token.event for token, _ in self._open]]

    def fail(self, failure: Any) -> None:
        """Let all that is not known to be done fail."""
        with books:
            for token, _ in self._open:
                token.failure = token.failure or failure
                token.event, token.sources = None, ()
            self._open.clear()
            self._spare.clear()
            self._passed = self.serial
