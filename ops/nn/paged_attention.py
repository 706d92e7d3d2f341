"""Attention of the tokens of a decode step over a paged cache of keys and values.

A sequence's keys and values are in *pages* of the cache, each of which has room for ``page_size`` positions. A *slot*
is the place of one position: ``page * page_size + offset``. The cache is one array for all layers, and the operator
writes the keys and values of its tokens into it before they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import Precision

__all__ = ["PagedAttention", "cache_shape"]

INT8 = np.dtype(np.int8)
SCALE_BYTES = 4
"""The size of the scale of an int8 key or value: a float32 after those of its page."""
_LIMIT = 127.0


class Sizes(NamedTuple):
    """The sizes of a call: heads of queries and of keys, features of a head, and tokens."""

    heads: int
    key_heads: int
    size: int
    tokens: int


def cache_shape(layers: int, pages: int, key_heads: int, page_size: int, size: int, dtype: DType) -> Shape:
    """Return the shape of a cache.

    Args:
        layers: the number of layers.
        pages: the number of pages.
        key_heads: the number of heads of keys and values.
        page_size: the number of positions of a page.
        size: the number of features of a head.
        dtype: float32, a 16-bit type, or int8.
    """
    return layers, 2, pages, key_heads, page_size * (size + (SCALE_BYTES if dtype == INT8 else 0))


@operator("_contrib_paged_attention")
class PagedAttention(Operator, heavy=True, no_gradient=True, precision=Precision.GIVEN):
    """Causal attention of tokens over the pages of their sequences, for prediction.

    Each token's key and value are written to its slot of the cache; then each token sees the positions of its sequence
    up to its own.
    """

    arguments: ClassVar[tuple[str, ...]] = (
        "queries", "keys", "values", "positions", "slots", "sequences", "tables", "cache", "cosines", "sines",
    )  # fmt: skip
    input_docs = describe(
        queries="(tokens, heads·size), float",
        keys="(tokens, key heads·size), the dtype of queries",
        values="the shape and dtype of keys",
        positions="(tokens,), int32; the place of each token in its sequence",
        slots="(tokens,), int32; where the key and the value of each token are written",
        sequences="(tokens,), int32; the row of tables of each token's sequence",
        tables="(sequences, pages), int32; the pages of each sequence",
        cache="(layers, 2, pages, key heads, page_size·size), float; or int8, with a float32 scale for each slot; "
        "updated in place",
        cosines="(tokens, size/2), float32; with rotary, the cosines of the rotations",
        sines="(tokens, size/2), float32; with rotary, the sines of the rotations",
    )
    output_doc = "(tokens, heads·size), the dtype of queries"
    updates = (7,)
    layer: int = required("The index of the layer in the cache.", low=0)
    page_size: int = required("Number of positions of a page.", low=1)
    scale: float = option(1.0, "Factor of the products of queries and keys.")
    window: int = option(0, "Number of last positions that a token sees; 0 for all.", low=0)
    score_cap: float = option(0.0, "Bound of the scaled products, by tanh; 0 for none.", low=0)
    rotary: bool = option(False, "Rotate queries and keys by cosines and sines.")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.rotary else self.arguments[:8]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if all(shape is not None and -1 not in shape for shape in shapes):
            self.sizes([shape for shape in shapes if shape is not None])
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        for name, dtype in zip(self.inputs()[3:7], dtypes[3:7], strict=True):
            if dtype not in (None, np.int32):
                raise TypeInferenceError(f"{self.name}: {name} has dtype {name_of(dtype)}, expected int32")
        return dtypes, [dtypes[0]]

    def sizes(self, shapes: Sequence[Shape]) -> Sizes:
        """Return the sizes of a call on arrays of these shapes.

        Raises:
            ShapeError: they do not fit.
        """
        queries, keys, values, positions, slots, sequences, tables, cache = shapes[:8]
        if len(queries) != 2 or len(keys) != 2 or len(cache) != 5 or cache[1] != 2 or not cache[3]:
            raise ShapeError(
                f"{self.name}: queries {queries}, keys {keys} and cache {cache}, expected two, two and five axes"
            )
        size = keys[1] // cache[3]
        fits = (
            keys == values == (queries[0], cache[3] * size) and positions == slots == sequences == queries[:1]
            and len(tables) == 2 and size > 0 and queries[1] % keys[1] == 0 and self.layer < cache[0]
            and cache[4] in (self.page_size * size, self.page_size * (size + SCALE_BYTES))
            and all(shape == (queries[0], size // 2) for shape in shapes[8:])
        )  # fmt: skip
        if not fits:
            names = ", ".join(f"{name} {shape}" for name, shape in zip(self.inputs(), shapes, strict=True))
            raise ShapeError(f"{self.name}: the shapes {names} do not fit, for pages of {self.page_size} positions")
        return Sizes(queries[1] // size, cache[3], size, queries[0])

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        positions = inputs[6][1] * self.page_size
        return 4 * inputs[0][0] * inputs[0][1] * positions, 4 * inputs[0][0] * inputs[0][1]

    def bytes_read(self, inputs: Sequence[int], output: int) -> int:
        return sum(inputs) - inputs[7]  # few pages of the cache are read

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sizes = self.sizes([array.shape for array in inputs])
        queries, keys, values = (
            widen(array).reshape(sizes.tokens, heads, sizes.size)
            for array, heads in zip(inputs[:3], (sizes.heads, sizes.key_heads, sizes.key_heads), strict=True)
        )
        if self.rotary:
            queries, keys = (_rotated(run, each, *inputs[8:]) for each in (queries, keys))
        caches = [_PagesOf(part, sizes.size, self.page_size) for part in inputs[7][self.layer]]
        pages, offsets = inputs[4] // self.page_size, inputs[4] % self.page_size
        for cache, rows in zip(caches, (keys, values), strict=True):
            cache.write(run, pages, offsets, rows, is_key=cache is caches[0])
        out = outputs[0].reshape(queries.shape)
        for sequence, part in _runs(inputs[5]):
            positions = inputs[3][part]
            table = inputs[6][sequence][: int(positions.max()) // self.page_size + 1]
            all_keys, all_values = (
                cache.read(table, is_key=cache is caches[0]).repeat(sizes.heads // sizes.key_heads, axis=1)
                for cache in caches
            )
            out[part] = self._attend(run, queries[part], all_keys, all_values, positions)

    def _attend(self, run: Run, queries: Array, keys: Array, values: Array, positions: Array) -> Array:
        """Return attention (tokens, heads, size) over keys and values (positions, heads, size) of a sequence."""
        xp = run.xp
        scores = xp.einsum("thd,phd->htp", queries, keys) * self.scale
        if self.score_cap:
            scores = self.score_cap * xp.tanh(scores / self.score_cap)
        distances = positions[:, None] - xp.arange(len(keys))
        visible = (distances >= 0) & (distances < (self.window or len(keys) + 1))
        scores = xp.where(visible, scores, -xp.inf)
        weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        used = visible.any(axis=0)[:, None, None]  # other slots may contain NaN
        attention: Array = xp.einsum("htp,phd->thd", weights, xp.where(used, values, 0))
        return attention


class _PagesOf:
    """The keys or the values of a layer.

    Keys are stored with the positions of a page along the last axis, (pages, heads, size, page_size), so that products
    with a query are computed for many positions at once; values are (pages, heads, page_size, size).
    """

    def __init__(self, cache: Array, size: int, page_size: int) -> None:
        count = size * page_size
        self._numbers, self._size, self._page_size = cache[..., :count], size, page_size
        self._scales = cache[..., count:].view(np.float32) if cache.dtype == INT8 else None

    def write(self, run: Run, pages: Array, offsets: Array, rows: Array, is_key: bool) -> None:
        """Write rows (tokens, heads, size) to offsets in pages."""
        if self._scales is not None:
            scales = abs(rows).max(axis=-1) / _LIMIT
            self._scales[pages, :, offsets] = scales
            divisors = run.xp.where(scales == 0, 1, scales)
            rows = run.xp.rint(rows / divisors[..., None])
        numbers = self._numbers.reshape(*self._numbers.shape[:2], *self._order(is_key))
        if is_key:
            numbers[pages, :, :, offsets] = rows
        else:
            numbers[pages, :, offsets] = rows

    def read(self, table: Array, is_key: bool) -> Array:
        """Return the rows (positions, heads, size) of pages, float32."""
        numbers = widen(self._numbers[table]).astype(np.float32)
        numbers = numbers.reshape(*numbers.shape[:2], *self._order(is_key))
        numbers = numbers.transpose((0, 3, 1, 2) if is_key else (0, 2, 1, 3))
        if self._scales is not None:
            numbers = numbers * self._scales[table].transpose(0, 2, 1)[..., None]
        return numbers.reshape(-1, *numbers.shape[2:])

    def _order(self, is_key: bool) -> Shape:
        return (self._size, self._page_size) if is_key else (self._page_size, self._size)


def _rotated(run: Run, rows: Array, cosines: Array, sines: Array) -> Array:
    """Return rows (tokens, heads, size), with the features ``i`` and ``i + size / 2`` rotated."""
    half = rows.shape[2] // 2
    one, other, cosines, sines = rows[..., :half], rows[..., half:], cosines[:, None], sines[:, None]
    rotated: Array = run.xp.concatenate([one * cosines - other * sines, other * cosines + one * sines], axis=-1)
    return rotated


def _runs(sequences: Array) -> Iterator[tuple[int, slice]]:
    """Return each sequence with its consecutive tokens."""
    start, rows = 0, sequences.tolist()
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or rows[stop] != rows[start]:
            yield rows[start], slice(start, stop)
            start = stop
