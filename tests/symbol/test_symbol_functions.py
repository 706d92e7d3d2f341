"""Functions and methods of symbols that are not single operators, and the device arguments of operators."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import registered_operators

nd, sym = mx.nd, mx.sym
A = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], np.float32)


def evaluate(symbol, **arrays):
    return [each.asnumpy() for each in symbol.eval(**{name: nd.array(value) for name, value in arrays.items()})]


@pytest.mark.parametrize(
    ("symbol", "expected", "dtype"),
    [
        (lambda: sym.zeros((2, 3)), np.zeros((2, 3)), "float32"),
        (lambda: sym.ones(4, dtype="int32"), np.ones(4), "int32"),
        (lambda: sym.full((2,), 1.5, dtype="float64"), np.full(2, 1.5), "float64"),
        (lambda: sym.eye(3, 4, -1), np.eye(3, 4, -1), "float32"),
        (lambda: sym.arange(5), np.arange(5), "float32"),
        (lambda: sym.arange(1, 4, 0.5, repeat=2), np.repeat(np.arange(1, 4, 0.5), 2), "float32"),
        (lambda: sym.linspace(0, 1, 5), np.linspace(0, 1, 5), "float32"),
        (lambda: sym.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False), "float32"),
    ],
)
def test_constants(symbol, expected, dtype):
    (result,) = evaluate(symbol())
    np.testing.assert_allclose(result, expected)
    assert result.dtype == dtype


def test_arange_infers_its_length_from_its_reader():
    symbol = sym.arange(2, step=3, infer_range=True) + sym.Variable("x")
    np.testing.assert_array_equal(evaluate(symbol, x=np.zeros(4))[0], [2, 5, 8, 11])


def test_functions_of_two():
    x, y = sym.Variable("x"), sym.Variable("y")
    b = A[::-1] + 0.5
    for name, function in (("maximum", np.maximum), ("minimum", np.minimum), ("hypot", np.hypot)):
        call = getattr(sym, name)
        np.testing.assert_allclose(evaluate(call(x, y), x=A, y=b)[0], function(A, b), rtol=1e-6)
        np.testing.assert_allclose(evaluate(call(x, 2.0), x=A)[0], function(A, 2), rtol=1e-6)
        np.testing.assert_allclose(evaluate(call(2.0, x), x=A)[0], function(2, A), rtol=1e-6)
        assert call(3, 4) == function(3, 4)
    for call in (sym.power, sym.pow):
        np.testing.assert_allclose(evaluate(call(base=x, exp=2), x=A)[0], A**2)
        np.testing.assert_allclose(evaluate(call(2, x), x=A)[0], 2.0**A)
        assert call(2, 3) == 8


@pytest.mark.parametrize(("where", "expected"), [(3, [1, 1, 1]), ((1,), [1, 2]), ([0, 2], [0, 2, 1])])
def test_split(where, expected):
    x = sym.Variable("x")
    for symbol in (sym.split_v2(x, where, axis=1), x.split_v2(where, axis=1)):
        assert [part.shape[1] for part in evaluate(symbol, x=A)] == expected
    assert [part.shape[1] for part in nd.split_v2(nd.array(A), where, axis=1)] == expected


def test_methods():
    x = sym.Variable("x")
    for symbol, expected in [
        (x.reshape(3, 2), A.reshape(3, 2)),
        (x.reshape((-1,)), A.ravel()),
        (x.reshape(shape=(0, -1)), A),
        (x.transpose(1, 0), A.T),
        (x.transpose(), A.T),
        (x.astype("int32"), A.astype(np.int32)),
        (x.expand_dims(1, inplace=True), A[:, None]),
        (x.expand_dims(axis=0).squeeze(axis=0, inplace=True), A),
        (x.flatten(inplace=True), A),
        (x.sum(axis=1), A.sum(axis=1)),
        (x.diag(1), A.diagonal(1)),
        (x.slice_axis(axis=1, begin=1, end=None), A[:, 1:]),
        (x.expand_dims(0).broadcast_to((2, 0, 0)), np.stack([A, A])),
        (x.clip(-1, 2), A.clip(-1, 2)),
        (x.reshape_like(sym.zeros((3, 2))), A.reshape(3, 2)),
        (x.as_np_ndarray().as_nd_ndarray().get_backend_symbol("MKLDNN").optimize_for("MKLDNN"), A),
    ]:
        np.testing.assert_allclose(evaluate(symbol, x=A)[0], expected, err_msg=str(symbol))
    assert x.sum(axis=1, name="total").name == "total"
    with pytest.raises(AttributeError):
        _ = x.no_method


def test_none_is_a_value_where_a_parameter_has_one():
    x = sym.Variable("x")
    node = json.loads(sym.sort(x, axis=None).tojson())["nodes"][-1]
    assert node["attrs"]["axis"] == "None"
    np.testing.assert_array_equal(evaluate(sym.sort(x, axis=None), x=A)[0], np.sort(A, axis=None))
    np.testing.assert_array_equal(nd.sort(nd.array(A), axis=None).asnumpy(), np.sort(A, axis=None))
    # For other parameters None means the default.
    assert nd.topk(nd.array(A), k=None).shape == sym.topk(x, k=None).infer_shape(x=A.shape)[1][0] == (2, 1)
    with pytest.raises(ParameterError, match="missing parameter axis"):
        sym.slice_axis(x, axis=None, begin=0, end=1)


PLACED = sorted({cls.name for cls in registered_operators().values() if "ctx" in cls.parameters and not cls.arguments})


@pytest.mark.parametrize("name", PLACED)
def test_operators_without_inputs_take_a_device(name):
    arrays = {
        "_full": {"value": 1},
        "_eye": {"N": 2},
        "_arange": {"start": 2},
        "_linspace": {"start": 0, "stop": 1, "num": 2},
        "_random_randint": {"low": 0, "high": 3},
    }
    params = arrays.get(name, {}) | ({"shape": (2,)} if "shape" in registered_operators()[name].parameters else {})
    for ctx in (mx.cpu(0), "cpu(0)", "cpu", None, ""):
        assert getattr(nd.op, name)(ctx=ctx, **params).context == mx.cpu(0)
    assert "ctx" in getattr(nd.op, name).__signature__.parameters
    text = getattr(sym.op, name)(ctx=mx.cpu(0), **params).attr("ctx")
    assert text == "cpu(0)"


def test_methods_of_arrays():
    x = nd.array(A)
    view = x.expand_dims(0, inplace=True)
    view[:] = 1
    assert x.asnumpy().min() == 1  # the view shares the memory
    assert x.flatten(inplace=True).shape == x.squeeze(inplace=True).shape == A.shape
    copy = x.expand_dims(0)
    copy[:] = 2
    assert x.asnumpy().max() == 1
    x.slice_assign(nd.zeros((2, 1)), begin=(None, 1), end=(None, 2))
    assert x.asnumpy().tolist() == [[1, 0, 1]] * 2
    x.slice_assign_scalar(5, (0, 0), (1, 3), (1, 2))
    assert x.asnumpy().tolist() == [[5, 0, 5], [1, 0, 1]]


@pytest.mark.parametrize("active", [False, True])
def test_files_record_the_shape_semantics(active):
    with mx.util.np_shape(active):
        attrs = json.loads(sym.Variable("x", shape=(3, 0)).tojson())["attrs"]
    assert attrs.get("is_np_shape") == (["int", 1] if active else None)
