"""Attention over a paged cache on a CPU, in two loops that native runs record: one writes the cache, one reads it.

The second loop takes *rows*: the queries of some tokens and heads that read the same keys. It goes through their pages
once, in blocks of 64 positions, and rescales its sums whenever a block has a larger score (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018). A vector holds 16 positions in the products with keys, which are
stored for that, and 16 features in the sums of values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.llvm import math_functions, team
from flowmx.ops.kernels.llvm.assembly import FLOAT, INDEX, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import float_type_of
from flowmx.ops.kernels.llvm.lowering import lower
from flowmx.ops.kernels.llvm.softmax import computed
from flowmx.ops.nn.paged_attention import INT8, SCALE_BYTES, PagedAttention, Sizes
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_LANES = FLOAT.lanes
_TILES = 4
"""The vectors of positions in a block."""
_BLOCK = _TILES * _LANES
_SUMS = 24
"""The maximum number of vectors of sums: with those of a block's factors they take the 32 registers."""
_ROWS = 6
"""The maximum number of rows that are computed together."""
_FEW_TASKS = 8
"""Below this number of tasks, the heads that share keys are split: threads then have equal work."""
_SHARED = 1 << 15
"""The minimum number of products of elements of queries and keys for which several threads are faster."""
_EVERYTHING = 1 << 40
"""A window that holds every position."""
_HIDDEN = -1e30
_LIMIT = 127.0


class Kind(NamedTuple):
    """The key of both functions.

    Attributes:
        size: the number of features of a head.
        page_size: the number of positions of a page.
        group: the number of heads of queries that share keys.
        tokens: the number of tokens whose rows are computed together.
        heads: the number of heads whose rows are computed together.
        rotary: whether queries and keys are rotated.
        capped: whether scores are bounded.
        element: the element type of queries, keys, values and the output.
        stored: the element type of the cache; None for int8.
    """

    size: int
    page_size: int
    group: int
    tokens: int
    heads: int
    rotary: bool
    capped: bool
    element: FloatType | None
    stored: FloatType | None

    @property
    def row_count(self) -> int:
        """The number of rows that are computed together."""
        return self.tokens * self.heads

    @property
    def stride(self) -> int:
        """The number of elements of the cache for a head of a page."""
        return self.page_size * (self.size + (0 if self.stored is not None else SCALE_BYTES))

    def parts(self) -> list[tuple[int, int]]:
        """Return the start and the number of features of each vector."""
        return [(start, min(_LANES, self.size - start)) for start in range(0, self.size, _LANES)]


