"""Loops over arrays that are broadcast to one shape, or that lie apart from each other in different ways.

Several axes of an array can be walked as one where each step along the outer one is as long as all of the inner.
:func:`axes_of` finds the fewest axes that all arrays have in common, in the order of memory. Along the innermost
an array must be dense, or stand still: the number that it gives then is read once a row. A bias added to a matrix
takes two axes, as do LayerNorm's means; what has one shape and lies alike takes one, whatever the shape.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowmx.ops.formulas.expressions import Expr, placeholder, uniforms
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.code import Code, Real, Value
from flowmx.ops.kernels.llvm.elementwise import TASK, WORTH_A_THREAD_NS, pace
from flowmx.ops.kernels.llvm.lowering import invariants, lower_side_by_side
from flowmx.ops.kernels.llvm.program import Program
from flowmx.ops.registry.operators import Array, Shape

_MOST_AXES = 4
_TASKS_A_THREAD = 8
_BEYOND_CACHES = 1 << 25
"""Bytes of an output from which it is stored past the caches: it would not stay in them until it is read."""
_LINE = 64
_LONGEST = 1600
"""Instructions of a loop's body, about."""
_ELEMENTS_AN_INSTRUCTION = 16
"""Elements of an array for each instruction of a body: a loop over few is compiled longer than it will ever run."""


class Axes(NamedTuple):
    """Axes that several arrays are walked along, the innermost last."""

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """For each array its step along each axis, in elements; the innermost is 1 or 0."""

    @property
    def still(self) -> tuple[bool, ...]:
        """For each array whether it stands still along the innermost axis."""
        return tuple([not steps[-1] for steps in self.strides])


