"""Compression of what devices push, with error feedback: each device keeps what its gradients leave out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from flowmx.devices import Context
from flowmx.engine import Operation, capture
from flowmx.engine.runtime import engine
from flowmx.errors import TypeInferenceError
from flowmx.kvstore.compression import Compression
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import dtype_of, full
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import name_of


class Feedback:
    """The residuals of one key, and what its devices would send.

    Args:
        compression: how gradients are compressed.
    """

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._kept: dict[tuple[Context, int], tuple[NDArray, NDArray]] = {}

    def passed(self, key: Any, values: list[NDArray], priority: int) -> list[NDArray]:
        """Enqueue compressing and decompressing a key's gradients; returns what arrives of them.

        Raises:
            TypeInferenceError: they are not float32.
        """
        for value in values:
            if dtype_of(value) != np.float32:
                raise TypeInferenceError(
                    f"push: for key {key!r} came {name_of(dtype_of(value))}, expected float32, which is what gradient "
                    "compression takes"
                )
        found = []
        places: Counter[Context] = Counter()
        for value in values:
            residual, arrived = self._of(value, places[value.context])
            places[value.context] += 1
            reads, writes = (value._storage, residual._storage), (residual._storage, arrived._storage)
            actor = arrived._storage.device.compute
            arguments = (self.compression, value, residual, arrived)
            op = Operation(_pass, arguments, reads, writes, actor, "kvstore compression", capture())
            op.priority = priority
            engine.enqueue(op)
            found.append(arrived)
        return found

    def _of(self, value: NDArray, place: int) -> tuple[NDArray, NDArray]:
        """The residual of a device (of the first of its values, the second, ...), and where its gradient arrives."""
        at = (value.context, place)
        if at not in self._kept:
            self._kept[at] = full(value.shape, 0, value.context), empty(value.shape, value.context)
        return self._kept[at]


def _pass(compression: Compression, value: BaseArray, residual: BaseArray, arrived: BaseArray) -> None:
    sent = compression.compress(np.ascontiguousarray(value._read()), residual._written())
    result = arrived._written()
    result[...] = compression.decompress(sent, result.size).reshape(result.shape)
