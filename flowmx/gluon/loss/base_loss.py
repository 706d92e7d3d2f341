"""The base class of losses: weights, and the mean of each sample."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Unpack

from flowmx.errors import ArgumentTypeError, ShapeError
from flowmx.gluon.hybrid import Layer
from flowmx.gluon.scope import BlockOptions
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Shape
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.symbol import Symbol

__all__ = ["Loss"]


class Loss(Layer):
    """Base class of the losses.

    Args:
        weight: multiplies the loss; None for no factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        TypeError: the weight is not a number.
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Unpack[BlockOptions]) -> None:
        if weight is not None and not isinstance(weight, (int, float)):
            raise TypeError(f"{type(self).__name__}: weight is {weight!r}, expected a number")
        super().__init__(**kwargs)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _explain(self, error: Exception, inputs: Sequence[object]) -> str | None:
        """Name the shapes of the first two inputs if they do not fit, instead of those within the formula."""
        others = [value for value in inputs if not isinstance(value, (NDArray, Symbol)) and value is not None]
        if isinstance(error, ArgumentTypeError) and others:
            kind = type(others[0]).__name__
            return f"{type(self).__name__}: an input is a {kind}, expected an NDArray: mx.nd.array({kind}) creates one"
        first, second = (tuple(getattr(x, "shape", ())) for x in (*inputs, None, None)[:2])
        expected = self._expected_shape(first)
        if not isinstance(error, ShapeError) or len(inputs) < 2 or self._fits(first, second):
            return None
        names = list(inspect.signature(self.hybrid_forward).parameters)[1:3]
        return f"{type(self).__name__}: {names[0]} has shape {first} and {names[1]} {second}, expected {expected}"

    def _fits(self, first: Shape, second: Shape) -> bool:
        """Return whether the first two inputs may have these shapes."""
        return math.prod(first) == math.prod(second)

    def _expected_shape(self, first: Shape) -> str:
        """Return the second input's shape, as text, if the first has this one."""
        return f"{first}, or as many elements"

    def _mean(self, F: Functions, loss: Tensor, sample_weight: Tensor | None, factor: float = 1.0) -> Tensor:
        """Return the mean of the weighted loss of each sample."""
        return F.mean(self._apply_weights(F, loss, sample_weight, factor), axis=self._batch_axis, exclude=True)

    def _apply_weights(self, F: Functions, loss: Tensor, sample_weight: Tensor | None, factor: float = 1.0) -> Tensor:
        if sample_weight is not None:
            loss = F.broadcast_mul(loss, sample_weight)
        return loss if self._weight is None else loss * (self._weight * factor)
