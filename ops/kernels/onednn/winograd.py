"""Convolution with 3x3 filters by Winograd's algorithm: oneDNN multiplies matrices, compiled loops transform tiles.

Each position of a tile has one product of matrices, (tiles, channels) by (channels, filters), and oneDNN computes all
of them in one call. Data is processed a few rows of tiles at a time, so that the transformed tiles stay in the caches.
"""

from __future__ import annotations

from functools import cache, partial
from math import isqrt, prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm import winograd
from flowmx.ops.kernels.llvm.winograd import ACTIVATIONS, LANES, TAPS
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import (
    PANEL,
    Array,
    Desc,
    Geometry,
    Shape,
    any_layout,
    channels_last,
    channels_last_strides,
    in_panels,
    library_or_raise,
    plain,
    strided,
)
from flowmx.ops.kernels.onednn.library import Arg, DType, Query, Unsupported
from flowmx.ops.kernels.onednn.loops import ProgramLoop, activated, array_at
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, Reorder, WorkspaceLayout, attributes
from flowmx.ops.kernels.onednn.work import Operand, Work, move_time_ns, multiply_time_ns
from flowmx.ops.nn.windows import Geometry as Windows

_PART_BYTES = 6 << 20
"""Bytes of transformed tiles that are made at a time."""
_USUAL_TILES = 64
"""The number of tiles for which oneDNN chooses the layout of filters."""


class Products(Primitive):
    """One product of matrices for each position of a tile: (positions, tiles, channels) by the filters."""

    def __init__(
        self, workspace: WorkspaceLayout, positions: int, tiles: int, channels: int, filters: int, layout: Desc
    ) -> None:
        lib = library_or_raise()
        left, out = plain((positions, tiles, channels)), plain((positions, tiles, filters))
        desc = lib.create(
            "matmul_primitive_desc_create", lib.engine, left.handle, layout.handle, None, out.handle, attributes()
        )
        super().__init__(workspace, desc, {Arg.SRC: left, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: out})


@cache
def filters_layout(channels: int, filters: int, side: int) -> Desc:
    """Return the layout of transformed filters."""
    positions = (side + TAPS - 1) ** 2
    free = any_layout((positions, channels, filters))
    return Products(WorkspaceLayout(), positions, _USUAL_TILES, channels, filters, free).descriptor(Arg.WEIGHTS)


def fits(windows: Windows, data: Shape, filters: int, dtype: DType) -> bool:
    """Return whether the algorithm supports a convolution."""
    return (
        len(data) == 4 and dtype == DType.F32 and windows.kernel == (TAPS, TAPS) and windows.stride == (1, 1)
        and windows.dilate == (1, 1) and windows.groups == 1 and data[1] % LANES == 0 and filters % LANES == 0
        and max(windows.pad) < TAPS
    )  # fmt: skip


