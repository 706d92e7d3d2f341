"""Hybridized blocks compute the same as plain ones: values, gradients, statistics, errors."""

from __future__ import annotations

import asyncio
import copy
import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.errors import AutogradError
from flowmx.gluon import nn, rnn

RANDOM = np.random.default_rng(11)


def data(*shape, ctx=None, dtype="float32"):
    return mx.nd.array(RANDOM.normal(size=shape), ctx, dtype)


def convolutional():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Dense(6, activation="tanh"),
            nn.LayerNorm(), nn.Dense(3),
        )  # fmt: skip
    return net


class Nested(gluon.HybridBlock):
    """Inputs and outputs in lists, a shared layer, a parameter, an optional input."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(5)
            self.shared = nn.HybridSequential()
            with self.shared.name_scope():
                self.shared.add(nn.Dense(5, activation="relu"))
            self.scale = self.params.get("scale", shape=(1, 5), init=mx.init.Constant(2))

    def hybrid_forward(self, F, x, pair, mask=None, scale=None):
        first = self.shared(self.dense(x) + self.dense(pair[0]))
        second = F.broadcast_mul(self.shared(first), scale) * pair[1]
        return (first if mask is None else F.broadcast_mul(first, mask)), [second, [F.sum(second)]]


class Unrolled(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.cells = rnn.HybridSequentialRNNCell()
            with self.cells.name_scope():
                self.cells.add(rnn.LSTMCell(4))
                self.cells.add(rnn.GRUCell(3))

    def hybrid_forward(self, F, x):
        outputs, states = self.cells.unroll(3, x, merge_outputs=True)
        return outputs, states


CASES = {
    "convolutional": (convolutional, lambda: [data(2, 3, 8, 8)]),
    "nested": (Nested, lambda: [data(2, 3), [data(2, 3), data(2, 5)], data(2, 1)]),
    "none": (Nested, lambda: [data(2, 3), [data(2, 3), data(2, 5)], None]),
    "left out": (Nested, lambda: [data(2, 3), [data(2, 3), data(2, 5)]]),
    "cells": (Unrolled, lambda: [data(2, 3, 5)]),
}


def flat(nested):
    return [leaf for part in nested for leaf in flat(part)] if isinstance(nested, (list, tuple)) else [nested]


def arrays_in(nested):
    return [leaf for leaf in flat(nested) if leaf is not None]


def hybridized_copy(net, make, inputs):
    """Return a hybridized copy with the same values."""
    other = make()
    other.initialize()
    other(*inputs)
    for ours, theirs in zip(other.collect_params().values(), net.collect_params().values(), strict=True):
        ours.set_data(theirs.data())
    other.hybridize()
    return other


def step(net, inputs, calls=1):
    """Return the outputs, the gradients of inputs and parameters, and the parameters after the step."""
    for array in arrays_in(inputs):
        array.attach_grad()
    with mx.autograd.record():
        outputs = [output for _ in range(calls) for output in flat(net(*inputs))]
        total = sum((output * output).sum() for output in outputs)
    total.backward()
    params = net.collect_params().values()
    grads = [array.grad for array in arrays_in(inputs)] + [p.grad() for p in params if p.grad_req != "null"]
    return [array.asnumpy() for array in (*outputs, *grads, *(p.data() for p in params))]


def check_equal(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        # Sums of large terms may cancel, so the tolerance depends on the largest element.
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5 * max(1.0, np.abs(theirs).max()))


@pytest.fixture(params=CASES)
def pair(request):
    make, inputs = CASES[request.param]
    arrays = inputs()
    net = make()
    net.initialize(mx.init.Xavier())
    net(*arrays)
    return net, hybridized_copy(net, make, arrays), inputs


@pytest.mark.parametrize("calls", [1, 3])
def test_trains_like_the_plain_block(pair, calls):
    net, hybrid, inputs = pair
    arrays = inputs()
    check_equal(step(hybrid, arrays, calls), step(net, arrays, calls))
    arrays = inputs()
    check_equal(step(hybrid, arrays, calls), step(net, arrays, calls))


def test_predicts_like_the_plain_block(pair):
    net, hybrid, inputs = pair
    arrays = inputs()
    ours, theirs = ([output.asnumpy() for output in flat(block(*arrays))] for block in (hybrid, net))
    check_equal(ours, theirs)


def test_outputs_are_nested_as_before():
    net = Nested()
    net.initialize()
    net.hybridize()
    first, (second, (total,)) = net(data(2, 3), [data(2, 3), data(2, 5)])
    assert (first.shape, second.shape, total.shape) == ((2, 5), (2, 5), (1,))


def test_is_traced_once_per_structure_of_the_inputs():
    namespaces = []

    class Counted(gluon.HybridBlock):
        def hybrid_forward(self, F, x, other=None):
            namespaces.append(F)
            return x if other is None else x + other

    net = Counted()
    net.hybridize()
    for _ in range(3):
        net(data(2))
        net(data(3), data(3))
    assert namespaces == [mx.sym, mx.sym]


def test_shapes_may_change(pair):
    net, hybrid, inputs = pair
    for rows in (1, 4, 2, 3):
        arrays = [_rows(array, rows) for array in inputs()]
        check_equal(step(hybrid, arrays), step(net, arrays))


def _rows(nested, rows):
    if isinstance(nested, list):
        return [_rows(part, rows) for part in nested]
    return None if nested is None else data(rows, *nested.shape[1:])


def test_modes_may_change():
    net = nn.HybridSequential()
    net.add(nn.Dropout(0.5), nn.BatchNorm())
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((50, 40))
    before = net(x).asnumpy()
    with mx.autograd.record():
        trained = net(x).asnumpy()
    with mx.autograd.record(train_mode=False):
        quiet = net(x).asnumpy()
    assert len(np.unique(before)) == 1
    assert len(np.unique(trained.round(4))) > 1
    assert not np.array_equal(quiet, before)  # the statistics have changed
    assert np.array_equal(quiet, net(x).asnumpy())


def test_dtypes_may_change():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = data(3, 5)
    before = net(x).asnumpy()
    net.cast("float64")
    after = net(x.astype("float64"))
    assert after.dtype is np.float64
    np.testing.assert_allclose(after.asnumpy(), before, rtol=1e-5, atol=1e-6)


def test_values_may_change_between_calls():
    net = nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One())
    net.hybridize()
    x = mx.nd.ones((1, 2))
    assert net(x).asscalar() == 2
    net.weight.set_data(mx.nd.array([[3, 4]]))
    assert net(x).asscalar() == 7
    net.initialize(mx.init.One(), force_reinit=True)
    assert net(x).asscalar() == 2


class Masked(gluon.HybridBlock):
    """A sum of two masked halves; the mask that is drawn first is used last."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(4, 3), init=mx.init.Uniform(1))
            self.bias = self.params.get("bias", shape=(4,))

    def hybrid_forward(self, F, x, weight, bias):
        first = F.Dropout(F.ones_like(x), p=0.5)
        second = F.Dropout(F.ones_like(F.slice_axis(x, axis=1, begin=0, end=3)), p=0.5)
        wide = F.FullyConnected(x * first, weight, bias, num_hidden=4)
        return F.slice_axis(wide + F.FullyConnected(second, weight * 2, bias, num_hidden=4), axis=1, begin=0, end=4)


