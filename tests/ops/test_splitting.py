"""Splitting arrays by compiled loops, and its fallback."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.arrays.joining import SliceChannel

FORMS = [((3, 8), 1, 2), ((4, 6, 10), 1, 3), ((300, 600), 1, 2), ((7, 5, 4), 2, 4), ((2, 3), 0, 2), ((64, 2048), -1, 2)]


@pytest.mark.parametrize(("shape", "axis", "count"), FORMS)
def test_compiled_loops_split(shape, axis, count, monkeypatch):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    mx.nd.split(mx.nd.array(x), num_outputs=count, axis=axis)[0].wait_to_read()
    monkeypatch.setattr(SliceChannel, "forward", None)  # the fallback
    parts = mx.nd.split(mx.nd.array(x), num_outputs=count, axis=axis)
    for part, expected in zip(parts, np.split(x, count, axis), strict=True):
        np.testing.assert_array_equal(part.asnumpy(), expected)


@pytest.mark.parametrize(("dtype", "count"), [("float32", 12), ("float16", 2), ("int32", 3)])
def test_other_arrays_split(dtype, count):
    x = mx.nd.arange(48, dtype=dtype).reshape((4, 12))
    parts = mx.nd.split(x, num_outputs=count, axis=1)
    for part, expected in zip(parts, np.split(x.asnumpy(), count, 1), strict=True):
        np.testing.assert_array_equal(part.asnumpy(), expected)
