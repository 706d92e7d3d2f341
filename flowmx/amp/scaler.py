"""The dynamic loss scale.

The smallest positive float16 is 6e-8: gradients underflow unless the loss is multiplied by a large number. If the
number is too large, they overflow; the step is then skipped and the number halved. After many good steps it is doubled.
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
"""The number of arrays that one operation checks."""

log = logging.getLogger("flowmx.amp")


class LossScaler:
    """A dynamic loss scale: losses are multiplied by it, so that small gradients do not underflow in float16.

    Args:
        init_scale: the initial scale.
        scale_factor: the divisor after an overflow, and the factor after ``scale_window`` steps without one.
        scale_window: the number of steps.
        max_scale, min_scale: its bounds.

    Attributes:
        loss_scale: the current scale.
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
    def is_at_minimum(self) -> bool:
        """Whether the scale is at its minimum."""
        return self.loss_scale <= self._min

    def has_overflow(self, params: Iterable[object]) -> bool:
        """Return whether a gradient of parameters is infinite or NaN, and update the loss scale.

        Blocks until the gradients are computed. In a coroutine, await :meth:`has_overflow_async`.
        """
        return self.update(bool(self.finite(params).asscalar()))

    async def has_overflow_async(self, params: Iterable[object]) -> bool:
        """As :meth:`has_overflow`, awaiting the gradients."""
        return self.update(bool((await self.finite(params)).asscalar()))

    def finite(self, params: Iterable[Any]) -> NDArray:
        """Enqueue the check. The result is an array (1,): 1 if all gradients are finite, else 0."""
        grads = [param.list_grad()[0] for param in params if param.grad_req != "null"]
        return all_finite(grads)

    def update(self, is_finite: bool) -> bool:
        """Update the loss scale after a step. Return whether the step overflowed."""
        if is_finite:
            self.skipped = 0
            self._unskipped += 1
            if self._unskipped >= self._window:
                self._unskipped = 0
                self._set_scale(min(self._max, self.loss_scale * self._factor))
        else:
            self.skipped += 1
            self._unskipped = 0
            self._set_scale(max(self._min, self.loss_scale / self._factor))
        return not is_finite

    def _set_scale(self, scale: float) -> None:
        if scale != self.loss_scale:
            word = "increasing" if scale > self.loss_scale else "decreasing"
            log.info("AMP: %s loss scale to %g", word, scale)
            self.loss_scale = scale

    def state(self) -> dict[str, float]:
        """Return the state for a checkpoint, as plain numbers."""
        return {"loss_scale": self.loss_scale, "unskipped": self._unskipped, "skipped": self.skipped}

    def set_state(self, state: dict[str, float]) -> None:
        """Restore a result of :meth:`state`."""
        self.loss_scale = state["loss_scale"]
        self._unskipped, self.skipped = int(state["unskipped"]), int(state["skipped"])


def all_finite(arrays: Sequence[NDArray]) -> NDArray:
    """Enqueue a check of arrays on one device. The result is an array (1,): 1 if all numbers are finite, else 0."""
    with autograd.pause():
        flag: NDArray = nd.ones((1,), ctx=arrays[0].context if arrays else None)
        for start in range(0, len(arrays), _CHUNK):
            chunk = arrays[start : start + _CHUNK]
            nd.op.multi_all_finite(*chunk, init_output=False, out=flag)
    return flag
