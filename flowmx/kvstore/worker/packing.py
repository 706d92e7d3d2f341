"""Compression of pushed gradients, with error feedback, and gradients by rows, as operations of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.engine import Operation, Variable, capture
from flowmx.engine.runtime import engine
from flowmx.errors import TypeInferenceError
from flowmx.kvstore import rows
from flowmx.kvstore.compression import Compression
from flowmx.kvstore.shards import Key
from flowmx.kvstore.worker.keys import KeyState
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import dtype_of
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import name_of

__all__ = ["Packed", "Packing", "by_rows"]


class Packed:
    """A compressed gradient: one tensor for each part of the key, once it was computed.

    Args:
        config: how it was compressed.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.variable = Variable("compressed gradient")
        self.tensors: list[Tensor] = []


class Packing:
    """Compresses this worker's gradients.

    Args:
        compression: how.
    """

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._residuals: dict[Key, tuple[Variable, Any]] = {}

    def packed(self, entry: KeyState, source: NDArray, priority: int) -> Packed:
        """Enqueue the compression of a gradient.

        Raises:
            TypeInferenceError: it is not float32.
        """
        if dtype_of(source) != np.float32:
            raise TypeInferenceError(
                f"push: for key {entry.key!r} came {name_of(dtype_of(source))}, expected float32, which is what "
                "gradient compression takes"
            )
        if entry.key not in self._residuals:
            self._residuals[entry.key] = Variable("residual"), np.zeros(entry.shape, np.float32)
        variable, residual = self._residuals[entry.key]
        found = Packed(self.compression.config())
        actor = source._storage.device.compute
        arguments, writes = (self.compression, entry, source, residual, found), (variable, found.variable)
        op = Operation(_pack, arguments, (source._storage,), writes, actor, "kvstore compression", capture())
        op.priority = priority
        engine.enqueue(op)
        return found


def by_rows(entry: KeyState, source: NDArray, priority: int) -> Packed:
    """Enqueue that the rows which a row_sparse gradient stores are made ready to travel."""
    found = Packed(rows.PACKING)
    actor = source._storage.device.compute
    arguments, writes = (entry, source, found), (found.variable,)
    op = Operation(_pack_rows, arguments, (source._storage,), writes, actor, "kvstore rows", capture())
    op.priority = priority
    engine.enqueue(op)
    return found


def _pack_rows(entry: KeyState, source: BaseArray, found: Packed) -> None:
    content, width = source._read(), max(entry.row, 1)
    for shard in entry.shards:
        first, last = shard.start // width, shard.stop // width
        begin, end = np.searchsorted(content.indices, [first, last])
        found.tensors.append(Tensor.of(rows.encode(content.indices[begin:end] - first, content.data[begin:end])))


def _pack(compression: Compression, entry: KeyState, source: BaseArray, residual: Any, found: Packed) -> None:
    pairs = zip(entry.pieces(source._read()), entry.pieces(residual), strict=True)
    found.tensors = [Tensor.of(compression.compress(np.ascontiguousarray(piece), rest)) for piece, rest in pairs]
