"""Streams of a GPU: CUDA streams with events as tokens.

A token's event is reused once the token is known to be done. A thread that still holds the event then waits for a later
token of the same stream, which may take longer but is never wrong. So a token's event can be read without a lock.

CUDA reports an error of asynchronous work at some later call, and does not name the operation. The first thread that
gets such an error marks the device as lost: all unfinished work there fails, and all later work. Other devices are not
affected.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from flowmx.devices.streams import HOST, Launch, Stream, Token, thread_streams
from flowmx.engine.failure import DependencyFailed
from flowmx.engine.scheduler import Operation

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_CHECK_EVERY = 64
"""Tokens after which a stream checks its progress, if nothing else has."""

_NOT_READY = 600

token_lock = threading.RLock()
"""The lock for recording which tokens are done; one for all devices, since their tokens refer to each other."""


class _Thread(threading.local):
    """A thread's current stream in CuPy.

    Attributes:
        stream: the stream that was entered last; on an actor's thread it stays current.
        former: on other threads, the device and stream that were current before.
    """

    stream: CudaStream | None = None
    former: tuple[int, Any] | None = None


_thread = _Thread()


class CudaStream(Stream):
    """A stream of a GPU.

    Args:
        device: the GPU.
        name: the stream's purpose.
        priority: 1 for work that the GPU should prefer.
    """

    device: CudaDevice

    def __init__(self, device: CudaDevice, name: str, priority: int = 0) -> None:
        super().__init__(f"{device} {name}", device, priority)
        self._cuda = device.xp.cuda
        with device.as_current():
            self.raw = self._cuda.Stream(non_blocking=True, priority=-priority)
        self._passed = 0
        self._open: deque[tuple[Token, Operation | None]] = deque()
        self._free_events: list[Any] = []

    # -- current stream --------------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        if not thread_streams.streams and not thread_streams.is_device_thread:
            _thread.former = self._cuda.runtime.getDevice(), self._cuda.get_current_stream()
        thread_streams.streams.append(self)
        if _thread.stream is not self:
            self._make_current()
        return self

    def __exit__(self, *error: object) -> None:
        streams = thread_streams.streams
        streams.pop()
        if streams:
            outer = streams[-1]
            if isinstance(outer, CudaStream) and outer is not self:
                outer._make_current()
        elif _thread.former is not None:
            (number, stream), _thread.former, _thread.stream = _thread.former, None, None
            self._cuda.runtime.setDevice(number)
            stream.use()

    def _make_current(self) -> None:
        _thread.stream = None  # in case of an error
        self._cuda.runtime.setDevice(self.device.number)
        self.raw.use()
        _thread.stream = self

    # -- launching -------------------------------------------------------------------------------------

    def run(self, launch: Launch) -> Any:
        if self.device.fatal_failure is not None:
            raise DependencyFailed(self.device.fatal_failure)
        try:
            return launch.call()
        except self.device.errors as error:
            lost = self.device.lose_if_fatal(error, self, launch.op)
            if lost is None:
                raise
            raise DependencyFailed(lost) from error

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
        except self.device.errors as error:  # the other stream's device has failed
            token.stream.device.lose(error, token.stream, None)

    def _record(self, token: Token, launch: Launch | None) -> None:
        op = None if launch is None else launch.op
        with token_lock:
            event = self._free_events.pop() if self._free_events else None
        try:
            event = event or self._cuda.Event(block=True, disable_timing=True)
            event.record(self.raw)
        except self.device.errors as error:
            token.failure = self.device.lose(error, self, op)
            return
        with token_lock:
            token.event = event
            self._open.append((token, op))
        if token.serial % _CHECK_EVERY == 0:
            self._check_progress()

    def synchronize(self) -> None:
        with token_lock:
            newest = self._open[-1][0] if self._open else None
        if newest is not None:
            newest.finish()
        self._kept_alive.clear()

    # -- completion ------------------------------------------------------------------------------------

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
        # Not `event.done`, which takes an error for an unfinished event.
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

    def _check_progress(self) -> None:
        """Check whether the newest token, or else the middle one, is done."""
        with token_lock:
            tokens = [self._open[index][0] for index in (-1, len(self._open) // 2)] if self._open else []
        any(self.is_done(token) for token in tokens)

    def _pass(self, serial: int) -> None:
        """Record that all tokens up to one are done."""
        with token_lock:
            while self._open and self._open[0][0].serial <= serial:
                token, _ = self._open.popleft()
                self._inherit(token)
                event, token.event = token.event, None
                if event is not None:
                    self._free_events.append(event)
            self._passed = max(self._passed, serial)

    def _inherit(self, token: Token) -> None:
        """Copy a failure of another device to this token, and drop its sources."""
        for source in token.sources:
            if source.stream.device is not self.device and token.failure is None:
                token.failure = source.finish()
        token.sources = ()

    def open_operations(self) -> list[Operation]:
        """Return the unfinished operations launched here, oldest first."""
        with token_lock:
            return [op for _, op in self._open if op is not None]

    def handles(self) -> list[Any]:
        """Return the raw handles that it owns: the stream and all its events."""
        return [self.raw, *self._free_events, *[token.event for token, _ in self._open]]

    def fail(self, failure: Any) -> None:
        """Fail all unfinished work."""
        with token_lock:
            for token, _ in self._open:
                token.failure = token.failure or failure
                token.event, token.sources = None, ()
            self._open.clear()
            self._free_events.clear()
            self._passed = self.serial
