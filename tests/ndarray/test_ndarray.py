"""Arrays: creation, arithmetic, indexing, copies, reading, files, interchange."""

import copy
import operator
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import AutogradError, DeviceError, MXNetError, ParameterError, ShapeError, TypeInferenceError

nd = mx.nd


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def equal(array, expected):
    values = array.asnumpy()
    expected = np.asarray(expected)
    assert values.shape == expected.shape
    np.testing.assert_allclose(values.astype(np.float64), expected.astype(np.float64), rtol=1e-6, atol=1e-6)


# -- creation ----------------------------------------------------------------------------------------------


def test_the_default_dtype_is_float32():
    for array in (nd.zeros(3), nd.ones((2, 3)), nd.array([1, 2]), nd.array(np.arange(3)), nd.arange(3), nd.eye(2)):
        assert array.dtype is np.float32
    assert nd.array(nd.zeros(2, dtype="int8")).dtype is np.int8


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        (lambda: nd.zeros((2, 3)), np.zeros((2, 3))),
        (lambda: nd.ones(2), np.ones(2)),
        (lambda: nd.full((2, 1), 7.5), np.full((2, 1), 7.5)),
        (lambda: nd.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (lambda: nd.arange(5), np.arange(5)),
        (lambda: nd.arange(1, 2, 0.25), np.arange(1, 2, 0.25)),
        (lambda: nd.arange(3, 0, -1, repeat=2), [3, 3, 2, 2, 1, 1]),
        (lambda: nd.linspace(0, 1, 5), np.linspace(0, 1, 5)),
        (lambda: nd.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False)),
        (lambda: nd.eye(2, 3, 1), np.eye(2, 3, 1)),
        (lambda: nd.zeros_like(nd.ones((2, 2))), np.zeros((2, 2))),
        (lambda: nd.ones((2, 2)).ones_like(), np.ones((2, 2))),
        (lambda: nd.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_creation(create, expected):
    equal(create(), expected)


def test_fill_a_given_array():
    a = nd.empty((2, 2))
    assert nd.ones((2, 2), out=a) is a
    equal(a, np.ones((2, 2)))


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "uint8", "int8", "int32", "int64", "bool"])
def test_dtypes(dtype):
    a = nd.array([0, 1, 2, 3], dtype=dtype)
    expected = np.array([0, 1, 2, 3]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert a.dtype is expected.dtype.type
    assert (a.asnumpy() == expected).all()
    assert (a.astype("float32").asnumpy() == expected.astype(np.float32)).all()
    if dtype != "bool":
        equal(a + a, expected + expected)
        equal(a * 3, expected * expected.dtype.type(3))
        equal(nd.dot(a, a), [14])
        equal(a.sum(), [6])


def test_astype_copies_only_when_asked():
    a = nd.ones(3)
    assert a.astype("float32", copy=False) is a
    assert a.astype("float32") is not a


# -- arithmetic --------------------------------------------------------------------------------------------

_BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod, operator.pow]
_COMPARE = [operator.eq, operator.ne, operator.gt, operator.ge, operator.lt, operator.le]


@pytest.mark.parametrize("compute", _BINARY, ids=lambda f: f.__name__)
def test_arithmetic(compute):
    a, b = np.abs(numbers(2, 3)) + 0.5, np.abs(numbers(2, 3, seed=1)) + 0.5
    x, y = nd.array(a), nd.array(b)
    equal(compute(x, y), compute(a, b))
    equal(compute(x, nd.array(b[:1])), compute(a, b[:1]))
    equal(compute(x, 1.5), compute(a, 1.5))
    equal(compute(1.5, x), compute(1.5, a))
    equal(compute(x, b), compute(a, b))


@pytest.mark.parametrize("compute", _COMPARE, ids=lambda f: f.__name__)
def test_comparisons_return_ones_and_zeros(compute):
    a, b = np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32)
    result = compute(nd.array(a), nd.array(b))
    assert result.dtype is np.float32
    equal(result, compute(a, b))
    equal(compute(nd.array(a), 2), compute(a, 2))


