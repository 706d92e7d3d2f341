"""BatchNorm and its gradient on channels-last arrays, viewed as (rows, channels).

A task processes few enough rows for a core's cache, and stores separate sums. Mean and variance are computed from them
with the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample
variances", 1979), so memory is read only once. No thread waits for another within a call: when the cores were busy with
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
from flowmx.ops.kernels.llvm.assembly import BFLOAT, FLOAT, HALF, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array

_TASK_BYTES = 1 << 18
"""The approximate size of a task's rows in bytes: small enough to stay in a core's cache between passes."""
_VECTORS, _WIDE = 4, 512
"""The number of vectors of channels that an iteration processes; twice as many from ``_WIDE`` channels on."""
_EVEN, _MAX_MERGED = 64, 16
"""Rows are merged until their length is a multiple of ``_EVEN``, at most ``_MAX_MERGED`` of them."""
_ONE_TASK, _MIN_TASKS = 1 << 16, 8
"""The maximum number of elements of a single task; the minimum number of tasks for larger arrays."""
_WORDS = ("share", "rows", "channels")


class _Loops:
    """The arguments and loops that all generated functions share: over tasks, over rows, and over channels."""

    def __init__(self, vectors: int, features: frozenset[str]) -> None:
        self._vectors = vectors
        self.code = code = Code(FLOAT, features)
        self.share, self.rows, self.channels = (code.word() for _ in _WORDS)

    @contextmanager
    def tasks(self) -> Iterator[tuple[Value, Value, Value]]:
        """Emit a loop over tasks; yield the index of the task, its first row, and one past its last row."""
        code = self.code
        with code.tasks() as task:
            first = code.times(task, self.share)
            yield task, first, code.least(code.plus(first, self.share), self.rows)

    def over_channels(self, body: Callable[[Sequence[Value], Value | None], None]) -> None:
        """Emit ``body(indices, mask)`` for all channels, several vectors per iteration."""
        self.code.side_by_side(self.code.index(0), self.channels, body, self._vectors)

    def each_element(self, out: Value, value_at: Callable[[Value, Value, Value | None], Value]) -> None:
        """Emit a loop that stores ``value_at(place, channel, mask)`` in each element, row by row."""
        code = self.code
        with self.tasks() as (_, first, stop), code.loop(first, stop) as row:
            start = code.times(row, self.channels)

            def body(indices: Sequence[Value], mask: Value | None) -> None:
                for index in indices:
                    at = code.plus(start, index)
                    code.store(value_at(at, index, mask), out, at, mask)

            self.over_channels(body)

    def sums(
        self, first: Value, stop: Value, indices: Sequence[Value],
        terms: Callable[[Value, Value, int], Sequence[Value]], count: int,
    ) -> list[list[Value]]:  # fmt: skip
        """Emit sums over rows of ``count`` terms, ``terms(place, index, slot)``, for each vector of channels."""
        code = self.code
        totals = [[code.local(code.constant(0.0)) for _ in range(count)] for _ in indices]
        with code.loop(first, stop) as row:
            start = code.times(row, self.channels)
            for slot, index in enumerate(indices):
                for total, term in zip(totals[slot], terms(code.plus(start, index), index, slot), strict=True):
                    code.set(total, code.binary("fadd", code.get(total), term))
        return [[code.get(total) for total in each] for each in totals]


def _moments(real: FloatType, vectors: int, features: frozenset[str]) -> str:
    """Return LLVM code that computes, for each task and channel, the mean and the sum of squared deviations from it."""
    loops = _Loops(vectors, features)
    code = loops.code
    data, means, squares = code.array(real), code.array(), code.array()
    with loops.tasks() as (task, first, stop):
        count = code.put(FLOAT.name, f"sitofp {code.minus(stop, first)} to {FLOAT.name}")
        place = code.times(task, loops.channels)

        def body(indices: Sequence[Value], mask: Value | None) -> None:
            every = code.spread(count)
            totals = loops.sums(first, stop, indices, lambda at, index, slot: [code.load(data, at, mask)], 1)
            centres = [code.binary("fdiv", total, every) for (total,) in totals]

            def square(at: Value, index: Value, slot: int) -> list[Value]:
                distance = code.binary("fsub", code.load(data, at, mask), centres[slot])
                return [code.binary("fmul", distance, distance)]

            for index, centre, (sum_of_squares,) in zip(
                indices, centres, loops.sums(first, stop, indices, square, 1), strict=True
            ):
                code.store(centre, means, code.plus(place, index), mask)
                code.store(sum_of_squares, squares, code.plus(place, index), mask)

        loops.over_channels(body)
    return code.finish()


def _apply(relu: bool, real: FloatType, vectors: int, features: frozenset[str]) -> str:
    """Return LLVM code that computes ``(data - mean) * scale + beta``, with or without a ReLU."""
    loops = _Loops(vectors, features)
    code = loops.code
    data, out = code.array(real), code.array(real)
    columns = [code.array() for _ in range(3)]

    def value_at(at: Value, index: Value, mask: Value | None) -> Value:
        mean, scale, beta = (code.load(column, index, mask) for column in columns)
        centred = code.binary("fsub", code.load(data, at, mask), mean)
        value = code.binary("fadd", code.binary("fmul", centred, scale), beta)
        zero = code.constant(0.0)
        return code.choose(code.compare("ogt", value, zero), value, zero) if relu else value

    loops.each_element(out, value_at)
    return code.finish()


def _backward_sums(real: FloatType, vectors: int, features: frozenset[str]) -> str:
    """Return LLVM code that computes, for each task and channel, the sums of ``head * (data - mean)`` and ``head``."""
    loops = _Loops(vectors, features)
    code = loops.code
    head, data, mean = code.array(real), code.array(real), code.array()
    along, across = code.array(), code.array()
    with loops.tasks() as (task, first, stop):
        place = code.times(task, loops.channels)

        def body(indices: Sequence[Value], mask: Value | None) -> None:
            centres = [code.load(mean, index, mask) for index in indices]

            def terms(at: Value, index: Value, slot: int) -> list[Value]:
                value = code.load(head, at, mask)
                centred = code.binary("fsub", code.load(data, at, mask), centres[slot])
                return [code.binary("fmul", value, centred), value]

            for index, totals in zip(indices, loops.sums(first, stop, indices, terms, 2), strict=True):
                for total, target in zip(totals, (along, across), strict=True):
                    code.store(total, target, code.plus(place, index), mask)

        loops.over_channels(body)
    return code.finish()


def _backward_apply(real: FloatType, vectors: int, features: frozenset[str]) -> str:
    """Return LLVM code that computes ``(head - across - (data - mean) * slope) * scale``."""
    loops = _Loops(vectors, features)
    code = loops.code
    head, data, out = code.array(real), code.array(real), code.array(real)
    columns = [code.array() for _ in range(4)]

    def value_at(at: Value, index: Value, mask: Value | None) -> Value:
        mean, slope, across, scale = (code.load(column, index, mask) for column in columns)
        centred = code.binary("fsub", code.load(data, at, mask), mean)
        rest = code.binary("fsub", code.load(head, at, mask), across)
        return code.binary("fmul", code.binary("fsub", rest, code.binary("fmul", centred, slope)), scale)

    loops.each_element(out, value_at)
    return code.finish()


_APPLY = [partial(_apply, relu) for relu in (False, True)]
_FLOAT_TYPES = {"float32": FLOAT, "float16": HALF, "bfloat16": BFLOAT}


@cache
def _program(write: Any, *how: Any) -> Program:
    return Program(partial(write, *how))


# -- calls -------------------------------------------------------------------------------------------------


class _Matrix:
    """Arrays as rows of channels, divided into tasks; rows whose length is not a multiple of ``_EVEN`` are merged.

    Args:
        shape: (rows, channels) of the arrays.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.rows, self.channels = shape
        self._merged = 1
        while (
            self.channels * self._merged % _EVEN and self.rows % (2 * self._merged) == 0 and self._merged < _MAX_MERGED
        ):
            self._merged *= 2
        self._shape = rows, columns = self.rows // self._merged, self.channels * self._merged
        is_large = rows * columns > _ONE_TASK
        self.threads = team.count() if is_large else 1
        # The number of tasks does not depend on the number of threads, so sums are bit-identical.
        self._share = min(max(1, _TASK_BYTES // (4 * columns)), -(-rows // (_MIN_TASKS if is_large else 1)))
        self._tasks = -(-rows // self._share)
        self.parts = self._tasks * self._merged

    def partial(self) -> Array:
        """Allocate one number per part and channel, float32 (parts, channels)."""
        return np.empty((self.parts, self.channels), np.float32)

    def shares(self) -> Array:
        """Return the fraction of all rows in each part, float32 (parts,)."""
        counts = np.full((self._tasks, self._merged), self._share, np.float32)
        counts[-1] = self._shape[0] - self._share * (self._tasks - 1)
        return (counts / np.float32(self.rows)).ravel()

    def columns(self, vectors: Sequence[Array]) -> Sequence[Array]:
        """Return per-channel vectors as the functions read them: tiled if rows are merged."""
        return vectors if self._merged == 1 else [np.tile(vector, self._merged) for vector in vectors]

    def run(self, program: Any, arrays: Sequence[Array], others: Sequence[Array]) -> None:
        """Call a function on arrays (rows, channels) and on other arrays."""
        own = [array.reshape(self._shape) for array in arrays]
        addresses = *map(id, own), *map(id, others)
        words = struct.pack(f"{5 + len(addresses)}q", 0, self._tasks, self._share, *self._shape, *addresses)
        team.run(program, words, self.threads)


def _programs(data: Array, *writers: object) -> list[Any] | None:
    """Return the compiled functions for an array, or None if one of them is not compiled (yet)."""
    real = _FLOAT_TYPES.get(data.dtype.name)
    if real is None:
        return None
    vectors = _VECTORS * (1 + (data.shape[1] >= _WIDE))
    programs = [_program(write, real, vectors).get() for write in writers]
    return None if None in programs else programs


def moments(data: Array, mean: Array, var: Array) -> bool:
    """Compute the mean and the variance of each channel; return False if no compiled function is available (yet).

    Args:
        data: (rows, channels) in C order, float32, float16 or bfloat16.
        mean: the result, float32 (channels,).
        var: the result, float32 (channels,).
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
    """Compute ``(data - mean) * scale + beta``, optionally followed by a ReLU.

    Return False if no compiled function is available (yet).

    Args:
        data: (rows, channels) in C order, float32, float16 or bfloat16.
        out: the result, with the shape and dtype of data.
        mean: float32 (channels,).
        scale: float32 (channels,).
        beta: float32 (channels,).
        relu: whether to apply a ReLU.
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
    """Compute the gradients; return False if no compiled function is available (yet).

    Args:
        head: the head gradient, (rows, channels) in C order, float32, float16 or bfloat16.
        data: the data, with the shape and dtype of head.
        out: the gradient of data, with the shape and dtype of head.
        gamma: float32 (channels,).
        mean: float32 (channels,).
        inverse: the inverse of the standard deviation, float32 (channels,).
        gamma_grad: the gradient of gamma, float32 (channels,).
        beta_grad: the gradient of beta, float32 (channels,).
        batch: whether the batch's statistics were used.
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
