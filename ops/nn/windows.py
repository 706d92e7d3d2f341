"""Convolution as matrix products, in any number of spatial axes.

The batch is split into chunks of ``n`` samples, and each chunk is transposed so that the batch is the
innermost axis. Copying the windows into columns (im2col) then moves runs of ``n`` times the output's width.
One product computes the chunk, and its result is transposed back:

    data (n, C, *size)  ->  batch-last (C, *padded, n)  ->  columns (C, *kernel, *out, n)
    weight (F, C·kernel) @ columns  ->  (F, *out, n)  ->  output (n, F, *out)

Columns are made for as many output rows at a time as fit in the cache. The two gradients take the same steps in
reverse. The three are each other's gradients, and :func:`spread` is also the forward of Deconvolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flowmx.ops.nn.common import computing_dtype, scratch
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape

_CHUNK = 16
"""Samples per chunk: 64 bytes of float32, a cache line."""
_COLUMN_BYTES = 4 << 20


class Geometry(NamedTuple):
    """The geometry of windows over the spatial axes; each field has one int per axis."""

    kernel: Shape
    stride: Shape
    dilate: Shape
    pad: Shape
    groups: int = 1

    def reach(self, axis: int) -> int:
        """Return the extent of one window along an axis."""
        return self.dilate[axis] * (self.kernel[axis] - 1) + 1

    def output(self, axis: int, length: int) -> int:
        """Return the number of windows along an axis; -1 if its length is unknown."""
        if length == -1:
            return -1
        return (length + 2 * self.pad[axis] - self.reach(axis)) // self.stride[axis] + 1

    def input(self, axis: int, windows: int) -> int:
        """Return the length of an axis with this number of windows; -1 if several lengths have it."""
        if windows == -1 or self.stride[axis] != 1:
            return -1
        return windows - 1 + self.reach(axis) - 2 * self.pad[axis]


class _Plan:
    """Chunk sizes and scratch memory for one call."""

    def __init__(self, run: Run, g: Geometry, big: Shape, small: Shape, dtype: DType) -> None:
        self.run, self.g = run, g
        self.dtype = computing_dtype(np.dtype(dtype))
        self.channels, self.size, self.out = big[1], big[2:], small[2:]
        self.batch, self.filters = small[0], small[1]
        self.padded = tuple(length + 2 * pad for length, pad in zip(self.size, g.pad, strict=True))
        self.taps = self.channels // g.groups * math.prod(g.kernel)
        self.chunk = max(1, min(_CHUNK, self.batch))
        row = self.channels * math.prod(g.kernel) * math.prod(self.out[1:]) * self.dtype.itemsize
        self.rows = max(1, min(self.out[0], _COLUMN_BYTES // max(1, row * self.chunk)))
        self.inside = tuple(slice(pad, pad + length) for pad, length in zip(g.pad, self.size, strict=True))

    def chunks(self) -> Iterator[slice]:
        for start in range(0, self.batch, self.chunk):
            yield slice(start, min(start + self.chunk, self.batch))

    def row_blocks(self) -> Iterator[slice]:
        for start in range(0, self.out[0], self.rows):
            yield slice(start, min(start + self.rows, self.out[0]))

    def memory(self, slot: str, *shape: int) -> Array:
        return scratch(self.run, f"windows {slot}", shape, self.dtype)

    def batch_last(self, data: Array) -> Array:
        """Return a chunk of the data as (C, *padded, n), padded with zeros."""
        planes = self.memory("turned", self.channels, *self.padded, len(data))
        if self.padded != self.size:
            planes.fill(0)
        self.run.xp.copyto(self.interior(planes), _batch_last(data), casting="unsafe")
        return planes

    def interior(self, planes: Array) -> Array:
        return planes[(slice(None), *self.inside)]

    def windows(self, planes: Array, rows: slice) -> Array:
        """Return a view (C, *kernel, rows, *out[1:], n) of all windows of some output rows."""
        g, steps = self.g, planes.strides
        kernel_steps = tuple(d * s for d, s in zip(g.dilate, steps[1:-1], strict=True))
        out_steps = tuple(d * s for d, s in zip(g.stride, steps[1:-1], strict=True))
        result: Array = self.run.xp.lib.stride_tricks.as_strided(
            planes[:, rows.start * g.stride[0] :],
            (self.channels, *g.kernel, rows.stop - rows.start, *self.out[1:], planes.shape[-1]),
            (steps[0], *kernel_steps, *out_steps, steps[-1]),
        )
        return result

    def columns(self, planes: Array, rows: slice) -> Array:
        """Return the windows as matrices: (groups, C/groups · kernel, rows · out[1:] · n)."""
        view = self.windows(planes, rows)
        columns = self.memory("columns", *view.shape)
        self.run.xp.copyto(columns, view)
        return columns.reshape(self.g.groups, self.taps, -1)

    def heads(self, small: Array) -> Array:
        """Return a chunk of the output or its gradient as (F, *out, n)."""
        heads = self.memory("heads", self.filters, *self.out, len(small))
        self.run.xp.copyto(heads, _batch_last(small), casting="unsafe")
        return heads

    def head_rows(self, heads: Array, rows: slice) -> Array:
        """Return some rows of the output side as matrices: (groups, F/groups, rows · out[1:] · n)."""
        part = heads[:, rows]
        if part.shape != heads.shape:
            rows_copy = self.memory("head rows", *part.shape)
            self.run.xp.copyto(rows_copy, part)
            part = rows_copy
        return part.reshape(self.g.groups, self.filters // self.g.groups, -1)

    def matrices(self, weight: Array) -> Array:
        """Return the weight as (groups, F/groups, C/groups · kernel)."""
        shape = (self.g.groups, self.filters // self.g.groups, self.taps)
        return weight.reshape(shape).astype(self.dtype, copy=False)


def _batch_last(array: Array) -> Array:
    return array.transpose(*range(1, array.ndim), 0)


def correlate(run: Run, g: Geometry, data: Array, weight: Array, out: Array, bias: Array | None = None) -> None:
    """Convolve data (N, C, *size) with weight (F, C/groups, *kernel), into out (N, F, *out)."""
    plan = _Plan(run, g, data.shape, out.shape, out.dtype)
    matrices = plan.matrices(weight)
    target = _batch_last(out)
    for chunk in plan.chunks():
        planes = plan.batch_last(data[chunk])
        for rows in plan.row_blocks():
            columns = plan.columns(planes, rows)
            part = target[:, rows, ..., chunk]
            result = plan.memory("result", g.groups, matrices.shape[1], columns.shape[2])
            run.xp.matmul(matrices, columns, out=result)
            if bias is not None:
                result += bias.reshape(g.groups, -1, 1)
            run.xp.copyto(part, result.reshape(part.shape), casting="unsafe")


def spread(run: Run, g: Geometry, head: Array, weight: Array, data: Array) -> None:
    """Compute the gradient of :func:`correlate` for its data: spread head (N, F, *out) into data (N, C, *size)."""
    plan = _Plan(run, g, data.shape, head.shape, data.dtype)
    matrices = plan.matrices(weight).transpose(0, 2, 1)
    target = _batch_last(data)
    for chunk in plan.chunks():
        heads = plan.heads(head[chunk])
        count = heads.shape[-1]
        planes = plan.memory("turned", plan.channels, *plan.padded, count)
        planes.fill(0)
        for rows in plan.row_blocks():
            matrix = plan.head_rows(heads, rows)
            columns = plan.memory("columns", g.groups, plan.taps, matrix.shape[2])
            run.xp.matmul(matrices, matrix, out=columns)
            windows = plan.windows(planes, rows)
            taps = columns.reshape(windows.shape)
            # One tap at a time: the positions of one tap never overlap.
            for tap in itertools.product(*map(range, g.kernel)):
                where: tuple[slice | int, ...] = (slice(None), *tap)
                run.xp.add(windows[where], taps[where], out=windows[where])
        run.xp.copyto(target[..., chunk], plan.interior(planes), casting="unsafe")


def weight_gradient(run: Run, g: Geometry, head: Array, data: Array, weight: Array) -> None:
    """Compute the gradient of :func:`correlate` for its weight, into weight (F, C/groups, *kernel)."""
    plan = _Plan(run, g, data.shape, head.shape, weight.dtype)
    shape = (g.groups, plan.filters // g.groups, plan.taps)
    total = plan.memory("total", *shape)
    part = plan.memory("part", *shape)
    total.fill(0)
    for chunk in plan.chunks():
        planes = plan.batch_last(data[chunk])
        heads = plan.heads(head[chunk])
        for rows in plan.row_blocks():
            columns = plan.columns(planes, rows)
            run.xp.matmul(plan.head_rows(heads, rows), columns.transpose(0, 2, 1), out=part)
            run.xp.add(total, part, out=total)
    run.xp.copyto(weight, total.reshape(weight.shape), casting="unsafe")
