"""The native forms of computations on small arrays give NumPy's bits."""

import numpy as np
import pytest

from flowmx.ops.kernels import blas
from flowmx.ops.kernels.llvm import native_run
from flowmx.ops.kernels.small_arrays import native_form
from flowmx.ops.registry.operators import lookup

pytestmark = pytest.mark.skipif(not native_run.prepare(), reason="native runs are not possible here")

RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -3.5, 1e38], np.float32)


def form_of(op, inputs, out):
    return native_form(op, [(each.shape, each.dtype) for each in inputs], [(out.shape, out.dtype)])


def check(op, inputs, expected):
    """Compare a form with NumPy's result, bit by bit; return whether there is one."""
    out = np.full_like(expected, 7)
    form = form_of(op, inputs, out)
    if form is None:
        return False
    form(inputs, [out])
    assert out.tobytes() == expected.tobytes()
    return True


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def sizes(count):
    return [tuple(map(int, RNG.integers(1, 50, 3))) for _ in range(count)]


def test_products_of_gradients():
    if not blas.product(2, 2, 2, False):
        pytest.skip("another BLAS")
    forms = 0
    for rows, units, inputs in sizes(200):
        head, weight, data = normal(rows, units), normal(units, inputs), normal(rows, inputs)
        of_data = lookup("_backward_FullyConnected_data").create(num_hidden=units)
        of_weight = lookup("_backward_FullyConnected_weight").create(num_hidden=units)
        multiply = np.multiply if rows == 1 else np.matmul
        forms += check(of_data, [head, weight], np.matmul(head, weight))
        forms += check(of_weight, [head, data], np.ascontiguousarray(multiply(head.T, data)))
    assert forms > 360


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_columns(dtype):
    op = lookup("_backward_bias").create(axis=-1)
    for rows, columns, groups in sizes(100):
        head = normal(groups, rows, columns, dtype=dtype)
        expected = head.reshape(-1, columns).sum(axis=0)
        assert check(op, [head], expected) == (columns > 1 or 8 <= rows * groups <= 128)
        assert check(op, [head[0]], np.add.reduce(head[0], 0)) == (columns > 1 or rows >= 8)


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
def test_batches_of_columns_times_rows(turn_a, turn_b):
    op = lookup("batch_dot").create(transpose_a=turn_a, transpose_b=turn_b)
    for batch, rows, columns in sizes(20):
        x = normal(batch, *((1, rows) if turn_a else (rows, 1)))
        y = normal(batch, *((columns, 1) if turn_b else (1, columns)))
        expected = np.matmul(x.swapaxes(1, 2) if turn_a else x, y.swapaxes(1, 2) if turn_b else y)
        assert check(op, [x, y], expected)
    assert not check(op, [normal(2, 3, 3), normal(2, 3, 3)], normal(2, 3, 3))


@pytest.mark.parametrize("count", [8, 9, 15, 16, 31, 64, 127, 128])
def test_a_single_column_is_added_up_in_pairs(count):
    op = lookup("_backward_bias").create(axis=-1)
    head = normal(count, 1)
    assert check(op, [head], np.add.reduce(head, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), [((5, 7), None), ((5, 7), 1), ((2, 3, 4), (1, 2)), ((40,), 0), ((3, 1), 1)])
