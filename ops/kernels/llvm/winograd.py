"""The transforms of Winograd's convolution: filters and tiles of data to factors, and products to tiles of the output.

A 3x3 convolution of a tile of (side + 2)² positions to side² positions takes (side + 2)² products for each pair of
channels instead of 9 · side² (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). In one
dimension, with three matrices and element by element products,

    output = outer · ((filters_matrix · filter) * (inner · data))

evaluates polynomials at points, multiplies there and interpolates. Points are 0, infinity and pairs ±p: pairs share
most of their arithmetic. The points 3/4 and 3/2 keep rounding errors three times smaller than the usual 1 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial, reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.llvm.assembly import Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.lowering import lower
from flowmx.ops.kernels.llvm.math_functions import sigmoid
from flowmx.ops.registry.operators import Array

TAPS = 3
"""The length of the filters."""
PAIRS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (0.75, 1.5)}
"""The positive interpolation points, by the side of output tiles."""
ACTIVATIONS = ("", "relu", "leaky", "clip", "swish")
LANES = 16
"""Channels are processed in groups of this many."""


Body = Callable[[Value, Value, Value, "list[Value] | None"], None]


class Matrices(NamedTuple):
    """The three matrices of one dimension.

    Attributes:
        inner: (points, points), applied to the data.
        filters: (points, 3), applied to the filters.
        outer: (side, points), applied to the products.
    """

    inner: Array
    filters: Array
    outer: Array


@cache
def matrices(side: int) -> Matrices:
    """Return the matrices for output tiles of this side, float64; the last point is infinity."""
    points = [0.0, *[sign * p for p in PAIRS[side] for sign in (1, -1)]]
    count = len(points) + 1
    inner, filters = np.zeros((count, count)), np.zeros((count, TAPS))
    outer = np.zeros((side, count))
    for row, point in enumerate(points):
        others = points[:row] + points[row + 1 :]
        inner[row, : count - 1] = np.poly(others)[::-1]
        filters[row] = point ** np.arange(TAPS) / np.prod([point - other for other in others])
        outer[:, row] = point ** np.arange(side)
    inner[-1], filters[-1, -1], outer[-1, -1] = np.poly(points)[::-1], 1, 1
    return Matrices(inner, filters, outer)


class _Writer:
    """Generates the code of one of the two functions: the loops over tiles, and transforms of vectors of channels."""

    words = ("first", "tile_rows", "tiles", "height", "width", "channels", "image_step", "row_step", "plane")

    def __init__(self, side: int, features: frozenset[str]) -> None:
        self.side, self.points = side, side + TAPS - 1
        self.code = Code(features=features)
        self._fuses = "fma" in features
        (
            self.first, self.tile_rows, self.tiles, self.height, self.width, self.channels, self.image_step,
            self.row_step, self.plane,
        ) = [self.code.word() for _ in self.words]  # fmt: skip

    # -- arithmetic on vectors -------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> Value:
        """Add vectors."""
        return self.code.binary("fadd", a, b)

    def subtract(self, a: Value, b: Value) -> Value:
        """Subtract vectors."""
        return self.code.binary("fsub", a, b)

    def scale(self, factor: float, a: Value) -> Value:
        """Multiply a vector by a number."""
        return a if factor == 1 else self.code.binary("fmul", self.code.constant(factor), a)

    def multiply_add(self, factor: float, a: Value, b: Value) -> Value:
        """Return ``factor * a + b``, rounded once if the processor can."""
        if abs(factor) == 1:
            return self.add(b, a) if factor > 0 else self.subtract(b, a)
        if self._fuses:
            return self.code.intrinsic("llvm.fma", self.code.constant(factor), a, b)
        return self.add(self.scale(factor, a), b)

    def combine(self, factors: Sequence[float], values: Sequence[Value]) -> Value:
        """Return the sum of factor * value; the last non-zero factor must be 1."""
        used = [(factor, value) for factor, value in zip(factors, values, strict=True) if factor]
        total = used[-1][1]
        for factor, value in reversed(used[:-1]):
            total = self.multiply_add(factor, value, total)
        return total

    def inner(self, data: Sequence[Value]) -> list[Value]:
        """Apply the inner matrix to the values of one row or column of a tile."""
        matrix = matrices(self.side).inner
        results = [self.combine(matrix[0], data)]
        for pair, point in enumerate(PAIRS[self.side]):
            row = matrix[1 + 2 * pair]
            # The rows of +p and -p have the same even factors, and opposite odd factors.
            even = self.combine([0.0 if at % 2 else each for at, each in enumerate(row)], data)
            odd = self.combine([each / point if at % 2 else 0.0 for at, each in enumerate(row)], data)
            results += [self.multiply_add(point, odd, even), self.multiply_add(-point, odd, even)]
        return [*results, self.combine(matrix[-1], data)]

    def outer(self, values: Sequence[Value]) -> list[Value]:
        """Apply the outer matrix to the products of one row or column of a tile."""
        points = PAIRS[self.side]
        pairs = [(values[1 + 2 * at], values[2 + 2 * at]) for at in range(len(points))]
        sums, differences = [self.add(*pair) for pair in pairs], [self.subtract(*pair) for pair in pairs]
        results = []
        for power in range(self.side):
            terms = differences if power % 2 else sums
            start = values[0] if power == 0 else values[-1] if power == self.side - 1 else None
            for point, term in zip(points, terms, strict=True):
                factor = point**power
                start = self.scale(factor, term) if start is None else self.multiply_add(factor, term, start)
            assert start is not None
            results.append(start)
        return results

    def load(self, address: Value, at: Value, is_inside: Value | None) -> Value:
        """Load a vector of channels; zeros if the position is not in the image.

        A masked load with no active lane takes hundreds of cycles on some processors if its address is not mapped.
        """
        code = self.code
        if is_inside is None:
            return code.load(address, at)
        return code.load(address, code.choose(is_inside, at, code.index(0)), code.spread(is_inside))

    # -- loops -----------------------------------------------------------------------------------------

    def tile_loop(self, step: int, pads: tuple[Value, Value] | None, reach: int, body: Body) -> None:
        """Emit ``body(array offset, plane offset, column step, are_inside)`` for each tile and each group of channels.

        Args:
            step: the distance between tiles.
            pads: the padding before the image.
            reach: the side of the tile.
            body: gets the offset of the tile's first position in the image, and in a plane of products; the step
                from column to column; and for each position of the tile whether it is in the image, or None if all
                are.
        """
        code = self.code
        column_step = self.channels
        with code.tasks() as task:
            row = code.plus(self.first, task)
            image = code.divided(row, self.tile_rows)
            top = code.times(code.minus(row, code.times(image, self.tile_rows)), step)
            top = top if pads is None else code.minus(top, pads[0])
            start = code.plus(code.times(image, self.image_step), code.times(top, self.row_step))
            with code.loop(code.index(0), self.tiles) as tile:
                left = code.times(tile, step)
                left = left if pads is None else code.minus(left, pads[1])
                offset = code.plus(start, code.times(left, column_step))
                place = code.times(code.plus(code.times(task, self.tiles), tile), self.channels)
                rows = self._within(top, self.height, reach)
                columns = self._within(left, self.width, reach)
                inside = code.both(code.both(rows[0], rows[-1]), code.both(columns[0], columns[-1]))
                with code.when(inside), code.loop(code.index(0), self.channels, LANES) as channel:
                    body(code.plus(offset, channel), code.plus(place, channel), column_step, None)
                with code.when(code.inverse(inside)):
                    are_inside = [code.both(a, b) for a, b in product(rows, columns)]
                    with code.loop(code.index(0), self.channels, LANES) as channel:
                        body(code.plus(offset, channel), code.plus(place, channel), column_step, are_inside)

    def _within(self, start: Value, length: Value, count: int) -> list[Value]:
        """Return for each of ``count`` positions whether it is in the image."""
        code = self.code
        return [code.put("i1", f"icmp ult {code.plus(start, at)}, {length.name}") for at in range(count)]


def _write_inner(side: int, features: frozenset[str]) -> str:
    """Return LLVM code that computes the left factors of the products from the data."""
    writer = _Writer(side, features)
    code, count = writer.code, side + TAPS - 1
    pads = code.word(), code.word()
    data, factors = code.address(), code.address()

    def body(offset: Value, place: Value, step: Value, are_inside: list[Value] | None) -> None:
        rows = [code.plus(offset, code.times(writer.row_step, at)) for at in range(count)]
        columns = []
        for column in range(count):
            shift = code.times(step, column)
            loaded = [
                writer.load(
                    data, code.plus(row, shift), None if are_inside is None else are_inside[at * count + column]
                )
                for at, row in enumerate(rows)
            ]
            columns.append(writer.inner(loaded))
        for row in zip(*columns, strict=True):
            for value in writer.inner(row):
                code.store(value, factors, place)
                place = code.plus(place, writer.plane)

    writer.tile_loop(side, pads, count, body)
    return code.finish()


def _write_outer(side: int, activation: str, has_bias: bool, has_addend: bool, features: frozenset[str]) -> str:
    """Return LLVM code that computes the output from the products, with bias, addend and activation."""
    writer = _Writer(side, features)
    code, count = writer.code, side + TAPS - 1
    activation_bound = code.number()
    products, out = code.address(), code.address()
    bias = code.address() if has_bias else None

    def finish(value: Value, shift: Value | None, at: Value, is_inside: Value | None) -> None:
        value = value if shift is None else writer.add(value, shift)
        with nullcontext() if is_inside is None else code.when(is_inside):
            value = writer.add(value, code.load(out, at)) if has_addend else value
            code.store(_activate(code, activation, activation_bound, value), out, at)

    def body(offset: Value, place: Value, step: Value, are_inside: list[Value] | None) -> None:
        start = code.times(code.divided(place, writer.channels), writer.channels)
        shift = None if bias is None else code.load(bias, code.minus(place, start))
        rows = []
        for _ in range(count):
            loaded = []
            for _ in range(count):
                loaded.append(code.load(products, place))
                place = code.plus(place, writer.plane)
            rows.append(writer.outer(loaded))
        columns = [writer.outer(column) for column in zip(*rows, strict=True)]
        for row, column in product(range(side), range(side)):
            at = code.plus(offset, code.plus(code.times(writer.row_step, row), code.times(step, column)))
            finish(columns[column][row], shift, at, None if are_inside is None else are_inside[row * side + column])

    writer.tile_loop(side, None, side, body)
    return code.finish()


def _activate(code: Code, activation: str, activation_bound: Value, value: Value) -> Value:
    if not activation:
        return value
    if activation == "swish":
        x = placeholder(0)
        return lower(code, [x * sigmoid(x)], {x: value})[0]
    zero = code.constant(0.0)
    low = code.binary("fmul", activation_bound, value) if activation == "leaky" else zero
    value = code.choose(code.compare("ogt", value, zero), value, low)
    return (
        code.choose(code.compare("olt", value, activation_bound), value, activation_bound)
        if activation == "clip"
        else value
    )


@cache
def inner_program(side: int) -> Program:
    """Return the function from data to left factors: words first ... plane, two pads, data, factors."""
    return Program(partial(_write_inner, side), is_optimized=True)


@cache
def outer_program(side: int, activation: str, has_bias: bool, has_addend: bool) -> Program:
    """Return the function from products to the output: words first ... plane, edge, products, output, bias."""
    return Program(partial(_write_outer, side, activation, has_bias, has_addend), is_optimized=True)


def _write_filters(side: int, is_scaled: bool, features: frozenset[str]) -> str:
    """Return LLVM code that computes the right factors of the products from filters: each task is a vector of filters.

    It computes in float64 and rounds once. Vectors beyond the last filter are filled with zeros.
    """
    code = Code(features=features)
    channels, filters, width, plane = (code.word() for _ in range(4))
    weight, factors = code.address(), code.address()
    scale = code.address() if is_scaled else None
    wide, matrix = f"<{LANES} x double>", matrices(side).filters

    def widened(value: Value) -> Value:
        return code.put(wide, f"fpext {value} to {wide}")

    def combined(row: Sequence[float], values: Sequence[Value]) -> Value:
        factors = [Value(wide, f"splat (double 0x{struct.pack('>d', factor).hex().upper()})") for factor in row]
        products = [
            value if number == 1 else code.put(wide, f"fmul {factor}, {value.name}")
            for number, factor, value in zip(row, factors, values, strict=True)
            if number
        ]
        return reduce(lambda total, product: code.put(wide, f"fadd {total}, {product.name}"), products)

    def store(values: Sequence[Value], place: Value) -> None:
        for value in values:
            code.store(value, factors, place)
            place = code.plus(place, plane)

    with code.tasks() as task:
        first = code.times(task, LANES)
        panel = code.divided(first, width)
        start = code.plus(code.times(code.times(panel, width), channels), code.minus(first, code.times(panel, width)))
        is_filter = code.put("i1", f"icmp slt {first}, {filters.name}")
        with code.when(code.inverse(is_filter)), code.loop(code.index(0), channels) as channel:
            zeros = [code.constant(0.0)] * (side + TAPS - 1) ** 2
            store(zeros, code.plus(start, code.times(channel, width)))
        with code.when(is_filter):
            factor = None if scale is None else widened(code.load(scale, first))
            step = code.times(channels, TAPS * TAPS)
            with code.loop(code.index(0), channels) as channel:
                at = code.plus(code.times(first, step), code.times(channel, TAPS * TAPS))
                taps = [widened(code.gather(weight, code.plus(at, tap), step)) for tap in range(TAPS * TAPS)]
                if factor is not None:
                    taps = [code.put(wide, f"fmul {tap}, {factor.name}") for tap in taps]
                rows = [[combined(row, taps[column::TAPS]) for column in range(TAPS)] for row in matrix]
                values = [combined(row, values) for values in rows for row in matrix]
                store(
                    [code.put(code.vector, f"fptrunc {value} to {code.vector}") for value in values],
                    code.plus(start, code.times(channel, width)),
                )
    return code.finish()


@cache
def filters_program(side: int, is_scaled: bool) -> Program:
    """Return the function from filters to right factors.

    Its words are channels, filters, filters of a panel, and the distance between planes, then the addresses of filters,
    right factors and scale.
    """
    return Program(partial(_write_filters, side, is_scaled), is_optimized=True)


def transform_filters(weight: Array, side: int, scale: Array | None, out: Array) -> None:
    """Compute the right factors of the products, in float64, and round them.

    Args:
        weight: (filters, channels, 3, 3), float32.
        side: the side of output tiles.
        scale: (filters,), or None.
        out: (points², panels, channels, filters of a panel), written.
    """
    matrix = matrices(side).filters
    both = np.kron(matrix, matrix)
    filters, channels = weight.shape[:2]
    width = out.shape[3]
    out[:, filters // width :] = 0
    for start in range(0, filters, LANES):
        part = weight[start : start + LANES].astype(np.float64)
        if scale is not None:
            part *= scale[start : start + LANES].reshape(-1, 1, 1, 1)
        factors = both @ part.reshape(len(part) * channels, TAPS * TAPS).T
        place = start % width
        panel = out[:, start // width, :, place : place + len(part)]
        panel[...] = factors.reshape(-1, len(part), channels).transpose(0, 2, 1)
