"""BatchNorm with its gradient on arrays with their channels last, seen as (rows, channels).

Each task takes some rows, few enough for a core's cache, and stores separate sums. Mean and variance come of them by
Chan, Golub and LeVeque's formula ("Updating formulae and a pairwise algorithm for computing sample variances", 1979),
so that memory is read once for both. Nobody waits for another thread inside of a call: where the cores are busy with
other work, oneDNN's barriers took fifty times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import BFLOAT, FLOAT, HALF, Code, Real, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array

_TASK_BYTES = 1 << 18
"""Bytes of rows that a task takes, about: they stay in a core's cache from one walk to the next."""
_SIDE_BY_SIDE, _WIDE = 4, 512
"""Vectors of channels that are walked at a time; channels from which it is twice as many."""
_EVEN, _JOINED = 64, 16
"""Channels that are walked at a time; the most rows that are joined to one whose length is a multiple of it."""
_ONE_TASK, _TASKS = 1 << 16, 8
"""Elements that one task takes; the least number of tasks for more."""
_WORDS = ("share", "rows", "channels")


class _Walks:
    """The words and loops that all functions have: the rows of a task, some channels at a time."""

    def __init__(self, side_by_side: int, features: frozenset[str]) -> None:
        self._side_by_side = side_by_side
        self.code = code = Code(FLOAT, features)
        self.share, self.rows, self.channels = (code.word() for _ in _WORDS)

    @contextmanager
    def tasks(self) -> Iterator[tuple[Value, Value, Value]]:
        """Repeat for each task: yields its number, its first row and the one behind its last."""
        code = self.code
        with code.tasks() as task:
            first = code.times(task, self.share)
            yield task, first, code.least(code.plus(first, self.share), self.rows)

    def over_channels(self, body: Callable[[Sequence[Value], Value | None], None]) -> None:
        """Write ``body(indices, mask)`` for all channels, some vectors at a time."""
        self.code.side_by_side(self.code.index(0), self.channels, body, self._side_by_side)

    def each_element(self, out: Value, value_at: Callable[[Value, Value, Value | None], Value]) -> None:
        """Write ``value_at(place, channel, mask)`` to each element, row by row."""
        code = self.code
        with self.tasks() as (_, first, behind), code.loop(first, behind) as row:
            start = code.times(row, self.channels)

            def some(indices: Sequence[Value], mask: Value | None) -> None:
                for index in indices:
                    at = code.plus(start, index)
                    code.store(value_at(at, index, mask), out, at, mask)

            self.over_channels(some)

    def sums(
        self, first: Value, behind: Value, indices: Sequence[Value],
        terms: Callable[[Value, Value, int], Sequence[Value]], count: int,
    ) -> list[list[Value]]:  # fmt: skip
        """Add up ``count`` terms over rows for each vector of channels; ``terms(place, index, slot)`` gives them."""
        code = self.code
        totals = [[code.local(code.constant(0.0)) for _ in range(count)] for _ in indices]
        with code.loop(first, behind) as row:
            start = code.times(row, self.channels)
            for slot, index in enumerate(indices):
                for total, term in zip(totals[slot], terms(code.plus(start, index), index, slot), strict=True):
                    code.set(total, code.binary("fadd", code.get(total), term))
        return [[code.get(total) for total in each] for each in totals]


def _moments(real: Real, side_by_side: int, features: frozenset[str]) -> str:
    """For each task and channel: the mean of its rows, and the sum of squares of the distances from it."""
    walks = _Walks(side_by_side, features)
    code = walks.code
    data, means, squares = code.array(real), code.array(), code.array()
    with walks.tasks() as (task, first, behind):
        count = code.put(FLOAT.name, f"sitofp {code.minus(behind, first)} to {FLOAT.name}")
        place = code.times(task, walks.channels)

        def some(indices: Sequence[Value], mask: Value | None) -> None:
            every = code.spread(count)
            totals = walks.sums(first, behind, indices, lambda at, index, slot: [code.load(data, at, mask)], 1)
            centres = [code.binary("fdiv", total, every) for (total,) in totals]

            def square(at: Value, index: Value, slot: int) -> list[Value]:
                distance = code.binary("fsub", code.load(data, at, mask), centres[slot])
                return [code.binary("fmul", distance, distance)]

            for index, centre, (sum_of_squares,) in zip(
                indices, centres, walks.sums(first, behind, indices, square, 1), strict=True
            ):
                code.store(centre, means, code.plus(place, index), mask)
                code.store(sum_of_squares, squares, code.plus(place, index), mask)

        walks.over_channels(some)
    return code.finish()