class _Writer:
    """The base of the writers of both functions: the access to the cache."""

    def __init__(self, kind: Kind, features: frozenset[str]) -> None:
        self.kind, self.code = kind, Code(FLOAT, features)

    def mask(self, count: int) -> Value | None:
        """Return the mask of the first lanes; None for all."""
        return None if count == _LANES else self.code.first_lanes(self.code.index(count))

    def place(self, base: Value, page: Value, key_heads: Value, head: Value) -> Value:
        """Return the first element of a head in a page."""
        code = self.code
        return code.plus(base, code.times(code.plus(code.times(page, key_heads), head), self.kind.stride))

    def load(self, cache: Value, place: Value, mask: Value | None = None) -> Value:
        """Load elements of the cache, without their scales."""
        code = self.code
        if self.kind.stored is not None:
            return code.load(cache, place, mask)
        at, stored = code.at(cache, place, "i8"), f"<{_LANES} x i8>"
        if mask is None:
            narrow = code.put(stored, f"load {stored}, {at}, align 1")
        else:
            arguments = (at, Value("i32", "1"), mask, Value(stored, "zeroinitializer"))
            narrow = code.call(f"llvm.masked.load.v{_LANES}i8.p0", stored, *arguments)
        wide = code.put(code.integers, f"sext {narrow} to {code.integers}")
        return code.put(code.vector, f"sitofp {wide} to {code.vector}")

    def scale_at(self, cache: Value, place: Value, offset: Value) -> Value:
        """Return the address of the scale of a position of a head that begins at a place."""
        code, kind = self.code, self.kind
        first = code.plus(place, kind.page_size * kind.size)
        return code.at(cache, code.plus(first, code.times(offset, SCALE_BYTES)), "i8")

    def copy(self, source: Value, start: Value, waves: Sequence[Value], token: Value, target: Value, at: int) -> None:
        """Copy a head to memory, rotated if there are cosines and sines."""
        code, kind = self.code, self.kind
        if not waves:
            for first, count in kind.parts():
                mask = self.mask(count)
                code.store(code.load(source, code.plus(start, first), mask), target, code.index(at + first), mask)
            return
        half = kind.size // 2
        angle = code.times(token, half)
        for first in range(0, half, _LANES):
            mask = self.mask(min(_LANES, half - first))
            one, other = (code.load(source, code.plus(start, first + side), mask) for side in (0, half))
            cosine, sine = (code.load(wave, code.plus(angle, first), mask) for wave in waves)
            product = code.binary("fmul", other, sine)
            turned = code.binary("fsub", code.binary("fmul", one, cosine), product)
            code.store(turned, target, code.index(at + first), mask)
            product = code.binary("fmul", one, sine)
            turned = code.binary("fadd", code.binary("fmul", other, cosine), product)
            code.store(turned, target, code.index(at + half + first), mask)


