"""Loops over arrays that are broadcast to one shape, or that have different strides.

Adjacent axes can be merged if a step along the outer axis is as long as the whole inner axis. :func:`axes_of` merges
the axes of all arrays to the smallest common number, in memory order. Along the innermost axis an array must be dense
or constant; the element of a constant one is read once per row. Adding a bias to a matrix takes two axes, and so do the
means of LayerNorm; arrays with equal shapes and strides take one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowmx.ops.formulas.expressions import Expr, placeholder, uniforms
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import MIN_TASK_SIZE, WORTH_A_THREAD_NS, ns_per_element
from flowmx.ops.kernels.llvm.lowering import invariants, lower_side_by_side
from flowmx.ops.registry.operators import Array, Shape

_MAX_AXES = 4
_TASKS_PER_THREAD = 8
_STREAMING_BYTES = 1 << 25
"""Outputs of at least this many bytes bypass the caches, which would evict them before they are read."""
_CACHE_LINE = 64
_MAX_INSTRUCTIONS = 1600
"""The approximate maximum number of instructions in a loop's body."""
_ELEMENTS_PER_INSTRUCTION = 16
"""The minimum number of elements per instruction: compiling a loop over fewer takes longer than running it."""


class Axes(NamedTuple):
    """The common axes of a loop over several arrays, innermost last."""

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """For each array, its stride along each axis, in elements; the innermost is 1 or 0."""

    @property
    def is_constant(self) -> tuple[bool, ...]:
        """For each array, whether it is constant along the innermost axis."""
        return tuple([not strides[-1] for strides in self.strides])


