"""Compiled loops over numbers of 16 bits: widened as they are loaded, rounded as they are stored, as NumPy does."""

import ml_dtypes
import numpy as np
import pytest

import flowmx as mx
from flowmx.devices import cpu, get
from flowmx.ops.kernels.llvm.casts import copy
from flowmx.ops.kernels.llvm.elementwise import float_type_of
from flowmx.ops.math.conversion import as_type
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup

pytestmark = pytest.mark.skipif(float_type_of(np.dtype(np.float16)) is None, reason="the processor has no float16")

HALVES = [np.float16, ml_dtypes.bfloat16]
EDGES = [0, -0.0, np.inf, -np.inf, np.nan, 1e-8, 6e-8, 65504, 65519, 65520, -65536, 3e38, 1e-40, 1.00390625, 1.01171875]


def bits(array):
    return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint32)


def assert_same(result, expected):
    """Assert that results have the expected bits, and NaN where NaN is expected."""
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), nan)
    np.testing.assert_array_equal(bits(result)[~nan], bits(expected)[~nan])


@pytest.mark.parametrize("half", HALVES)
def test_widening_matches_numpy(half):
    numbers = np.arange(1 << 16, dtype=np.uint16).view(half)
    actual = np.empty(numbers.shape, np.float32)
    assert copy(numbers, actual)
    with np.errstate(invalid="ignore"):  # some processors report a signaling NaN
        expected = numbers.astype(np.float32)
    assert_same(actual, expected)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("size", [1024, 1031, 1 << 18])
def test_rounding_matches_numpy(half, size):
    random = np.random.default_rng(size)
    numbers = random.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32)  # numbers of every kind
    numbers[: len(EDGES)] = EDGES
    actual = np.empty(numbers.shape, half)
    assert copy(numbers, actual)
    with np.errstate(all="ignore"):
        assert_same(actual, numbers.astype(half))


@pytest.mark.parametrize("half", HALVES)
def test_every_memory_order(half):
    numbers = np.random.default_rng(1).normal(size=(8, 6, 10, 10)).astype(np.float32)
    for array in (numbers.transpose(0, 3, 1, 2), numbers[:, :, ::2], np.asfortranarray(numbers)):
        narrow = as_type(Run(get(cpu()), False), array, np.dtype(half))
        assert narrow.shape == array.shape
        np.testing.assert_array_equal(narrow, array.astype(half))
    assert not copy(numbers.transpose(0, 3, 1, 2), np.empty((8, 10, 6, 10), half))  # NumPy changes the memory order


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("size", [8192, 8199])
@pytest.mark.parametrize(
    ("name", "formula", "units"),
    [
        ("elemwise_add", np.add, 0), ("elemwise_mul", np.multiply, 0), ("square", np.square, 0),
        ("relu", lambda x: np.maximum(x, 0), 0), ("exp", np.exp, 1), ("tanh", np.tanh, 1),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 1),
    ],
)  # fmt: skip
def test_computes_in_float32_and_rounds_once(half, size, name, formula, units):
    random = np.random.default_rng(3)
    op = lookup(name).create()
    inputs = [random.normal(size=size).astype(half) for _ in op.inputs()]
    out = np.empty(size, half)
    kernel = kernel_for("cpu", op.name)
    assert kernel.try_compute(np, op, inputs, [out])
    expected = formula(*[each.astype(np.float32) for each in inputs]).astype(half)
    distance = np.abs(bits(out).astype(np.int32) - bits(expected).astype(np.int32))
    assert distance[expected != 0].max() <= units


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chains(dtype):
    """Several operators in one loop, with a broadcast bias, round once instead of after each operator."""
    x, b = mx.sym.var("x"), mx.sym.var("b")
    net = mx.sym.tanh(mx.sym.broadcast_add(x * 2, b)) * x
    random = np.random.default_rng(5)
    arrays = {"x": mx.nd.array(random.normal(size=(70, 50))), "b": mx.nd.array(random.normal(size=(1, 50)))}
    arrays = {name: each.astype(dtype) for name, each in arrays.items()}
    bound = net.bind(mx.cpu(), arrays)
    assert [node.op.name for node in bound._mode(False).plan.forward] == ["_chain"]
    actual = bound.forward()[0].astype("float32").asnumpy()
    wide = {name: each.astype("float32").asnumpy() for name, each in arrays.items()}
    expected = np.tanh(wide["x"] * 2 + wide["b"]) * wide["x"]
    np.testing.assert_allclose(actual, expected, rtol=2**-8 if dtype == "bfloat16" else 2**-10, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layers_compute_in_float32_between(dtype):
    """BatchNorm on 16-bit data updates float32 statistics."""
    random = np.random.default_rng(7)
    x = mx.nd.array(random.normal(2, 3, (8, 4, 10, 10))).astype(dtype)
    mean, var = mx.nd.zeros(4), mx.nd.ones(4)
    with mx.autograd.train_mode():
        y = mx.nd.BatchNorm(x, mx.nd.ones(4), mx.nd.zeros(4), mean, var, fix_gamma=False, momentum=0.5)
    wide = x.astype("float32").asnumpy()
    np.testing.assert_allclose(mean.asnumpy(), wide.mean((0, 2, 3)) / 2, rtol=1e-3)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y.astype("float32").asnumpy().mean((0, 2, 3)), 0, atol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_kernels_use_a_loop_from_the_minimum_size(dtype):
    op, kernel = lookup("tanh").create(), kernel_for("cpu", "tanh")
    sizes = (2**power for power in range(24))
    least = next(size for size in sizes if kernel.bind(op, *forms(size, dtype)) != op.forward)
    assert least <= (1 << 14 if dtype is np.float32 else 1024)
    bound = kernel.bind(op, *forms(least, dtype))
    numbers, actual = np.linspace(-3, 3, least).astype(dtype), np.empty(least, dtype)
    bound(Run(get(cpu()), False), [numbers], [actual])
    expected = np.empty_like(numbers)
    kernel.compute(op, Run(get(cpu()), False), [numbers], [expected])
    np.testing.assert_array_equal(bits(actual), bits(expected))


def forms(size, dtype):
    form = (size,), np.dtype(dtype)
    return [form], [form]
