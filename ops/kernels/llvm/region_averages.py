"""Averages of cells of regions, and their gradient for the data: weighted sums over the few pixels of each cell.

A vector holds one pixel's channels. They are gathered from the data or, if many regions read each pixel, loaded from a
copy of the data with its channels last.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import DOUBLE, FLOAT, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.onednn.copies import copy
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.vision.region_averages import Spans

if TYPE_CHECKING:
    from flowmx.ops.registry.operators import Operator

_FLOAT_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE}
_SHARED = 1 << 14
"""The minimum number of elements read or written for which several threads are faster."""
_COPIED = 3
"""The minimum number of reads of each pixel for which a copy of the data is faster."""
_SIDE_BY_SIDE = 4
"""Vectors of channels that are summed at a time."""

_WORDS = ("share", "regions", "channels", "rows", "columns", "image", "line", "pixel", "channel", "images")
_AXIS = ("first", "behind", "weight")
_pack = struct.Struct(f"{2 + len(_WORDS) + 2 + 2 + 2 * len(_AXIS) + 2}q").pack


class _Cells:
    """The common part of both functions: their arguments, and the loops over cells and pixels."""

    def __init__(self, real: FloatType, packed: bool, features: frozenset[str]) -> None:
        self.code = code = Code(real, features)
        self.packed = packed
        self.words = {name: code.word() for name in _WORDS}
        self.most = (code.word(), code.word())
        self.image_of, self.offsets = code.array(), code.array()
        self.axes = [[code.array() for _ in _AXIS] for _ in range(2)]
        self.data, self.cells = code.array(), code.array()

    def __getitem__(self, name: str) -> Value:
        return self.words[name]

    def each(self, region: Value, image: Value, of_cell: Any) -> None:
        """Emit ``of_cell(start in the data, place among the cells of a channel, its lines and its columns)``."""
        code = self.code
        start = code.times(image, self["image"])
        with code.loop(code.index(0), self["rows"]) as row:
            lines = code.plus(code.times(region, self["rows"]), row)
            with code.loop(code.index(0), self["columns"]) as column:
                pixels = code.plus(code.times(region, self["columns"]), column)
                place = code.plus(code.times(row, self["columns"]), column)
                of_cell(code.plus(start, code.load_index(self.offsets, place)), place, (lines, pixels))

    def over_pixels(self, start: Value, cell: tuple[Value, Value], body: Any) -> None:
        """Emit ``body(place in the data, weight)`` for each pixel of a cell."""
        code = self.code

        def along(axis: int, step: Value, start: Value, inner: Any) -> None:
            first, behind, weight = self.axes[axis]
            begin = code.load_index(first, cell[axis])
            taps = code.minus(code.times(cell[axis], self.most[axis]), begin)
            with code.loop(begin, code.load_index(behind, cell[axis])) as at:
                of_it = code.load_one(weight, code.plus(taps, at))
                inner(code.plus(start, code.times(at, step)), of_it)

        def line(place: Value, of_line: Value) -> None:
            along(1, self["pixel"], place, lambda at, one: body(at, code.spread(code.binary("fmul", of_line, one))))

        along(0, self["line"], start, line)

    def load(self, place: Value, index: Value, mask: Value | None) -> Value:
        """Some channels of a pixel, from the one with this index on."""
        if self.packed:
            return self.code.load(self.data, self.code.plus(place, index), mask)
        at = self.code.plus(place, self.code.times(index, self["channel"]))
        return self.code.gather(self.data, at, self["channel"], mask)

    def store(self, value: Value, place: Value, index: Value, mask: Value | None) -> None:
        """Store some channels of a pixel."""
        if self.packed:
            self.code.store(value, self.data, self.code.plus(place, index), mask)
        else:
            at = self.code.plus(place, self.code.times(index, self["channel"]))
            self.code.scatter(value, self.data, at, self["channel"], mask)

    def cell_of(self, region: Value, index: Value, place: Value) -> tuple[Value, Value]:
        """The place of a cell of a channel among those of all regions, and the distance to the next channel's."""
        size = self.code.times(self["rows"], self["columns"])
        channel = self.code.plus(self.code.times(region, self["channels"]), index)
        return self.code.plus(self.code.times(channel, size), place), size


def _averages(real: FloatType, packed: bool, features: frozenset[str]) -> str:
    """The cells, a task for each share of the regions."""
    cells = _Cells(real, packed, features)
    code = cells.code
    with code.tasks() as task:
        begin = code.times(task, cells["share"])
        with code.loop(begin, code.least(code.plus(begin, cells["share"]), cells["regions"])) as region:
            image = code.load_index(cells.image_of, region)

            def sums(
                indices: Sequence[Value], mask: Value | None, region: Value = region, image: Value = image
            ) -> None:  # fmt: skip
                def of_cell(start: Value, place: Value, cell: tuple[Value, Value]) -> None:
                    totals = [code.local(code.constant(0.0)) for _ in indices]

                    def add(at: Value, weight: Value) -> None:
                        for total, index in zip(totals, indices, strict=True):
                            value = cells.load(at, index, mask)
                            code.set(total, code.intrinsic("llvm.fma", value, weight, code.get(total)))

                    cells.over_pixels(start, cell, add)
                    for total, index in zip(totals, indices, strict=True):
                        code.scatter(code.get(total), cells.cells, *cells.cell_of(region, index, place), mask)

                cells.each(region, image, of_cell)

            with code.when(code.put("i1", f"icmp sge {image}, 0")):
                code.side_by_side(code.index(0), cells["channels"], sums, 1 + (_SIDE_BY_SIDE - 1) * packed)
    return code.finish()


