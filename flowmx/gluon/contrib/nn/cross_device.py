"""Means over the devices of a process, with gradients: each device brings its array, and gets the mean of all.

What a device brings is an operation of the engine that awaits the others, on the engine's loop, so that neither the
caller nor a device's worker blocks. Whoever waits for the others in vain gets an error that says so.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from flowmx import autograd, engine
from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.errors import MXNetError
from flowmx.ndarray import NDArray

PATIENCE = 60.0
"""For how many seconds a device's array waits for those of the others."""

_lock = threading.RLock()


class Round:
    """One meeting of all devices, and the one of their gradients.

    Args:
        name: its name in messages.
        count: the number of devices that meet.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.joined = 0
        self._values: dict[int, Any] = {}
        self._complete = asyncio.Event()
        self._back: Round | None = None

    @property
    def back(self) -> Round:
        """The meeting of the gradients."""
        with _lock:
            self._back = self._back or Round(f"the gradient of {self.name}", self.count)
            return self._back

    def mean(self, place: int, part: NDArray) -> NDArray:
        """The mean of what all bring; enqueued.

        Args:
            place: the index of this device; sums are in this order, not in that of arrival.
            part: this device's summand.
        """
        given, out = part.as_in_context(cpu()), nd.empty(part.shape, cpu(), part.dtype)

        async def meet() -> None:
            self._values[place] = np.from_dlpack(given).copy()
            if len(self._values) == self.count:
                self._complete.set()
            await self._wait()
            total = sum(self._values[each] for each in range(self.count))
            np.from_dlpack(out)[...] = total / self.count

        engine.push(meet, reads=[given], writes=[out], name=f"meeting of {self.name}")
        return out.as_in_context(part.context)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._complete.wait(), PATIENCE)
        except TimeoutError:
            raise MXNetError(
                f"{self.name}: {len(self._values)} of {self.count} devices came within {PATIENCE:g} s: call the "
                "network on every device before waiting for a result, and give num_devices as many as there are"
            ) from None


class Meetings:
    """The meetings of a layer, one after another: every device comes once to each."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._open: Round | None = None

    def mean(self, part: NDArray) -> NDArray:
        """The mean of this array and of those that the other devices bring, differentiable."""
        mean: NDArray = _Mean(*self._join())(part)
        return mean

    def _join(self) -> tuple[Round, int]:
        with _lock:
            joined = self._open or Round(self._name, self._count)
            place, joined.joined = joined.joined, joined.joined + 1
            self._open = None if joined.joined == self._count else joined
            return joined, place


class _Mean(autograd.Function):
    """The gradient of a mean over devices is the mean of their gradients."""

    def __init__(self, round_: Round, place: int) -> None:
        self._round, self._place = round_, place

    def forward(self, part: NDArray) -> NDArray:
        return self._round.mean(self._place, part)

    def backward(self, head: NDArray) -> NDArray:
        return self._round.back.mean(self._place, head)
