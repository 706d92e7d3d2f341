"""Machines on a switch: full-duplex links, shared fairly by the transfers on them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Cpu", "Fabric", "Network"]


@dataclass(frozen=True)
class Network:
    """Parameters of a simulated network.

    Args:
        rate: bits per second of each machine's link, in each direction.
        latency: seconds from one machine to another.
        local: bytes per second between processes of one machine.
        piece: bytes of one transfer that are sent before other transfers on the link get their turn.
    """

    rate: float = 10e9
    latency: float = 50e-6
    local: float = 4e9
    piece: int = 64 << 10

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.latency >= 0 and self.local > 0 and self.piece > 0):
            raise ValueError(f"a network needs positive rates and sizes and a latency of 0 or more, not {self}")


@dataclass(eq=False)
class _Transfer:
    target: int
    to_send: int
    to_receive: int
    arrived: asyncio.Future[None]
    sent: Callable[[], object]


@dataclass(eq=False)
class _Lane:
    """One direction of a link: transfers take turns, one piece at a time."""

    waiting: deque[tuple[_Transfer, int]] = field(default_factory=deque)
    busy: bool = False


class Fabric:
    """A network of several machines. It belongs to one event loop."""

    def __init__(self, machines: int, network: Network) -> None:
        self.network = network
        self._up = [_Lane() for _ in range(machines)]
        self._down = [_Lane() for _ in range(machines)]
        self._loop = asyncio.get_running_loop()

    async def send(self, source: int, target: int, nbytes: int, sent: Callable[[], object] = lambda: None) -> None:
        """Send bytes from one machine to another; call `sent` once they have left the source."""
        if source == target:
            await asyncio.sleep(nbytes / self.network.local)
            sent()
            return
        nbytes = max(nbytes, 1)
        transfer = _Transfer(target, nbytes, nbytes, self._loop.create_future(), sent)
        self._up[source].waiting.append((transfer, 0))
        self._start_next(self._up[source], self._piece_left)
        await transfer.arrived

    def _start_next(self, lane: _Lane, then: Callable[[_Lane, _Transfer, int], None]) -> None:
        """Start the next piece of a lane, if it is free."""
        if lane.busy or not lane.waiting:
            return
        transfer, nbytes = lane.waiting.popleft()
        nbytes = nbytes or min(self.network.piece, transfer.to_send)
        lane.busy = True
        self._loop.call_later(8 * nbytes / self.network.rate, self._finish_piece, lane, then, transfer, nbytes)

    def _finish_piece(
        self, lane: _Lane, then: Callable[[_Lane, _Transfer, int], None], transfer: _Transfer, nbytes: int
    ) -> None:
        lane.busy = False
        then(lane, transfer, nbytes)
        self._start_next(lane, then)

    def _piece_left(self, lane: _Lane, transfer: _Transfer, nbytes: int) -> None:
        """Continue after a piece has left its machine."""
        transfer.to_send -= nbytes
        if transfer.to_send:
            lane.waiting.append((transfer, 0))
        else:
            transfer.sent()
        self._loop.call_later(self.network.latency, self._piece_reached_link, transfer, nbytes)

    def _piece_reached_link(self, transfer: _Transfer, nbytes: int) -> None:
        """Continue after a piece has reached the link of its receiver."""
        lane = self._down[transfer.target]
        lane.waiting.append((transfer, nbytes))
        self._start_next(lane, self._piece_arrived)

    def _piece_arrived(self, lane: _Lane, transfer: _Transfer, nbytes: int) -> None:
        transfer.to_receive -= nbytes
        if not transfer.to_receive and not transfer.arrived.done():
            transfer.arrived.set_result(None)


class Cpu:
    """A simulated thread: work items run one after the other."""

    def __init__(self) -> None:
        self._free = -math.inf

    async def use(self, seconds: float) -> None:
        """Wait for earlier work to end, then work for `seconds`."""
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now) + seconds
        await asyncio.sleep(self._free - now)
