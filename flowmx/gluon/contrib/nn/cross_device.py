"""Means over the devices of a process, with gradients: each device contributes an array and gets the mean of all.

Each contribution is an engine operation that awaits the others on the engine's loop, so neither the caller nor a
device's worker blocks. If a device is missing, the waiting operations fail with an error.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from flowmx import autograd, engine, forks
from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.errors import MXNetError
from flowmx.ndarray import NDArray

TIMEOUT = 60.0
"""Seconds that a device's array waits for the arrays of the others."""

_lock = forks.lock()


class Round:
    """One exchange among all devices, and the exchange of their gradients.

    Args:
        name: the name of the exchange in messages.
        count: the number of devices.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.members = 0
        self._values: dict[int, Any] = {}
        self._complete = asyncio.Event()
        self._gradient_round: Round | None = None

    @property
    def gradient_round(self) -> Round:
        """The exchange of the gradients."""
        with _lock:
            self._gradient_round = self._gradient_round or Round(f"the gradient of {self.name}", self.count)
            return self._gradient_round

    def mean(self, index: int, part: NDArray) -> NDArray:
        """Enqueue the mean of the arrays of all devices.

        Args:
            index: the index of this device; arrays are summed in this order, not in order of arrival.
            part: this device's array.
        """
        contribution, out = part.as_in_context(cpu()), nd.empty(part.shape, cpu(), part.dtype)

        async def exchange() -> None:
            self._values[index] = np.from_dlpack(contribution).copy()
            if len(self._values) == self.count:
                self._complete.set()
            await self._wait()
            total = sum(self._values[index] for index in range(self.count))
            np.from_dlpack(out)[...] = total / self.count

        engine.push(exchange, reads=[contribution], writes=[out], name=f"exchange of {self.name}")
        return out.as_in_context(part.context)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._complete.wait(), TIMEOUT)
        except TimeoutError:
            raise MXNetError(
                f"{self.name}: {len(self._values)} of {self.count} devices contributed within {TIMEOUT:g} s: call the "
                "network on every device before waiting for a result, and set num_devices to their number"
            ) from None


class Exchanges:
    """The consecutive exchanges of a layer; every device joins each of them once."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._open: Round | None = None

    def mean(self, part: NDArray) -> NDArray:
        """Return the differentiable mean of this array and the arrays of the other devices."""
        mean: NDArray = _Mean(*self._join())(part)
        return mean

    def _join(self) -> tuple[Round, int]:
        with _lock:
            current = self._open or Round(self._name, self._count)
            index, current.members = current.members, current.members + 1
            self._open = None if current.members == self._count else current
            return current, index


class _Mean(autograd.Function):
    """The gradient of a mean over devices is the mean of their gradients."""

    def __init__(self, round_: Round, index: int) -> None:
        self._round, self._index = round_, index

    def forward(self, part: NDArray) -> NDArray:
        return self._round.mean(self._index, part)

    def backward(self, head: NDArray) -> NDArray:
        return self._round.gradient_round.mean(self._index, head)