def _apply(relu: bool, real: Real, side_by_side: int, features: frozenset[str]) -> str:
    """Compute ``(data - mean) * scale + beta``, with or without a ReLU."""
    walks = _Walks(side_by_side, features)
    code = walks.code
    data, out = code.array(real), code.array(real)
    columns = [code.array() for _ in range(3)]

    def value_at(at: Value, index: Value, mask: Value | None) -> Value:
        mean, scale, beta = (code.load(column, index, mask) for column in columns)
        centred = code.binary("fsub", code.load(data, at, mask), mean)
        value = code.binary("fadd", code.binary("fmul", centred, scale), beta)
        zero = code.constant(0.0)
        return code.choose(code.compare("ogt", value, zero), value, zero) if relu else value

    walks.each_element(out, value_at)
    return code.finish()


def _backward_sums(real: Real, side_by_side: int, features: frozenset[str]) -> str:
    """For each task and channel the sums of ``head * (data - mean)`` and of ``head``."""
    walks = _Walks(side_by_side, features)
    code = walks.code
    head, data, mean = code.array(real), code.array(real), code.array()
    along, across = code.array(), code.array()
    with walks.tasks() as (task, first, behind):
        place = code.times(task, walks.channels)

        def some(indices: Sequence[Value], mask: Value | None) -> None:
            centres = [code.load(mean, index, mask) for index in indices]

            def terms(at: Value, index: Value, slot: int) -> list[Value]:
                value = code.load(head, at, mask)
                centred = code.binary("fsub", code.load(data, at, mask), centres[slot])
                return [code.binary("fmul", value, centred), value]

            for index, totals in zip(indices, walks.sums(first, behind, indices, terms, 2), strict=True):
                for total, target in zip(totals, (along, across), strict=True):
                    code.store(total, target, code.plus(place, index), mask)

        walks.over_channels(some)
    return code.finish()


def _backward_apply(real: Real, side_by_side: int, features: frozenset[str]) -> str:
    """Compute ``(head - across - (data - mean) * slope) * scale``."""
    walks = _Walks(side_by_side, features)
    code = walks.code
    head, data, out = code.array(real), code.array(real), code.array(real)
    columns = [code.array() for _ in range(4)]

    def value_at(at: Value, index: Value, mask: Value | None) -> Value:
        mean, slope, across, scale = (code.load(column, index, mask) for column in columns)
        centred = code.binary("fsub", code.load(data, at, mask), mean)
        rest = code.binary("fsub", code.load(head, at, mask), across)
        return code.binary("fmul", code.binary("fsub", rest, code.binary("fmul", centred, slope)), scale)

    walks.each_element(out, value_at)
    return code.finish()


_APPLY = [partial(_apply, relu) for relu in (False, True)]
_REALS = {"float32": FLOAT, "float16": HALF, "bfloat16": BFLOAT}


@cache
def _program(write: Any, *how: Any) -> Program:
    return Program(partial(write, *how))


# -- calls -------------------------------------------------------------------------------------------------


