"""Compression of pushed gradients with error feedback: each device keeps a residual."""

from __future__ import annotations

from collections import Counter

import numpy as np

from flowmx.devices import Context
from flowmx.engine import Operation, capture
from flowmx.engine.runtime import engine
from flowmx.errors import TypeInferenceError
from flowmx.kvstore.compression import Compression
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import dtype_of
from flowmx.ndarray.core import BaseArray
from flowmx.ndarray.creation import full
from flowmx.ops.registry.dtypes import name_of


class Feedback:
    """The residuals of one key, and the gradients of its devices after compression.

    Args:
        compression: compresses the gradients.
    """

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._arrays: dict[tuple[Context, int], tuple[NDArray, NDArray]] = {}

    def compress_all(self, key: object, values: list[NDArray], priority: int) -> list[NDArray]:
        """Enqueue compressing and decompressing a key's gradients; return the decompressed gradients.

        Raises:
            TypeInferenceError: a gradient is not float32.
        """
        for value in values:
            if dtype_of(value) != np.float32:
                raise TypeInferenceError(
                    f"push: the dtype for key {key!r} is {name_of(dtype_of(value))}, expected float32 for gradient "
                    "compression"
                )
        results = []
        counts: Counter[Context] = Counter()
        for value in values:
            residual, result = self._arrays_of(value, counts[value.context])
            counts[value.context] += 1
            reads, writes = (value.storage, residual.storage), (residual.storage, result.storage)
            actor = result.storage.device.compute
            arguments = (self.compression, value, residual, result)
            op = Operation(_compress, arguments, reads, writes, actor, "kvstore compression", capture())
            op.priority = priority
            engine.enqueue(op)
            results.append(result)
        return results

    def _arrays_of(self, value: NDArray, index: int) -> tuple[NDArray, NDArray]:
        """Return the residual of the n-th value of a device, and the array for its decompressed gradient."""
        slot = (value.context, index)
        if slot not in self._arrays:
            self._arrays[slot] = full(value.shape, 0, value.context), empty(value.shape, value.context)
        return self._arrays[slot]


def _compress(compression: Compression, value: BaseArray, residual: BaseArray, target: BaseArray) -> None:
    message = compression.compress(np.ascontiguousarray(value.raw()), residual.raw_for_writing())
    output = target.raw_for_writing()
    output[...] = compression.decompress(message, output.size).reshape(output.shape)