def merged_axes(arrays: Sequence[Array]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The fewest axes for arrays that are broadcast to the shape of the last one, in the order of its memory.

    Returns:
        their lengths, and for each array its step along each of them, in bytes; one axis at least.
    """
    shape = arrays[-1].shape
    steps = [_spread(array, shape) for array in arrays]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for axis in sorted((axis for axis, length in enumerate(shape) if length != 1), key=lambda axis: -steps[-1][axis]):
        length, step = shape[axis], tuple([each[axis] for each in steps])
        if merged and merged[-1][1] == tuple([length * each for each in step]):
            length *= merged.pop()[0]
        merged.append((length, step))
    if not merged:
        return (1,), tuple([(array.itemsize,) for array in arrays])
    lengths, strides = zip(*merged, strict=True)
    return lengths, tuple(zip(*strides, strict=True))


def axes_of(arrays: Sequence[Array]) -> Axes | None:
    """The axes of arrays that are broadcast to the shape of the last one; None where they cannot be walked."""
    size = arrays[-1].itemsize
    lengths, strides = merged_axes(arrays)
    fits = len(lengths) <= _MOST_AXES and all(each[-1] in (0, size) for each in strides)
    if not fits or any(step % size for each in strides for step in each):
        return None
    return Axes(lengths, tuple([tuple([step // size for step in each]) for each in strides]))


def _spread(array: Array, shape: Shape) -> list[int]:
    """The bytes between neighbours along each axis of a shape that an array is broadcast to."""
    missing = len(shape) - array.ndim
    given = zip(array.strides, array.shape, shape[missing:], strict=True)
    return [0] * missing + [step if length == whole else 0 for step, length, whole in given]


class Walk:
    """A formula as a loop along so many axes.

    Args:
        outputs: the formulas.
        real: the element type.
        still: for each array, inputs first, whether it stands still along the innermost axis.
        rank: how many axes there are.
        streams: whether outputs are stored past the caches; they then begin at cache lines, row by row.
        vectors: how many vectors are computed side by side.
    """

    def __init__(
        self, outputs: Sequence[Expr], real: Real, still: Sequence[bool], rank: int, streams: bool, vectors: int
    ) -> None:  # fmt: skip
        self.outputs = outputs
        self.real = real
        self.still = still
        self.rank = rank
        self.streams = streams
        self.vectors = vectors
        self.uniforms = uniforms(outputs)
        self.program = Program(self._write)
        self._pace = pace(outputs, len(still) - sum(still), real)
        words = 7 + max(0, rank - 2) + len(still) * (rank - 1)
        self._pack = struct.Struct(f"{words}q{len(self.uniforms)}d{len(still)}q").pack

    def threads(self, axes: Axes) -> int:
        """The number of threads for a walk along these axes."""
        return team.count() if math.prod(axes.lengths) * self._pace > WORTH_A_THREAD_NS else 1

    def words(self, axes: Axes, numbers: Sequence[float], threads: int) -> tuple[float, ...]:
        """The arguments of a call along these axes, besides the arrays."""
        length, rows = axes.lengths[-1], math.prod(axes.lengths[:-1])
        piece, pieces, share = _tasks(rows, length, threads)
        units = rows * pieces
        steps = [step for each in axes.strides for step in each[:-1]]
        return (0, -(-units // share), length, units, share, pieces, piece, *axes.lengths[1:-1], *steps, *numbers)

    def run(self, words: Sequence[float], arrays: Sequence[Array], threads: int) -> bool:
        """Run it over arrays, inputs first; False where it is not compiled (yet)."""
        compiled = self.program.compiled or self.program.get()
        if compiled is None:
            return False
        team.run(compiled, self._pack(*words, *map(id, arrays)), threads)
        return True

    # -- text ------------------------------------------------------------------------------------------

    def _write(self, features: frozenset[str]) -> str:
        code = Code(self.real, features)
        length, units, share, pieces, piece = (code.word() for _ in range(5))
        lengths = [code.word() for _ in range(self.rank - 2)]
        strides = [[code.word() for _ in range(self.rank - 1)] for _ in self.still]
        numbers = {uniform: code.number() for uniform in self.uniforms}
        arrays = [(code.array(), each) for each in strides]
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
        """The addresses at which the row of each array begins."""
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
        for at in range(count):
            if self.still[at]:
                fixed[placeholder(at)] = code.spread(code.load_one(places[at], code.index(0)))
        fixed = invariants(code, self.outputs, fixed)

        moving = [at for at in range(count) if not self.still[at]]

        def body(indices: Sequence[Value], mask: Value | None) -> None:
            read = [{placeholder(at): code.load(places[at], index, mask) for at in moving} for index in indices]
            found = lower_side_by_side(code, self.outputs, [fixed | each for each in read])
            for index, values in zip(indices, found, strict=True):
                for value, place in zip(values, places[count:], strict=True):
                    code.store(value, place, index, mask, self.streams)

        code.side_by_side(start, stop, body, self.vectors)


def vectors(instructions: int, elements: int) -> int:
    """The number of vectors to compute side by side, as :meth:`Code.side_by_side` takes it.

    Fewer where the code would get long for so many elements.
    """
    most = min(_LONGEST, elements // _ELEMENTS_AN_INSTRUCTION)
    return next((each for each in (8, 4, 2, 1) if each * instructions <= most), 0)


def _tasks(rows: int, length: int, threads: int) -> tuple[int, int, int]:
    """The elements of a piece of a row, the pieces of a row, and the pieces of a task."""
    if threads == 1:
        return length, 1, rows
    wanted = _TASKS_A_THREAD * threads
    pieces = max(1, min(length // TASK, -(-wanted // rows)))
    piece = -(-length // pieces // 1024) * 1024 if pieces > 1 else length
    pieces = -(-length // piece)
    return piece, pieces, max(1, rows * pieces // wanted, TASK // piece)


def streams(axes: Axes, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Tell whether outputs are better stored past the caches (non-temporal), and can be."""
    if outputs[0].nbytes < _BEYOND_CACHES:
        return False
    addresses = {array.ctypes.data for array in inputs}
    return all(
        not array.ctypes.data % _LINE
        and array.ctypes.data not in addresses
        and not any(step * array.itemsize % _LINE for step in steps[:-1])
        for array, steps in zip(outputs, axes.strides[-len(outputs) :], strict=True)
    )
