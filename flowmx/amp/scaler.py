"""The loss scale, which follows what gradients can bear.

float16 holds nothing smaller than 6e-8: gradients vanish, unless the loss is multiplied with a large number. If it is
too large they overflow; the step is then left out, and the number halved. After many good steps it is doubled.
P. Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.ndarray import NDArray

_CHUNK = 200
"""Arrays that one operation looks through."""

log = logging.getLogger("flowmx.amp")


class LossScaler:
    """The number that losses are multiplied with.

    Args:
        init_scale: the initial scale.
        scale_factor: the divisor after an overflow, and the factor after ``scale_window`` steps without one.
        scale_window: the number of steps.
        max_scale, min_scale: its bounds.

    Attributes:
        loss_scale: the number.
        skipped: the number of consecutive steps that have overflowed.
    """

    def __init__(
        self, init_scale: float = 2.0**16, scale_factor: float = 2.0, scale_window: int = 2000,
        max_scale: float = 2.0**24, min_scale: float = 2.0**-14,
    ) -> None:  # fmt: skip
        self.loss_scale = init_scale
        self.skipped = 0
        self._factor, self._window, self._max, self._min = scale_factor, scale_window, max_scale, min_scale
        self._unskipped = 0

    @property
    def is_least(self) -> bool:
        """True where the scale has reached its minimum."""
        return self.loss_scale <= self._min

    def has_overflow(self, params: Iterable[Any]) -> bool:
        """Tell whether a gradient of these parameters is infinite or NaN, and adapt the loss scale accordingly.

        Blocks until they are there. In a coroutine, await :meth:`has_overflow_async`.
        """
        return self.settle(bool(self.finite(params).asscalar()))

    async def has_overflow_async(self, params: Iterable[Any]) -> bool:
        """As :meth:`has_overflow`, awaiting the gradients."""
        return self.settle(bool((await self.finite(params)).asscalar()))

    def finite(self, params: Iterable[Any]) -> NDArray:
        """Enqueue the check; the array (1,) will hold 1 where all gradients are finite, else 0."""
        grads = [param.list_grad()[0] for param in params if param.grad_req != "null"]
        return all_finite(grads)

    def settle(self, is_finite: bool) -> bool:
        """Let the loss scale follow a step; returns whether it overflowed."""
        if is_finite:
            self.skipped = 0
            self._unskipped += 1
            if self._unskipped >= self._window:
                self._unskipped = 0
                self._become(min(self._max, self.loss_scale * self._factor))
        else:
            self.skipped += 1
            self._unskipped = 0
            self._become(max(self._min, self.loss_scale / self._factor))
        return not is_finite

    def _become(self, scale: float) -> None:
        if scale != self.loss_scale:
            word = "increasing" if scale > self.loss_scale else "decreasing"
            log.info("AMP: %s loss scale to %g", word, scale)
            self.loss_scale = scale

    def state(self) -> dict[str, float]:
        """The state that a checkpoint saves, as plain numbers."""
        return {"loss_scale": self.loss_scale, "unskipped": self._unskipped, "skipped": self.skipped}

    def set_state(self, state: dict[str, float]) -> None:
        """Go on from what :meth:`state` gave."""
        self.loss_scale = state["loss_scale"]
        self._unskipped, self.skipped = int(state["unskipped"]), int(state["skipped"])


def all_finite(arrays: Sequence[NDArray]) -> NDArray:
    """Enqueue a check of arrays of one device; (1,), 1 where all their numbers are finite, else 0."""
    with autograd.pause():
        flag: NDArray = nd.ones((1,), ctx=arrays[0].context if arrays else None)
        for start in range(0, len(arrays), _CHUNK):
            chunk = arrays[start : start + _CHUNK]
            nd.op.multi_all_finite(*chunk, init_output=False, out=flag)
    return flag
