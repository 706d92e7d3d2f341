"""Compression of pushed gradients with error feedback, and row-sparse gradients, as operations of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.engine import Operation, Variable, capture
from flowmx.engine.runtime import engine
from flowmx.errors import TypeInferenceError
from flowmx.kvstore import row_sparse_wire
from flowmx.kvstore.compression import Compression
from flowmx.kvstore.shards import Key
from flowmx.kvstore.worker.keys import KeyState
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import dtype_of
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import name_of

__all__ = ["Packed", "Packing", "pack_rows"]


class Packed:
    """A compressed gradient: one tensor for each shard of the key, once computed.

    Args:
        config: the parameters of the compression.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.variable = Variable("compressed gradient")
        self.tensors: list[Tensor] = []


class Packing:
    """Compresses the gradients that this worker pushes, as operations of the engine.

    Args:
        compression: the compression.
    """

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._residuals: dict[Key, tuple[Variable, Any]] = {}

    def pack(self, entry: KeyState, source: NDArray, priority: int) -> Packed:
        """Enqueue the compression of a gradient.

        Raises:
            TypeInferenceError: the gradient is not float32.
        """
        if dtype_of(source) != np.float32:
            raise TypeInferenceError(
                f"push: the dtype for key {entry.key!r} is {name_of(dtype_of(source))}, expected float32 for gradient "
                "compression"
            )
        if entry.key not in self._residuals:
            self._residuals[entry.key] = Variable("residual"), np.zeros(entry.shape, np.float32)
        variable, residual = self._residuals[entry.key]
        result = Packed(self.compression.config())
        actor = source.storage.device.compute
        arguments, writes = (self.compression, entry, source, residual, result), (variable, result.variable)
        op = Operation(_pack, arguments, (source.storage,), writes, actor, "kvstore compression", capture())
        op.priority = priority
        engine.enqueue(op)
        return result


def pack_rows(entry: KeyState, source: NDArray, priority: int) -> Packed:
    """Enqueue the encoding of the stored rows of a row_sparse gradient."""
    result = Packed(row_sparse_wire.PACKING)
    actor = source.storage.device.compute
    arguments, writes = (entry, source, result), (result.variable,)
    op = Operation(_pack_rows, arguments, (source.storage,), writes, actor, "kvstore rows", capture())
    op.priority = priority
    engine.enqueue(op)
    return result


def _pack_rows(entry: KeyState, source: BaseArray, result: Packed) -> None:
    content, width = source.raw(), max(entry.row, 1)
    for shard in entry.shards:
        first, last = shard.start // width, shard.stop // width
        begin, end = np.searchsorted(content.indices, [first, last])
        result.tensors.append(
            Tensor.of(row_sparse_wire.encode(content.indices[begin:end] - first, content.data[begin:end]))
        )


def _pack(compression: Compression, entry: KeyState, source: BaseArray, residual: Any, result: Packed) -> None:
    pairs = zip(entry.pieces(source.raw()), entry.pieces(residual), strict=True)
    result.tensors = [
        Tensor.of(compression.compress(np.ascontiguousarray(piece), residual_piece)) for piece, residual_piece in pairs
    ]