def test_random_numbers_are_drawn_in_the_same_order_for_any_fusion():
    outputs = []
    for dtype in ("float64", "float32"):
        mx.random.seed(3)
        net = Masked()
        net.initialize()
        net.cast(dtype)
        net.hybridize()
        x = mx.nd.ones((2, 3), dtype=dtype)
        for train in (False, True):  # both dtypes draw the same parameters
            mx.random.seed(5)
            for parameter in net.collect_params().values():
                parameter.set_data(mx.nd.ones(parameter.shape, dtype=dtype))
            with mx.autograd.record(train_mode=train):
                out = net(x)
        outputs.append(out.asnumpy())
    np.testing.assert_allclose(*outputs, rtol=1e-6)


class Branched(gluon.HybridBlock):
    """BatchNorm in a branch."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = nn.BatchNorm(momentum=0.5)

    def hybrid_forward(self, F, x):
        return F.contrib.cond(F.sum(x) > 0, lambda: self.norm(x), lambda: self.norm(x) * -0.5)


def test_a_branch_that_updates_statistics_may_be_called_twice_before_backward():
    values = [np.abs(RANDOM.normal(size=(4, 3))), -np.abs(RANDOM.normal(size=(4, 3)))]
    results = []
    for hybrid in (False, True):
        net = Branched()
        net.initialize()
        net.hybridize(hybrid)
        inputs = [mx.nd.array(value) for value in values]
        for array in inputs:
            array.attach_grad()
        with mx.autograd.record():
            outputs = [net(array) ** 3 for array in inputs]
        mx.autograd.backward(outputs)
        gamma = net.norm.gamma.grad()
        results.append(
            [array.asnumpy() for array in (*outputs, *[i.grad for i in inputs], gamma, net.norm.running_mean.data())]
        )
    for plain, compiled in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)


def test_detached_arrays_have_no_gradient():
    class Detached(gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x * F.BlockGrad(y) + y

    net = Detached()
    net.hybridize()
    x, y = data(3), data(3)
    for array in (x, y):
        array.attach_grad()
    with mx.autograd.record():
        z = net(x * 2, y)
        total = (z.detach() * z).sum()
    total.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), (z * 2 * y).asnumpy(), rtol=1e-5)
    np.testing.assert_allclose(y.grad.asnumpy(), z.asnumpy(), rtol=1e-5)


def test_gradients_can_be_accumulated():
    net = nn.Dense(1, in_units=2)
    net.initialize()
    net.collect_params().setattr("grad_req", "add")
    net.hybridize()
    for _ in range(3):
        with mx.autograd.record():
            y = net(mx.nd.ones((4, 2)))
        y.backward()
    assert net.bias.grad().asscalar() == 12


def test_frozen_parameters_get_no_gradient():
    net = nn.HybridSequential()
    net.add(nn.Dense(3), nn.Dense(2))
    net.initialize()
    net.hybridize()
    net[0].collect_params().setattr("grad_req", "null")
    with mx.autograd.record():
        y = net(data(4, 5))
    y.backward()
    assert np.abs(net[1].weight.grad().asnumpy()).sum() > 0
    with pytest.raises(RuntimeError, match="no gradient"):
        net[0].weight.grad()


def test_a_hybridized_child_of_a_plain_block_is_compiled_alone():
    net, hybrid = nn.Sequential(), nn.HybridSequential()
    hybrid.add(nn.Dense(4, activation="tanh"), nn.Dense(2))
    net.add(hybrid, nn.Lambda(lambda x: x * 2))
    net.initialize()
    x = data(3, 5)
    plain = net(x).asnumpy()
    net.hybridize()
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
    y.backward()
    np.testing.assert_allclose(y.asnumpy(), plain, rtol=1e-5, atol=1e-6)
    assert np.abs(hybrid[0].weight.grad().asnumpy()).sum() > 0


def test_each_device_has_its_own_copy():
    net = convolutional()
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(0), mx.cpu(1)])
    net.hybridize()
    x = data(2, 3, 8, 8)
    outputs = [net(x.as_in_context(ctx)) for ctx in (mx.cpu(0), mx.cpu(1))]
    assert [output.context for output in outputs] == [mx.cpu(0), mx.cpu(1)]
    assert np.array_equal(outputs[0].asnumpy(), outputs[1].asnumpy())


def test_hybridize_can_be_undone():
    calls = []

    class Recorder(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            calls.append(F)
            return x

    net = Recorder()
    for active in (True, False, True):
        net.hybridize(active)
        net(data(1))
        net(data(1))
    assert calls == [mx.sym, mx.nd, mx.nd, mx.sym]


def test_a_new_child_is_compiled_too():
    net = nn.HybridSequential()
    net.add(nn.HybridLambda(lambda F, x: x + 1))
    net.hybridize()
    assert net(mx.nd.zeros(1)).asscalar() == 1
    net.add(nn.HybridLambda(lambda F, x: x * 5))
    assert net(mx.nd.zeros(1)).asscalar() == 5


@pytest.mark.parametrize("flags", [{"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_static_plans_compute_the_same(flags):
    net = convolutional()
    net.initialize(mx.init.Xavier())
    batches = [data(rows, 3, 8, 8) for rows in (2, 2, 3, 2)]
    plain = [net(batch).asnumpy() for batch in batches]
    net.hybridize(**flags)
    outputs = [net(batch) for batch in batches]  # all are held at once
    check_equal([output.asnumpy() for output in outputs], plain)


def test_static_shape_needs_static_alloc():
    with pytest.raises(ValueError, match="needs static_alloc=True"):
        nn.Dense(1).hybridize(static_shape=True)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_trains_independently(duplicate):
    net = convolutional()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    inputs = [data(2, 3, 8, 8)]
    net(*inputs)
    other = duplicate(net)
    before = net[0].weight.grad().asnumpy()
    ours = step(other, inputs)
    assert np.array_equal(net[0].weight.grad().asnumpy(), before)
    check_equal(ours, step(net, inputs))


# -- symbols -----------------------------------------------------------------------------------------------


def test_composes_symbols():
    net = nn.Dense(3, in_units=2, prefix="fc_")
    symbol = net(mx.sym.var("x"))
    assert symbol.list_arguments() == ["x", "fc_weight", "fc_bias"]
    assert symbol.name == "fc_fwd"


def test_infers_shapes_and_dtypes():
    net = convolutional()
    net.infer_shape(mx.nd.zeros((2, 3, 8, 8)))
    assert net[0].weight.shape == (4, 3, 3, 3)
    assert net[3].weight.shape == (6, 36)
    net.infer_type(mx.nd.zeros((2, 3, 8, 8), dtype="float64"))
    assert net[3].weight.dtype is np.float64


def test_exports_a_checkpoint_that_a_module_runs(tmp_path):
    net = convolutional()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = data(2, 3, 8, 8)
    expected = net(x).asnumpy()
    assert net.export(tmp_path / "net", 7) == (f"{tmp_path}/net-symbol.json", f"{tmp_path}/net-0007.params")
    symbol, arguments, auxiliary = mx.model.load_checkpoint(f"{tmp_path}/net", 7)
    assert set(auxiliary) == set(symbol.list_auxiliary_states())
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=x.shape)
    executor.copy_params_from(arguments, auxiliary)
    np.testing.assert_allclose(executor.forward(data=x)[0].asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_symbol_block_can_be_trained(tmp_path):
    net = convolutional()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    inputs = [data(2, 3, 8, 8)]
    net(*inputs)
    net.export(tmp_path / "net")
    block = gluon.SymbolBlock.imports(tmp_path / "net-symbol.json", "data", tmp_path / "net-0000.params")
    ours = dict(zip(block.collect_params(), step(block, inputs)[-len(block.collect_params()) :], strict=True))
    theirs = dict(zip(net.collect_params(), step(net, inputs)[-len(net.collect_params()) :], strict=True))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_block_of_another_dtype_is_exported_and_imported(dtype, tmp_path):
    net = convolutional()
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = data(2, 3, 8, 8, dtype=dtype)
    expected = net(x).asnumpy()
    block = gluon.SymbolBlock.imports(*export_for_import(net, tmp_path))
    np.testing.assert_array_equal(block(x).asnumpy(), expected)
    dtypes = [{name: param.data().dtype for name, param in model.collect_params().items()} for model in (block, net)]
    assert dtypes[0] == dtypes[1]


def test_a_block_without_parameters_is_exported_and_imported(tmp_path):
    net = nn.Swish()
    net.initialize()
    net.hybridize()
    x = data(2, 3)
    expected = net(x).asnumpy()
    block = gluon.SymbolBlock.imports(*export_for_import(net, tmp_path))
    np.testing.assert_array_equal(block(x).asnumpy(), expected)


def export_for_import(net, folder):
    """Export a block; return the arguments of ``SymbolBlock.imports``."""
    symbol, params = net.export(folder / "net")
    return symbol, "data", params


def test_a_symbol_block_of_inner_layers_shares_parameters():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    net.initialize()
    x = data(3, 5)
    net(x)
    inner = net(mx.sym.var("data")).get_internals()["net_dense0_relu_fwd_output"]
    features = gluon.SymbolBlock(inner, mx.sym.var("data"), params=net.collect_params())
    assert features.collect_params()["net_dense0_weight"] is net[0].weight
    np.testing.assert_allclose(features(x).asnumpy(), net[0](x).asnumpy(), rtol=1e-6)
    assert features(mx.sym.var("y")).list_arguments() == ["y", "net_dense0_weight", "net_dense0_bias"]


def test_the_inputs_of_a_symbol_block_are_variables():
    with pytest.raises(ValueError, match="is an operator's result, not a variable"):
        gluon.SymbolBlock(mx.sym.var("x") * 2, mx.sym.var("x") + 1)


# -- refusals ----------------------------------------------------------------------------------------------


class Branches(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x if x > 0 else -x


class ReadsShape(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape((x.shape[0], -1))


@pytest.mark.parametrize(("block", "error"), [(Branches, TypeError), (ReadsShape, AttributeError)])
def test_an_error_of_python_that_reads_values_names_the_block(block, error):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(block())
    assert net(mx.nd.ones((1, 1))).shape == (1, 1)
    net.hybridize()
    with pytest.raises(error) as caught:
        net(mx.nd.ones((1, 1)))
    note, _ = caught.value.__notes__
    assert f"{block.__name__} 'net_{block.__name__.lower()}0'" in note
    assert "F.where or F.contrib.cond" in note


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (lambda: (3,), ValueError, r"the input is int, expected an NDArray: convert it with mx\.nd\.array\(x\)"),
        (lambda: (data(1), mx.sym.var("x")), ValueError, "both arrays and symbols"),
        (lambda: (data(1), data(1, ctx=mx.cpu(1))), ValueError, r"inputs are on cpu\(0\), cpu\(1\)"),
        (lambda: (data(1), "text"), TypeError, "expected NDArrays in .nested. lists, got str"),
    ],
)
def test_refuses_inputs(inputs, error, message):
    net = nn.HybridLambda(lambda F, x, *rest: x)
    net.hybridize()
    with pytest.raises(error, match=message):
        net(*inputs())


def test_refuses_a_shape_that_does_not_match():
    net = nn.Dense(1, in_units=2, prefix="fc_")
    net.initialize()
    net.hybridize()
    with pytest.raises(ValueError, match=r"fc_weight|weight has shape \(1, 2\)"):
        net(data(4, 3))


def test_refuses_shapes_that_cannot_be_inferred():
    class Lonely(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.lonely = self.params.get("lonely", shape=(0,), allow_deferred_init=True)

        def hybrid_forward(self, F, x, lonely):
            return F.broadcast_add(x, F.sum(lonely))

    net = Lonely()
    net.initialize()
    for active in (False, True):
        net.hybridize(active)
        with pytest.raises(ValueError, match="lonely' cannot be inferred from"):
            net(data(1))


def test_refuses_a_layer_that_is_not_registered():
    hidden = nn.Dense(1, in_units=1, prefix="hidden_")
    hidden.initialize()
    net = nn.HybridLambda(lambda F, x: hidden(x))
    net.hybridize()
    with pytest.raises(ValueError, match="uses the variable 'hidden_weight', which is neither"):
        net(data(1, 1))


def test_warns_of_unused_inputs_and_parameters():
    class Part(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.unused = nn.Dense(1, in_units=1)

        def hybrid_forward(self, F, x, y):
            return x

    net = Part(prefix="part_")
    net.initialize()
    net.hybridize()
    with pytest.warns(UserWarning, match="Part 'part'") as caught:
        net(data(1), data(1))
    assert [str(warning.message).partition(": ")[2] for warning in caught] == [
        "its input 'data1' is not used: is that intended?",
        "the parameters part_dense0_weight, part_dense0_bias are not used: is that intended?",
    ]


def test_warns_of_hooks():
    net = nn.Dense(1)
    net.register_forward_hook(lambda *args: None)
    with pytest.warns(UserWarning, match="has hooks"):
        net.hybridize()


def test_export_needs_a_graph(tmp_path):
    with pytest.raises(RuntimeError, match=r"call hybridize\(\), then the block once"):
        nn.Dense(1).export(tmp_path / "x")


async def test_coroutines_share_a_block():
    net = convolutional()
    net.initialize()
    net.hybridize()

    async def predict(rows):
        for _ in range(3):
            assert (await net(data(rows, 3, 8, 8))).shape == (rows, 3)

    await asyncio.gather(*(predict(rows) for rows in (1, 2, 3)))


@pytest.mark.parametrize("static", [{}, {"static_alloc": True, "static_shape": True}])
def test_second_gradients_of_convolutions_match_plain_calls(static):
    def second(net):
        x = mx.nd.array(np.random.default_rng(0).standard_normal((1, 1, 6, 6)))
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
            (first,) = mx.autograd.grad((y * y).sum(), x, create_graph=True)
            total = (first * first).sum()
        total.backward()
        return x.grad.asnumpy()

    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(2, 3), mx.gluon.nn.MaxPool2D(), mx.gluon.nn.Conv2D(1, 2))
    net.initialize(mx.init.Normal(0.5))
    expected = second(net)
    net.hybridize(**static)
    np.testing.assert_allclose(second(net), expected, rtol=1e-4, atol=1e-5)


def test_a_recorded_backward_pass_through_random_numbers_is_an_error():
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dropout(0.5))
    net.hybridize()
    x = mx.nd.ones(8)
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
        with pytest.raises(AutogradError, match="hybridize"):
            mx.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_block_may_set_the_shapes_of_its_parameters(hybridize):
    """Its ``infer_shape`` is called, as in MXNet, if the operators do not determine the shapes."""

    class Table(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.rows = self.params.get("rows", shape=(0, 2), allow_deferred_init=True)

        def infer_shape(self, x, *args):
            self.rows.shape = (x.shape[1] + 1, 2)

        def hybrid_forward(self, F, x, rows):
            return F.broadcast_add(x, F.reshape(F.sum(rows), (1, 1)))

    net = Table()
    net.initialize(mx.init.One())
    net.hybridize(hybridize)
    assert net(mx.nd.zeros((1, 3))).asnumpy().tolist() == [[8.0, 8.0, 8.0]]
    assert net.rows.shape == (4, 2)


def test_a_hybridized_block_reads_parameters_with_new_arrays():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.ones((1, 3))
    for factor in (1, 2):
        net.initialize(mx.init.Constant(factor), force_reinit=True)
        for _ in range(3):
            np.testing.assert_array_equal(net(x).asnumpy(), [[3 * factor, 3 * factor]])
    net.weight.set_data(mx.nd.full((2, 3), 5))
    np.testing.assert_array_equal(net(x).asnumpy(), [[15, 15]])


def test_a_parameter_that_computes_its_data_is_read_at_each_call():
    class Doubled(mx.gluon.Parameter):
        def data(self, ctx=None):
            return 2 * super().data(ctx)

    class Scale(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.factor = self.params.get("factor", shape=(1,), init="ones")
            self.factor.__class__ = Doubled

        def hybrid_forward(self, F, x, factor):
            return F.broadcast_mul(x, factor)

    net = Scale()
    net.initialize()
    net.hybridize()
    for value in (1, 3):
        net.factor.set_data(mx.nd.array([value]))
        assert net(mx.nd.ones((1,))).asscalar() == 2 * value
