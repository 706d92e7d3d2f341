"""Attention with several heads, masks, and a cache of keys and values for step-wise decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.errors import ShapeError
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn.basic_layers import Dense, Dropout
from flowmx.gluon.nn.norm_layers import RMSNorm
from flowmx.gluon.nn.paged import PagedCache
from flowmx.gluon.nn.positions import RotaryPositions, cached_positions, numbers
from flowmx.initializer import InitializerLike
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.semantics import semantics

__all__ = ["MultiHeadAttention"]

_AXES = {
    "query": "(batch, query length, features)", "key": "(batch, key length, features)",
    "value": "(batch, key length, features)", "mask": "(batch or 1, query length, key length)",
    "padding": "(batch, key length)",
}  # fmt: skip
_HIDDEN = 3e4
"""Subtracted from the scores of hidden positions: below float16's limit, and far beyond real scores."""


class MultiHeadAttention(HybridBlock):
    """Attention with several heads (Vaswani et al., Attention Is All You Need, NIPS 2017).

    ``attention(query, key, value, mask, padding, cache)``. All arguments except the first are optional, and may be
    passed by name:

    - ``query``: (batch, query length, features), float.
    - ``key``: (batch, key length, features), the dtype of the query; default: the query, for self-attention.
    - ``value``: (batch, key length, features); default: the key.
    - ``mask``: (batch or 1, query length, key length), any dtype: 1 where a query sees a key, else 0.
    - ``padding``: (batch, key length), any dtype: 1 for keys, 0 for padding, which no query sees.
    - ``cache``: keys, values and position of earlier calls, from :meth:`begin_cache` or the last call.

    It returns (batch, query length, units) in the dtype of the query. With a cache it returns that and the next cache.
    A query that may see no key at all gets finite values that mean nothing.

    With ``causal``, a query sees no later keys; if there are more keys than queries, the last of both are at the same
    position. With a cache, the queries follow the positions in the cache, and see those and each other causally;
    ``mask`` and ``padding`` then have the length of the cache as the key length.

    Args:
        units: the number of features of the output.
        num_heads: the number of heads, which divides ``units``.
        dropout: the probability with which a weight is dropped in training.
        use_bias: add a bias to queries, keys, values and outputs.
        causal: hide later keys from each query.
        rotary: rotate queries and keys by their positions: True, or the arguments of
            :class:`RotaryPositions`, such as ``{"base": 500000}``.
        num_key_heads: the number of heads of keys and values, each of which serves ``num_heads / num_key_heads`` heads
            of queries (default: ``num_heads``; Ainslie et al., GQA, EMNLP 2023).
        head_units: the number of features of a head (default: ``units / num_heads``).
        window: with ``causal``, the number of last keys that a query sees (default: all).
        scale: the factor of the products of queries and keys (default: ``1 / sqrt(head_units)``).
        score_cap: bounds the scaled products: ``score_cap * tanh(products / score_cap)`` (default: no bound).
        norm_epsilon: normalize each head of queries and of keys by :class:`RMSNorm` with this epsilon.
        out_bias: add a bias to the outputs (default: ``use_bias``).
        weight_initializer: the initializer of the weights.
        bias_initializer: the initializer of the biases.
        in_units: the number of features of the query (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, ``num_key_heads`` does not divide ``num_heads``, or another
            number is out of range.
        ShapeError: an input's shape does not fit (when called).
        IndexError: the cache is full (when the output is read).

    Example:
        >>> attention = mx.gluon.nn.MultiHeadAttention(8, num_heads=2, causal=True)
        >>> attention.initialize()
        >>> cache = attention.begin_cache(batch_size=3, max_length=5)
        >>> for step in range(5):
        ...     y, cache = attention(mx.nd.ones((3, 1, 8)), cache=cache)
        >>> y.shape
        (3, 1, 8)
    """

    def __init__(
        self, units: int, num_heads: int, dropout: float = 0.0, use_bias: bool = True, causal: bool = False,
        rotary: bool | dict[str, Any] = False, weight_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = "zeros",
        in_units: int = 0, num_key_heads: int | None = None, head_units: int | None = None, window: int | None = None,
        scale: float | None = None, score_cap: float | None = None, norm_epsilon: float | None = None,
        out_bias: bool | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        key_heads = num_heads if num_key_heads is None else num_key_heads
        _check_options(units, num_heads, key_heads, head_units, dropout, window, causal)
        super().__init__(**kwargs)
        self._units, self._heads, self._key_heads, self._causal = units, num_heads, key_heads, causal
        self._size = units // num_heads if head_units is None else head_units
        self._scale = 1 / math.sqrt(self._size) if scale is None else scale
        self._window, self._score_cap = window, score_cap
        self._key_units = self._size * key_heads
        options: dict[str, Any] = {
            "flatten": False, "use_bias": use_bias, "weight_initializer": weight_initializer,
            "bias_initializer": bias_initializer,
        }  # fmt: skip
        out_options = options | ({} if out_bias is None else {"use_bias": out_bias})
        with self.name_scope():
            self.query = Dense(self._size * num_heads, in_units=in_units, prefix="query_", **options)
            self.key = Dense(self._key_units, prefix="key_", **options)
            self.value = Dense(self._key_units, prefix="value_", **options)
            self.out = Dense(units, in_units=self._size * num_heads, prefix="out_", **out_options)
            self.dropout = Dropout(dropout) if dropout else None
            self.query_norm = self.key_norm = None
            if norm_epsilon is not None:
                self.query_norm = RMSNorm(epsilon=norm_epsilon, in_channels=self._size, prefix="query_norm_")
                self.key_norm = RMSNorm(epsilon=norm_epsilon, in_channels=self._size, prefix="key_norm_")
            self.rotary = None
            if rotary:
                self.rotary = RotaryPositions(self._size, **({} if rotary is True else rotary))

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Context | None = None
    ) -> list[NDArray]:
        """Return an empty cache for step-wise decoding.

        Each call with a cache returns the next one, and leaves the last one unchanged. All have the same shapes, so
        that a hybridized block compiles one graph for all steps.

        Args:
            batch_size: the number of sequences.
            max_length: the number of positions that the cache has room for.
            dtype: the element type (default: that of the weights).
            ctx: the device (default: the current one).

        Returns:
            Keys and values, (max_length, batch_size, key heads · head units), and the number of positions in use,
            (1,), int32.

        Raises:
            ValueError: a length is below 1.
        """
        if batch_size < 1 or max_length < 1:
            raise ValueError(
                f"begin_cache: batch_size is {batch_size} and max_length {max_length}, expected 1 or more of both"
            )
        shape = (max_length, batch_size, self._key_units)
        if dtype is None:
            dtype = "float32" if self.out.weight.dtype == np.uint8 else self.out.weight.dtype  # packed weights
        arrays: list[NDArray] = [nd.zeros(shape, dtype=dtype, ctx=ctx) for _ in range(2)]
        arrays.append(nd.zeros((1,), dtype="int32", ctx=ctx))
        return [array.as_np_ndarray() for array in arrays] if semantics.get().array else arrays

    @overload
    def __call__(
        self, query: A, key: A | None = None, value: A | None = None, mask: A | None = None, padding: A | None = None,
        cache: None = None,
    ) -> A: ...  # fmt: skip

    @overload
    def __call__(
        self, query: A, key: A | None = None, value: A | None = None, mask: A | None = None, padding: A | None = None,
        *, cache: Sequence[A],
    ) -> tuple[A, list[A]]: ...  # fmt: skip

    def __call__(
        self, query: Any, key: Any = None, value: Any = None, mask: Any = None, padding: Any = None, cache: Any = None
    ) -> Any:
        """Compute the output; see the class."""
        _check(self, {"query": query, "key": key, "value": value, "mask": mask, "padding": padding}, cache)
        arguments = [query, key, value, mask, padding, cache]
        while len(arguments) > 1 and arguments[-1] is None:
            arguments.pop()
        return super().__call__(*arguments)

    def hybrid_forward(
        self, F: Functions, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
        mask: Tensor | None = None, padding: Tensor | None = None,
        cache: Sequence[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        queries, keys, values = self.query(query), self.key(key), self.value(value)
        like, places, counted = queries, None, numbers(F, key, 1)
        queries, keys = self._normalize(F, queries, keys)
        queries = self._split(F, queries, self._heads)
        if cache is None:
            keys, values = (self._split(F, each, self._key_heads) for each in (keys, values))
            if self.rotary is not None:
                queries, keys = self.rotary(queries), self.rotary(keys)
        else:
            counted = numbers(F, cache[0], 0)
            places = cached_positions(F, query, cache)
            if self.rotary is not None:
                keys = self._join(F, self.rotary(self._split(F, keys, self._key_heads), places), self._key_heads)
                queries = self.rotary(queries, places)
            cache = self._append(F, cache, places, keys, values)
            keys, values = (self._split(F, F.transpose(each, axes=(1, 0, 2)), self._key_heads) for each in cache[:2])
        keys, values = self._repeat(F, keys), self._repeat(F, values)
        scores = F.batch_dot(queries * self._scale, keys, transpose_b=True)
        if self._score_cap is not None:
            scores = F.tanh(scores * (1 / self._score_cap)) * self._score_cap
        visible = self._visibility(F, query, mask, padding)
        if self._causal or places is not None:
            causal = _causal(F, numbers(F, query, 1), counted, places, self._window)
            visible = causal if visible is None else F.broadcast_mul(visible, causal)
        if visible is not None:
            scores = F.broadcast_add(scores, F._internal._cast_like((visible - 1) * _HIDDEN, like))
        weights = F.softmax(scores, axis=-1)
        weights = weights if self.dropout is None else self.dropout(weights)
        out = self.out(self._join(F, F.batch_dot(weights, values), self._heads))
        return out if cache is None else (out, cache)

    @staticmethod
    def _append(F: Functions, cache: Sequence[Tensor], places: Tensor, keys: Tensor, values: Tensor) -> list[Tensor]:
        """Return the next cache: with keys and values, (batch, length, units), at their places."""
        arrays = [
            F.contrib.index_copy(old, places, F.transpose(new, axes=(1, 0, 2)))
            for old, new in ((cache[0], keys), (cache[1], values))
        ]
        return [*arrays, F.slice_axis(places, axis=0, begin=-1, end=None) + 1]

    def attend_pages(self, x: Tensor, pages: PagedCache, layer: int) -> Any:
        """Return the output of self-attention for the tokens of a decode step.

        Args:
            x: (tokens, features).
            pages: the cache, into which their keys and values are written.
            layer: the index of the layer in the cache.

        Raises:
            ValueError: the layer is not causal, or rotates neighbors.
        """
        if not self._causal or (self.rotary is not None and self.rotary.interleaved):
            raise ValueError(
                f"MultiHeadAttention {self.name!r}: a paged cache needs causal=True, and no interleaved rotary "
                "positions"
            )
        queries, keys, values = self.query(x), self.key(x), self.value(x)
        if self.query_norm is not None:
            heads = [pages.F.expand_dims(each, axis=0) for each in (queries, keys)]
            queries, keys = (pages.F.Reshape(each, shape=(-3, 0)) for each in self._normalize(pages.F, *heads))
        out = pages.attend(
            queries, keys, values, layer, self.rotary, scale=self._scale, window=self._window or 0,
            score_cap=self._score_cap or 0.0,
        )  # fmt: skip
        return self.out(out)

    @property
    def num_heads(self) -> int:
        """The number of heads of queries."""
        return self._heads

    @property
    def page_heads(self) -> tuple[int, int]:
        """The number of heads of keys and values, and the features of each, for a paged cache."""
        return self._key_heads, self._size

    def _normalize(self, F: Functions, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize each head of queries and keys, (batch, length, features), if the layer has these normalizations."""
        if self.query_norm is None or self.key_norm is None:
            return queries, keys
        heads = (F.Reshape(each, shape=(0, 0, -1, self._size)) for each in (queries, keys))
        normalized = (norm(each) for norm, each in zip((self.query_norm, self.key_norm), heads, strict=True))
        queries, keys = (F.Reshape(each, shape=(0, 0, -3)) for each in normalized)
        return queries, keys

    def _repeat(self, F: Functions, x: Tensor) -> Tensor:
        """Return keys or values, (batch · heads, length, size), once for each head of queries."""
        group = self._heads // self._key_heads
        return x if group == 1 else F.repeat(x, repeats=group, axis=0)

    def _split(self, F: Functions, x: Tensor, heads: int) -> Tensor:
        """Return (batch · heads, length, size) of (batch, length, heads · size)."""
        split = F.Reshape(x, shape=(0, 0, heads, self._size))
        return F.Reshape(F.transpose(split, axes=(0, 2, 1, 3)), shape=(-3, 0, 0))

    def _join(self, F: Functions, x: Tensor, heads: int) -> Tensor:
        """Return (batch, length, heads · size) of (batch · heads, length, size)."""
        split = F.Reshape(x, shape=(-4, -1, heads, 0, 0))
        return F.Reshape(F.transpose(split, axes=(0, 2, 1, 3)), shape=(0, 0, -3))

    def _visibility(self, F: Functions, query: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """Return 1 where a mask lets a query see a key, else 0, as float32 for each head; None without masks."""
        masks = [] if mask is None else [mask]
        if padding is not None:
            masks.append(F.expand_dims(padding, axis=1))
        if not masks:
            return None
        ones = F.slice_axis(F.slice_axis(query, axis=1, begin=0, end=1), axis=2, begin=0, end=1)
        visible = F.ones_like(F.Cast(ones, dtype="float32"))  # (batch, 1, 1)
        for each in masks:
            visible = F.broadcast_mul(visible, F.clip(F.Cast(each, dtype="float32"), 0, 1))
        return F.Reshape(F.broadcast_axis(F.expand_dims(visible, axis=1), axis=1, size=self._heads), shape=(-3, 0, 0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._units}, num_heads={self._heads}, causal={self._causal})"


def _causal(F: Functions, rows: Tensor, columns: Tensor, places: Tensor | None, window: int | None) -> Tensor:
    """Return 1 where a query sees a key, else 0: (1, query length, key length), float32.

    Args:
        F: as for ``hybrid_forward``.
        rows: the numbers of the queries.
        columns: the numbers of the keys.
        places: the positions of the queries among the keys; None if the last of both are at the same position.
        window: the number of last keys that a query sees; None for all.
    """
    if places is None:
        rows, columns = (F.reverse(each, axis=0) for each in (rows, columns))
        rows, columns = F.Reshape(columns, shape=(1, 1, -1)), F.Reshape(rows, shape=(1, -1, 1))
    else:
        rows, columns = (
            F.Reshape(F.Cast(places, dtype="float32"), shape=(1, -1, 1)),
            F.Reshape(columns, shape=(1, 1, -1)),
        )
    visible = F.broadcast_greater_equal(rows, columns)
    return visible if window is None else F.broadcast_mul(visible, F.broadcast_lesser(rows, columns + window))


def _check_options(
    units: int, heads: int, key_heads: int, size: int | None, dropout: float, window: int | None, causal: bool
) -> None:
    """Raise a ValueError if arguments of MultiHeadAttention contradict each other."""
    if heads < 1 or units < 1 or (size is None and units % heads):
        raise ValueError(
            f"MultiHeadAttention: units is {units} and num_heads {heads}, expected a multiple of the number of "
            "heads: change one of the two"
        )
    if key_heads < 1 or heads % key_heads:
        raise ValueError(
            f"MultiHeadAttention: num_heads is {heads} and num_key_heads {key_heads}, expected a divisor of the number "
            "of heads"
        )
    if size is not None and size < 1:
        raise ValueError(f"MultiHeadAttention: head_units is {size}, expected 1 or more")
    if not 0 <= dropout < 1:
        raise ValueError(f"MultiHeadAttention: dropout is {dropout}, expected a probability from 0 to below 1")
    if window is not None and (window < 1 or not causal):
        raise ValueError(
            f"MultiHeadAttention: window is {window} and causal {causal}, expected 1 or more, and causal=True"
        )


def _check(block: MultiHeadAttention, inputs: Mapping[str, object], cache: Any) -> None:
    """Raise a ShapeError if the shape of an array does not fit the others."""
    shapes = {name: each.shape for name, each in inputs.items() if isinstance(each, NDArray)}
    query, key = shapes.get("query", ()), shapes.get("key", shapes.get("query", ()))
    value = shapes.get("value", key)
    if len(query) == len(key) == len(value) == 3:
        count = cache[0].shape[0] if cache is not None else key[1]
        expected: dict[str, list[tuple[int, ...]]] = {
            "key": [(query[0], query[1] if cache is not None else key[1], key[2])], "value": [(*key[:2], value[2])],
            "mask": [(query[0], query[1], count), (1, query[1], count)], "padding": [(query[0], count)],
        }  # fmt: skip
        for name, allowed in expected.items():
            if name in shapes and shapes[name] not in allowed:
                raise ShapeError(
                    f"{type(block).__name__} {block.name!r}: {name} has shape {shapes[name]}, expected "
                    f"{' or '.join(map(str, allowed))}, {_AXES[name]}, for the query {query} and the key {key}"
                )
        return
    for name in ("query", "key", "value"):
        if name in shapes and len(shapes[name]) != 3:
            raise ShapeError(
                f"{type(block).__name__} {block.name!r}: {name} has shape {shapes[name]}, expected 3 axes, "
                f"{_AXES[name]}: add an axis for the batch with expand_dims(0), or for the length with expand_dims(1)"
            )
