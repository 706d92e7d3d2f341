"""Clipping and accumulation of a trainer's gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.errors import ArgumentError
from flowmx.gluon.parameter import Parameter
from flowmx.ndarray import NDArray


def check_max_norm(max_norm: Any, update_on_kvstore: bool | None, params: Sequence[Parameter]) -> None:
    """Check a trainer's ``max_grad_norm``.

    Raises:
        ValueError: the norm is not a positive number, the store should update the weights, or a gradient is sparse.
    """
    if max_norm is None:
        return
    is_number = isinstance(max_norm, int | float) and not isinstance(max_norm, bool)
    if not is_number or not max_norm > 0 or math.isnan(max_norm):
        raise ArgumentError(f"Trainer: max_grad_norm is {max_norm!r}, expected a positive number, or None")
    if update_on_kvstore:
        raise ArgumentError(
            "Trainer: max_grad_norm clips the sums of gradients before the workers update, but update_on_kvstore is "
            "True: drop it"
        )
    for param in params:
        if param._stype != "default" or param._grad_stype != "default":
            raise ArgumentError(
                f"Trainer: max_grad_norm needs dense gradients, but that of parameter {param.name!r} is sparse: drop "
                "max_grad_norm, or pass the optimizer's clip_gradient, which clips each element"
            )


def clip(grads: Sequence[NDArray], max_norm: float, scale: float) -> NDArray:
    """Enqueue the scaling of gradients on one device, so that the joint 2-norm of ``scale * grads`` is limited.

    Returns:
        The norm before clipping, float32 of shape (1,).
    """
    with autograd.pause():
        norm: NDArray = nd.sqrt(nd.sum(nd.multi_sum_sq(*grads, num_arrays=len(grads)))) * abs(scale)
        factor = nd.minimum(max_norm / (norm + 1e-6), 1.0)
        for grad in grads:
            grad *= factor.astype(grad.dtype)
    return norm


class Accumulation:
    """The batches whose gradients have been added since the last update.

    Args:
        batches: the number of batches for an update.
        params: the parameters; if there are several batches, their backward passes add to the gradients.

    Attributes:
        count: the number of batches since the last update.
        size: the sum of their sizes.

    Raises:
        ValueError: the number is not a positive int.
    """

    def __init__(self, batches: object, params: Sequence[Parameter]) -> None:
        if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
            raise ArgumentError(
                f"Trainer: accumulate is {batches!r}, expected the number of batches for each update, at least 1"
            )
        self.batches: int = batches
        self._params = params
        self.count, self.size = 0, 0
        if self.is_active:
            for param in params:
                if param.grad_req != "null":
                    param.grad_req = "add"

    @property
    def is_active(self) -> bool:
        """Whether an update uses several batches."""
        return self.batches > 1

    def add(self, batch_size: int) -> int | None:
        """Count a batch; return the number of samples of the update that is due, or None."""
        self.count += 1
        self.size += batch_size
        return self.take() if self.count >= self.batches else None

    def take(self) -> int | None:
        """Return the number of samples since the last update, and count from 0; None if there are no batches."""
        count, size = self.count, self.size
        self.count, self.size = 0, 0
        return size if count else None

    def clear(self) -> None:
        """Enqueue zeros into the gradients, to accumulate the next ones."""
        if self.is_active:
            for param in self._params:
                param.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return the counts for a checkpoint, which also has the gradients."""
        return {"count": self.count, "size": self.size}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a result of :meth:`state`."""
        self.count, self.size = int(state["count"]), int(state["size"])