class _CacheWriter(_Writer):
    """Writes the function that writes keys and values to their slots; each task is a token."""

    def write(self) -> str:
        """Return the text."""
        code, kind = self.code, self.kind
        key_heads, *bases = (code.word() for _ in range(3))
        sources = [code.array(kind.element) for _ in range(2)]
        slots, cache = code.array(), code.array(kind.stored)
        waves = [code.array() for _ in range(2)] if kind.rotary else []
        memory = code.memory(-(-kind.size // _LANES) * _LANES)
        with code.tasks() as token:
            slot = code.load_short_index(slots, token)
            page = code.divided(slot, code.index(kind.page_size))
            offset = code.minus(slot, code.times(page, kind.page_size))
            with code.loop(code.index(0), key_heads) as head:
                start = code.times(code.plus(code.times(token, key_heads), head), kind.size)
                for is_key, source, base in zip((True, False), sources, bases, strict=True):
                    self.copy(source, start, waves if is_key else (), token, memory, 0)
                    place = self.place(base, page, key_heads, head)
                    self._store(memory, cache, place, offset, is_key)
        return code.finish()

    def _store(self, memory: Value, cache: Value, place: Value, offset: Value, is_key: bool) -> None:
        """Store the features in memory at a position of a page."""
        code, kind = self.code, self.kind
        start = code.plus(place, offset if is_key else code.times(offset, kind.size))
        step = kind.page_size if is_key else 1
        divisor = None if kind.stored is not None else self._scale(memory, cache, place, offset)
        with code.loop(code.index(0), code.index(kind.size)) as feature:
            value, target = code.load_one(memory, feature), code.plus(start, code.times(feature, step))
            if divisor is None:
                code.store_one(value, cache, target)
            else:
                whole = code.intrinsic("llvm.rint", code.binary("fdiv", value, divisor))
                byte = code.put("i8", f"fptosi {whole} to i8")
                code.do(f"store {byte}, {code.at(cache, target, 'i8')}")

    def _scale(self, memory: Value, cache: Value, place: Value, offset: Value) -> Value:
        """Store the scale of the features in memory; return what they are divided by."""
        code = self.code
        top = code.local(code.constant(0.0))
        for start, count in self.kind.parts():
            size = code.intrinsic("llvm.fabs", code.load(memory, code.index(start), self.mask(count)))
            code.set(top, code.intrinsic("llvm.maxnum", size, code.get(top)))
        scale = code.first(code.binary("fdiv", code.spread(code.largest(code.get(top))), code.constant(_LIMIT)))
        code.do(f"store {scale}, {self.scale_at(cache, place, offset)}, align 4")
        is_zero = code.put("i1", f"fcmp oeq {scale}, 0.0")
        return code.choose(is_zero, Value("float", "1.0"), scale)


class _Token(NamedTuple):
    """A token of a task: its number, whether it exists, its position, and its row of the tables."""

    number: Value
    exists: Value
    position: Value
    sequence: Value


class _Tile(NamedTuple):
    """Sixteen positions: the first one, where their keys and values are, and in a page of int8, their place there."""

    first: Value
    keys: Value
    values: Value
    key_scales: Value | None
    value_scales: Value | None


class _AttentionWriter(_Writer):
    """Writes the function that attends; each task is some tokens, a head of keys, and some heads of queries."""

    def write(self) -> str:
        """Return the text."""
        code, kind = self.code, self.kind
        self.tokens, self.key_heads, self.key_base, self.value_base, self.width, self.window = (
            code.word() for _ in range(6)
        )
        self.scale, self.cap = code.number(), code.number()
        self.queries, self.out = code.array(kind.element), code.array(kind.element)
        self.positions, self.sequences, self.tables = (code.array() for _ in range(3))
        self.cache = code.array(kind.stored)
        waves = [code.array() for _ in range(2)] if kind.rotary else []
        self.size = -(-kind.size // _LANES) * _LANES
        self.factors = code.memory(kind.row_count * self.size)
        self.weights = code.memory(kind.row_count * _BLOCK)
        self.tops, self.totals = ([code.local(code.constant(0.0)) for _ in range(kind.row_count)] for _ in range(2))
        self.sums = [[code.local(code.constant(0.0)) for _ in kind.parts()] for _ in range(kind.row_count)]
        parts = kind.group // kind.heads
        with code.tasks() as task:
            rest = code.divided(task, code.index(parts))
            block = code.divided(rest, self.key_heads)
            self.head = code.minus(rest, code.times(block, self.key_heads))
            part = code.minus(task, code.times(rest, parts))
            first = code.plus(code.times(self.head, kind.group), code.times(part, kind.heads))
            tokens = [self._token(code.plus(code.times(block, kind.tokens), at)) for at in range(kind.tokens)]
            self._read_queries(tokens, first, waves)
            for at, token in enumerate(tokens):
                self._attend_sequence(tokens, at, token, first)
        return code.finish()

    def _token(self, number: Value) -> _Token:
        code = self.code
        exists = code.put("i1", f"icmp slt {number}, {self.tokens.name}")
        number = code.least(number, code.plus(self.tokens, -1))
        position, sequence = (code.load_short_index(each, number) for each in (self.positions, self.sequences))
        return _Token(number, exists, position, sequence)

    def _start(self, token: _Token, head: Value) -> Value:
        """Return the first element of a head of queries or of the output."""
        code = self.code
        heads = code.times(self.key_heads, self.kind.group)
        return code.times(code.plus(code.times(token.number, heads), head), self.kind.size)

    def _read_queries(self, tokens: Sequence[_Token], first: Value, waves: Sequence[Value]) -> None:
        """Copy the queries of all rows to memory, rotated and scaled."""
        code, kind = self.code, self.kind
        for row in range(kind.row_count):
            token, head = tokens[row // kind.heads], code.plus(first, row % kind.heads)
            self.copy(self.queries, self._start(token, head), waves, token.number, self.factors, row * self.size)
            for start, _ in kind.parts():
                place = code.index(row * self.size + start)
                code.store(code.binary("fmul", code.load(self.factors, place), self.scale), self.factors, place)

    def _attend_sequence(self, tokens: Sequence[_Token], at: int, token: _Token, first: Value) -> None:
        """Compute the rows of one sequence, unless an earlier token of the task is of the same sequence."""
        code = self.code
        condition = token.exists
        for other in tokens[:at]:
            is_other = code.put("i1", f"icmp ne {other.sequence}, {token.sequence.name}")
            condition = code.both(condition, is_other)
        with code.when(condition):
            active = [
                code.both(each.exists, code.put("i1", f"icmp eq {each.sequence}, {token.sequence.name}"))
                for each in tokens
            ]
            lasts = [
                code.choose(is_active, each.position, code.index(-1))
                for is_active, each in zip(active, tokens, strict=True)
            ]
            begins = [
                code.choose(is_active, each.position, code.index(_EVERYTHING))
                for is_active, each in zip(active, tokens, strict=True)
            ]
            last, begin = lasts[0], begins[0]
            for other_last, other_begin in zip(lasts[1:], begins[1:], strict=True):
                last, begin = code.call("llvm.smax.i64", INDEX, last, other_last), code.least(begin, other_begin)
            begin = code.call("llvm.smax.i64", INDEX, code.plus(code.minus(begin, self.window), 1), code.index(0))
            self._attend(code.times(token.sequence, self.width), begin, last, lasts)
            for row in range(self.kind.row_count):
                number = row // self.kind.heads
                with code.when(active[number]):
                    self._store(row, self._start(tokens[number], code.plus(first, row % self.kind.heads)))

    def _attend(self, table: Value, begin: Value, last: Value, lasts: Sequence[Value]) -> None:
        """Go through the positions from ``begin`` to ``last``, of which each token sees those up to its own."""
        code, zero = self.code, self.code.constant(0.0)
        for top, total, sums in zip(self.tops, self.totals, self.sums, strict=True):
            code.set(top, code.constant(_HIDDEN))
            for each in (total, *sums):
                code.set(each, zero)
        start = code.put(INDEX, f"and {begin}, {-_BLOCK}")
        with code.loop(start, code.plus(last, 1), _BLOCK) as base:
            tiles = [self._tile(table, code.plus(base, at * _LANES), last) for at in range(_TILES)]
            scores = self._scores(tiles)
            for row, values in enumerate(scores):
                self._weigh(row, values, tiles, lasts[row // self.kind.heads])
            for at, tile in enumerate(tiles):
                self._add_values(at, tile, last)

    def _tile(self, table: Value, first: Value, last: Value) -> _Tile:
        """Return a tile; one after the last position has the place of an earlier one, and no weight."""
        code, kind = self.code, self.kind
        inside = code.put(INDEX, f"and {code.least(first, last)}, {-_LANES}")
        number = code.divided(inside, code.index(kind.page_size))
        offset = code.minus(inside, code.times(number, kind.page_size))
        page = code.load_short_index(self.tables, code.plus(table, number))
        places = [self.place(base, page, self.key_heads, self.head) for base in (self.key_base, self.value_base)]
        scales: list[Value | None] = [None, None]
        if kind.stored is None:
            scales = [self.scale_at(self.cache, place, offset) for place in places]
        keys, values = code.plus(places[0], offset), code.plus(places[1], code.times(offset, kind.size))
        return _Tile(first, keys, values, *scales)

    def _scores(self, tiles: Sequence[_Tile]) -> list[list[Value]]:
        """Return the products of each row's query with the keys of each tile."""
        code, kind, zero = self.code, self.kind, self.code.constant(0.0)
        scores = [[code.local(zero) for _ in tiles] for _ in range(kind.row_count)]
        for variable in [each for row in scores for each in row]:
            code.set(variable, zero)
        with code.loop(code.index(0), code.index(kind.size)) as feature:
            step = code.times(feature, kind.page_size)
            keys = [self.load(self.cache, code.plus(tile.keys, step)) for tile in tiles]
            for row, variables in enumerate(scores):
                factor = code.spread(code.load_one(self.factors, code.plus(feature, row * self.size)))
                for variable, key in zip(variables, keys, strict=True):
                    code.set(variable, code.intrinsic("llvm.fma", factor, key, code.get(variable)))
        return [[code.get(variable) for variable in row] for row in scores]

    def _weigh(self, row: int, scores: Sequence[Value], tiles: Sequence[_Tile], last: Value) -> None:
        """Store the weights of a row, and rescale its sums."""
        code = self.code
        visible = [self._visible(tile, last) for tile in tiles]
        scores = [
            code.choose(mask, self._capped(score, tile), code.constant(_HIDDEN))
            for score, tile, mask in zip(scores, tiles, visible, strict=True)
        ]
        top = code.get(self.tops[row])
        larger = scores[0]
        for score in scores[1:]:
            larger = self._larger(larger, score)
        new_top = self._larger(top, code.spread(code.largest(larger)))
        factor = self._exp(code.binary("fsub", top, new_top))
        code.set(self.tops[row], new_top)
        total = code.binary("fmul", code.get(self.totals[row]), factor)
        for at, (score, tile, mask) in enumerate(zip(scores, tiles, visible, strict=True)):
            weight = code.choose(mask, self._exp(code.binary("fsub", score, new_top)), code.constant(0.0))
            total = code.binary("fadd", total, weight)
            if tile.value_scales is not None:
                weight = code.binary("fmul", weight, self._scales(tile.value_scales))
            code.store(weight, self.weights, code.index(row * _BLOCK + at * _LANES))
        code.set(self.totals[row], total)
        for each in self.sums[row]:
            code.set(each, code.binary("fmul", code.get(each), factor))

    def _visible(self, tile: _Tile, last: Value) -> Value:
        """Return the positions of a tile that a token at position ``last`` sees."""
        code = self.code
        up_to = code.minus(last, tile.first)
        numbers = f"<{', '.join(f'i64 {lane}' for lane in range(_LANES))}>"
        early = code.put(code.mask, f"icmp sge {code.spread(up_to)}, {numbers}")
        near = code.put(code.mask, f"icmp slt {code.spread(code.minus(up_to, self.window))}, {numbers}")
        return code.both(early, near)

    def _capped(self, score: Value, tile: _Tile) -> Value:
        """Return scores with the scales of the keys and the bound."""
        code = self.code
        if tile.key_scales is not None:
            score = code.binary("fmul", score, self._scales(tile.key_scales))
        if not self.kind.capped:
            return score
        x = placeholder(0)
        bounded = lower(code, [math_functions.tanh(x)], {x: code.binary("fdiv", score, self.cap)})[0]
        return code.binary("fmul", bounded, self.cap)

    def _scales(self, address: Value) -> Value:
        return self.code.put(self.code.vector, f"load {self.code.vector}, {address}, align 4")

    def _larger(self, a: Value, b: Value) -> Value:
        return self.code.choose(self.code.compare("ogt", a, b), a, b)

    def _exp(self, value: Value) -> Value:
        x = placeholder(0)
        return lower(self.code, [math_functions.exp(x)], {x: value})[0]

    def _add_values(self, at: int, tile: _Tile, last: Value) -> None:
        """Add the weighted values of a tile, up to the last position."""
        code, kind = self.code, self.kind
        count = code.least(code.plus(code.minus(last, tile.first), 1), code.index(_LANES))
        masks = [self.mask(length) for _, length in kind.parts()]
        with code.loop(code.index(0), count) as position:
            start = code.plus(tile.values, code.times(position, kind.size))
            values = [
                self.load(self.cache, code.plus(start, first), mask)
                for (first, _), mask in zip(kind.parts(), masks, strict=True)
            ]
            for row, sums in enumerate(self.sums):
                place = code.plus(position, row * _BLOCK + at * _LANES)
                weight = code.spread(code.load_one(self.weights, place))
                for total, value in zip(sums, values, strict=True):
                    code.set(total, code.intrinsic("llvm.fma", weight, value, code.get(total)))

    def _store(self, row: int, start: Value) -> None:
        """Store the output of a row."""
        code = self.code
        total = code.spread(code.total(code.get(self.totals[row])))
        for (first, count), each in zip(self.kind.parts(), self.sums[row], strict=True):
            value = code.binary("fdiv", code.get(each), total)
            code.store(value, self.out, code.plus(start, first), self.mask(count))


@lru_cache(64)
def _programs(kind: Kind) -> tuple[Program, Program]:
    """Return two functions: one writes the cache, the other computes attention over it."""
    return (
        Program(lambda features: _CacheWriter(kind, features).write(), is_optimized=True),
        Program(lambda features: _AttentionWriter(kind, features).write(), is_optimized=True),
    )


def _kind(op: PagedAttention, inputs: Sequence[Array], sizes: Sizes) -> Kind | None:
    """Return the kind for a call; None if there is no function for it."""
    element, stored = inputs[0].dtype, inputs[7].dtype
    suits = (
        op.page_size % _LANES == 0 and computed(element) and (stored == INT8 or computed(stored))
        and (sizes.size % 2 == 0 or not op.rotary)
        and all(array.dtype == element for array in inputs[:3]) and all(array.flags.c_contiguous for array in inputs)
        and all(array.dtype == np.float32 for array in inputs[8:])
    )  # fmt: skip
    if not suits:
        return None
    group = sizes.heads // sizes.key_heads
    limit = max(1, min(_ROWS, _SUMS // -(-sizes.size // _LANES)))
    heads = max(each for each in range(1, limit + 1) if group % each == 0)
    if sizes.tokens * sizes.key_heads * (group // heads) < _FEW_TASKS:
        heads = 1
    is_chunk = sizes.tokens > len(inputs[6])
    return Kind(
        sizes.size, op.page_size, group, max(1, limit // heads) if is_chunk else 1, heads, op.rotary,
        op.score_cap > 0, float_type_of(element), None if stored == INT8 else float_type_of(stored),
    )  # fmt: skip


_pack_write = struct.Struct("5q").pack
_pack_attend = struct.Struct("8q2d").pack


@kernel("cpu", "_contrib_paged_attention", takes=lambda op, dtype: computed(dtype), only_native=True)
def _compute(op: PagedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    sizes = op.sizes([array.shape for array in inputs])
    kind = _kind(op, inputs, sizes)
    programs = [] if kind is None else [each for program in _programs(kind) if (each := program.get()) is not None]
    if kind is None or len(programs) < 2 or not sizes.tokens or not outputs[0].flags.c_contiguous:
        op.forward(run, inputs, outputs)
        return
    queries, keys, values, positions, slots, sequences, tables, cache, *waves = inputs
    per_part = cache[0, 0].size
    bases = 2 * op.layer * per_part, (2 * op.layer + 1) * per_part
    is_shared = queries.size * tables.shape[1] * op.page_size >= _SHARED
    threads = team.count() if is_shared else 1
    arrays = [keys, values, slots, cache, *waves]
    words = _pack_write(0, sizes.tokens, sizes.key_heads, *bases) + _addresses(arrays)
    team.run(programs[0], words, threads if sizes.tokens > 1 else 1, arrays)
    tasks = -(-sizes.tokens // kind.tokens) * sizes.key_heads * (kind.group // kind.heads)
    arrays = [queries, outputs[0], positions, sequences, tables, cache, *waves]
    words = _pack_attend(
        0, tasks, sizes.tokens, sizes.key_heads, *bases, tables.shape[1], op.window or _EVERYTHING, op.scale,
        op.score_cap,
    ) + _addresses(arrays)  # fmt: skip
    team.run(programs[1], words, threads if tasks > 1 else 1, arrays)


def _addresses(arrays: Sequence[Array]) -> bytes:
    return struct.pack(f"{len(arrays)}q", *map(id, arrays))
