"""The kernels of products with interleaved weights, and of rows of interleaved tables, by compiled loops."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flowmx.ops.kernels.llvm import compiler, team
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import float_type_of
from flowmx.ops.kernels.llvm.packed_product import (
    Kind,
    instructions_of,
    product_program,
    rounding_of,
    rounding_program,
)
from flowmx.ops.kernels.recording import mark_incomplete, use_memory
from flowmx.ops.quantization.interleaved_weights import GROUP, TILE, layout_of
from flowmx.ops.quantization.packed_dense import PackedDense
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_NEAR = 1 << 19
"""The bytes of data of a task, which stay in the second-level cache while its weights are read."""
_TASK = 1 << 16
"""The approximate number of blocks of products (16 outputs of 32 values) of a task."""
_MANY = 1000
"""The minimum number of these blocks for which several threads compute a product: about 40 µs of reading memory."""
_BLOCKS = 1 << 9
"""The number of blocks of data that a task rounds."""


class _Loop(NamedTuple):
    """A loop for arrays of fixed shapes: its function, its words before the arrays, and the number of threads."""

    program: Program
    head: bytes
    is_shared: bool

    def run(self, arrays: Sequence[Array]) -> None:
        """Run it."""
        words = self.head + struct.pack(f"{len(arrays)}q", *map(id, arrays))
        assert self.program.compiled is not None
        team.run(self.program.compiled, words, team.count() if self.is_shared else 1, arrays)


@lru_cache(maxsize=1024)
def _product_loop(op: PackedDense, dtype: DType, rows: int, instructions: str) -> _Loop | None:
    """Return the loop of a product of a number of rows; None if the processor has no such elements."""
    real = float_type_of(dtype)
    if real is None or real.name != "float" or (op.format == "F16" and float_type_of(np.dtype(np.float16)) is None):
        return None
    kind = Kind(op.format, real, not op.no_bias, instructions, op.data_bits)
    tiles, groups = -(-op.num_hidden // TILE), -(-op.in_units // GROUP)
    row_chunk = min(rows, max(8, _NEAR * 8 // (op.in_units * op.data_bits) // 8 * 8))
    row_chunks = -(-rows // row_chunk)
    tile_chunk = max(1, min(-(-tiles // 16), _TASK // (groups * row_chunk)))
    tile_chunks = -(-tiles // tile_chunk)
    words = (tiles, tile_chunk, tile_chunks, rows, row_chunk, op.in_units, op.num_hidden)
    head = struct.pack("2q7q", 0, row_chunks * tile_chunks, *words)
    return _Loop(product_program(kind), head, tiles * groups * rows >= _MANY and row_chunks * tile_chunks > 1)


@lru_cache(maxsize=1024)
def _rounding_loop(op: PackedDense, dtype: DType, rows: int) -> _Loop | None:
    """Return the loop that rounds data; None if the weights are floating-point numbers."""
    layout, real = layout_of(op.format), float_type_of(dtype)
    if layout.is_float or real is None:
        return None
    groups = op.in_units // GROUP
    share = max(1, _BLOCKS // groups)
    head = struct.pack("2q3q", 0, -(-rows // share), rows, share, groups)
    return _Loop(rounding_program(rounding_of(layout, real, op.data_bits)), head, rows * groups >= 4 * _BLOCKS)


def _is_ready(*loops: _Loop | None) -> bool:
    return all(loop is None or loop.program.get() is not None for loop in loops)


def _contiguous(inputs: Sequence[Array]) -> Sequence[Array]:
    """Return arrays in C order."""
    if all(each.flags.c_contiguous for each in inputs):
        return inputs
    mark_incomplete()
    return [np.ascontiguousarray(each) for each in inputs]


def compute(op: PackedDense, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute a product with an interleaved weight."""
    if not (op.interleaved and _multiply(op, inputs, outputs)):
        mark_incomplete()
        op.forward(run, inputs, outputs)


def _multiply(op: PackedDense, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute a product by loops; return False, without effect, if they do not support the arrays (yet)."""
    data, weight, *bias = _contiguous(inputs)
    if not (data.size and outputs[0].flags.c_contiguous):
        return False
    rows = data.size // op.in_units
    product = _product_loop(op, data.dtype, rows, instructions_of(compiler.features()))
    rounding = _rounding_loop(op, data.dtype, rows)
    if product is None or not _is_ready(product, rounding):
        return False
    if rounding is None:
        product.run([outputs[0], weight, *bias, data])
        return True
    blocks, layout = data.size // GROUP, layout_of(op.format)
    rounded = use_memory(np.empty(data.size * op.data_bits // 8, np.int8))
    scales = use_memory(np.empty(blocks, np.float32))
    sums = use_memory(np.empty(blocks * (layout.parts if layout.zero else 1), np.float32))
    rounding.run([rounded, scales, sums, data])
    product.run([outputs[0], weight, *bias, rounded, scales, sums])
    return True


kernel("cpu", PackedDense.name, only_native=True)(compute)
