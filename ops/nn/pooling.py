"""Pooling, one spatial axis at a time: a window's maximum is the maximum of its rows' maxima."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.shape_arithmetic import expect_elements
from flowmx.ops.nn.common import computing_dtype, expect_rank, non_defaults, scratch
from flowmx.ops.nn.convolution import check_layout, per_axis
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Quantization

_PART_BYTES = 1 << 20


class _Axis(NamedTuple):
    """The windows on one axis of the array."""

    axis: int
    kernel: int
    stride: int
    pad: int
    length: int
    windows: int

    def taps(self) -> Iterator[tuple[Any, Any]]:
        """Yield, for each offset in a window, the slice of the data there and the slice of the windows that use it."""
        prefix = (slice(None),) * self.axis
        for offset in range(self.kernel):
            start = offset - self.pad
            low = max(0, -(start // self.stride))
            high = min(self.windows, (self.length - 1 - start) // self.stride + 1)
            if low < high:
                first = start + low * self.stride
                last = start + (high - 1) * self.stride
                yield (*prefix, slice(first, last + 1, self.stride)), (*prefix, slice(low, high))

    def is_complete(self, where: tuple[slice, ...]) -> bool:
        """Return whether a tap contributes to every window."""
        return bool(where[-1] == slice(0, self.windows))

    def counts(self, include_pad: bool) -> list[int]:
        """Return the number of elements that each window averages."""
        low, high = (-self.pad, self.length + self.pad) if include_pad else (0, self.length)
        starts = [window * self.stride - self.pad for window in range(self.windows)]
        return [max(1, min(start + self.kernel, high) - max(start, low)) for start in starts]


def _reduce(
    xp: ArrayNamespace, ufunc: Callable[..., object], empty: float, data: Array, line: _Axis, out: Array
) -> None:
    """Reduce the windows along one axis with ``maximum`` or ``add``."""
    taps = sorted(line.taps(), key=lambda tap: not line.is_complete(tap[1]))
    complete = sum(line.is_complete(where) for _, where in taps)
    if complete > 1:
        ufunc(data[taps[0][0]], data[taps[1][0]], out=out)
    elif complete == 1:
        xp.copyto(out, data[taps[0][0]])
    else:
        out.fill(empty)
    for source, where in taps[min(complete, 2) :]:
        ufunc(out[where], data[source], out=out[where])


def _spread_sum(xp: ArrayNamespace, head: Array, line: _Axis, data: Array) -> None:
    """Add each window's gradient to all its elements, along one axis."""
    data.fill(0)
    for source, where in line.taps():
        xp.add(data[source], head[where], out=data[source])


def _spread_max(run: Run, head: Array, data: Array, output: Array, line: _Axis, out: Array) -> None:
    """Assign each window's gradient to its first maximum along one axis."""
    xp, taps = run.xp, list(line.taps())
    # Integer products with the bit patterns select exactly, while infinity times 0 would be NaN.
    bits = f"i{head.dtype.itemsize}"
    remaining_bits = head.view(bits)
    remaining, selected = (scratch(run, f"pooling {slot}", head.shape, bits) for slot in ("remaining", "selected"))
    if line.stride >= line.kernel and all(line.is_complete(where) for _, where in taps):
        # Windows of equal length without overlap: the last tap receives the gradients that no earlier tap received.
        if len(taps) * line.windows < line.length:  # some elements lie outside all windows
            out.fill(0)
        for (source, _), (next_source, _) in pairwise(taps):
            xp.copyto(selected, xp.equal(data[source], output))
            xp.multiply(remaining_bits, selected, out=selected)
            out[source].view(bits)[...] = selected
            target = out[next_source].view(bits) if next_source is taps[-1][0] else remaining
            remaining_bits = xp.subtract(remaining_bits, selected, out=target)
        if len(taps) == 1:
            out[taps[0][0]] = head
        return
    out.fill(0)
    xp.copyto(remaining, remaining_bits)
    for source, where in taps:
        part = xp.multiply(remaining[where], xp.equal(data[source], output[where]))
        remaining[where] -= part
        out[source] += part.view(out.dtype)