def merged_axes(arrays: Sequence[Array]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge the axes of arrays that are broadcast to the shape of the last one, in its memory order.

    Returns:
        the lengths of the axes, at least one, and for each array its stride along each of them, in bytes.
    """
    shape = arrays[-1].shape
    strides_by_array = [_broadcast_strides(array, shape) for array in arrays]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for axis in sorted(
        (axis for axis, length in enumerate(shape) if length != 1), key=lambda axis: -strides_by_array[-1][axis]
    ):
        length, step = shape[axis], tuple([strides[axis] for strides in strides_by_array])
        if merged and merged[-1][1] == tuple([length * stride for stride in step]):
            length *= merged.pop()[0]
        merged.append((length, step))
    if not merged:
        return (1,), tuple([(array.itemsize,) for array in arrays])
    lengths, strides = zip(*merged, strict=True)
    return lengths, tuple(zip(*strides, strict=True))


def axes_of(arrays: Sequence[Array]) -> Axes | None:
    """Return the axes of arrays that are broadcast to the shape of the last one; None if no loop supports them."""
    size = arrays[-1].itemsize
    lengths, strides = merged_axes(arrays)
    fits = len(lengths) <= _MAX_AXES and all(steps[-1] in (0, size) for steps in strides)
    if not fits or any(step % size for steps in strides for step in steps):
        return None
    return Axes(lengths, tuple([tuple([step // size for step in steps]) for steps in strides]))


def _broadcast_strides(array: Array, shape: Shape) -> list[int]:
    """Return the strides of an array when it is broadcast to a shape, in bytes."""
    missing = len(shape) - array.ndim
    axes = zip(array.strides, array.shape, shape[missing:], strict=True)
    return [0] * missing + [stride if length == full_length else 0 for stride, length, full_length in axes]


class StridedLoop:
    """A compiled loop that computes formulas along a number of axes.

    Args:
        outputs: the formulas.
        real: the element type.
        is_constant: for each array, inputs first, whether it is constant along the innermost axis.
        rank: the number of axes.
        streams: whether outputs bypass the caches; each of their rows then begins at a cache line.
        vectors: the number of vectors that are computed side by side.
    """

    def __init__(
        self, outputs: Sequence[Expr], real: FloatType, is_constant: Sequence[bool], rank: int, streams: bool,
        vectors: int,
    ) -> None:  # fmt: skip
        self.outputs = outputs
        self.real = real
        self.is_constant = is_constant
        self.rank = rank
        self.streams = streams
        self.vectors = vectors
        self.uniforms = uniforms(outputs)
        self.program = Program(self._write)
        self._ns_per_element = ns_per_element(outputs, len(is_constant) - sum(is_constant), real)
        words = 7 + max(0, rank - 2) + len(is_constant) * (rank - 1)
        self._pack = struct.Struct(f"{words}q{len(self.uniforms)}d{len(is_constant)}q").pack

    def threads(self, axes: Axes) -> int:
        """Return the number of threads for a loop along these axes."""
        return team.count() if math.prod(axes.lengths) * self._ns_per_element > WORTH_A_THREAD_NS else 1

    def words(self, axes: Axes, numbers: Sequence[float], threads: int) -> tuple[float, ...]:
        """Return the arguments of a call along these axes, without the arrays."""
        length, rows = axes.lengths[-1], math.prod(axes.lengths[:-1])
        piece, pieces, share = _tasks(rows, length, threads)
        units = rows * pieces
        steps = [stride for strides in axes.strides for stride in strides[:-1]]
        return (0, -(-units // share), length, units, share, pieces, piece, *axes.lengths[1:-1], *steps, *numbers)

    def run(self, words: Sequence[float], arrays: Sequence[Array], threads: int) -> bool:
        """Run the loop over arrays, inputs first; return False if it is not compiled (yet)."""
        compiled = self.program.compiled or self.program.get()
        if compiled is None:
            return False
        team.run(compiled, self._pack(*words, *map(id, arrays)), threads, arrays, self.streams)
        return True

    # -- code ------------------------------------------------------------------------------------------

    def _write(self, features: frozenset[str]) -> str:
        code = Code(self.real, features)
        length, units, share, pieces, piece = (code.word() for _ in range(5))
        lengths = [code.word() for _ in range(self.rank - 2)]
        strides = [[code.word() for _ in range(self.rank - 1)] for _ in self.is_constant]
        numbers = {uniform: code.number() for uniform in self.uniforms}
        arrays = [(code.array(), array_strides) for array_strides in strides]
        with code.tasks() as task:
            first = code.times(task, share)
            with code.loop(first, code.least(code.plus(first, share), units)) as unit:
                row = code.divided(unit, pieces) if self.rank > 1 else code.index(0)
                begin = code.times(code.minus(unit, code.times(row, pieces)), piece)
                places = self._places(code, row, lengths, arrays)
                self._row(code, begin, code.least(code.plus(begin, piece), length), places, numbers)
        return code.finish()

    def _places(
        self, code: Code, row: Value, lengths: Sequence[Value], arrays: Sequence[tuple[Value, list[Value]]]
    ) -> list[Value]:  # fmt: skip
        """Return the address at which the row of each array begins."""
        if self.rank == 1:
            return [address for address, _ in arrays]
        indices: list[Value] = []
        for length in reversed(lengths):
            outer = code.divided(row, length)
            indices.insert(0, code.minus(row, code.times(outer, length)))
            row = outer
        indices.insert(0, row)
        places = []
        for address, strides in arrays:
            for index, step in zip(indices, strides, strict=True):
                address = code.at(address, code.times(index, step))
            places.append(address)
        return places

    def _row(
        self, code: Code, start: Value, stop: Value, places: Sequence[Value], numbers: Mapping[Expr, Value]
    ) -> None:  # fmt: skip
        count = len(places) - len(self.outputs)
        fixed = dict(numbers)
        for position in range(count):
            if self.is_constant[position]:
                fixed[placeholder(position)] = code.spread(code.load_one(places[position], code.index(0)))
        fixed = invariants(code, self.outputs, fixed)

        varying = [position for position in range(count) if not self.is_constant[position]]

        def body(indices: Sequence[Value], mask: Value | None) -> None:
            loads = [
                {placeholder(position): code.load(places[position], index, mask) for position in varying}
                for index in indices
            ]
            results = lower_side_by_side(code, self.outputs, [fixed | loaded for loaded in loads])
            for index, values in zip(indices, results, strict=True):
                for value, place in zip(values, places[count:], strict=True):
                    code.store(value, place, index, mask, self.streams)

        code.side_by_side(start, stop, body, self.vectors)


def vectors(instructions: int, elements: int) -> int:
    """Return the number of vectors to compute side by side, for :meth:`Code.side_by_side`.

    The fewer elements there are, the shorter the code should be.
    """
    limit = min(_MAX_INSTRUCTIONS, elements // _ELEMENTS_PER_INSTRUCTION)
    return next((count for count in (8, 4, 2, 1) if count * instructions <= limit), 0)


def _tasks(rows: int, length: int, threads: int) -> tuple[int, int, int]:
    """Return the number of elements of a piece of a row, of pieces of a row, and of pieces of a task."""
    if threads == 1:
        return length, 1, rows
    tasks = _TASKS_PER_THREAD * threads
    pieces = max(1, min(length // MIN_TASK_SIZE, -(-tasks // rows)))
    piece = -(-length // pieces // 1024) * 1024 if pieces > 1 else length
    pieces = -(-length // piece)
    return piece, pieces, max(1, rows * pieces // tasks, MIN_TASK_SIZE // piece)


def streams(axes: Axes, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Return whether outputs can and should bypass the caches (non-temporal stores)."""
    if outputs[0].nbytes < _STREAMING_BYTES:
        return False
    addresses = {array.ctypes.data for array in inputs}
    return all(
        not array.ctypes.data % _CACHE_LINE
        and array.ctypes.data not in addresses
        and not any(stride * array.itemsize % _CACHE_LINE for stride in strides[:-1])
        for array, strides in zip(outputs, axes.strides[-len(outputs) :], strict=True)
    )
