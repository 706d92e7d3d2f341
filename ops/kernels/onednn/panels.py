"""FullyConnected and 1x1 convolution as products of a matrix and packed weights, by a compiled loop.

The loop (``llvm/matrix_product.py``) is faster than oneDNN's products in float32 on processors with AVX-512, mostly
because it prefetches the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from flowmx.ops.kernels.llvm import compiler, matrix_product
from flowmx.ops.kernels.llvm.matrix_product import MAX_ROWS, PANEL, Kind
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import Array, Desc, Geometry, Shape, strided
from flowmx.ops.kernels.onednn.library import DType, Unsupported
from flowmx.ops.kernels.onednn.loops import ProgramLoop, activated, array_at
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Operand, Work, multiply_time_ns

DEEPEST = 768
"""The maximum number of inputs of a part: one part and the next one take a fifth of the second-level cache."""
_CHUNK = 1 << 17
"""The elements of data that stay in the second-level cache while all weights are read."""
_RESIDENT, _NEAR = 1 << 18, 1 << 13
"""The elements of weights that stay there, and then those of data of a chunk, which stay in the first-level cache."""
_ROUNDS = 16
"""The rounds that read a line for each output of a panel: 4 inputs each."""
_LINES = (0, 1, 2, 6)
"""The numbers of lines that a round may prefetch."""


def supports(dtype: DType, epilogue: Epilogue) -> bool:
    """Return whether the loop computes a product with an epilogue on this machine."""
    is_plain = (
        epilogue.vector_type == DType.F32
        and not epilogue.has_scale
        and epilogue.activation in matrix_product.ACTIVATIONS
    )
    return dtype == DType.F32 and is_plain and "avx512f" in compiler.features()


def packed_length(outputs: int, inputs: int) -> int:
    """Return the number of elements of packed weights."""
    return -(-outputs // PANEL) * PANEL * inputs


def _parts(outputs: int, inputs: int, depth: int) -> Iterator[tuple[slice, slice]]:
    """Yield the outputs and inputs of each part of the weights, in order."""
    for start in range(0, inputs, depth):
        for first in range(0, outputs, PANEL):
            yield slice(first, min(outputs, first + PANEL)), slice(start, min(inputs, start + depth))


def pack(weight: Array, packed: Array, depth: int = DEEPEST) -> None:
    """Copy weights (outputs, inputs) into panels, in parts of at most ``depth`` inputs."""
    place, (count, width) = 0, weight.shape
    for outputs, inputs in _parts(count, width, depth):
        part = weight[outputs, inputs].T
        target = packed[place : place + len(part) * PANEL].reshape(-1, PANEL)
        target[:, : part.shape[1]], target[:, part.shape[1] :] = part, 0
        place += target.size


def unpacked(packed: Array, outputs: int, inputs: int, depth: int = DEEPEST) -> Array:
    """Return packed weights as a matrix (outputs, inputs)."""
    weight, place = np.empty((outputs, inputs), np.float32), 0
    for rows, columns in _parts(outputs, inputs, depth):
        part = weight[rows, columns]
        size = part.shape[1] * PANEL
        part[...] = packed[place : place + size].reshape(-1, PANEL)[:, : len(part)].T
        place += size
    return weight


class PackPanels(Work):
    """Weights in panels, multiplied by an optional scale."""

    def __init__(self, weight: Shape, scaled: bool) -> None:
        super().__init__()
        self._copy = ProgramLoop(None, 1, (), 1, partial(_pack_at, weight, scaled))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(*addresses)]


def _pack_at(shape: Shape, scaled: bool, weight: int, *addresses: int) -> None:
    *scale, packed = addresses
    values = array_at(weight, shape)
    values = values * array_at(scale[0], (shape[0], 1)) if scaled else values
    pack(values, array_at(packed, (packed_length(*shape),)))


class PanelProduct(Work):
    """Output = activation(data · weights + bias + addend), for weights packed by :class:`PackPanels`.

    Args:
        data: the data, as an array with the inputs along ``axis``.
        out: the output, as an array with the outputs along ``axis``.
        weight: the shape of the weight: (outputs, inputs).
        epilogue: the epilogue.
        addend: the addend, if there is one.
        layout: returns the layout of a shape in which rows follow each other.
    """

    def __init__(
        self, data: Geometry, out: Geometry, weight: Shape, epilogue: Epilogue, addend: Geometry | None,
        layout: Callable[[Shape], Desc],
    ) -> None:  # fmt: skip
        super().__init__()
        if not supports(data.dtype, epilogue) or out.dtype != DType.F32:
            raise Unsupported("the compiled product does not compute this layer")
        self._epilogue = epilogue
        self._source = Operand(self.workspace, strided(*data), layout(data.shape))
        self._target = Operand(self.workspace, strided(*out), layout(out.shape), is_output=True)
        self._addend = None if addend is None else Reorder(self.workspace, strided(*addend), layout(out.shape))
        self._loop = product_loop(prod(data.shape) // weight[1], weight, epilogue, self.threads)

    @staticmethod
    def nanoseconds(*key: object) -> float:
        _, out, weight = key[:3]
        assert isinstance(out, Geometry) and isinstance(weight, tuple)
        return multiply_time_ns(prod(out.shape) * weight[1])

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, weight, *extra, out = addresses
        bias = [extra.pop(0)] if self._epilogue.has_bias else []
        source, target = self._source.at(base, data), self._target.at(base, out)
        calls = self._source.before(base, data)
        if self._addend is not None and extra[0] != target:
            calls.append(self._addend.at(base, extra[0], target))
        return [*calls, self._loop.at(source, weight, target, *bias), *self._target.after(base, out)]


class Rows(NamedTuple):
    """A division of rows into blocks.

    Attributes:
        blocks: the number of blocks.
        of_block: the rows of a large block; the small blocks, which follow, have one row less.
        large: the number of large blocks.
    """

    blocks: int
    of_block: int
    large: int

    @classmethod
    def of(cls, rows: int) -> Rows:
        """Divide a number of rows."""
        blocks = -(-rows // MAX_ROWS)
        of_block = -(-rows // blocks)
        return cls(blocks, of_block, rows - (of_block - 1) * blocks)

    @property
    def lines(self) -> int:
        """The lines that each round prefetches, so that all blocks together prefetch a part."""
        return lines_for(self.blocks)


def lines_for(blocks: int) -> int:
    """Return the lines that each round prefetches, so that this many blocks prefetch a part."""
    return max(lines for lines in _LINES if lines <= -(-_ROUNDS // blocks))


def product_loop(rows: int, weight: Shape, epilogue: Epilogue, threads: int) -> ProgramLoop:
    """Return the loop of a product of a number of rows: its words are data, weights, output and bias."""
    outputs, inputs = weight
    blocks, of_block, large = Rows.of(rows)
    depth, panels = min(inputs, DEEPEST), -(-outputs // PANEL)
    is_resident = panels * PANEL * inputs <= _RESIDENT
    elements = _NEAR if is_resident and rows * inputs > _CHUNK // 4 else _CHUNK
    chunk = max(1, min(blocks, elements // (depth * of_block)))
    chunks = -(-blocks // chunk)
    chunk = -(-blocks // chunks)
    groups = 1 if chunks >= 4 * threads else min(panels, threads)
    lines = 0 if is_resident and chunks > 1 else lines_for(chunk)
    kind = Kind(of_block, lines, epilogue.activation, epilogue.has_bias, epilogue.has_addend)
    words = (
        large, blocks, chunk, inputs, outputs, depth, -(-inputs // depth), inputs, outputs, groups,
        -(-panels // groups), panels, float(epilogue.slope),
    )  # fmt: skip
    fallback = partial(_multiply_at, rows, weight, epilogue)
    return ProgramLoop(matrix_product.program(kind), chunks * groups, words, threads, fallback)


def _multiply_at(rows: int, weight: Shape, epilogue: Epilogue, data: int, packed: int, out: int, bias: int = 0) -> None:
    """Compute the product in NumPy."""
    outputs, inputs = weight
    matrix = unpacked(array_at(packed, (packed_length(*weight),)), *weight)
    target = array_at(out, (rows, outputs))
    result = array_at(data, (rows, inputs)) @ matrix.T
    result = result + array_at(bias, (outputs,)) if epilogue.has_bias else result
    result = result + target if epilogue.has_addend else result
    target[...] = activated(result, epilogue)