@pytest.mark.parametrize(
    ("compute", "method"),
    [
        (operator.iadd, np.add),
        (operator.isub, np.subtract),
        (operator.imul, np.multiply),
        (operator.itruediv, np.divide),
    ],
)
def test_in_place(compute, method):
    a, b = numbers(2, 3), np.abs(numbers(3, seed=1)) + 1
    x = nd.array(a)
    other = x
    x = compute(x, nd.array(b))
    assert x is other
    equal(x, method(a, b))
    x = compute(x, 2)
    equal(x, method(method(a, b), 2))


def test_in_place_on_a_view_changes_the_whole():
    a = nd.zeros((3, 4))
    a[1] += 1
    a[:, 2:] *= 5
    expected = np.zeros((3, 4))
    expected[1] += 1
    expected[:, 2:] *= 5
    equal(a, expected)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide),
        ("true_divide", np.divide), ("modulo", np.mod), ("power", np.power), ("maximum", np.maximum),
        ("minimum", np.minimum), ("equal", np.equal), ("not_equal", np.not_equal), ("greater", np.greater),
        ("greater_equal", np.greater_equal), ("lesser", np.less), ("lesser_equal", np.less_equal),
        ("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor),
    ],
)  # fmt: skip
def test_functions_of_two_take_numbers_on_either_side(name, method):
    function = getattr(nd, name)
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 1.0])
    equal(function(nd.array(a), nd.array(b)), method(a, b))
    equal(function(nd.array(a), 2), method(a, 2))
    equal(function(2, nd.array(a)), method(2, a))
    assert function(3.0, 2.0) == method(3.0, 2.0)


def test_unary():
    a = numbers(2, 3)
    equal(-nd.array(a), -a)
    equal(abs(nd.array(a)), np.abs(a))
    equal(nd.array(a) @ nd.array(a.T), a @ a.T)


def test_truth_and_numbers():
    assert bool(nd.array([3]))
    assert not nd.array([0])
    assert float(nd.array([1.5])) == 1.5
    assert int(nd.array([2])) == 2
    assert [10, 11, 12][nd.array([1], dtype="int32")] == 11
    with pytest.raises(ValueError, match="ambiguous"):
        bool(nd.ones(2))
    with pytest.raises(ValueError, match=r"shape \(2,\), expected exactly one"):
        nd.ones(2).asscalar()


# -- indexing ----------------------------------------------------------------------------------------------

