"""The number of bytes of state that an optimizer needs for a weight, computed without allocating them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape
from flowmx.optimizer.base_optimizer import Optimizer, State, create, is_measuring


class Footprint:
    """The size of an optimizer's states in bytes.

    A state has arrays as large as the weight, and perhaps parts of a fixed size. Their sizes are derived from the
    states of two stand-ins for the weight, with one and two elements.

    Args:
        optimizer: an optimizer, or the name of one with default arguments.

    Raises:
        ValueError: the optimizer's name is unknown.
    """

    def __init__(self, optimizer: Optimizer | str) -> None:
        self._optimizer = create(optimizer)
        self._measure_cached = lru_cache(None)(self._measure)

    def nbytes(self, index: int, shape: Shape, dtype: DType) -> int:
        """Return the size of a weight's state in bytes.

        Args:
            index: the weight's index, an int or str.
            shape: its shape.
            dtype: its dtype.
        """
        elements = 1
        for length in shape:
            elements *= length
        one, two = (self._measure_cached(index, (*[1] * (len(shape) - 1), count), dtype) for count in (1, 2))
        return one + (elements - 1) * (two - one)

    def _measure(self, index: int, shape: Shape, dtype: DType) -> int:
        stand_in = nd.full(shape, 0, cpu(), dtype)
        token = is_measuring.set(True)
        try:
            return _nbytes(self._optimizer.create_state_multi_precision(index, stand_in))
        finally:
            is_measuring.reset(token)


def _nbytes(state: State) -> int:
    if isinstance(state, NDArray):
        kind: Any = state.element_type
        return int(state.size) * int(kind.itemsize)
    return sum(map(_nbytes, state)) if isinstance(state, (tuple, list)) else 0
