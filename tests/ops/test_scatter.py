"""Sums at positions that repeat: exact for 16 bits, on NumPy and a stand-in for CuPy, and in gradients of lookups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.ops.arrays.scatter import add_at, add_rows
from flowmx.ops.registry.dtypes import as_dtype
from tests.cupy_stand_in.arrays import xp as cupy

NAMESPACES = {"numpy": np, "cupy": cupy}
COUNT = 4000


def on_host(array):
    return array.get() if hasattr(array, "get") else array


@pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_many_small_values_are_added_without_loss(xp, dtype):
    step = 0.25 if "float" in dtype else 1
    values = xp.asarray(np.full((COUNT, 2), step, as_dtype(dtype)))
    rows = xp.zeros((4, 2), as_dtype(dtype))
    add_rows(xp, rows, xp.asarray(np.full(COUNT, 1, np.int32)), values)
    total = np.asarray(COUNT * step, as_dtype(dtype))
    assert (on_host(rows) == [[0, 0], [total] * 2, [0, 0], [0, 0]]).all()
    out = xp.zeros((3, 4), as_dtype(dtype))
    add_at(xp, out, (xp.asarray(np.zeros(COUNT, np.int64)), slice(1, 3)), values)
    assert (on_host(out)[0] == [0, total, total, 0]).all() and not on_host(out)[1:].any()


@pytest.mark.parametrize("xp", NAMESPACES.values(), ids=NAMESPACES)
@given(index=st.lists(st.integers(0, 6), max_size=40), seed=st.integers(0, 99))
def test_sums_equal_those_of_float64(xp, index, seed):
    values = np.random.RandomState(seed).randn(len(index), 3)
    expected = np.zeros((7, 3))
    np.add.at(expected, index, values)
    rows = xp.zeros((7, 3), np.float32)
    add_rows(xp, rows, xp.asarray(np.array(index, np.int64)), xp.asarray(values.astype(np.float32)))
    np.testing.assert_allclose(on_host(rows), expected, atol=1e-5)
    out = xp.zeros((7, 3), np.float32)
    add_at(xp, out, (xp.asarray(np.array(index, np.int64)),), xp.asarray(values.astype(np.float32)))
    np.testing.assert_allclose(on_host(out), expected, atol=1e-5)


LOOKUPS = {
    "take": lambda x: mx.nd.take(x, mx.nd.zeros((COUNT,))),
    "gather_nd": lambda x: mx.nd.gather_nd(x, mx.nd.zeros((1, COUNT))),
    "indexing": lambda x: x[mx.nd.zeros((COUNT,), dtype="int32")],
    "Embedding": lambda x: mx.nd.Embedding(mx.nd.zeros((COUNT,)), x, input_dim=3, output_dim=2),
    "Pad": lambda x: mx.nd.pad(x.reshape((1, 1, 3, 2)), mode="edge", pad_width=(0, 0, 0, 0, COUNT - 1, 0, 0, 0)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_of_lookups_in_16_bits_are_exact(name, dtype):
    x = mx.nd.ones((3, 2)).astype(dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = LOOKUPS[name](x) * 0.25
    y.backward()
    assert (x.grad.asnumpy()[0].astype(np.float64) == COUNT * 0.25).all()
