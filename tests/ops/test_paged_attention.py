"""Attention over a paged cache: its formula for every form of cache, and its errors."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.nn.paged_attention import PagedAttention, cache_shape
from flowmx.ops.registry.dtypes import as_dtype

LENGTHS = (19, 1, 33)
"""The lengths of three texts."""


class Example:
    """Texts of which the last tokens are computed, with random queries, keys and values."""

    def __init__(self, heads, key_heads, size, page_size, last, dtype="float32"):
        rng = np.random.default_rng(0)
        self.heads, self.key_heads, self.size, self.page_size, self.dtype = heads, key_heads, size, page_size, dtype
        self.places = [(text, place) for text, length in enumerate(LENGTHS) for place in range(length)]
        self.q, self.k, self.v = (
            rng.normal(size=(len(self.places), each * size)).astype("float32") for each in (heads, key_heads, key_heads)
        )
        width = -(-max(LENGTHS) // page_size)
        self.tables = rng.permutation(3 * width + 2)[: 3 * width].reshape(3, width).astype("int32")
        pages = 3 * width + 2
        shape = cache_shape(2, pages, key_heads, page_size, size, as_dtype(dtype))
        self.cache = mx.nd.zeros(shape, dtype=dtype)
        self.last = last

    def run(self, rows, waves=(), **options):
        """Compute some rows of the texts."""
        sequences, positions = np.array([self.places[row] for row in rows], np.int32).T
        slots = self.tables[sequences, positions // self.page_size] * self.page_size + positions % self.page_size
        arrays = [mx.nd.array(each[rows]) for each in (self.q, self.k, self.v)]
        numbers = [mx.nd.array(each, dtype="int32") for each in (positions, slots, sequences, self.tables)]
        waves = [mx.nd.array(each[positions]) for each in waves]
        return mx.nd.contrib.paged_attention(
            *arrays, *numbers, self.cache, *waves, layer=1, page_size=self.page_size, rotary=bool(waves), **options
        ).asnumpy()

    def result(self, waves=(), **options):
        """Compute the first tokens of all texts in one call, the last ones in another; return the last ones."""
        first = [row for row, (text, place) in enumerate(self.places) if place < LENGTHS[text] - self.last]
        rest = [row for row in range(len(self.places)) if row not in first]
        if first:
            self.run(first, waves, **options)
        return rest, self.run(rest, waves, **options)

    def expected(self, rows, waves=(), scale=1.0, window=10**6, score_cap=0.0):
        """Return the formula in float64."""
        q, k, v = (each.reshape(len(self.places), -1, self.size).astype("float64") for each in (self.q, self.k, self.v))
        texts, positions = np.array(self.places).T
        if waves:
            cosines, sines = (each[positions][:, None] for each in waves)
            half = self.size // 2
            q, k = (
                np.concatenate(
                    [x[..., :half] * cosines - x[..., half:] * sines, x[..., half:] * cosines + x[..., :half] * sines],
                    -1,
                )
                for x in (q, k)
            )
        out = []
        for row in rows:
            distances = positions[row] - positions
            visible = (texts == texts[row]) & (distances >= 0) & (distances < window)
            for head in range(self.heads):
                key_head = head // (self.heads // self.key_heads)
                scores = k[visible, key_head] @ q[row, head] * scale
                scores = score_cap * np.tanh(scores / score_cap) if score_cap else scores
                weights = np.exp(scores - scores.max())
                out.append(weights @ v[visible, key_head] / weights.sum())
        return np.reshape(out, (len(rows), -1))


TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 4e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("last", [1, 5, 40])
@pytest.mark.parametrize(
    ("heads", "key_heads", "size", "page_size"),
    [(4, 2, 8, 4), (9, 3, 64, 16), (4, 1, 16, 32), (2, 2, 128, 16), (8, 2, 24, 16), (1, 1, 6, 16)],
)
def test_tokens_attend_to_the_pages_of_their_texts(heads, key_heads, size, page_size, last, dtype):
    example = Example(heads, key_heads, size, page_size, last, dtype)
    rows, out = example.result(scale=0.2)
    np.testing.assert_allclose(out, example.expected(rows, scale=0.2), rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize(
    "options", [{"window": 3}, {"window": 17}, {"score_cap": 2.0}, {"window": 20, "score_cap": 1.0}]
)
@pytest.mark.parametrize("last", [1, 40])
def test_windows_and_caps(last, options):
    example = Example(6, 3, 16, 16, last)
    rows, out = example.result(scale=0.3, **options)
    np.testing.assert_allclose(out, example.expected(rows, scale=0.3, **options), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [6, 64])
@pytest.mark.parametrize("last", [1, 40])
def test_rotations(size, last):
    angles = np.arange(max(LENGTHS))[:, None] * 50.0 ** (-np.arange(size // 2) * 2 / size)
    waves = np.cos(angles).astype("float32"), np.sin(angles).astype("float32")
    example = Example(4, 2, size, 16, last)
    rows, out = example.result(waves, scale=0.2)
    np.testing.assert_allclose(out, example.expected(rows, waves, scale=0.2), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("last", "dtype"), [(1, "float32"), (40, "int8"), (5, "bfloat16")])
def test_compiled_loops_compute_it(last, dtype, monkeypatch):
    monkeypatch.setattr(PagedAttention, "forward", None)  # the fallback
    example = Example(9, 3, 64, 16, last, dtype)
    rows, out = example.result(scale=0.2)
    np.testing.assert_allclose(out, example.expected(rows, scale=0.2), rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("page_size", [4, 16])
def test_slots_that_no_token_sees_may_hold_anything(page_size):
    example = Example(4, 2, 16, page_size, 1)
    example.cache[:] = np.nan
    rows, out = example.result()
    np.testing.assert_allclose(out, example.expected(rows), rtol=0, atol=1e-5)


def test_only_the_slots_of_the_tokens_are_written():
    example = Example(4, 2, 16, 16, 1)
    example.run([0])
    cache = example.cache.asnumpy()
    page = example.tables[0, 0]
    assert not cache[0].any() and not np.delete(cache[1], page, axis=1).any()
    keys, values = cache[1, 0, page].reshape(2, 16, 16), cache[1, 1, page].reshape(2, 16, 16)
    np.testing.assert_array_equal(keys[:, :, 0], example.k[0].reshape(2, 16))
    np.testing.assert_array_equal(values[:, 0], example.v[0].reshape(2, 16))
    assert not keys[:, :, 1:].any() and not values[:, 1:].any()


def test_shapes_and_dtypes_that_do_not_fit():
    example = Example(4, 2, 16, 16, 1)
    example.page_size = 8
    with pytest.raises(mx.base.MXNetError, match="do not fit, for pages of 8 positions"):
        example.run([0])
    arrays = [mx.nd.ones((1, 8))] * 3 + [mx.nd.zeros((1,))] * 3
    with pytest.raises(mx.base.MXNetError, match="positions has dtype float32, expected int32"):
        mx.nd.contrib.paged_attention(*arrays, mx.nd.zeros((1, 1)), mx.nd.zeros((1, 2, 1, 1, 64)), layer=0, page_size=8)
