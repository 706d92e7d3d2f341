"""Windows of images as columns, and back: im2col and col2im, for one to three spatial axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, parameters_of
from flowmx.ops.nn.common import expect_rank, product
from flowmx.ops.nn.convolution import per_axis
from flowmx.ops.nn.windows import Geometry
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision


@family
class _Windows(Operator, heavy=True, precision=Precision.GIVEN):
    kernel: Shape = required("Lengths of the window.", low=1)
    stride: Shape = option((), "Steps of the window; 1 each by default.", low=1)
    dilate: Shape = option((), "Distances between the window's elements; 1 each by default.", low=1)
    pad: Shape = option((), "Padding with zeros on either side; 0 each by default.", low=0)

    def geometry(self) -> Geometry:
        """Return the windows' geometry, with the defaults filled in."""
        count = len(self.kernel)
        return Geometry(
            self.kernel,
            per_axis(self, "stride", self.stride, 1, count),
            per_axis(self, "dilate", self.dilate, 1, count),
            per_axis(self, "pad", self.pad, 0, count),
        )

    def counts(self, size: Shape) -> Shape:
        """Return the number of windows on each axis.

        Raises:
            ShapeError: the image is smaller than one window.
        """
        g = self.geometry()
        counts = tuple(g.output(axis, length) for axis, length in enumerate(size))
        if any(extent != -1 and count < 1 for extent, count in zip(size, counts, strict=True)):
            raise ShapeError(f"{self.name}: the image is {size}, smaller than one window: {self!r}")
        return counts

    def taps(self, size: Shape) -> Iterator[tuple[Any, Any, Any]]:
        """Iterate over a window's elements: index, windows in which it lies in the image, positions in the image."""
        g, counts = self.geometry(), self.counts(size)
        for tap in itertools.product(*map(range, g.kernel)):
            windows, places = [], []
            for axis, (index, length, count) in enumerate(zip(tap, size, counts, strict=True)):
                start = index * g.dilate[axis] - g.pad[axis]
                first = max(0, -(start // g.stride[axis]))
                last = min(count, (length - 1 - start) // g.stride[axis] + 1)
                windows.append(slice(first, max(first, last)))
                low, high = start + first * g.stride[axis], start + (last - 1) * g.stride[axis] + 1
                places.append(slice(low, max(low, high), g.stride[axis]))
            yield tap, tuple(windows), tuple(places)

    def by_tap(self, columns: Array, size: Shape) -> Array:
        """Reshape columns (N, C·kernel, windows) to (N, C, *kernel, *windows)."""
        return columns.reshape(len(columns), -1, *self.kernel, *self.counts(size))

    def gather(self, image: Array, columns: Array) -> None:
        """Copy the image's windows into columns."""
        size = image.shape[2:]
        by_tap = self.by_tap(columns, size)
        by_tap[...] = 0
        for tap, windows, places in self.taps(size):
            by_tap[(slice(None), slice(None), *tap, *windows)] = image[(slice(None), slice(None), *places)]

    def spread(self, columns: Array, image: Array) -> None:
        """Add the columns to the image positions that they were copied from."""
        size = image.shape[2:]
        by_tap = self.by_tap(columns, size)
        image[...] = 0
        for tap, windows, places in self.taps(size):
            image[(slice(None), slice(None), *places)] += by_tap[(slice(None), slice(None), *tap, *windows)]


@linear("im2col")
class Im2Col(_Windows, Linear, input_named=True):
    """The windows of images as columns: (N, C, *size) to (N, C·kernel, windows), the last axis of size fastest."""

    input_docs = describe(data="(batch, channels, *size), any dtype")
    output_doc = "(batch, channels·prod(kernel), windows), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        expect_rank(self, "data", data, len(self.kernel) + 2, len(self.kernel) + 2)
        rows = product((data[1], *self.kernel))
        return shapes, [(data[0], rows, product(self.counts(data[2:])))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if out.flags.c_contiguous:
            self.gather(inputs[0], out)
            return
        columns = run.xp.empty(out.shape, out.dtype)
        self.gather(inputs[0], columns)
        out[...] = columns

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        self.spread(head, out)


@family
class _Sized(Operator):
    output_size: Shape = required("Lengths of the images' spatial axes.", low=1)


@operator("col2im")
class Col2Im(_Windows, _Sized, input_named=True):
    """Images from columns: the reverse of im2col, adding up elements of overlapping windows."""

    input_docs = describe(data="(batch, channels·prod(kernel), windows), any dtype")
    output_doc = "(batch, channels, *output_size), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        expect_rank(self, "data", data, 3, 3)
        per_axis(self, "output_size", self.output_size, 1, len(self.kernel))
        taps, windows = math.prod(self.kernel), math.prod(self.counts(self.output_size))
        if data[1] % taps and data[1] != -1:
            raise ShapeError(f"{self.name}: data has shape {data}, expected a multiple of {taps} on axis 1")
        if data[2] not in (windows, -1):
            raise ShapeError(f"{self.name}: data has shape {data}, expected {windows} windows on axis 2")
        channels = -1 if data[1] == -1 else data[1] // taps
        return [(*data[:2], windows)], [(data[0], channels, *self.output_size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.spread(inputs[0], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parameters = parameters_of(self)
        del parameters["output_size"]
        return [F.op("im2col", heads[0], **parameters)]