_KEYS = [
    0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(3, 0, -2), (0, 1), (slice(1, 3), 2),
    (Ellipsis, 0), (0, Ellipsis), (slice(None), None, 1), None, (slice(0, 0),), (1, slice(None), slice(1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("key", _KEYS, ids=str)
def test_basic_keys_share_contiguous_memory(key):
    a = numbers(4, 3, 2)
    x = nd.array(a)
    part = x[key]
    equal(part, a[key])
    part[:] = 7
    if a[key].flags.c_contiguous:
        a[key] = 7
    equal(x, a)


def test_a_change_of_a_column_does_not_change_the_array():
    a = nd.zeros((2, 3))
    column, row, last = a[:, 1], a[1], a[1, 2]
    column += 1
    assert a.asnumpy().tolist() == [[0, 0, 0], [0, 0, 0]]
    row += 1
    last += 1
    a[:, 1] += 5
    assert a.asnumpy().tolist() == [[0, 5, 0], [1, 6, 2]]


@pytest.mark.parametrize("key", _KEYS, ids=str)
def test_assignment(key):
    a = numbers(4, 3, 2)
    x = nd.array(a)
    value = numbers(*a[key].shape, seed=2)
    x[key] = nd.array(value)
    a[key] = value
    equal(x, a)
    x[key] = value + 1
    a[key] = value + 1
    equal(x, a)


def test_views_of_views():
    a = numbers(4, 6)
    x = nd.array(a)
    equal(x[1:][:, ::2][::-1].reshape((3, 3)), a[1:][:, ::2][::-1])
    row = x[2][1:5]
    row[:] = 0
    a[2][1:5] = 0
    equal(x, a)


@pytest.mark.parametrize(
    "key",
    [
        [0, 2], np.array([0, 2, 0]), ([0, 1], [2, 2]), (slice(None), [2, 0]), ([0, 1], slice(1, 3)),
        (Ellipsis, [0, 1]), np.array([[0, 1], [3, 3]]), (np.array([True, False, True, False]),),
        (0, [1, 2]), (slice(1, 3), None, [1, 1]), range(2), range(3, -1, -2), range(0), (slice(None), range(0, 3, 2)),
        (range(2), range(1, 3)), (range(2), [0, 2]), (Ellipsis, range(2)), (None, range(-2, 0)), (1, range(2)),
    ],
    ids=str,
)  # fmt: skip
def test_index_arrays(key):
    a = numbers(4, 3, 2)
    x = nd.array(a)
    equal(x[key], a[key])
    x[key] = 3
    a[key] = 3
    equal(x, a)


def test_arrays_as_keys():
    a = numbers(4, 3)
    x = nd.array(a)
    equal(x[nd.array([1, 3])], a[[1, 3]])
    equal(x[nd.array([1, 3], dtype="int32"), nd.array([0, 2])], a[[1, 3], [0, 2]])
    equal(x[x.asnumpy() > 0], a[a > 0])


@pytest.mark.parametrize("axis", range(-3, 3))
def test_slices_that_a_mask_chooses(axis):
    a = numbers(4, 4, 4)
    masked = nd.contrib.boolean_mask(nd.array(a), nd.array([0, 1, 0, 1]), axis=axis)
    equal(masked, np.take(a, [1, 3], axis))
    with pytest.raises(mx.base.MXNetError, match=r"index has shape \(3,\), expected \(4,\)"):
        nd.contrib.boolean_mask(nd.array(a), nd.array([0, 1, 0]), axis=axis)


def test_gradients_go_through_keys():
    x = nd.array(numbers(4, 3))
    x.attach_grad()
    with mx.autograd.record():
        y = x[1:3, 0].sum() + (x[[0, 0, 3]] * 2).sum() + x[::-1][0].sum() + x[range(3), range(3)].sum()
    y.backward()
    expected = np.eye(4, 3)
    expected[1:3, 0] += 1
    np.add.at(expected, [0, 0, 3], 2)
    expected[3] += 1
    equal(x.grad, expected)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (9, IndexError, "index 9 is out of bounds for axis 0"),
        ((0, 0, 0), IndexError, "too many indices"),
        ("a", IndexError, "expected a number, slice"),
        ({0, 1}, IndexError, "expected a number, slice"),
        (range(4, 6), IndexError, "index 4 is out of bounds"),
    ],
)
def test_bad_keys(key, error, message):
    with pytest.raises(error, match=message):
        nd.ones((4, 3))[key].asnumpy()


def test_a_bool_alone_is_a_number():
    x = nd.array(numbers(3, 2))
    equal(x[True], x.asnumpy()[1])
    x[False] = 7
    equal(x[0], np.array([7, 7]))


def test_a_value_with_a_wrong_shape():
    with pytest.raises(ShapeError, match=r"the value has shape \(2,\), the key selects \(3,\)"):
        nd.ones((4, 3))[0] = [1, 2]


@pytest.mark.parametrize(
    ("codes", "reverse", "expected"),
    [
        ((4, 6), False, (4, 6)), ((-1,), False, (24,)), ((0, -1), False, (2, 12)), ((-2, 1), False, (2, 3, 4, 1)),
        ((-3, 0), False, (6, 4)), ((0, -3), False, (2, 12)), ((-4, 1, 2, -2), False, (1, 2, 3, 4)),
        ((0, -4, -1, 3, 0), False, (2, 1, 3, 4)), ((-1, 0), True, (6, 4)), ((-4, 1, 2, -3), False, (1, 2, 12)),
    ],
)  # fmt: skip
def test_reshape_codes(codes, reverse, expected):
    a = numbers(2, 3, 4)
    x = nd.array(a)
    view = x.reshape(codes, reverse=reverse)
    equal(view, a.reshape(expected))
    view[:] = 0
    equal(x, np.zeros((2, 3, 4)))
    equal(nd.reshape(nd.array(a), shape=codes, reverse=reverse), a.reshape(expected))


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ((5, 5), "it has 25 elements, the input 24"), ((-1, -1), "at most one axis can be -1"),
        ((7, -1), "24 elements cannot be divided by 7"), ((0, 0, 0, 0), "needs one more axis"),
        ((-4, 5, 5, -2), "cannot split 2 into 5 by 5"), ((-9,), "-9 is not a code"),
    ],
)  # fmt: skip
def test_bad_reshape_codes(codes, message):
    with pytest.raises(ShapeError, match=message):
        nd.ones((2, 3, 4)).reshape(codes)