class _Matrix:
    """Arrays as rows of channels, cut into tasks; short and odd rows are joined to longer ones.

    Args:
        shape: (rows, channels) of the arrays.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.rows, self.channels = shape
        self._joined = 1
        while self.channels * self._joined % _EVEN and self.rows % (2 * self._joined) == 0 and self._joined < _JOINED:
            self._joined *= 2
        self._shape = rows, columns = self.rows // self._joined, self.channels * self._joined
        is_large = rows * columns > _ONE_TASK
        self.threads = team.count() if is_large else 1
        # The number of tasks, and so each bit of the sums, does not depend on that of threads.
        self._share = min(max(1, _TASK_BYTES // (4 * columns)), -(-rows // (_TASKS if is_large else 1)))
        self._tasks = -(-rows // self._share)
        self.parts = self._tasks * self._joined

    def partial(self) -> Array:
        """Make room for a number of each part of the rows and channel."""
        return np.empty((self.parts, self.channels), np.float32)

    def shares(self) -> Array:
        """The share of all rows that each part has, float32 (parts,)."""
        counts = np.full((self._tasks, self._joined), self._share, np.float32)
        counts[-1] = self._shape[0] - self._share * (self._tasks - 1)
        return (counts / np.float32(self.rows)).ravel()

    def columns(self, vectors: Sequence[Array]) -> Sequence[Array]:
        """Numbers of each channel, as the functions read them."""
        return vectors if self._joined == 1 else [np.tile(vector, self._joined) for vector in vectors]

    def run(self, program: Any, arrays: Sequence[Array], others: Sequence[Array]) -> None:
        """Call a function on arrays of (rows, channels), and others."""
        own = [array.reshape(self._shape) for array in arrays]
        addresses = *map(id, own), *map(id, others)
        words = struct.pack(f"{5 + len(addresses)}q", 0, self._tasks, self._share, *self._shape, *addresses)
        team.run(program, words, self.threads)


def _programs(data: Array, *writers: object) -> list[Any] | None:
    """The functions for an array; None where there is one that is not compiled (yet)."""
    real = _REALS.get(data.dtype.name)
    if real is None:
        return None
    side_by_side = _SIDE_BY_SIDE * (1 + (data.shape[1] >= _WIDE))
    programs = [_program(write, real, side_by_side).get() for write in writers]
    return None if None in programs else programs


def moments(data: Array, mean: Array, var: Array) -> bool:
    """Compute the mean and the variance of each channel; False where no compiled function does so (yet).

    Args:
        data: (rows, channels) in C order, float32, float16 or bfloat16.
        mean: float32 (channels,), written.
        var: likewise.
    """
    programs = _programs(data, _moments)
    if programs is None:
        return False
    matrix = _Matrix(data.shape)
    means, squares = matrix.partial(), matrix.partial()
    matrix.run(programs[0], [data], [means, squares])
    if matrix.parts == 1:
        mean[...] = means[0]
        np.divide(squares[0], np.float32(matrix.rows), out=var)
        return True
    shares = matrix.shares()
    np.dot(shares, means, out=mean)
    means -= mean
    means *= means
    np.dot(shares, means, out=var)
    var += squares.sum(0) / np.float32(matrix.rows)
    return True


def apply(data: Array, out: Array, mean: Array, scale: Array, beta: Array, relu: bool) -> bool:
    """Compute ``(data - mean) * scale + beta``, with a ReLU at the end or not; False where nothing does so (yet).

    Args:
        data: (rows, channels) in C order, float32, float16 or bfloat16.
        out: as data.
        mean: float32 (channels,).
        scale: likewise.
        beta: likewise.
        relu: apply a ReLU.
    """
    programs = _programs(data, _APPLY[relu]) if out.dtype == data.dtype else None
    if programs is not None:
        matrix = _Matrix(data.shape)
        matrix.run(programs[0], [data, out], matrix.columns([mean, scale, beta]))
    return programs is not None


def backward(
    head: Array, data: Array, out: Array, gamma: Array, mean: Array, inverse: Array, gamma_grad: Array,
    beta_grad: Array, batch: bool,
) -> bool:  # fmt: skip
    """Compute the gradients; False where no compiled function does so (yet).

    Args:
        head: (rows, channels) in C order, float32, float16 or bfloat16.
        data: likewise.
        out: likewise, written.
        gamma: float32 (channels,).
        mean: likewise.
        inverse: one divided by the standard deviation, likewise.
        gamma_grad: likewise, written.
        beta_grad: likewise, written.
        batch: the statistics were the batch's.
    """
    programs = _programs(data, _backward_sums, _backward_apply) if head.dtype == out.dtype == data.dtype else None
    if programs is None:
        return False
    sums, rest = programs
    matrix = _Matrix(data.shape)
    along, across = matrix.partial(), matrix.partial()
    matrix.run(sums, [head, data], [*matrix.columns([mean]), along, across])
    np.add.reduce(along, 0, out=gamma_grad)
    np.add.reduce(across, 0, out=beta_grad)
    slope, shift = np.zeros_like(mean), np.zeros_like(mean)
    if batch:
        np.multiply(gamma_grad, inverse * inverse / np.float32(matrix.rows), out=slope)
        np.divide(beta_grad, np.float32(matrix.rows), out=shift)
    gamma_grad *= inverse
    matrix.run(rest, [head, data, out], matrix.columns([mean, slope, shift, inverse * gamma]))
    return True