def test_gradients_of_sums_and_means_fill_rows(shape, axis, dtype):
    x = normal(*shape, dtype=dtype)
    head = np.atleast_1d(x.sum(axis=axis))
    wide = np.broadcast_to(x.sum(axis=axis, keepdims=True), shape).copy()
    assert check(lookup("_backward_sum").create(axis=axis), [head, x], wide)
    assert check(lookup("_backward_mean").create(axis=axis), [head, x], wide / dtype(x.size // head.size))


def test_a_gradient_of_a_sum_over_first_axes_has_no_form():
    op = lookup("_backward_sum").create(axis=0)
    assert not check(op, [normal(7), normal(5, 7)], np.empty((5, 7), np.float32))


@pytest.mark.parametrize(("shape", "offset", "strides"), [((1,), 3, (1,)), ((4,), 4, (1,)), ((2, 4), 4, (4, 1))])
def test_a_part_in_zeros(shape, offset, strides):
    head, expected = normal(*shape), np.zeros((3, 4), np.float32)
    expected.reshape(-1)[offset : offset + head.size] = head.reshape(-1)
    op = lookup("_embedded_part").create(whole=(3, 4), shape=shape, offset=offset, strides=strides)
    assert check(op, [head], expected)


def test_a_part_with_gaps_has_no_form():
    op = lookup("_embedded_part").create(whole=(3, 4), shape=(3, 1), offset=1, strides=(4, 1))
    assert not check(op, [normal(3, 1)], np.zeros((3, 4), np.float32))


@pytest.mark.parametrize(("shape", "axis", "has_form"), [((3, 5), 0, True), ((1, 3, 5), 1, True), ((5, 3), 1, False)])
def test_parts_of_an_array(shape, axis, has_form):
    x = normal(*shape)
    expected = [np.ascontiguousarray(each) for each in np.split(x, 3, axis)]
    outputs = [np.full_like(each, 7) for each in expected]
    op = lookup("SliceChannel").create(num_outputs=3, axis=axis)
    form = native_form(op, [(x.shape, x.dtype)], [(each.shape, each.dtype) for each in outputs])
    assert (form is not None) == has_form
    if form is not None:
        form([x], outputs)
        assert all(map(np.array_equal, outputs, expected))


def test_outer_product_keeps_signs_of_zeros():
    op = lookup("_backward_FullyConnected_weight").create(num_hidden=len(SPECIAL))
    head, data = SPECIAL[None], np.array([[0.0, -0.0, 1.0, -2.0]], np.float32)
    with np.errstate(all="ignore"):
        expected = np.ascontiguousarray(np.multiply(head.T, data))
    out = np.empty_like(expected)
    form_of(op, [head, data], out)([head, data], [out])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(np.signbit(out[:2]), np.signbit(expected[:2]))


@pytest.mark.parametrize(
    ("name", "function", "count"),
    [("broadcast_add", np.add, 2), ("broadcast_mul", np.multiply, 2), ("broadcast_sub", np.subtract, 2),
     ("broadcast_div", np.divide, 2), ("negative", np.negative, 1), ("_mul_scalar", lambda x: x * np.float32(0.9), 1)],
)  # fmt: skip
def test_arithmetic(name, function, count):
    op = lookup(name).create(**({"scalar": 0.9} if "scalar" in name else {}))
    for shape in ((1,), (5,), (16,), (3, 17), (4, 100)):
        inputs = [normal(*shape) for _ in range(count)]
        assert check(op, inputs, function(*inputs))
    grid = [each.ravel() for each in np.meshgrid(SPECIAL, SPECIAL)][:count]
    with np.errstate(all="ignore"):
        expected = function(*grid)
    out = np.empty_like(expected)
    form_of(op, grid, out)(grid, [out])
    np.testing.assert_array_equal(out, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(out[is_number]), np.signbit(expected[is_number]))


def test_reshape_copies():
    assert check(lookup("reshape_like").create(), [normal(3, 4), normal(12)], np.empty(0)) is False
    x, like = normal(3, 4), normal(12)
    out = np.empty_like(like)
    form_of(lookup("reshape_like").create(), [x, like], out)([x, like], [out])
    assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize("name", ["exp", "tanh", "broadcast_power", "log_softmax", "dot"])
def test_other_operators_have_no_form(name):
    inputs = [normal(4, 4)] * (2 if name in ("broadcast_power", "dot") else 1)
    assert form_of(lookup(name).create(), inputs, normal(4, 4)) is None


def test_shapes_and_dtypes_without_a_form():
    add = lookup("broadcast_add").create()
    assert form_of(add, [normal(3, 4), normal(4)], normal(3, 4)) is None
    assert form_of(add, [normal(3, 4, dtype=np.float16)] * 2, normal(3, 4, dtype=np.float16)) is None
    assert form_of(add, [normal(0, 4)] * 2, normal(0, 4)) is None
    assert form_of(add, [np.arange(3)] * 2, np.arange(3)) is None
