"""Weights in the order in which products read them: tiles of 16 rows, interleaved.

A vector of 64 bytes has 4 consecutive codes of each of the 16 rows of a tile, so that one instruction adds 4 products
to the sum of each row. A tile is a sequence of *records*, and a record is a block of each row::

    scale of each row, minimum of each row (float16)
    for each group of 32 codes:
        scale steps of each row, for each part of the group with a separate scale; minimum steps of each row (1 byte)
        the codes: 4 vectors if a code has 4 bits, otherwise 8

Formats without steps leave them out. A code of 4 bits stays in 4 bits: the lower pairs of the 4 vectors have the first
16 codes of the group. A code of 6 bits takes 8. Missing rows of the last tile are 0. A tile of floating-point numbers
has 16 numbers, one of each row, for each column.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from flowmx.ops.quantization.block_formats import BlockFormat, Codes, format_named
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

__all__ = ["GROUP", "TILE", "Layout", "dequantize", "dequantize_rows", "interleave", "layout_of", "tile_shape"]

TILE = 16
"""The rows of a tile."""
GROUP = 32
"""The codes of a group."""
STEPS = {8: 127, 16: 127 << 8}
"""The number of steps of the largest value of a block of data, by the bits to which data are rounded."""


class Layout(NamedTuple):
    """The layout of a record; sizes are in bytes.

    Attributes:
        name: the name of the format.
        is_float: whether the weights are floating-point numbers.
        bits: the bits of a stored code, 4 or 8; or those of a number.
        zero: the code of 0.
        has_minimums: whether groups have minimums.
        parts: the number of scales of a group.
        groups: the number of groups of a record.
        has_steps: whether groups have steps.
    """

    name: str
    is_float: bool
    bits: int
    zero: int
    has_minimums: bool
    parts: int
    groups: int
    has_steps: bool

    @property
    def head(self) -> int:
        """The size of the scales and minimums of a record."""
        return TILE * 2 * (1 + self.has_minimums)

    @property
    def steps(self) -> int:
        """The size of the steps of a group."""
        return TILE * (self.parts + self.has_minimums) if self.has_steps else 0

    @property
    def vectors(self) -> int:
        """The number of vectors of the codes of a group."""
        return self.bits

    @property
    def group_bytes(self) -> int:
        """The size of a group."""
        return self.steps + self.vectors * 64

    @property
    def record_bytes(self) -> int:
        """The size of a record."""
        return self.head + self.groups * self.group_bytes

    def tile_bytes(self, columns: int) -> int:
        """Return the size of a tile with this number of columns."""
        if self.is_float:
            return columns * TILE * self.bits // 8
        return columns // (GROUP * self.groups) * self.record_bytes


_FLOAT_BITS = {"F32": 32, "F16": 16, "BF16": 16}


@cache
def layout_of(name: str) -> Layout:
    """Return the layout of a format.

    Raises:
        ValueError: there is no such format.
    """
    form = format_named(name)
    if form.unpack is None:
        return Layout(name, True, _FLOAT_BITS[name], 0, False, 1, 1, False)
    sample = form.codes(np.zeros((1, form.nbytes), np.uint8))
    return Layout(
        name, False, 4 if form.bits == 4 else 8, form.zero, sample.minimum is not None, GROUP // form.group,
        form.values // GROUP, sample.scale_steps is not None,
    )  # fmt: skip


def tile_shape(name: str, rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of interleaved weights: the number of tiles, and the size of a tile in bytes."""
    return -(-rows // TILE), layout_of(name).tile_bytes(columns)


def interleave(name: str, weight: Array, xp: ArrayNamespace | None = None) -> Array:
    """Return weights, uint8 (rows, bytes of a row), as tiles: uint8 (tiles, bytes of a tile).

    Args:
        name: the format.
        weight: the weights.
        xp: the array namespace; NumPy by default.

    Raises:
        ValueError: there is no such format, or the rows are no sequences of its blocks.
    """
    form, layout, xp = format_named(name), layout_of(name), np if xp is None else xp
    rows, columns = len(weight), form.columns(weight.shape[1])
    tiles = -(-rows // TILE)
    if rows % TILE:
        padding = xp.zeros((tiles * TILE - rows, weight.shape[1]), np.uint8)
        weight = xp.concatenate([weight, padding], axis=0)
    shape = (tiles, layout.tile_bytes(columns))
    weight = xp.ascontiguousarray(weight)
    if layout.is_float:
        numbers = weight.reshape(tiles, TILE, columns, form.nbytes)
        return xp.ascontiguousarray(numbers.swapaxes(1, 2)).reshape(shape)
    records = columns // form.values
    content = form.codes(weight, xp)
    across = [each for each in (content.scale, content.minimum) if each is not None]
    head = [_across(xp, each.astype(np.float16).view(np.uint8), (tiles, records)) for each in across]
    groups = [
        _across(xp, each.view(np.uint8), (tiles, records, layout.groups))
        for each in (content.scale_steps, content.minimum_steps)
        if each is not None
    ]
    groups.append(_interleaved_codes(xp, content.codes, (tiles, records), layout))
    body = xp.concatenate(groups, axis=-1).reshape(tiles, records, layout.groups * layout.group_bytes)
    return xp.concatenate([*head, body], axis=-1).reshape(shape)


def _across(xp: ArrayNamespace, values: Array, place: tuple[int, ...]) -> Array:
    """Return bytes of each block, (rows * records, groups * size), as those of the rows of tiles.

    A value of float16 has 2 bytes, which stay together; the parts of a group follow each other.
    """
    tiles, records, *groups = place
    size = 1 if groups else 2
    parts = values.shape[1] // size // (groups[0] if groups else 1)
    split = values.reshape(tiles, TILE, records, *(groups or [1]), parts, size)
    return xp.ascontiguousarray(split.transpose(0, 2, 3, 4, 1, 5)).reshape(*place, parts * TILE * size)


def _interleaved_codes(xp: ArrayNamespace, codes: Array, place: tuple[int, int], layout: Layout) -> Array:
    """Return the vectors of codes: (tiles, records, groups, size)."""
    tiles, records = place
    if layout.bits == 4:
        pairs = codes.reshape(-1, 2, GROUP // 2)
        codes = pairs[:, 0] | (pairs[:, 1] << np.uint8(4))
    vectors = codes.reshape(tiles, TILE, records, layout.groups, layout.vectors, 4).transpose(0, 2, 3, 4, 1, 5)
    return xp.ascontiguousarray(vectors).reshape(tiles, records, layout.groups, layout.vectors * 64)


def dequantize(name: str, tiles: Array, rows: int, columns: int, xp: ArrayNamespace | None = None) -> Array:
    """Return the values of interleaved weights: float32 (rows, columns).

    Args:
        name: the format.
        tiles: uint8 (tiles, bytes of a tile).
        rows: the number of rows.
        columns: the number of columns.
        xp: the array namespace; NumPy by default.
    """
    form, layout, xp = format_named(name), layout_of(name), np if xp is None else xp
    count, tiles = len(tiles), xp.ascontiguousarray(tiles)
    if layout.is_float:
        numbers = tiles.reshape(count, columns, TILE, form.nbytes).swapaxes(1, 2)
        flat = xp.ascontiguousarray(numbers).reshape(count * TILE, columns * form.nbytes)
        return form.dequantize(flat, xp)[:rows]
    values = _codes(xp, layout, tiles.reshape(-1, layout.record_bytes), columns).values(layout.zero)
    return values.reshape(count * TILE, columns)[:rows]


def _codes(xp: ArrayNamespace, layout: Layout, records: Array, columns: int) -> Codes:
    """Return the contents of the blocks of records, in order of the rows."""
    per_tile = columns // (layout.groups * GROUP)
    tiles = len(records) // per_tile if per_tile else 0

    def by_rows(values: Array, size: int) -> Array:
        """Return (tiles, records, groups, parts, rows, size) as (blocks, groups * parts * size)."""
        split = values.reshape(tiles, per_tile, -1 if values.size else 1, TILE, size).transpose(0, 3, 1, 2, 4)
        return xp.ascontiguousarray(split).reshape(tiles * TILE * per_tile, values.shape[1] // TILE)

    head = [xp.ascontiguousarray(records[:, at * 2 * TILE : (at + 1) * 2 * TILE]) for at in range(layout.head // 32)]
    numbers = [by_rows(each, 2).view(np.float16).astype(np.float32) for each in head]
    body = records[:, layout.head :].reshape(len(records), layout.groups, layout.group_bytes)
    cut = layout.parts * TILE

    def of_groups(start: int, stop: int, size: int) -> Array:
        return by_rows(xp.ascontiguousarray(body[:, :, start:stop]).reshape(len(records), -1), size)

    steps: list[Array] = []
    if layout.has_steps:
        steps = [of_groups(0, cut, 1)]
        steps += [of_groups(cut, cut + TILE, 1)] if layout.has_minimums else []
        steps[0] = steps[0] if layout.has_minimums else steps[0].view(np.int8)
    codes = of_groups(layout.steps, layout.group_bytes, 4)
    if layout.bits == 4:
        pairs = codes.reshape(len(codes), layout.groups, GROUP // 2)
        codes = xp.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1)
    codes = codes.reshape(len(codes), layout.groups * GROUP)
    minimum = numbers[1] if layout.has_minimums else None
    return Codes(codes, numbers[0], minimum, *steps)


def dequantize_rows(
    name: str, tiles: Array, rows: Array, columns: int, xp: ArrayNamespace | None = None
) -> Array:  # fmt: skip
    """Return the values of some rows of interleaved weights: float32 (count, columns).

    Args:
        name: the format.
        tiles: uint8 (tiles, bytes of a tile).
        rows: the row numbers: int64 (count,).
        columns: the number of columns.
        xp: the array namespace; NumPy by default.
    """
    xp = np if xp is None else xp
    every = dequantize(name, tiles[rows // TILE], len(rows) * TILE, columns, xp)
    chosen: Array = every[xp.arange(len(rows)) * TILE + rows % TILE]
    return chosen


def values_of(
    form: BlockFormat, weight: Array, is_interleaved: bool, rows: int, columns: int, xp: ArrayNamespace
) -> Array:
    """Return the values of weights in either order: float32 (rows, columns)."""
    if is_interleaved:
        return dequantize(form.name, weight, rows, columns, xp)
    return form.dequantize(weight, xp)