@operator("Pooling", "Pooling_v1")
class Pooling(
    Operator,
    keeps_layout=True,
    input_named=True,
    quantized=Quantization("_contrib_quantized_pooling"),
    batch_wise=BatchWise.FIRST,
):
    """Reduce each window of the spatial axes to its maximum, mean, sum, or (Σx^p)^(1/p) for lp.

    Shapes: data (batch, channels, *size), output (batch, channels, *out), or with the channels last as ``layout``
    says. With the convention ``valid`` out = floor((size + 2·pad - kernel)/stride) + 1, with ``full`` the same
    with ceil, and with ``same`` (one spatial axis only) ceil((size + 2·pad)/stride).
    """

    input_docs = describe(
        data="(batch, channels, *size), or with the channels last as `layout` says; 1 to 3 spatial axes, any dtype",
    )
    output_doc = "(batch, channels, *out), or with the channels last, the dtype of data"
    kernel: Shape = option((), "Lengths of the window; not needed with global_pool.", low=1)
    pool_type: Literal["max", "avg", "sum", "lp"] = option("max", "The reduction of a window.")
    global_pool: bool = option(False, "One window over all of each spatial axis.")
    cudnn_off: bool = option(False, "Ignored.")
    pooling_convention: Literal["valid", "full", "same"] = option("valid", "The rounding of the output's size.")
    stride: Shape = option((), "Steps of the window; 1 each by default.", low=1)
    pad: Shape = option((), "Padding on either side; 0 each by default.", low=0)
    p_value: Literal[1, 2, 3] | None = option(None, "The p of lp pooling.")
    count_include_pad: bool | None = option(None, "Count the padding in avg (True by default).")
    layout: str | None = option(None, "NCW, NCHW, NCDHW (by default), or NWC, NHWC, NDHWC.")

    def __post_init__(self) -> None:
        if self.channels_last:
            # Channels are already contiguous, so another memory layout would not help.
            self.with_traits(makes_channels_last=False)
        if self.pool_type not in ("max", "avg"):
            self.with_traits(quantized=None)
        if not self.kernel and not self.global_pool:
            raise ParameterError(f"{self.name}: kernel is missing, expected lengths (or global_pool=True)")
        if self.kernel and not self.global_pool:
            count = len(self.kernel)
            check_layout(self, self.layout, count, channels_last=True)
            object.__setattr__(self, "pad", self.pad[:count])  # as in MXNet, which ignores the others
            pad = per_axis(self, "pad", self.pad, 0, count)
            per_axis(self, "stride", self.stride, 1, count)
            if any(p >= k for p, k in zip(pad, self.kernel, strict=True)):
                raise ParameterError(f"{self.name}: pad is {self.pad}, expected less than kernel {self.kernel}")
            if self.pooling_convention == "same" and count > 1:
                raise ParameterError(f"{self.name}: pooling_convention is 'same', which needs one spatial axis")
        if self.pool_type == "lp" and self.p_value is None:
            raise ParameterError(f"{self.name}: p_value is missing, expected 1, 2 or 3 for pool_type lp")

    @property
    def channels_last(self) -> bool:
        """Whether the channels are the last axis, not axis 1."""
        return self.layout is not None and self.layout.endswith("C")

    def channels_first(self, array: Array) -> Array:
        """Return a view with the channels as axis 1."""
        return array.transpose(0, -1, *range(1, array.ndim - 1)) if self.channels_last else array

    def spatial(self, shape: Shape) -> Shape:
        """Return the spatial axes of a shape."""
        return shape[1:-1] if self.channels_last else shape[2:]

    def with_spatial(self, shape: Shape, size: Shape) -> Shape:
        """Return a shape with other spatial axes."""
        return (shape[0], *size, shape[-1]) if self.channels_last else (*shape[:2], *size)

    def planes(self, array: Array) -> Array:
        """Return the array as (planes, *size), or unchanged if the channels are last."""
        return array if self.channels_last else array.reshape(-1, *array.shape[2:])

    def _windows(self, axis: int, length: int) -> int:
        if length == -1:
            return -1
        kernel, stride = self.kernel[axis], (self.stride or (1,) * 3)[axis]
        extent = length + 2 * (self.pad or (0,) * 3)[axis]
        if self.pooling_convention == "same":
            return -(-extent // stride)
        spare = extent - kernel
        return (spare // stride if self.pooling_convention == "valid" else -(-spare // stride)) + 1

    def json_output_count(self) -> int:
        return 2 if self.pool_type == "max" and self.kernel and not self.channels_last else 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        if self.global_pool:
            rank = len(self.layout) if self.layout else 0
            expect_rank(self, "data", data, rank or 3, rank or 5)
            expect_elements(self, data, range(1, len(data) - 1) if self.channels_last else range(2, len(data)))
            return shapes, [self.with_spatial(data, (1,) * (len(data) - 2))]
        rank = len(self.kernel) + 2
        expect_rank(self, "data", data, rank, rank)
        extent = self.spatial(data)
        size = tuple(self._windows(axis, length) for axis, length in enumerate(extent))
        if any(length == 0 or (length != -1 and windows < 1) for length, windows in zip(extent, size, strict=True)):
            raise ShapeError(
                f"{self.name}: input data has shape {data}, smaller than one window: kernel {self.kernel}, "
                f"pad {self.pad or 0}"
            )
        return shapes, [self.with_spatial(data, size)]

    def lines(self, size: Shape, out: Shape) -> list[_Axis]:
        """Return the windows on each spatial axis of the data, viewed as (planes, *size)."""
        count = len(size)
        kernel = size if self.global_pool else self.kernel
        stride = (1,) * count if self.global_pool or not self.stride else self.stride
        pad = (0,) * count if self.global_pool or not self.pad else self.pad
        return [_Axis(i + 1, kernel[i], stride[i], pad[i], size[i], out[i]) for i in range(count)]

    def counts(self, xp: ArrayNamespace, lines: Sequence[_Axis], dtype: object) -> Array:
        """Return the number of elements that each window averages, (*out), or (*out, 1) with the channels last."""
        total: Array = xp.ones((), dtype)
        for line in lines:
            total = total[..., None] * xp.asarray(line.counts(self.count_include_pad is not False), dtype)
        return total[..., None] if self.channels_last else total

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data, out = run.xp, inputs[0], outputs[0]
        lines = self.lines(self.spatial(data.shape), self.spatial(out.shape))
        planes, result = self.planes(data), self.planes(out)
        if self.pool_type == "max":
            low = lowest(data.dtype)
            for part in _parts(planes):
                _reduce_all(run, xp.maximum, low, planes[part], lines, result[part])
            return
        dtype = computing_dtype(out.dtype)
        for part in _parts(planes):
            piece = planes[part].astype(dtype, copy=False)
            if self.pool_type == "lp":
                piece = piece**self.p_value
            total = scratch(run, "pooling sum", result[part].shape, dtype)
            _reduce_all(run, xp.add, 0, piece, lines, total)
            if self.pool_type == "avg":
                xp.divide(total, self.counts(xp, lines, dtype), out=total)
            elif self.pool_type == "lp":
                _root(xp, self.p_value, total)
            result[part] = total

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_Pooling", heads[0], inputs[0], outputs[0], **non_defaults(self))]


@operator("_backward_Pooling")
class BackwardPooling(Pooling, hidden=True, quantized=None, batch_wise=BatchWise.EACH):
    """Gradient of Pooling; the first of several equal maxima in a window receives it."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "output")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        lines = self.lines(self.spatial(inputs[1].shape), self.spatial(inputs[0].shape))
        head, data, output, out = map(self.planes, (*inputs, outputs[0]))
        for part in _parts(data):
            if self.pool_type == "max":
                self._max_gradient(run, head[part], data[part], output[part], lines, out[part])
            else:
                self._sum_gradient(run, head[part], data[part], output[part], lines, out[part])

    def _max_gradient(self, run: Run, head: Array, data: Array, output: Array, lines: list[_Axis], out: Array) -> None:
        # Reduce from the last axis to the first: the first row with the maximum precedes its first column.
        levels = [data]
        for line in reversed(lines[1:]):
            maxima = scratch(run, f"pooling level {line.axis}", _pooled_shape(levels[-1].shape, line), data.dtype)
            _reduce(run.xp, run.xp.maximum, lowest(data.dtype), levels[-1], line, maxima)
            levels.append(maxima)
        for line in lines:
            level = levels.pop()
            last = line is lines[-1]
            target = out if last else scratch(run, f"pooling gradient {line.axis}", level.shape, head.dtype)
            _spread_max(run, head, level, output, line, target)
            head, output = target, level

    def _sum_gradient(self, run: Run, head: Array, data: Array, output: Array, lines: list[_Axis], out: Array) -> None:
        xp, dtype = run.xp, computing_dtype(out.dtype)
        head, power = head.astype(dtype), (self.p_value or 1) - 1
        if self.pool_type == "avg":
            xp.divide(head, self.counts(xp, lines, dtype), out=head)
        elif self.pool_type == "lp" and power:
            size = output.astype(dtype) ** power
            xp.divide(head, xp.where(size == 0, 1, size), out=head)
        for line in lines:
            shape = (*head.shape[: line.axis], line.length, *head.shape[line.axis + 1 :])
            target = scratch(run, f"pooling gradient {line.axis}", shape, dtype)
            _spread_sum(xp, head, line, target)
            head = target
        if self.pool_type == "lp":
            xp.multiply(head, data.astype(dtype) ** power, out=head)
        out[...] = head

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if self.pool_type == "max":
            return [F.op("_Pooling_at_maxima", heads[0], inputs[1], **non_defaults(self)), None, None]
        if self.pool_type == "lp" and self.p_value != 1:
            raise NotImplementedError
        return [F.op("Pooling", heads[0], **non_defaults(self)), None, None]


@operator("_Pooling_at_maxima")
class PoolingAtMaxima(Pooling, hidden=True, quantized=None):
    """Values gathered at the first maximum of each window of the data; 0 for windows of padding only."""

    arguments = ("values", "data")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        (data,), outputs = super().infer_shape(shapes[1:])
        return [data, data], outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, lines = run.xp, self.lines(self.spatial(inputs[1].shape), self.spatial(outputs[0].shape))
        values, data, out = map(self.planes, (*inputs, outputs[0]))
        for line in reversed(lines):
            values, data = _first_maxima(xp, values, data, line)
        xp.copyto(out, values)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        maxima = F.op("Pooling", inputs[1], **non_defaults(self))
        return [F.op("_backward_Pooling", heads[0], inputs[1], maxima, **non_defaults(self)), None]


def _first_maxima(xp: ArrayNamespace, values: Array, data: Array, line: _Axis) -> tuple[Array, Array]:
    """Return the values at the first maximum of each window along one axis, and the maxima."""
    selected = xp.zeros(_pooled_shape(values.shape, line), values.dtype)
    best = xp.full(selected.shape, lowest(data.dtype), data.dtype)
    is_set = xp.zeros(selected.shape, bool)
    for source, where in line.taps():
        is_larger = ~is_set[where] | (data[source] > best[where])
        best[where] = xp.where(is_larger, data[source], best[where])
        selected[where] = xp.where(is_larger, values[source], selected[where])
        is_set[where] = True
    return selected, best


def _parts(planes: Array) -> Iterator[slice]:
    """Iterate over slices of planes that fit in a core's cache."""
    step = max(1, _PART_BYTES // max(1, math.prod(planes.shape[1:]) * planes.dtype.itemsize))
    for start in range(0, len(planes), step):
        yield slice(start, start + step)


def _root(xp: ArrayNamespace, p: int | None, total: Array) -> None:
    """Take the p-th root, in place."""
    if p == 2:
        xp.sqrt(total, out=total)
    elif p == 3:
        xp.cbrt(total, out=total)


def lowest(dtype: DType) -> float:
    """Return the maximum of an empty window: the dtype's lowest finite value, as in MXNet."""
    if dtype.kind in "iu":
        return float(np.iinfo(dtype).min)
    return float(np.finfo(dtype).min) if dtype.kind == "f" else -(2.0 - 2.0**-7) * 2.0**127  # bfloat16


def _pooled_shape(shape: Shape, line: _Axis) -> Shape:
    return (*shape[: line.axis], line.windows, *shape[line.axis + 1 :])


def _reduce_all(run: Run, ufunc: Any, empty: float, data: Array, lines: list[_Axis], out: Array) -> None:
    """Reduce all axes, beginning with the first, where contiguous runs are longest."""
    for line in lines:
        last = line is lines[-1]
        shape = _pooled_shape(data.shape, line)
        target = out if last else scratch(run, f"pooling {line.axis}", shape, out.dtype)
        _reduce(run.xp, ufunc, empty, data, line, target)
        data = target