class Winograd(Work):
    """Output = activation(data * filters + bias + addend), for filters packed by :class:`TransformFilters`."""

    def __init__(
        self, windows: Windows, data: Geometry, out: Geometry, epilogue: Epilogue, addend: Geometry | None, side: int
    ) -> None:  # fmt: skip
        super().__init__()
        is_plain = epilogue.vector_type == DType.F32 and epilogue.activation in ACTIVATIONS and not epilogue.has_scale
        if not is_plain or not fits(windows, data.shape, out.shape[1], data.dtype) or out.dtype != DType.F32:
            raise Unsupported("Winograd's algorithm does not support this convolution")
        self._windows, self._data, self._out, self._epilogue, self._side = (
            windows,
            data.shape,
            out.shape,
            epilogue,
            side,
        )
        (batch, channels, height, width), (_, filters, out_height, out_width) = data.shape, out.shape
        positions = (side + TAPS - 1) ** 2
        self._tile_rows, self._tiles = -(-out_height // side), -(-out_width // side)
        row_bytes = positions * self._tiles * (channels + filters) * DType.F32.nbytes
        self._rows = _divisor(batch * self._tile_rows, max(1, _PART_BYTES // row_bytes))
        count = self._rows * self._tiles
        workspace = self.workspace
        self._left = workspace.take(positions * count * channels * DType.F32.nbytes)
        self._right = workspace.take(positions * count * filters * DType.F32.nbytes)
        self._products = Products(
            workspace, positions, count, channels, filters, filters_layout(channels, filters, side)
        )
        self._source = Operand(workspace, strided(*data), channels_last(data.shape))
        self._target = Operand(workspace, strided(*out), channels_last(out.shape), is_output=True)
        self._addend = None if addend is None else Reorder(workspace, strided(*addend), channels_last(out.shape))
        inner = winograd.inner_program(side)
        outer = winograd.outer_program(side, epilogue.activation, epilogue.has_bias, epilogue.has_addend)
        sizes = [(height, width, channels), (out_height, out_width, filters)]
        self._parts = []
        for first in range(0, batch * self._tile_rows, self._rows):
            words = [
                (first, self._tile_rows, self._tiles, *size, prod(size), size[1] * size[2], count * size[2])
                for size in sizes
            ]
            numpy, edge = _Fallback(self, first), float(epilogue.slope)
            before = ProgramLoop(inner, self._rows, (*words[0], *windows.pad), self.threads, numpy.transform_data)
            after = ProgramLoop(outer, self._rows, (*words[1], edge), self.threads, numpy.transform_products)
            self._parts.append((before, after))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        windows, data, out = key[:3]
        taps = prod(windows.kernel) * data.shape[1]
        return multiply_time_ns(prod(out.shape) * taps // 2) + move_time_ns(data, out)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, filters, *extra, out = addresses
        bias = [extra.pop(0)] if self._epilogue.has_bias else []
        source, target = self._source.at(base, data), self._target.at(base, out)
        calls = self._source.before(base, data)
        if self._addend is not None and extra[0] != target:
            calls.append(self._addend.at(base, extra[0], target))
        left, right = base + self._left, base + self._right
        for before, after in self._parts:
            calls += [
                before.at(source, left), self._products.at(base, left, filters, right), after.at(right, target, *bias)
            ]  # fmt: skip
        return [*calls, *self._target.after(base, out)]

    @property
    def tiles(self) -> tuple[int, int, int]:
        """The rows of tiles that are processed at a time, the rows of tiles of an image, and the tiles of a row."""
        return self._rows, self._tile_rows, self._tiles

    @property
    def geometry(self) -> tuple[Windows, Shape, Shape, Epilogue, int]:
        """The windows, the shapes of data and output, the epilogue, and the side of output tiles."""
        return self._windows, self._data, self._out, self._epilogue, self._side


class _Fallback:
    """The loops of one part in NumPy."""

    def __init__(self, work: Winograd, first: int) -> None:
        self._geometry, self._tiles, self._first = work.geometry, work.tiles, first

    def transform_data(self, data: int, left: int) -> None:
        windows, shape, _, _, side = self._geometry
        rows, tile_rows, tiles = self._tiles
        batch, channels, height, width = shape
        reach = side + TAPS - 1
        size = (tile_rows * side + TAPS - 1, tiles * side + TAPS - 1)
        padded = np.zeros((batch, *size, channels), np.float32)
        place = padded[:, windows.pad[0] :, windows.pad[1] :][:, :height, :width]
        place[...] = _image(data, shape)[:, : place.shape[1], : place.shape[2]]
        every = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (1, 2))[:, ::side, ::side]
        part = every.reshape(batch * tile_rows, tiles, channels, reach, reach)[self._first : self._first + rows]
        inner = winograd.matrices(side).inner.astype(np.float32)
        factors = array_at(left, (reach, reach, rows, tiles, channels))
        np.einsum("ia,rtcab,jb->ijrtc", inner, part, inner, out=factors, optimize=True)

    def transform_products(self, right: int, out: int, bias: int = 0) -> None:
        _, _, shape, epilogue, side = self._geometry
        rows, tile_rows, tiles = self._tiles
        filters, reach = shape[1], side + TAPS - 1
        image, products = _image(out, shape), array_at(right, (reach, reach, rows, tiles, filters))
        outer = winograd.matrices(side).outer.astype(np.float32)
        strips = np.einsum("ia,abrtk,jb->ritjk", outer, products, outer, optimize=True)
        strips = strips.reshape(rows, side, tiles * side, filters)
        for number, strip in enumerate(strips, self._first):
            sample, row = divmod(number, tile_rows)
            place = image[sample, row * side : (row + 1) * side]
            values = strip[: place.shape[0], : place.shape[1]]
            values = values + array_at(bias, (filters,)) if epilogue.has_bias else values
            values = values + place if epilogue.has_addend else values
            place[...] = activated(values, epilogue)


class TransformFilters(Work):
    """Filters as :class:`Winograd` reads them, multiplied by an optional scale.

    A loop writes panels of filters. If oneDNN expects a different layout, all filters are written as one panel and then
    reordered.
    """

    def __init__(self, weight: Geometry, side: int, scale: Geometry | None) -> None:
        super().__init__()
        filters, channels = weight.shape[:2]
        positions, layout = (side + TAPS - 1) ** 2, filters_layout(channels, filters, side)
        self._weight = Operand(self.workspace, strided(*weight), plain(weight.shape))
        is_panels = layout == in_panels((positions, channels, filters))
        width = PANEL if is_panels else filters
        self._copy = None if is_panels else Reorder(self.workspace, plain((positions, channels, filters)), layout)
        self._between = 0 if is_panels else self.workspace.take(positions * channels * filters * DType.F32.nbytes)
        panels = -(-filters // width)
        words = (channels, filters, width, panels * channels * width)
        shape = (positions, panels, channels, width)
        program, fallback = winograd.filters_program(side, scale is not None), partial(_transform, weight.shape, shape)
        self._transform = ProgramLoop(program, panels * width // LANES, words, self.threads, fallback)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        weight, *scale, packed = addresses
        source = self._weight.at(base, weight)
        calls = self._weight.before(base, weight)
        if self._copy is None:
            return [*calls, self._transform.at(source, packed, *scale)]
        between = base + self._between
        return [*calls, self._transform.at(source, between, *scale), self._copy.at(base, between, packed)]


def _transform(weight: Shape, out: Shape, filters: int, factors: int, scale: int = 0) -> None:
    """Transform filters in NumPy."""
    side = isqrt(out[0]) - TAPS + 1
    vector = array_at(scale, weight[:1]) if scale else None
    winograd.transform_filters(array_at(filters, weight), side, vector, array_at(factors, out))


def _divisor(count: int, most: int) -> int:
    """Return the largest divisor of a count that is at most ``most``."""
    return max(each for each in range(1, min(count, most) + 1) if count % each == 0)


def _image(address: int, shape: Shape) -> Array:
    """Return the channels-last array at an address, as (batch, height, width, channels)."""
    batch, channels, height, width = shape
    assert channels_last_strides(shape)[1] == 1
    return array_at(address, (batch, height, width, channels))