# -- moving, reading ---------------------------------------------------------------------------------------


def test_between_devices():
    a = nd.array([1, 2, 3], ctx=mx.cpu(0))
    b = a.as_in_context(mx.cpu(1))
    assert b.context == mx.cpu(1)
    assert a.as_in_context(mx.cpu(0)) is a
    equal(b + 1, [2, 3, 4])
    c = nd.zeros(3, ctx=mx.cpu(1), dtype="int32")
    assert a.copyto(c) is c
    equal(c, [1, 2, 3])
    assert a.copyto(mx.cpu(1)).context == mx.cpu(1)
    with pytest.raises(DeviceError, match="bring them together with as_in_context"):
        a + nd.zeros(3, ctx=mx.sim(0))
    with pytest.raises(ShapeError, match=r"target has shape \(2,\), expected \(3,\)"):
        a.copyto(nd.zeros(2))


def test_gradients_go_through_devices():
    a = nd.array([1, 2, 3], ctx=mx.cpu(0))
    a.attach_grad()
    with mx.autograd.record():
        y = (a.as_in_context(mx.cpu(1)) * 2).sum()
    y.backward()
    equal(a.grad, [2, 2, 2])
    assert a.grad.context == mx.cpu(0)


async def test_await():
    a = nd.ones((2, 2))
    b = await (a + 1)
    equal(b, np.full((2, 2), 2))
    assert (await b) is b


def test_copies_are_independent():
    a = nd.ones(2)
    for copied in (a.copy(), copy.copy(a), copy.deepcopy(a)):
        copied[:] = 5
    equal(a, [1, 1])


def test_repr():
    assert repr(nd.ones((2, 1))) == "\n[[1.]\n [1.]]\n<NDArray 2x1 @cpu(0)>"
    assert "IndexOutOfRange" in repr(nd.take(nd.ones(3), nd.array([7]), mode="raise"))


def test_iteration_and_length():
    a = numbers(3, 2)
    assert len(nd.array(a)) == 3
    for row, expected in zip(nd.array(a), a, strict=True):
        equal(row, expected)
    assert 2 in nd.array([1, 2])
    with pytest.raises(TypeError, match="0-d"):
        len(nd.array(1))


def test_pickling():
    a = nd.array(numbers(2, 3), ctx=mx.cpu(1))
    b = pickle.loads(pickle.dumps(a))
    assert b.context == mx.cpu(1)
    equal(b, a.asnumpy())


# -- interchange -------------------------------------------------------------------------------------------


def test_numpy():
    a = nd.array(numbers(2, 3))
    assert isinstance(np.asarray(a), np.ndarray)
    equal(a * np.ones((2, 3)), a.asnumpy())
    assert isinstance(np.ones((2, 3)) * a, nd.NDArray)
    host = a.asnumpy()
    host[:] = 0
    assert a.asnumpy().any()


