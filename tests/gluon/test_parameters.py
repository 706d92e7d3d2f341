"""Parameters: initialization, values, devices and errors."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ShapeError
from flowmx.gluon import Constant, DeferredInitializationError, Parameter, ParameterDict

BOTH = [mx.cpu(0), mx.cpu(1)]


def test_initializes_on_devices_with_the_same_values():
    weight = Parameter("w_weight", shape=(3, 2))
    weight.initialize(ctx=BOTH)
    first, second = weight.list_data()
    assert [array.context for array in (first, second)] == BOTH == weight.list_ctx()
    assert np.array_equal(first.asnumpy(), second.asnumpy())
    assert weight.data(mx.cpu(1)) is second
    assert np.array_equal(weight.grad(mx.cpu(1)).asnumpy(), np.zeros((3, 2)))
    with mx.cpu(1):
        assert weight.data() is second


def test_its_own_initializer_takes_precedence():
    one, other = Parameter("a", shape=2, init="ones"), Parameter("b", shape=2)
    for param in (one, other):
        param.initialize(default_init=mx.init.Constant(7))
    assert one.data().asnumpy().tolist() == [1, 1]
    assert other.data().asnumpy().tolist() == [7, 7]
    one.initialize(mx.init.Constant(3), force_reinit=True)
    assert one.data().asnumpy().tolist() == [3, 3]


def test_an_initializer_that_chooses_by_name():
    params = ParameterDict()
    for name in ("x_weight", "x_bias"):
        params.get(name, shape=2)
    params.initialize(mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.One()]))
    assert params["x_weight"].data().asnumpy().tolist() == [1, 1]
    assert params["x_bias"].data().asnumpy().tolist() == [0, 0]


def test_a_second_initialization_warns_and_does_nothing():
    weight = Parameter("w", shape=1)
    weight.initialize()
    before = weight.data()
    with pytest.warns(UserWarning, match="already initialized"):
        weight.initialize()
    assert weight.data() is before


def test_initialization_waits_for_the_shape():
    weight = Parameter("w", shape=(4, 0), allow_deferred_init=True)
    weight.initialize(mx.init.One(), ctx=mx.cpu(1))
    assert weight.list_ctx() == [mx.cpu(1)]
    with pytest.raises(DeferredInitializationError, match=r"'w' has shape \(4, 0\)"):
        weight.data()
    weight.shape = (4, 3)
    weight._finish_deferred_init()
    assert weight.data().asnumpy().sum() == 12


def test_a_value_set_before_the_shape_is_known_is_kept():
    weight = Parameter("w", shape=(2, -1), allow_deferred_init=True)
    weight.initialize()
    weight.set_data(np.arange(4).reshape(2, 2))
    assert weight.shape == (2, 2)
    weight._finish_deferred_init()
    assert weight.data().asnumpy().tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda p: p.data(), RuntimeError, "'w' is not initialized"),
        (lambda p: p.grad(), RuntimeError, "'w' is not initialized"),
        (lambda p: p.list_ctx(), RuntimeError, "'w' is not initialized"),
        (lambda p: p.reset_ctx(None), ValueError, "'w' is not initialized"),
        (lambda p: p.set_data(mx.nd.ones((2, 2))), RuntimeError, "'w' is not initialized"),
        (lambda p: p.initialize(), ValueError, r"cannot be initialized with shape \(2, 0\)"),
        (lambda p: setattr(p, "shape", (3, 3)), ShapeError, r"\(3, 3\) does not match \(2, 0\)"),
        (lambda p: setattr(p, "grad_req", "wrong"), ValueError, "expected 'write', 'add' or 'null'"),
        (lambda p: p.cast("wrong"), TypeError, "wrong"),
    ],
)
def test_refuses_calls(act, error, message):
    with pytest.raises(error, match=message):
        act(Parameter("w", shape=(2, 0)))


def test_refuses_another_device():
    weight = Parameter("w", shape=1)
    weight.initialize(ctx=mx.cpu(0))
    with pytest.raises(RuntimeError, match=r"not on cpu\(1\), only on \[cpu\(0\)\]"):
        weight.data(mx.cpu(1))


@pytest.mark.parametrize("arguments", [{"stype": "sparse"}, {"grad_stype": "dense"}])
def test_refuses_unknown_storage(arguments):
    with pytest.raises(ValueError, match="expected one of default, row_sparse, csr") as caught:
        Parameter("w", **arguments)
    assert isinstance(caught.value, AssertionError)  # MXNet raises this for an unknown type


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_row_sparse_gradient_has_the_rows_of_the_batch(hybridized):
    net = mx.gluon.nn.Embedding(5, 2, sparse_grad=True, prefix="embedding0_")
    net.initialize(mx.init.One())
    if hybridized:
        net.hybridize()
    with mx.autograd.record():
        net(mx.nd.array([1, 1, 3])).sum().backward()
    grad = net.weight.grad()
    assert (grad.stype, grad.indices.asnumpy().tolist()) == ("row_sparse", [1, 3])
    np.testing.assert_array_equal(grad.asnumpy()[:, 0], [0, 2, 0, 1, 0])


def test_a_row_sparse_parameter_is_read_by_rows():
    weight = Parameter("w", shape=(4, 2), init="ones", stype="row_sparse", grad_stype="row_sparse")
    weight.initialize()
    with pytest.raises(RuntimeError, match=r"it has no data\(\): select rows with row_sparse_data\(\)"):
        weight.data()
    with pytest.raises(RuntimeError, match="create a Trainer"):
        weight.row_sparse_data(mx.nd.array([1]))
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 0.5})
    with mx.autograd.record():
        rows = weight.row_sparse_data(mx.nd.array([2, 0, 2]))
        loss = mx.nd.Embedding(mx.nd.array([2, 0, 2]), rows, input_dim=4, output_dim=2, sparse_grad=True).sum()
    loss.backward()
    trainer.step(1)
    assert rows.indices.asnumpy().tolist() == [0, 2]
    all_rows = weight.row_sparse_data(mx.nd.arange(4))
    np.testing.assert_array_equal(all_rows.asnumpy()[:, 0], [0.5, 1, 0, 1])


def test_a_gradient_request_may_change():
    weight = Parameter("w", shape=1, init="ones")
    weight.initialize()
    weight.grad_req = "null"
    with pytest.raises(RuntimeError, match="no gradient"):
        weight.grad()
    with mx.autograd.record():
        y = weight.data() * 3
    with pytest.raises(mx.MXNetError):
        y.backward()
    weight.grad_req = "add"
    for _ in range(2):
        with mx.autograd.record():
            y = weight.data() * 3
        y.backward()
    assert weight.grad().asscalar() == 6
    weight.zero_grad()
    assert weight.grad().asscalar() == 0


def test_parameters_that_are_not_differentiable_have_no_gradient():
    mean = Parameter("m", shape=1, differentiable=False)
    mean.grad_req = "write"
    assert mean.grad_req == "null"


def test_moves_to_other_devices():
    weight = Parameter("w", shape=2)
    weight.initialize(ctx=BOTH)
    weight.data(mx.cpu(0))[:] = 1
    weight.data(mx.cpu(1))[:] = 3
    weight.reset_ctx(mx.cpu(1))
    assert weight.list_ctx() == [mx.cpu(1)]
    assert weight.data().asnumpy().tolist() == [2, 2]  # the mean of the copies


def test_casts_values_and_gradients():
    weight = Parameter("w", shape=2, init="ones")
    weight.initialize()
    weight.cast("float16")
    assert weight.data().dtype is weight.grad().dtype is np.float16
    with mx.autograd.record():
        y = weight.data() * 2
    y.backward()
    assert weight.grad().asnumpy().tolist() == [2, 2]


def test_constants_have_no_gradient():
    scale = Constant("scale", [[1, 2], [3, 4]])
    scale.initialize(ctx=BOTH)
    assert [array.asnumpy().tolist() for array in scale.list_data()] == [[[1, 2], [3, 4]]] * 2
    with pytest.warns(UserWarning, match="has no gradient"):
        scale.grad_req = "write"
    assert scale.grad_req == "null"


# -- dictionaries ------------------------------------------------------------------------------------------


def test_get_returns_shares_and_completes_parameters():
    first = ParameterDict("net_")
    weight = first.get("weight", shape=(4, 0))
    assert weight.name == "net_weight"
    assert first.get("weight", shape=(0, 3)) is weight
    assert weight.shape == (4, 3)
    assert ParameterDict("net_", shared=first).get("weight") is weight


@pytest.mark.parametrize(
    "arguments", [{"shape": (5, 3)}, {"shape": (4,)}, {"dtype": "float16"}, {"lr_mult": 2.0}, {"grad_req": "add"}]
)
def test_get_refuses_contradictions(arguments):
    params = ParameterDict()
    params.get("weight", shape=(4, 0))
    with pytest.raises(ValueError, match=f"already exists with {next(iter(arguments))}"):
        params.get("weight", **arguments)


def test_constants_are_shared_by_value():
    params = ParameterDict("net_")
    constant = params.get_constant("c", [1, 2])
    assert params.get_constant("c", np.array([1, 2])) is params.get_constant("c") is constant
    with pytest.raises(ValueError, match="another value"):
        params.get_constant("c", [1, 3])
    with pytest.raises(KeyError, match="no constant 'net_d'"):
        params.get_constant("d")
    params.get("w")
    with pytest.raises(TypeError, match="is not a constant"):
        params.get_constant("w", [1])


def test_update_refuses_two_parameters_with_the_same_name():
    one, other = ParameterDict(), ParameterDict()
    one.get("w")
    other.get("w")
    with pytest.raises(ValueError, match="two different parameters called 'w'"):
        one.update(other)


@pytest.fixture
def parameter_file(tmp_path):
    params = ParameterDict("net_")
    params.get("w", shape=2, init="ones")
    params.get("b", shape=1, init="zeros")
    params.initialize()
    params.save(tmp_path / "saved.params", strip_prefix="net_")
    return tmp_path / "saved.params"


def test_saves_and_loads_without_the_prefix(parameter_file):
    assert set(mx.nd.load(str(parameter_file))) == {"w", "b"}
    params = ParameterDict("other_")
    params.get("w", shape=0, allow_deferred_init=True)
    params.get("b", shape=1)
    params.load(parameter_file, ctx=mx.cpu(1), restore_prefix="other_")
    assert params["other_w"].data().asnumpy().tolist() == [1, 1]
    assert params["other_b"].list_ctx() == [mx.cpu(1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w": {}}, "holds 'b', which is not among"),
        ({"w": {}, "b": {}, "c": {}}, "'c' is missing"),
        ({"w": {"shape": 3}, "b": {}}, r"loaded with shape \(2,\), expected \(3,\)"),
        ({"w": {"dtype": "float64"}, "b": {}}, "cast_dtype=True"),
    ],
)
def test_refuses_files_that_do_not_match(parameter_file, arguments, message):
    params = ParameterDict()
    for name, options in arguments.items():
        params.get(name, **options)
    with pytest.raises(ValueError, match=message):
        params.load(parameter_file)


@pytest.mark.parametrize(("source", "dtype"), [("current", np.float64), ("saved", np.float32)])
def test_casts_loaded_arrays(parameter_file, source, dtype):
    params = ParameterDict()
    params.get("w", dtype="float64")
    params.load(parameter_file, ignore_extra=True, cast_dtype=True, dtype_source=source)
    assert params["w"].data().dtype is dtype


def test_setattr_sets_all_parameters():
    params = ParameterDict()
    params.get("a")
    params.get("b")
    params.setattr("lr_mult", 0.5)
    assert [param.lr_mult for param in params.values()] == [0.5, 0.5]
