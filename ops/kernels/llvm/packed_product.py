"""Products of few or many rows of data with interleaved, quantized weights.

A call has two loops. The first one rounds data to 8 or 16 bits, in blocks of 32 values with a scale each. The second
one multiplies: for each tile of 16 outputs and each group of 32 codes it adds up integer products, 4 per instruction
and lane, and then adds the sum, times both scales, to the outputs in registers. Up to 8 rows of data share the codes in
registers, and all rows of a task share a tile in the first-level cache.

Data of 16 bits are two planes of bytes, ``256 * upper + lower``, which are multiplied one after the other.

Weights of floating-point numbers need no rounding: the second loop multiplies data as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

from flowmx.ops.kernels.llvm.assembly import BFLOAT, FLOAT, HALF, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.quantization.interleaved_weights import GROUP, STEPS, TILE, Layout, layout_of

BLOCKS = (8, 4, 2, 1)
"""The numbers of rows that share the codes in registers, largest first."""
NUMBERS = {"F32": FLOAT, "F16": HALF, "BF16": BFLOAT}
"""The element types of weights of floating-point numbers, by format."""
_INT = "<16 x i32>"
_BYTES = "<64 x i8>"
_TINY = {8: 0x03800000, 16: 0x07800000}
"""The bits of 2**-120 and 2**-112, by the bits of rounded data: the steps divided by it are not infinite. A block of
smaller values becomes 0."""
_INFINITY = 0x7F800000
_AHEAD = 4096
"""The distance in bytes at which weights are prefetched: the processor itself prefetches only to the end of a page."""


class Kind(NamedTuple):
    """The key of a function.

    Attributes:
        format: the format of the weights.
        data: the element type of data, bias and output.
        has_bias: whether there is a bias.
        instructions: how integer products are added up; see :func:`instructions_of`.
        data_bits: the number of bits of rounded data, 8 or 16.
    """

    format: str
    data: FloatType
    has_bias: bool
    instructions: str
    data_bits: int = 16


def instructions_of(features: frozenset[str]) -> str:
    """Return how a processor with these features adds up integer products.

    ``vnni`` and ``vnni256`` add four products in one instruction, on vectors of 64 and of 32 bytes; ``pairs`` are
    AVX2's sums of pairs; ``plain`` is arithmetic of 32 bits for any processor.
    """
    if "avx512vnni" in features and "avx512vl" in features:
        return "vnni"
    if "avxvnni" in features:
        return "vnni256"
    return "pairs" if "avx2" in features else "plain"


class Dot:
    """Adds products of unsigned codes and signed data to sums."""

    def __init__(self, code: Code, kind: str, bits: int) -> None:
        self._code = code
        self._add = {"vnni": self._vnni, "vnni256": self._vnni256, "pairs": self._pairs, "plain": self._plain}[kind]
        self._bits = bits

    def add(self, total: Value, codes: Value, data: Value) -> Value:
        """Return the sums of 16 lanes, each with 4 products added; all vectors are 16 x i32."""
        return self._add(total, codes, data)

    def _half(self, vector: Value, at: int, type: str = "i32", count: int = 8) -> Value:
        places = ", ".join(f"i32 {at * count + lane}" for lane in range(count))
        text = f"shufflevector {vector}, {vector.type} poison, <{count} x i32> <{places}>"
        return self._code.put(f"<{count} x {type}>", text)

    def _joined(self, parts: Sequence[Value]) -> Value:
        places = ", ".join(f"i32 {lane}" for lane in range(16))
        return self._code.put(_INT, f"shufflevector {parts[0]}, {parts[1]}, <16 x i32> <{places}>")

    def _as(self, type: str, value: Value) -> Value:
        return self._code.put(type, f"bitcast {value} to {type}")

    def _vnni(self, total: Value, codes: Value, data: Value) -> Value:
        arguments = (total, self._as(_BYTES, codes), self._as(_BYTES, data))
        return self._code.call("llvm.x86.avx512.vpdpbusd.512", _INT, *arguments)

    def _vnni256(self, total: Value, codes: Value, data: Value) -> Value:
        kind, parts = "<32 x i8>", []
        for at in range(2):
            arguments = [self._as(kind, self._half(each, at)) for each in (codes, data)]
            name = "llvm.x86.avx512.vpdpbusd.256"
            parts.append(self._code.call(name, "<8 x i32>", self._half(total, at), *arguments))
        return self._joined(parts)

    def _pairs(self, total: Value, codes: Value, data: Value) -> Value:
        code, parts = self._code, []
        for at in range(2):
            weights, numbers = (self._as("<32 x i8>", self._half(each, at)) for each in (codes, data))
            if self._bits < 8:  # a sum of two products fits into 16 bits
                pairs = code.call("llvm.x86.avx2.pmadd.ub.sw", "<16 x i16>", weights, numbers)
                one = Value("<16 x i16>", "splat (i16 1)")
                sums = code.call("llvm.x86.avx2.pmadd.wd", "<8 x i32>", pairs, one)
            else:
                sums = self._sums_of_words(weights, numbers)
            parts.append(code.put("<8 x i32>", f"add {self._half(total, at)}, {sums.name}"))
        return self._joined(parts)

    def _sums_of_words(self, weights: Value, numbers: Value) -> Value:
        """Return the sums of 4 products each of 32 unsigned and 32 signed bytes."""
        code, kind, parts = self._code, "<16 x i16>", []
        for at in range(2):
            wide = code.put(kind, f"zext {self._half(weights, at, 'i8', 16)} to {kind}")
            signed = code.put(kind, f"sext {self._half(numbers, at, 'i8', 16)} to {kind}")
            parts.append(code.call("llvm.x86.avx2.pmadd.wd", "<8 x i32>", wide, signed))
        both = self._joined(parts)
        lanes = [
            code.put("<8 x i32>", f"shufflevector {both}, {_INT} poison, <8 x i32> <{places}>")
            for places in (", ".join(f"i32 {2 * lane + odd}" for lane in range(8)) for odd in range(2))
        ]
        return code.put("<8 x i32>", f"add {lanes[0]}, {lanes[1].name}")

    def _plain(self, total: Value, codes: Value, data: Value) -> Value:
        code = self._code
        for at in range(4):
            weights = code.put(_INT, f"and {self._shifted('lshr', codes, 8 * at)}, splat (i32 255)")
            numbers = self._shifted("ashr", self._shifted("shl", data, 24 - 8 * at), 24)
            total = code.put(_INT, f"add {total}, {code.put(_INT, f'mul {weights}, {numbers.name}').name}")
        return total

    def _shifted(self, name: str, value: Value, count: int) -> Value:
        return self._code.put(_INT, f"{name} {value}, splat (i32 {count})") if count else value


class Group(NamedTuple):
    """A group of codes of a tile, in registers.

    Attributes:
        vectors: the codes, a list for each part of the group.
        scales: the scales of each part.
        minimum: the minimums, or None.
    """

    vectors: list[list[Value]]
    scales: list[Value]
    minimum: Value | None


WORDS = ("tiles", "tile_chunk", "tile_chunks", "rows", "row_chunk", "columns", "outputs")
"""The numbers of tiles, of tiles of a task, of such chunks, of rows of data, of rows of a task, of values of a row, and
of outputs."""


class Writer:
    """Generates the LLVM code of the product; its arrays are output, weights, bias, and rounded data or data."""

    def __init__(self, kind: Kind, features: frozenset[str]) -> None:
        self.kind = kind
        self.layout = layout_of(kind.format)
        self.code = code = Code(features=features)
        (
            self.tiles, self.tile_chunk, self.tile_chunks, self.rows, self.row_chunk, self.columns, self.outputs
        ) = [code.word() for _ in WORDS]  # fmt: skip
        self.out = code.array(kind.data)
        self.weights = code.array(NUMBERS.get(kind.format))
        self.bias = code.array(kind.data) if kind.has_bias else None
        self.dot = Dot(code, kind.instructions, 8 if self.layout.zero == 128 else self.layout.bits - 1)
        if self.layout.is_float:
            self.data = code.array(kind.data)
        else:
            self.data, self.scales, self.sums = code.array(), code.array(), code.array()

    def write(self) -> str:
        """Return the text: for each task, its tiles, and for each of them the blocks of rows."""
        code = self.code
        with code.tasks() as task:
            number = code.divided(task, self.tile_chunks)
            top = code.times(number, self.row_chunk)
            bottom = code.least(code.plus(top, self.row_chunk), self.rows)
            first = code.times(code.minus(task, code.times(number, self.tile_chunks)), self.tile_chunk)
            with code.loop(first, code.least(code.plus(first, self.tile_chunk), self.tiles)) as tile:
                start = top
                for count in BLOCKS:
                    length = code.minus(bottom, start)
                    stop = code.plus(start, code.put("i64", f"and {length}, {-count}"))
                    with code.loop(start, stop, count) as row:
                        self._block(count, row, tile)
                    start = stop
        return code.finish()

    def _block(self, count: int, row: Value, tile: Value) -> None:
        """Compute 16 outputs of ``count`` rows."""
        code = self.code
        rows = [code.plus(row, at) if at else row for at in range(count)]
        totals = self._multiply_numbers(rows, tile) if self.layout.is_float else self._multiply_codes(rows, tile)
        column = code.times(tile, TILE)
        mask = code.first_lanes(code.minus(self.outputs, column))
        bias = None if self.bias is None else code.load(self.bias, column, mask)
        for each, total in zip(rows, totals, strict=True):
            value = total if bias is None else code.binary("fadd", total, bias)
            code.store(value, self.out, code.plus(code.times(each, self.outputs), column), mask)

    # -- floating-point weights ------------------------------------------------------------------------

    def _multiply_numbers(self, rows: Sequence[Value], tile: Value) -> list[Value]:
        """Return the sums of products, one vector for each row."""
        code, ways = self.code, max(1, 4 // len(rows))
        start = code.times(code.times(tile, self.columns), TILE)
        offsets = [code.times(row, self.columns) for row in rows]
        sums = [[code.local(code.constant(0.0)) for _ in range(ways)] for _ in rows]

        def multiply(column: Value, way: int) -> None:
            weights = code.load(self.weights, code.plus(start, code.times(column, TILE)))
            for offset, totals in zip(offsets, sums, strict=True):
                number = code.spread(code.load_one(self.data, code.plus(offset, column)))
                total = totals[way]
                code.set(total, code.intrinsic("llvm.fma", weights, number, code.get(total)))

        whole = code.put("i64", f"and {self.columns}, {-4}")
        size = TILE * self.layout.bits // 8
        with code.loop(code.index(0), whole, 4) as column:
            self._prefetch(code.times(code.plus(start, code.times(column, TILE)), self.layout.bits // 8), 4 * size)
            for at in range(4):
                multiply(code.plus(column, at), at % ways)
        with code.loop(whole, self.columns) as column:
            multiply(column, 0)
        return [self._added([code.get(each) for each in totals]) for totals in sums]

    def _added(self, values: Sequence[Value]) -> Value:
        total, *rest = values
        for each in rest:
            total = self.code.binary("fadd", total, each)
        return total

    # -- codes -----------------------------------------------------------------------------------------

    def _multiply_codes(self, rows: Sequence[Value], tile: Value) -> list[Value]:
        """Return the sums of products, one vector for each row."""
        code, layout = self.code, self.layout
        totals = [code.local(code.constant(0.0)) for _ in rows]
        records = self._fraction(self.columns, GROUP * layout.groups)
        start = code.times(code.times(tile, records), layout.record_bytes)
        before = code.times(rows[0], self._fraction(self.columns, GROUP))
        with code.loop(code.index(0), records) as record:
            head = code.plus(start, code.times(record, layout.record_bytes))
            scale = self._load_numbers(head)
            minimum = self._load_numbers(code.plus(head, 2 * TILE)) if layout.has_minimums else None
            body = code.plus(head, layout.head)
            first = code.plus(before, code.times(record, layout.groups * len(rows)))
            if layout.groups == 1:
                self._add_group(self._group(body, scale, minimum), first, totals)
            else:
                with code.loop(code.index(0), code.index(layout.groups)) as at:
                    place = code.plus(body, code.times(at, layout.group_bytes))
                    unit = code.plus(first, code.times(at, len(rows)))
                    self._add_group(self._group(place, scale, minimum), unit, totals)
        return [code.get(total) for total in totals]

    def _fraction(self, value: Value, divisor: int) -> Value:
        return self.code.divided(value, Value("i64", str(divisor)))

    def _load(self, type: str, place: Value) -> Value:
        return self.code.put(type, f"load {type}, {self.code.at(self.weights, place, 'i8')}, align 2")

    def _load_numbers(self, place: Value) -> Value:
        """Load 16 float16 numbers."""
        return self.code.put(self.code.vector, f"fpext {self._load('<16 x half>', place)} to {self.code.vector}")

    def _group(self, place: Value, scale: Value, minimum: Value | None) -> Group:
        """Load a group, given the scale and minimum of its record."""
        code, layout = self.code, self.layout
        scales = [scale] * layout.parts
        if layout.has_steps:
            convert = "uitofp" if layout.has_minimums else "sitofp"
            steps = [
                code.put(
                    code.vector, f"{convert} {self._load('<16 x i8>', code.plus(place, at * TILE))} to {code.vector}"
                )
                for at in range(layout.parts + layout.has_minimums)
            ]
            scales = [code.binary("fmul", scale, each) for each in steps[: layout.parts]]
            if minimum is not None:
                minimum = code.binary("fmul", minimum, code.put(code.vector, f"fneg {steps[-1]}"))
        self._prefetch(place, layout.steps + layout.vectors * 64 + (layout.head if layout.groups == 1 else 0))
        loaded = [self._load(_INT, code.plus(place, layout.steps + 64 * at)) for at in range(layout.vectors)]
        codes = self._nibbles(loaded) if layout.bits == 4 else loaded
        size = len(codes) // layout.parts
        return Group([codes[at * size : (at + 1) * size] for at in range(layout.parts)], scales, minimum)

    def _prefetch(self, place: Value, count: int) -> None:
        """Prefetch weights that are read later, ``count`` bytes of them."""
        code = self.code
        for at in range(0, count, 64):
            address = code.at(self.weights, code.plus(place, _AHEAD + at), "i8")
            code.call("llvm.prefetch.p0", "void", address, *[Value("i32", each) for each in ("0", "3", "1")])

    def _nibbles(self, vectors: Sequence[Value]) -> list[Value]:
        code, mask = self.code, f"splat (i32 {0x0F0F0F0F})"
        lower = [code.put(_INT, f"and {each}, {mask}") for each in vectors]
        shifted = [code.put(_INT, f"lshr {each}, splat (i32 4)") for each in vectors]
        return [*lower, *(code.put(_INT, f"and {each}, {mask}") for each in shifted)]

    def _add_group(self, group: Group, unit: Value, totals: Sequence[Value]) -> None:
        """Add the products of a group and of rows of data, of which ``unit`` is the first block, to the totals."""
        code, count = self.code, len(totals)
        planes = self._planes(unit)
        scales = code.at(self.scales, unit, "float")
        values = [code.get(total) for total in totals]
        units = [code.spread(code.load_one(scales, code.index(row))) for row in range(count)]
        for part, (vectors, scale) in enumerate(zip(group.vectors, group.scales, strict=True)):
            sums = [Value(_INT, "zeroinitializer")] * count
            for plane, data in enumerate(planes):
                if plane:
                    sums = [code.put(_INT, f"shl {total}, splat (i32 8)") for total in sums]
                if plane == len(planes) - 1 and self.layout.zero:
                    sums = [self._centred(total, unit, row, part) for row, total in enumerate(sums)]
                for place, codes in enumerate(vectors):
                    at = part * len(vectors) + place
                    for row in range(count):
                        sums[row] = self.dot.add(sums[row], codes, self._four(data, row * GROUP // 4 + at))
            for row in range(count):
                real = code.put(code.vector, f"sitofp {sums[row]} to {code.vector}")
                values[row] = code.intrinsic("llvm.fma", real, code.binary("fmul", scale, units[row]), values[row])
        if group.minimum is not None:
            shifts = code.at(self.sums, unit, "float")
            for row in range(count):
                shift = code.spread(code.load_one(shifts, code.index(row)))
                values[row] = code.intrinsic("llvm.fma", group.minimum, shift, values[row])
        for total, value in zip(totals, values, strict=True):
            code.set(total, value)

    def _planes(self, unit: Value) -> list[Value]:
        """Return where the bytes of a block of data are: the upper ones first, if data have 16 bits."""
        code, first = self.code, self.code.times(unit, GROUP)
        places = [first, code.plus(first, code.times(self.rows, self.columns))][: self.kind.data_bits // 8]
        return [code.at(self.data, place, "i8") for place in places]

    def _centred(self, total: Value, unit: Value, row: int, part: int) -> Value:
        """Return integer sums minus the sum of the data times the code of 0."""
        code, parts = self.code, self.layout.parts
        sums = code.at(self.sums, code.times(unit, parts), "i32")
        place = code.at(sums, code.index(row * parts + part), "i32")
        shift = code.spread(code.put("i32", f"load i32, {place}, align 4"))
        return shift if total.name == "zeroinitializer" else code.put(_INT, f"add {total}, {shift.name}")

    def _four(self, data: Value, place: int) -> Value:
        """Return the rounded values, four in each 32-bit lane."""
        address = self.code.at(data, self.code.index(place), "i32")
        return self.code.spread(self.code.put("i32", f"load i32, {address}, align 4"))


class Rounding(NamedTuple):
    """The key of a function that rounds data.

    Attributes:
        data: the element type of data.
        zero: the code of 0 of the weights.
        parts: the number of integer sums of a block.
        bits: the number of bits of rounded data, 8 or 16.
    """

    data: FloatType
    zero: int
    parts: int
    bits: int = 16


class RoundingWriter:
    """Generates the LLVM code that rounds data; its arrays are rounded data, scales, sums, and data.

    Rows that are multiplied together are interleaved: their blocks of the same columns follow each other.
    The sums are those of the data if weights have minimums. Otherwise they are integers, the shifts of :class:`Writer`.
    """

    def __init__(self, kind: Rounding, features: frozenset[str]) -> None:
        self.kind = kind
        self.code = code = Code(features=features)
        self.rows, self.share, self.groups = code.word(), code.word(), code.word()
        self.rounded, self.scales, self.sums = code.array(), code.array(), code.array()
        self.data = code.array(kind.data)

    def write(self) -> str:
        """Return the text: for each task, its rows."""
        code = self.code
        with code.tasks() as task:
            first = code.times(task, self.share)
            with code.loop(first, code.least(code.plus(first, self.share), self.rows)) as row:
                start, count = self._block_of(row)
                before = code.plus(code.times(start, self.groups), code.minus(row, start))
                with code.loop(code.index(0), self.groups) as group:
                    source = code.plus(code.times(row, self.groups), group)
                    self._round(code.times(source, GROUP), code.plus(before, code.times(group, count)))
        return code.finish()

    def _block_of(self, row: Value) -> tuple[Value, Value]:
        """Return the first of the rows that are multiplied together with a row, and their number; see ``BLOCKS``."""
        code, largest = self.code, BLOCKS[0]
        stop = code.put("i64", f"and {self.rows}, {-largest}")
        start, count = code.put("i64", f"and {row}, {-largest}"), code.index(largest)
        for size in BLOCKS[1:]:
            is_later = code.put("i1", f"icmp sge {row}, {stop.name}")
            start, count = code.choose(is_later, stop, start), code.choose(is_later, code.index(size), count)
            stop = code.plus(stop, code.put("i64", f"and {self.rows}, {size}"))
        return start, count

    def _round(self, start: Value, block: Value) -> None:
        """Round 32 values that begin at an element, and store them as a block."""
        code = self.code
        values = [code.load(self.data, code.plus(start, at)) for at in (0, 16)]
        bits = [
            code.put(_INT, f"and {code.put(_INT, f'bitcast {each} to {_INT}')}, splat (i32 2147483647)")
            for each in values
        ]
        largest = code.call("llvm.vector.reduce.umax.v16i32", "i32", code.call("llvm.umax.v16i32", _INT, *bits))
        is_tiny = code.put("i1", f"icmp ult {largest}, {_TINY[self.kind.bits]}")
        is_finite = code.put("i1", f"icmp ult {largest}, {_INFINITY}")
        size = code.put("float", f"bitcast {largest} to float")
        steps = f"{STEPS[self.kind.bits]:e}"
        scale = code.put("float", f"fdiv {size}, {steps}")
        factor = code.put("float", f"fdiv float {steps}, {size.name}")
        zero, nan = Value("float", "0.000000e+00"), Value("float", "0x7FF8000000000000")
        factor, scale = code.choose(is_tiny, zero, factor), code.choose(is_tiny, zero, scale)
        scale = code.choose(is_finite, scale, nan)
        code.store_one(scale, self.scales, block)
        whole = [self._rounded(each, code.spread(factor), code.spread(is_finite)) for each in values]
        first = code.times(block, GROUP)
        for at, each in enumerate(whole):
            self._store_bytes(each, code.plus(first, 16 * at))
        self._store_sums(whole, block, scale)

    def _store_bytes(self, whole: Value, place: Value) -> None:
        """Store integers as bytes; those of 16 bits in two planes."""
        code = self.code
        values = [whole]
        if self.kind.bits == 16:
            near = code.put(_INT, f"add {whole}, splat (i32 128)")
            upper = code.put(_INT, f"ashr {near}, splat (i32 8)")
            values = [upper, code.put(_INT, f"sub {whole}, {code.put(_INT, f'shl {upper}, splat (i32 8)').name}")]
        for each in values:
            target = code.at(self.rounded, place, "i8")
            code.do(f"store {code.put('<16 x i8>', f'trunc {each} to <16 x i8>')}, {target}, align 1")
            place = code.plus(place, code.times(code.times(self.rows, self.groups), GROUP))

    def _rounded(self, values: Value, factor: Value, is_finite: Value) -> Value:
        code = self.code
        steps = code.choose(is_finite, code.binary("fmul", values, factor), code.constant(0.0))
        return code.put(_INT, f"fptosi {code.intrinsic('llvm.rint', steps)} to {_INT}")

    def _store_sums(self, whole: Sequence[Value], block: Value, scale: Value) -> None:
        code, zero, parts = self.code, self.kind.zero, self.kind.parts
        lanes = list(whole) if parts == 2 else [code.put(_INT, f"add {whole[0]}, {whole[1].name}")]
        for part, each in enumerate(lanes):
            total = code.call("llvm.vector.reduce.add.v16i32", "i32", each)
            place = code.plus(code.times(block, parts), part)
            if zero:
                total = code.put("i32", f"mul {total}, {-zero}")
                code.do(f"store {total}, {code.at(self.sums, place, 'i32')}, align 4")
            else:
                real = code.put("float", f"sitofp {total} to float")
                code.store_one(code.binary("fmul", real, scale), self.sums, place)


def _write(kind: Kind, features: frozenset[str]) -> str:
    return Writer(kind, features).write()


def _write_rounding(kind: Rounding, features: frozenset[str]) -> str:
    return RoundingWriter(kind, features).write()


@cache
def product_program(kind: Kind) -> Program:
    """Return the function that multiplies; see :class:`Writer`."""
    return Program(partial(_write, kind), is_optimized=True)


@cache
def rounding_program(kind: Rounding) -> Program:
    """Return the function that rounds data; see :class:`RoundingWriter`."""
    return Program(partial(_write_rounding, kind), is_optimized=True)


def rounding_of(layout: Layout, data: FloatType, bits: int) -> Rounding:
    """Return the rounding of data to 8 or 16 bits for weights of a layout."""
    return Rounding(data, layout.zero, layout.parts if layout.zero else 1, bits)