def test_from_numpy_shares_memory():
    a = numbers(2, 3)
    x = nd.from_numpy(a)
    x[:] = 7
    x.wait_to_read()
    assert (a == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    b = numbers(2, 3)
    y = nd.from_numpy(b, zero_copy=False)
    y[:] = 7
    y.wait_to_read()
    assert not (b == 7).any()
    with pytest.raises(ValueError, match="zero_copy=False"):
        nd.from_numpy(numbers(3, 2).T)


def test_dlpack_round_trip_shares_memory():
    a = nd.array(numbers(2, 3))
    for capsule in (a.to_dlpack_for_read(), a.to_dlpack_for_write(), nd.to_dlpack_for_write(a), a):
        equal(nd.from_dlpack(capsule), a.asnumpy())
    b = nd.from_dlpack(a.to_dlpack_for_write())
    b[:] = 4
    b.wait_to_read()
    equal(a, np.full((2, 3), 4))
    assert (np.from_dlpack(a) == 4).all()


def test_save_and_load(tmp_path):
    a, b = nd.array(numbers(2, 3)), nd.array([1, 2], dtype="int32")
    path = tmp_path / "arrays.params"
    nd.save(str(path), {"a": a, "b": b})
    loaded = nd.load(str(path))
    assert list(loaded) == ["a", "b"]
    equal(loaded["a"], a.asnumpy())
    assert loaded["b"].dtype is np.int32
    nd.save(path, [a, b])
    equal(nd.load_frombuffer(path.read_bytes())[1], [1, 2])
    nd.save(path, a)
    (alone,) = nd.load(path)
    alone += 1
    equal(alone, a.asnumpy() + 1)
    with pytest.raises(TypeError, match="save: data holds int"):
        nd.save(path, [1])


# -- joining and methods -----------------------------------------------------------------------------------


def test_joining_and_splitting():
    a = numbers(2, 6)
    x = nd.array(a)
    equal(nd.concatenate([x, x], axis=1), np.concatenate([a, a], axis=1))
    assert nd.concatenate([x], always_copy=False) is x
    for part, expected in zip(nd.split_v2(x, 3, axis=1), np.split(a, 3, axis=1), strict=True):
        equal(part, expected)
    for part, expected in zip(x.split_v2((1, 4), axis=1), np.split(a, (1, 4), axis=1), strict=True):
        equal(part, expected)
    equal(nd.moveaxis(nd.array(numbers(2, 3, 4)), (0, 1), (-1, 0)), np.moveaxis(numbers(2, 3, 4), (0, 1), (-1, 0)))
    equal(nd.onehot_encode(nd.array([1, 0]), nd.zeros((2, 3))), [[0, 1, 0], [1, 0, 0]])
    with pytest.raises(ShapeError, match="moveaxis: source"):
        nd.moveaxis(x, 5, 0)


def test_methods():
    a = numbers(2, 3)
    x = nd.array(a)
    equal(x.sum(), [a.sum()])
    equal(x.sum(axis=1, keepdims=True), a.sum(1, keepdims=True))
    equal(x.mean(0), a.mean(0))
    equal(x.transpose(1, 0), a.T)
    equal(x.transpose((1, 0)), a.T)
    equal(x.transpose(), a.T)
    equal(x.T, a.T)
    equal(x.expand_dims(0), a[None])
    equal(x.clip(-0.5, 0.5), a.clip(-0.5, 0.5))
    equal(x.take(nd.array([1])), a[[1]])
    equal(x.argmax(axis=1), a.argmax(1))
    equal(x.broadcast_to((4, 2, 3)), np.broadcast_to(a, (4, 2, 3)))
    equal(x.split(3)[1], a[:, 1:2])
    assert nd.NDArray.sum.__doc__.startswith("The sum over")


def test_signatures_are_real():
    import inspect

    assert list(inspect.signature(nd.sum).parameters)[:4] == ["data", "axis", "keepdims", "exclude"]
    assert list(inspect.signature(nd.NDArray.sum).parameters)[:4] == ["self", "axis", "keepdims", "exclude"]


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nd.zeros((2, -1)), ShapeError, r"shape is \(2, -1\), expected lengths from 0"),
        (lambda: nd.zeros("x"), ShapeError, "expected ints"),  # type: ignore[arg-type]
        (lambda: nd.ones(2, dtype="float99"), TypeInferenceError, "dtype is 'float99', expected one of"),
        (lambda: nd.zeros(2, stype="csr"), ValueError, "a csr array has 2 axes"),
        (lambda: nd.ones((2, 3)) + nd.ones((2, 4)), ShapeError, "do not broadcast"),
        (lambda: nd.ones(2) + nd.ones(2, dtype="int32"), TypeInferenceError, "has dtype int32, expected float32"),
        (lambda: nd.dot(nd.ones((2, 3)), nd.ones((2, 3))), ShapeError, "dot: .*lengths 3 and 2, expected the same"),
        (lambda: nd.sum(nd.ones((2, 3)), axis=2), ShapeError, "sum: axis is 2, expected -2 to 1"),
        (lambda: nd.sum(nd.ones(2), axes=1), ParameterError, "no parameter 'axes', only .*; did you mean 'axis'"),  # type: ignore[call-arg]
        (lambda: nd.sum([1, 2]), TypeError, "sum: input data is list .*, expected an NDArray"),  # type: ignore[arg-type]
        (lambda: nd.expand_dims(nd.ones(2)), ParameterError, "missing parameter axis"),  # type: ignore[call-arg]
        (lambda: nd.Concat(nd.ones((2, 3)), nd.ones((3, 3))), ShapeError, r"Concat: input 1 has shape \(3, 3\)"),
        (lambda: nd.softmx(nd.ones(2)), AttributeError, "did you mean 'softmax'"),  # type: ignore[attr-defined]
        (lambda: nd.arange(3, step=0), ParameterError, "step is 0"),
        (lambda: nd.Embedding(nd.ones(2), nd.ones((2, 2)), input_dim=3, output_dim=2), ShapeError,
         r"weight has shape \(2, 2\), expected \(3, 2\)"),
        (lambda: nd.take(nd.ones(3), nd.array([5]), mode="raise").asnumpy(), IndexError, "expected -3 to 2"),
        (lambda: nd.topk(nd.ones(3), k=4), ShapeError, "k is 4, expected at most 3"),
        (lambda: nd.pad(nd.ones((2, 2)), mode="edge", pad_width=(1, 1)), ShapeError, "expected 4 numbers"),
        (lambda: nd.split(nd.ones((2, 3)), num_outputs=2), ShapeError, "is 3, expected a multiple of 2"),
        (lambda: nd.squeeze(nd.ones((2, 3)), axis=0), ShapeError, "has length 2, expected 1"),
        (lambda: nd.broadcast_to(nd.ones((2, 3)), shape=(4, 3)), ShapeError, "does not broadcast"),
        (lambda: nd.where(nd.ones(2), nd.ones(2), nd.ones(3)), ShapeError, r"y has shape \(3,\), expected \(2,\)"),
    ],
)  # fmt: skip
def test_errors_name_the_cause(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_errors_are_mxnet_errors_too():
    with pytest.raises(MXNetError):
        nd.ones((2, 3)) + nd.ones((2, 4))


def test_variables_are_not_changed_in_place_while_recording():
    x = nd.ones(3)
    x.attach_grad()
    with mx.autograd.record(), pytest.raises(AutogradError, match="cannot be changed in place"):
        x += 1


def test_pickles_of_earlier_versions_are_read():
    """Names that pickles contain, such as ``_unpickled``, are part of the format."""
    path = Path(__file__).parent.parent / "fixtures" / "arrays.pickle"
    dense, sparse, array, context = pickle.loads(path.read_bytes())
    np.testing.assert_array_equal(dense.asnumpy(), np.arange(12).reshape(3, 4))
    assert sparse.stype == "csr" and (sparse.asnumpy() == 1).all()
    assert isinstance(array, mx.np.ndarray) and array.asnumpy().tolist() == [1, 1]
    assert context == mx.cpu(0)


def test_a_full_slice_assigns_an_array_without_axes():
    with mx.util.np_shape(True):
        scalar = mx.nd.array(np.float32(3))
        scalar[:] = 5
        assert scalar.shape == () and scalar.asscalar() == 5
        x, y = mx.sym.Variable("x"), mx.sym.Variable("y", shape=())
        executor = mx.sym.broadcast_add(x, y).simple_bind(mx.cpu(), grad_req="null", x=(2,), y=())
        executor.forward(x=mx.nd.ones((2,)), y=scalar)
        np.testing.assert_array_equal(executor.outputs[0].asnumpy(), [6, 6])
