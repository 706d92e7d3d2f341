"""The operators on shapes, indices and matrices, beyond the tables of tests/op_cases."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ShapeError
from flowmx.ops import lookup
from flowmx.ops.arrays.reshape_codes import resolve_reshape
from tests.strided import strided

nd = mx.nd


def infer(name, *shapes, **params):
    return lookup(name).create(**params).infer_shape(list(shapes))


@pytest.mark.parametrize(
    ("name", "params", "known_shapes", "inputs", "outputs"),
    [
        ("sum", {}, [None], [None], [(1,)]),
        ("sum", {"axis": 1}, [None], [None], [None]),
        ("sum", {"axis": 1}, [(-1, 3)], [(-1, 3)], [(-1,)]),
        ("mean", {"axis": 0, "keepdims": True}, [(-1, 3)], [(-1, 3)], [(1, 3)]),
        ("Reshape", {"shape": (0, -1)}, [None], [None], [(-1, -1)]),
        ("Reshape", {"shape": (4, 5)}, [None], [None], [(4, 5)]),
        ("Reshape", {"shape": (0, -1)}, [(-1, 3, 4)], [(-1, 3, 4)], [(-1, -1)]),
        ("Reshape", {"shape": (-3, 0)}, [(2, -1, 4)], [(2, -1, 4)], [(-1, 4)]),
        ("Flatten", {}, [(-1, 3, 4)], [(-1, 3, 4)], [(-1, 12)]),
        ("Flatten", {}, [None], [None], [(-1, -1)]),
        ("transpose", {"axes": (1, 0)}, [(-1, 3)], [(-1, 3)], [(3, -1)]),
        ("slice", {"begin": (1,), "end": (3,)}, [(-1, 4)], [(-1, 4)], [(-1, 4)]),
        ("slice_axis", {"axis": 1, "begin": 0, "end": 2}, [(-1, 4)], [(-1, 4)], [(-1, 2)]),
        ("Concat", {"num_args": 2}, [(2, 3), None], [(2, 3), (2, -1)], [(2, -1)]),
        ("Concat", {"num_args": 2}, [(-1, 3), (5, 1)], [(5, 3), (5, 1)], [(5, 4)]),
        ("stack", {"num_args": 2}, [(2, 3), None], [(2, 3), (2, 3)], [(2, 2, 3)]),
        ("SliceChannel", {"num_outputs": 2}, [(-1, 4)], [(-1, 4)], [(-1, 2), (-1, 2)]),
        ("SliceChannel", {"num_outputs": 2}, [None], [None], [None, None]),
        ("Embedding", {"input_dim": 5, "output_dim": 2}, [(-1, 3), None], [(-1, 3), (5, 2)], [(-1, 3, 2)]),
        ("Embedding", {"input_dim": 5, "output_dim": 2}, [None, None], [None, (5, 2)], [None]),
        ("dot", {}, [(-1, 3), (3, 4)], [(-1, 3), (3, 4)], [(-1, 4)]),
        ("dot", {}, [None, (3, 4)], [None, (3, 4)], [None]),
        ("batch_dot", {}, [(-1, 2, 3), (7, 3, 4)], [(-1, 2, 3), (7, 3, 4)], [(7, 2, 4)]),
        ("where", {}, [None, (2, 3), None], [None, (2, 3), (2, 3)], [None]),  # a condition may be a vector
        ("pick", {}, [(2, 3), None], [(2, 3), (2,)], [(2,)]),
        ("add_n", {"num_args": 2}, [(-1, 3), (2, -1)], [(2, 3), (2, 3)], [(2, 3)]),
        ("tile", {"reps": (2, 2)}, [(-1, 3)], [(-1, 3)], [(-1, 6)]),
        ("Pad", {"mode": "edge", "pad_width": (0, 0, 1, 2)}, [(-1, 3)], [(-1, 3)], [(-1, 6)]),
        ("SequenceMask", {"use_sequence_length": True}, [(4, 2, 3), None], [(4, 2, 3), (2,)], [(4, 2, 3)]),
        ("_zeros", {"shape": (0, 3)}, [], [], [(0, 3)]),  # in graphs, the reader completes it: test_like_mxnet_gluon.py
        ("broadcast_add", {}, [(-1, 3), (2, 1)], [(-1, 3), (2, 1)], [(2, 3)]),
    ],
)  # fmt: skip
def test_partial_shapes(name, params, known_shapes, inputs, outputs):
    assert infer(name, *known_shapes, **params) == (inputs, outputs)


@pytest.mark.parametrize(
    ("old", "codes", "expected"),
    [
        ((-1, 3), (-1,), (-1,)), ((-1, 6), (0, -4, 2, -1), (-1, 2, 3)), ((-1, 3), (0, 3, 1), (-1, 3, 1)),
        ((), (1,), (1,)), ((1,), (), ()), ((0, 3), (0, 3), (0, 3)),
    ],
)  # fmt: skip
def test_reshape_of_partly_known_shapes(old, codes, expected):
    assert resolve_reshape(old, codes) == expected


def test_reshape_matches_codes_from_the_right():
    assert resolve_reshape((10, 5, 4), (-1, 0), reverse=True) == (50, 4)
    assert resolve_reshape((10, 5, 4), (-1, 0), reverse=False) == (40, 5)


def test_the_legacy_form_of_reshape():
    x = nd.arange(12).reshape((3, 4))
    assert nd.Reshape(x, target_shape=(2, 0)).shape == (2, 6)
    assert nd.Reshape(x, target_shape=(0, 4), keep_highest=True).shape == (3, 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single(dtype):
    x = nd.ones((4096,), dtype=dtype)
    assert float(nd.sum(x)) == 4096  # a half-precision sum would stop at 2048, or 256
    assert float(nd.mean(x)) == 1
    assert float(nd.dot(x, x)) == 4096


def test_integers_stay_integers():
    x = nd.array([[1, 2], [3, 5]], dtype="int32")
    assert nd.sum(x).dtype is np.int32
    assert nd.mean(x).asnumpy() == 2
    assert nd.clip(x, -1e20, 2.5).asnumpy().tolist() == [[1, 2], [2, 2]]
    assert nd.argmax(x, axis=1).dtype is np.int32
    assert nd.dot(x, x).asnumpy().tolist() == [[7, 12], [18, 31]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "int32", "int64"])
def test_indices_of_any_dtype_reach_the_end_of_a_long_axis(dtype):
    data = nd.array(np.arange(600).reshape(2, 300))
    index = nd.array([5, 7], dtype=dtype)
    assert nd.take(data, index, axis=1).asnumpy().tolist() == [[5, 7], [305, 307]]
    assert nd.pick(data, index).asnumpy().tolist() == [5, 307]
    for mode in ("clip", "wrap"):
        assert (
            nd.take(data, nd.array([-1], dtype="int8"), axis=1, mode=mode).asnumpy()[0]
            == {"clip": 0, "wrap": 299}[mode]
        )


def test_equal_elements_keep_their_order():
    x = nd.array([1, 0, 1, 0, 1])
    assert nd.argsort(x).asnumpy().tolist() == [1, 3, 0, 2, 4]
    assert nd.argsort(x, is_ascend=False).asnumpy().tolist() == [0, 2, 4, 1, 3]
    assert nd.topk(x, k=2).asnumpy().tolist() == [0, 2]
    many = nd.array([1] * 20 + [0] * 20 + [1] * 20)  # MXNet keeps the order of at most 16 on a CPU
    ones, zeros = [*range(20), *range(40, 60)], list(range(20, 40))
    assert nd.argsort(many).asnumpy().tolist() == zeros + ones
    assert nd.argsort(many, is_ascend=False).asnumpy().tolist() == ones + zeros


def test_outputs_are_written_to_out():
    full = nd.zeros((4, 4))
    nd.dot(nd.ones((2, 3)), nd.ones((3, 2)), out=strided(full, slice(1, 3), slice(1, 3)))
    nd.sum(nd.ones((4, 5)), axis=1, out=strided(full, slice(None), 0))
    expected = np.zeros((4, 4))
    expected[1:3, 1:3] = 3
    expected[:, 0] = 5
    np.testing.assert_array_equal(full.asnumpy(), expected)
    x = nd.array([3.0, 1.0, 2.0])
    nd.sort(x, out=x)
    nd.reverse(x, axis=0, out=x)
    assert x.asnumpy().tolist() == [3, 2, 1]


def test_shape_only_gradients_allow_changed_inputs():
    x = nd.ones((2, 3))
    y = nd.ones((2, 3))
    for array in (x, y):
        array.attach_grad()
    with mx.autograd.record():
        loss = (nd.transpose(x).reshape((6,)).sum() + nd.slice_axis(y, axis=1, begin=0, end=2).sum()) * 2
    x[:] = 5
    y[:] = 5
    loss.backward()
    assert (x.grad.asnumpy() == 2).all()
    assert y.grad.asnumpy().tolist() == [[2, 2, 0]] * 2


def test_empty_arrays():
    x = nd.zeros((0, 3))
    assert nd.sum(x).asnumpy().tolist() == [0]
    assert nd.dot(x, nd.ones((3, 2))).shape == (0, 2)
    assert nd.dot(nd.zeros((2, 0)), nd.zeros((0, 3))).asnumpy().tolist() == [[0] * 3] * 2
    assert nd.Concat(x, nd.ones((1, 3)), dim=0).shape == (1, 3)
    assert nd.take(nd.ones((3, 2)), nd.zeros((0,))).shape == (0, 2)


def test_strings_of_mxnet_files():
    op = lookup("slice").create(begin="(None, 1)", end="(2, None)", step="(1L, 1L)")
    assert op is not None
    assert (op.begin, op.end, op.step) == ((None, 1), (2, None), (1, 1))
    assert lookup("sum").create(axis="()").axis == ()
    assert lookup("Cast").create(dtype="float16").dtype == np.float16
    assert lookup("_plus_scalar").create(scalar="2", is_int="True").scalar == 2
    assert [lookup("_plus_scalar").create(scalar=text).scalar for text in ("True", "False")] == [1, 0]
    assert lookup("_arange").create(start="0", stop="None", step="1.0", ctx="cpu(0)").stop is None


@pytest.mark.parametrize(
    ("name", "params", "shapes", "message"),
    [
        ("transpose", {"axes": (0, 0)}, [(2, 3)], "names an axis twice"),
        ("slice", {"begin": (0, 0, 0), "end": (1, 1, 1)}, [(2, 3)], "expected at most 2 numbers"),
        ("slice", {"begin": (0,), "end": (1,), "step": (0,)}, [(2, 3)], "expected steps other than 0"),
        ("slice_like", {}, [(2, 3), (3, 3)], "expected at most 2 on axis 0"),
        ("diag", {"k": 9}, [(2, 3)], "the planes are 2 by 3"),
        ("Pad", {"mode": "reflect", "pad_width": (2, 0)}, [(2,)], "to reflect"),
        ("broadcast_axis", {"axis": (0,), "size": (2, 3)}, [(1,)], "expected equal lengths"),
        ("gather_nd", {}, [(2, 3), (3, 1)], "a first axis of at most 2"),
        ("scatter_nd", {"shape": (2, 3)}, [(5,), (2, 4)], r"expected \(4,\)"),
        ("pick", {}, [(2, 3), (3,)], r"index has shape \(3,\)"),
        ("depth_to_space", {"block_size": 2}, [(1, 6, 2, 2)], "expected a multiple of 4"),
        ("reshape_like", {}, [(2, 3), (4,)], "6 elements"),
        ("batch_dot", {}, [(2, 3), (3, 2)], "expected at least 3 axes"),
        ("_linalg_gemm", {}, [(2, 3), (3, 4), (3, 4)], r"C has shape \(3, 4\), expected \(2, 4\)"),
        ("SequenceMask", {"use_sequence_length": True}, [(4, 2), (3,)], r"expected \(2,\)"),
        ("_sum_like", {}, [(2, 3), (2,)], "does not broadcast"),
    ],
)  # fmt: skip
def test_bad_shapes_are_refused(name, params, shapes, message):
    with pytest.raises(ShapeError, match=message):
        infer(name, *shapes, **params)


@pytest.mark.parametrize(
    "total",
    [
        lambda x: mx.nd.sum(x, axis=0),
        lambda x: mx.nd.sum(x.reshape((-1, 50, 3)), axis=(0, 1)),
        lambda x: mx.nd.mean(x, axis=0) * len(x),
        lambda x: mx.nd.nansum(x, axis=0),
        lambda x: mx.nd.norm(x, axis=0, ord=1),
        lambda x: mx.nd.norm(mx.nd.sqrt(x), axis=0) ** 2,
        lambda x: mx.nd.moments(x, axes=(0,))[0] * len(x),
        lambda x: mx.np.sum(x.as_np_ndarray(), axis=0),
        lambda x: mx.np.average(x.as_np_ndarray(), axis=0) * len(x),
    ],
)
def test_sums_of_many_rows_keep_their_digits(total):
    """Rows are not summed one by one, since float32 then loses a digit for each ten thousand."""
    rows = np.full((200_050, 3), 0.1, "float32")
    rows[:, 1] = 0.3
    actual = total(mx.nd.array(rows)).asnumpy()
    np.testing.assert_allclose(actual, rows.astype("float64").sum(axis=0), rtol=2e-6)


@pytest.mark.parametrize("options", [{}, {"ddof": 1}, {"keepdims": True}])
@pytest.mark.parametrize("name", ["var", "std"])
def test_variances_of_many_rows_keep_their_digits(name, options):
    rows = 0.5 + np.random.default_rng(0).random((200_050, 3), "float32")
    actual = getattr(mx.np, name)(mx.np.array(rows), axis=0, **options).asnumpy()
    expected = getattr(np, name)(rows.astype("float64"), axis=0, **options)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2e-6)
