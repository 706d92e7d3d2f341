"""Symbols with sparse variables: MXNet's storage types, and the values and gradients of dense graphs."""

import warnings

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import StorageFallbackWarning
from flowmx.executor.sparse import SparseExecutor
from flowmx.ndarray.sparse import calls
from tests.rows import rows
from tests.sparse_calls import bound, found_in, recorded_symbols

RECORDED = recorded_symbols()
ZEROS = "nd.ones_like"  # for it MXNet records the storage type of a zero gradient


def of(expression):
    return expression.partition("(")[0] if expression.startswith("nd.") else "others"


@rows("expression", list(RECORDED), of=of)
def test_storage_types_are_mxnets(expression):
    expected = RECORDED[expression]
    executor = bound(mx, expression)
    types = found_in(executor)
    assert (types.split()[0] if ZEROS in expression else types) == (
        expected.split()[0] if ZEROS in expression else expected
    )


def model(**kinds):
    """Build a factorization machine, as in MXNet's example."""
    x, v, w = (mx.sym.Variable(name, **kinds.get(name, {})) for name in ("x", "v", "w"))
    linear = mx.sym.broadcast_add(mx.sym.dot(x, w), mx.sym.Variable("b", shape=(1,)))
    squares = mx.sym.dot(mx.sym.square(x), mx.sym._internal._square_sum(v, axis=1, keepdims=True))
    pairs = mx.sym.sum(mx.sym.square(mx.sym.sparse.dot(x, v)), axis=1, keepdims=True)
    return mx.sym.LinearRegressionOutput(linear + 0.5 * pairs - 0.5 * squares, mx.sym.Variable("y"))


SPARSE = {"x": {"stype": "csr"}, "v": {"stype": "row_sparse"}, "w": {"stype": "row_sparse"}}
GIVEN = {"x": "null", "y": "null", "v": "write", "w": "write", "b": "write"}
SHAPES = {"x": (6, 20), "v": (20, 3), "w": (20, 1), "y": (6, 1)}


def values():
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape) for name, shape in {**SHAPES, "b": (1,)}.items()}
    values["x"] *= rng.random((6, 20)) < 0.2
    return {name: mx.nd.array(item) for name, item in values.items()}


@pytest.fixture
def fallbacks():
    calls._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [item for item in caught if item.category is StorageFallbackWarning]
    calls._warned.clear()


@pytest.mark.parametrize("request_", ["write", "add"])
def test_a_sparse_graph_has_the_values_of_the_dense_one(request_, fallbacks):
    requested = {**GIVEN, **dict.fromkeys("vwb", request_)}
    results = []
    for kinds in (SPARSE, {}):
        executor = model(**kinds).simple_bind(mx.cpu(), grad_req=requested, **SHAPES)
        for name, item in values().items():
            executor.arg_dict[name][:] = item
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
        results.append((executor.outputs[0].asnumpy(), executor.grad_dict))
    (outputs, gradients), (dense_outputs, dense_gradients) = results
    np.testing.assert_allclose(outputs, dense_outputs, rtol=1e-5, atol=1e-5)
    assert (gradients["v"].stype, gradients["w"].stype, gradients["b"].stype) == ("row_sparse", "row_sparse", "default")
    used = np.flatnonzero(values()["x"].asnumpy().any(axis=0)).tolist()
    assert gradients["w"].indices.asnumpy().tolist() == used
    for name in "vwb":
        np.testing.assert_allclose(
            gradients[name].asnumpy(), dense_gradients[name].asnumpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )
    assert not [str(item.message) for item in fallbacks()]


@pytest.mark.parametrize("name", ["LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"])
def test_labels_may_be_sparse(name, fallbacks):
    rng = np.random.default_rng(0)
    x, label = mx.nd.array(rng.standard_normal((4, 3))), mx.nd.array(rng.integers(0, 2, (4, 3)))
    results = []
    for item in (label, label.tostype("csr")):
        net = getattr(mx.sym, name)(mx.sym.var("x"), mx.sym.var("l"))
        executor = net.bind(mx.cpu(), {"x": x, "l": item}, {"x": mx.nd.zeros((4, 3))})
        executor.forward(is_train=True)
        executor.backward()
        results += [executor.outputs[0].asnumpy(), executor.grad_dict["x"].asnumpy()]
    np.testing.assert_array_equal(results[2:], results[:2])
    assert not [str(item.message) for item in fallbacks()]