def _gradient(real: FloatType, packed: bool, features: frozenset[str]) -> str:
    """The gradient, added to zeros: a task for each share of the channels in an image.

    Each task goes through all regions in order: sums do not depend on the number of threads.
    """
    cells = _Cells(real, packed, features)
    code = cells.code
    with code.tasks() as task:
        number = code.divided(task, cells["images"])
        own_image = code.minus(task, code.times(number, cells["images"]))
        begin = code.times(number, cells["share"])
        stop = code.least(code.plus(begin, cells["share"]), cells["channels"])
        with code.loop(code.index(0), cells["regions"]) as region:

            def spread(indices: Sequence[Value], mask: Value | None, region: Value = region) -> None:
                def of_cell(start: Value, place: Value, cell: tuple[Value, Value]) -> None:
                    heads = [code.gather(cells.cells, *cells.cell_of(region, index, place), mask) for index in indices]

                    def add(at: Value, weight: Value) -> None:
                        for head, index in zip(heads, indices, strict=True):
                            before = cells.load(at, index, mask)
                            cells.store(code.intrinsic("llvm.fma", head, weight, before), at, index, mask)

                    cells.over_pixels(start, cell, add)

                cells.each(region, own_image, of_cell)

            image = code.load_index(cells.image_of, region)
            with code.when(code.put("i1", f"icmp eq {image}, {own_image.name}")):
                code.side_by_side(begin, stop, spread, 1 + (_SIDE_BY_SIDE - 1) * packed)
    return code.finish()


@lru_cache
def _program(write: Any, real: FloatType, packed: bool) -> Program:
    return Program(partial(write, real, packed))


# -- the kernels -------------------------------------------------------------------------------------------


def _looked_at(spans: tuple[Spans, Spans]) -> int:
    """The number of pixels that all cells read; a pixel counts once for each cell that reads it."""
    rows, columns = (int((each.behind - each.first).sum()) for each in spans)
    return rows * columns // max(1, len(spans[0].first))


def _call(write: object, op: Any, rois: Array, data: Array, cells: Array, fills: bool) -> bool:
    """Fill the cells from the data, or the data from the cells; return False if no compiled function can."""
    real, (images, channels, height, width) = _FLOAT_TYPES.get(data.dtype), data.shape
    arrays = (data, cells)
    if real is None or cells.dtype != data.dtype or not all(each.flags.c_contiguous for each in arrays):
        return False
    spans = op.spans(np, rois, (height, width))
    step, offsets = op.channel_steps()
    looked_at = _looked_at(spans)
    packed = step == 1 and looked_at > _COPIED * images * height * width
    compiled = _program(write, real, packed).get()
    if compiled is None:
        return False
    plane = height * width
    last = data
    if packed:
        shape = (images, height, width, channels)
        last = np.zeros(shape, data.dtype) if fills else np.empty(shape, data.dtype)
        if not fills:
            copy(data.transpose(0, 2, 3, 1), last)
    elif fills:
        data.fill(0)
    pixel = channels if packed else 1
    out_channels = cells.shape[1]
    heavy = looked_at * out_channels >= _SHARED
    threads = team.count() if heavy else 1
    if fills:
        share = out_channels if threads == 1 else _SIDE_BY_SIDE * real.lanes
        share = min(share, max(real.lanes, -(-out_channels // (2 * threads * real.lanes)) * real.lanes))
        tasks = images * -(-out_channels // share)
    else:
        share = max(1, len(rois) // (8 * threads))
        tasks = -(-len(rois) // share)
    image_of = np.ascontiguousarray(op.images(rois, images), np.int64)
    starts = np.ascontiguousarray(offsets * (1 if packed else plane), np.int64)
    tables = [each for span in spans for each in (span.first, span.behind, span.weight)]
    words = _pack(
        0, tasks, share, len(rois), out_channels, *op.grid, channels * plane, width * pixel, pixel, step * plane,
        images,
        *(span.weight.shape[2] for span in spans), *map(id, (image_of, starts, *tables, last, cells)),
    )  # fmt: skip
    team.run(compiled, words, threads)
    if packed and fills:
        copy(last.transpose(0, 3, 1, 2), data)
    return True


def _forward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (data, rois), out = inputs, outputs[0]
    out.fill(0)
    if not out.size or not _call(_averages, op, rois, data, out, False):
        op.forward(run, inputs, outputs)


def _backward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (head, _, rois), out = inputs, outputs[0]
    if not out.size or not _call(_gradient, op, rois, out, head, True):
        op.forward(run, inputs, outputs)


for _name in ("_contrib_ROIAlign", "_contrib_PSROIPooling"):
    kernel("cpu", _name)(_forward)
for _name in ("_backward_ROIAlign", "_backward_PSROIPooling"):
    kernel("cpu", _name)(_backward)
