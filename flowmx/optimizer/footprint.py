"""The number of bytes of state that an optimizer keeps for a weight, found without allocating them."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape
from flowmx.optimizer.base import Optimizer, State, create


class Footprint:
    """The bytes of an optimizer's states.

    A state is arrays as large as the weight, and perhaps something of a fixed size: two stand-ins for the weight, of
    one element and of two, tell how much of each.

    Args:
        optimizer: an optimizer, or the name of one with default arguments.

    Raises:
        ValueError: there is no optimizer of that name.
    """

    def __init__(self, optimizer: Optimizer | str) -> None:
        self._optimizer = create(optimizer)
        self._of_stand_in = lru_cache(None)(self._measure)

    def nbytes(self, index: int, shape: Shape, dtype: DType) -> int:
        """The bytes of state for a weight.

        Args:
            index: the weight's index, an int or str.
            shape: its shape.
            dtype: its dtype.
        """
        elements = 1
        for length in shape:
            elements *= length
        one, two = (self._of_stand_in(index, (*[1] * (len(shape) - 1), count), dtype) for count in (1, 2))
        return one + (elements - 1) * (two - one)

    def _measure(self, index: int, shape: Shape, dtype: DType) -> int:
        stand_in = nd.full(shape, 0, cpu(), dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of concerns training, which comes later if at all
            return _nbytes(self._optimizer.create_state_multi_precision(index, stand_in))


def _nbytes(state: State) -> int:
    if isinstance(state, NDArray):
        kind: Any = state._dtype
        return int(state.size) * int(kind.itemsize)
    return sum(map(_nbytes, state)) if isinstance(state, (tuple, list)) else 0