def test_bound_arrays_determine_storage_types():
    x = mx.nd.array([[0, 1], [2, 0]])
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    executor = mx.sym.Group([a * 2, mx.sym.dot(a, b)]).bind(mx.cpu(), {"a": x.tostype("csr"), "b": x})
    assert [item.stype for item in executor.outputs] == ["csr", "default"]
    twice, product = executor.forward()
    assert (twice.stype, twice.asnumpy().tolist(), product.asnumpy().tolist()) == (
        "csr", [[0, 2], [4, 0]], [[2, 0], [0, 2]],
    )  # fmt: skip
    assert not isinstance((a * b).bind(mx.cpu(), {"a": x, "b": x}), SparseExecutor)
    matrix = mx.sym.cast_storage(a, stype="row_sparse").eval(ctx=mx.cpu(), a=x)[0]
    assert matrix.stype == "row_sparse"


def test_a_gradient_goes_into_an_array_of_any_storage_type():
    index = mx.nd.array([1, 3, 1])
    net = mx.sym.Embedding(mx.sym.var("i"), mx.sym.var("w"), input_dim=5, output_dim=2, sparse_grad=True)
    for stype in ("default", "row_sparse"):
        gradient = mx.nd.ones((5, 2)).tostype(stype)
        executor = net.bind(mx.cpu(), {"i": index, "w": mx.nd.ones((5, 2))}, {"w": gradient})
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones((3, 2))])
        assert gradient.asnumpy()[:, 0].tolist() == [0, 2, 0, 1, 0]
        assert isinstance(executor, SparseExecutor) == (stype == "row_sparse")
    executor = net.simple_bind(mx.cpu(), i=(3,), w=(5, 2))
    assert executor.grad_dict["w"].stype == "row_sparse"


def test_a_backward_pass_follows_any_forward_pass_and_another_backward_pass():
    executor = model(**SPARSE).simple_bind(mx.cpu(), grad_req=GIVEN, **SHAPES)
    for name, item in values().items():
        executor.arg_dict[name][:] = item
    gradients = []
    for before in (lambda: None, lambda: executor.forward(), lambda: executor.forward(is_train=True), lambda: None):
        before()
        executor.backward()
        gradients.append(executor.grad_dict["v"].asnumpy())
    for item in gradients[1:]:
        np.testing.assert_array_equal(item, gradients[0])


def test_inputs_that_nothing_depends_on_have_zero_gradients():
    a, b = mx.sym.var("a", stype="csr"), mx.sym.var("b")
    executor = mx.sym.Group([mx.sym.BlockGrad(a), b * 2]).simple_bind(mx.cpu(), a=(2, 2), b=(2,))
    executor.grad_dict["a"][:] = mx.nd.ones((2, 2))
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones((2, 2)), mx.nd.ones(2)])
    assert executor.grad_dict["a"].asnumpy().tolist() == [[0, 0], [0, 0]]
    assert executor.grad_dict["b"].asnumpy().tolist() == [2, 2]


def test_other_shapes_share_the_parameters():
    executor = model(**SPARSE).simple_bind(mx.cpu(), grad_req=GIVEN, **SHAPES)
    second = executor.reshape(x=(4, 20), y=(4, 1), v=(20, 3), w=(20, 1), partial_shaping=True)
    assert second.arg_dict["v"] is executor.arg_dict["v"]
    assert (second.arg_dict["x"].shape, second.arg_dict["x"].stype) == ((4, 20), "csr")
    assert second.forward()[0].shape == (4, 1)


def test_a_monitor_sees_every_value():
    values = {}
    executor = model(**SPARSE).simple_bind(mx.cpu(), grad_req=GIVEN, **SHAPES)
    executor.set_monitor_callback(lambda name, array: values.setdefault(name, array.stype))
    executor.forward(is_train=True)
    executor.backward()
    assert {"csr", "default"} <= set(values.values())
    assert any("backward" in name for name in values)


def test_a_wrong_storage_type_is_refused():
    with pytest.raises(ValueError, match="'sparse'"):
        mx.sym.Variable("x", stype="sparse")
    with pytest.raises(ValueError, match="csr"):
        mx.sym.Variable("x", stype="csr").simple_bind(mx.cpu(), x=(2, 3, 4))


def test_sparse_functions_are_those_of_symbols():
    x = mx.sym.var("x", stype="row_sparse")
    with mx.name.NameManager():
        assert mx.sym.sparse.retain(x, mx.sym.var("i")).name == "retain0"
    assert {"dot", "retain", "cast_storage"} <= set(dir(mx.sym.sparse))
