"""Partitioners: regions of a graph as single nodes, with the same values and gradients."""

import ctypes
import importlib
import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.symbol.backends import set_op_names
from flowmx.symbol.partition import inline_regions


def by_name(*names):
    @mx.sym.register_partitioner("test")
    class ByName(mx.sym.Partitioner):
        def select(self, node):
            return node.op in names

    return ByName


def ops(symbol):
    return [each["op"] for each in json.loads(symbol.tojson())["nodes"] if each["op"] != "null"]


def diamond():
    first = mx.sym.exp(mx.sym.var("data"))
    return mx.sym.cos(first) + mx.sym.sin(first)


def layers():
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    net = mx.sym.BatchNorm(net, name="norm", fix_gamma=False)
    return mx.sym.tanh(net * 2)


def trained(symbol, like=None):
    exe = symbol.simple_bind(mx.cpu(), data=(3, 5))
    rng = np.random.default_rng(1)
    for array in (*map(exe.arg_dict.get, sorted(exe.arg_dict)), *map(exe.aux_dict.get, sorted(exe.aux_dict))):
        array[:] = rng.uniform(0.5, 1, array.shape)
    out = exe.forward(is_train=True)[0]
    exe.backward(mx.nd.array(np.arange(out.size).reshape(out.shape)))
    arrays = {"out": out, **{f"grad {key}": each for key, each in exe.grad_dict.items()}, **exe.aux_dict}
    return {key: each.asnumpy() for key, each in arrays.items()}


@pytest.mark.parametrize(
    ("net", "names", "count"),
    [
        (diamond(), ("exp", "sin", "elemwise_add"), 2),  # with cos outside, one region would read itself
        (diamond(), ("exp", "sin", "cos", "elemwise_add"), 1),
        (layers(), ("FullyConnected", "BatchNorm"), 1),
        (layers(), ("FullyConnected", "tanh"), 2),
        (layers(), (), 0),
    ],
)
def test_regions_give_the_same_results(net, names, count):
    by_name(*names)
    partitioned = net.optimize_for("test")
    assert ops(partitioned).count("_CachedOp") == count
    assert not set(names) & set(ops(partitioned))
    assert partitioned.list_inputs() == net.list_inputs()
    assert partitioned.list_auxiliary_states() == net.list_auxiliary_states()
    loaded = mx.sym.load_json(partitioned.tojson())
    expected = trained(net)
    for symbol in (partitioned, loaded):
        results = trained(symbol)
        assert expected.keys() == results.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(results[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("names", [("sin",), ("Convolution",), ("sin", "Convolution")])
def test_shapes_flow_back_through_regions(names):
    weight = mx.sym.sin(mx.sym.var("weight", shape=(1, 0, 2, 2)))
    net = mx.sym.Convolution(mx.sym.var("data"), weight, no_bias=True, kernel=(2, 2), num_filter=1)
    by_name(*names)
    partitioned = net.optimize_for("test")
    assert "_CachedOp" in ops(partitioned)
    assert partitioned.infer_shape(data=(2, 3, 5, 5)) == ([(2, 3, 5, 5), (1, 3, 2, 2)], [(2, 1, 4, 4)], [])


def test_operators_without_inputs_stay_outside_regions():
    by_name("_zeros", "elemwise_add", "exp")
    net = mx.sym.exp(mx.sym.var("data") + mx.sym.zeros((0, 3)))
    partitioned = net.optimize_for("test")
    assert ops(partitioned) == ["_zeros", "_CachedOp"]
    assert partitioned.infer_shape(data=(2, 3))[1] == [(2, 3)]


def test_a_partitioner_sees_shapes_reviews_and_replaces():
    candidates = {}

    @mx.sym.register_partitioner("test")
    class Doubler(mx.sym.Partitioner):
        def select(self, node):
            candidates[node.op] = node.shapes
            return node.op in ("exp", "sin")

        def review(self, region, number):
            return number == 0 or self.options["all"]

        def replace(self, region, inputs):
            return inputs[0] * 2

    net = mx.sym.sin(mx.sym.cos(mx.sym.exp(mx.sym.var("data"))))
    partitioned = net.optimize_for("test", {"data": mx.nd.ones((2, 3))}, all=False)
    assert candidates == dict.fromkeys(["exp", "cos", "sin"], ((2, 3),))
    assert partitioned.eval(data=mx.nd.ones(1))[0].asscalar() == pytest.approx(np.sin(np.cos(2)))
    assert net.optimize_for("test", all=True).eval(data=mx.nd.ones(1))[0].asscalar() == pytest.approx(2 * np.cos(2))


def test_blocks_are_partitioned(tmp_path):
    by_name("FullyConnected")
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.Dense(2))
    net.initialize()
    x = mx.nd.ones((2, 3))
    expected = net(x).asnumpy()
    net.optimize_for(x, backend="test")
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-6)
    symbol, params = net.export(tmp_path / "net")
    assert ops(mx.sym.load(symbol)) == ["_CachedOp", "Activation", "_CachedOp"]
    again = mx.gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(again(x).asnumpy(), expected, rtol=1e-6)


def test_default_chooses_by_name():
    set_op_names("default", ["_plus", "sin"])
    try:
        assert ops(diamond().get_backend_symbol("default")) == ["exp", "cos", "_CachedOp"]
    finally:
        set_op_names("default", None)
    assert "_CachedOp" not in ops(diamond().get_backend_symbol("default"))
    assert ops(diamond().optimize_for("default", op_names=["cos"])) == ["exp", "_CachedOp", "sin", "elemwise_add"]


def test_default_by_handles():
    base = importlib.import_module("flowmx.compat.base_helpers")
    out, names = base.SymbolHandle(), ["exp", "sin"]
    with pytest.raises(mx.MXNetError, match="the handle is empty"):
        mx.sym.Symbol(out)
    arguments = diamond().handle, base.c_str("default"), base.mx_uint(2), base.c_str_array(names), ctypes.byref(out)
    base.check_call(base._LIB.MXBuildSubgraphByOpNames(*arguments))
    assert ops(mx.sym.Symbol(out)) == ops(diamond().optimize_for("default", op_names=names))
    assert ops(mx.sym.Symbol(out)).count("_CachedOp") == 1


def test_an_unknown_backend_warns_once_per_line():
    net, x = mx.gluon.nn.Dense(2), mx.nd.ones((1, 3))
    net.initialize()
    expected = net(x).asnumpy()
    net.hybridize(backend="defualt")
    calls = [
        lambda: diamond().optimize_for("defualt"),
        lambda: net(x),
    ]
    for call in calls:
        message = r"no partitioner .defualt., only default.*: the graph is unchanged"
        with pytest.warns(UserWarning, match=message) as caught:
            [call() for _ in range(2)]
        assert len(caught) == 1
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-6)
    assert ops(diamond().optimize_for("MKLDNN")) == ops(diamond())
    with pytest.raises(mx.MXNetError, match=r"no partitioner 'defualt'.*did you mean 'default'"):
        diamond().get_backend_symbol("defualt")


def test_a_setting_partitions_bound_symbols():
    inside = []
    by_name("exp", "sin").review = lambda self, region, number: inside.append(region.list_inputs()) or True
    first, second = mx.sym.var("first"), mx.sym.var("second")
    # Within a region with two outputs, the variables of the second come before others of the graph.
    net = mx.sym.Group([mx.sym.exp(first) * mx.sym.var("factor"), mx.sym.sin(mx.sym.exp(first) + second)])
    plain = net.simple_bind(mx.cpu(), first=(2,), factor=(2,), second=(2,))
    assert not inside
    with mx.settings.override(subgraph_backend="test"):
        exe = net.simple_bind(mx.cpu(), first=(2,), factor=(2,), second=(2,))
        bound = net.bind(mx.cpu(), exe.arg_arrays, exe.grad_arrays)
    assert len(inside) == 6
    assert list(exe.arg_dict) == list(bound.arg_dict) == net.list_arguments()
    for each in (plain, bound, exe.reshape(first=(2,), factor=(2,), second=(2,))):
        for number, array in enumerate(each.arg_arrays):
            array[:] = number + 1
        each.forward(is_train=True)
        each.backward([mx.nd.ones(2), mx.nd.ones(2)])
        for results, expected in zip(
            (*each.outputs, *each.grad_arrays), (*plain.outputs, *plain.grad_arrays), strict=True
        ):
            np.testing.assert_allclose(results.asnumpy(), expected.asnumpy(), rtol=1e-6)
    with mx.settings.override(subgraph_backend="other"), pytest.warns(UserWarning, match=r"no partitioner 'other'"):
        net.simple_bind(mx.cpu(), first=(2,), factor=(2,), second=(2,))


def test_sparse_operators_stay_outside_regions():
    by_name("dot", "cast_storage", "exp")
    net = mx.sym.exp(mx.sym.dot(mx.sym.var("data", stype="csr"), mx.sym.var("weight")))
    assert ops(net.optimize_for("test")) == ["dot", "_CachedOp"]
    assert "_CachedOp" not in ops(mx.sym.cast_storage(mx.sym.var("data"), stype="csr").optimize_for("test"))


def test_regions_are_inlined_again():
    by_name("exp", "sin", "elemwise_add")
    once = diamond().optimize_for("test")
    by_name("_CachedOp", "cos")
    twice = once.optimize_for("test")
    assert ops(twice) == ["_CachedOp"]
    assert ops(mx.sym.Symbol(inline_regions(twice.entries))) == ops(diamond())


def test_regions_are_written_as_onnx(tmp_path):
    pytest.importorskip("onnx")
    by_name("FullyConnected", "BatchNorm", "tanh")
    path, x = str(tmp_path / "net.onnx"), mx.nd.ones((3, 5))
    rng = np.random.default_rng(0)
    partitioned = layers().optimize_for("test")
    arguments, _, auxiliary = partitioned.infer_shape(data=x.shape)
    names = [*partitioned.list_arguments(), *partitioned.list_auxiliary_states()]
    shapes = zip(names, [*arguments, *auxiliary], strict=True)
    params = {name: mx.nd.array(rng.uniform(0.5, 1, shape)) for name, shape in shapes}
    del params["data"]
    mx.onnx.export_model(partitioned, params, [x.shape], onnx_file_path=path)
    symbol, args, aux = mx.onnx.import_model(path)
    results = symbol.bind(mx.cpu(), {"data": x, **args}, aux_states=aux).forward()[0]
    bound = layers().bind(mx.cpu(), {"data": x, **params}, aux_states=params)
    np.testing.assert_allclose(results.asnumpy(), bound.forward()[0].asnumpy(), rtol=1e-5)


def test_refusals():
    by_name("exp").replace = lambda self, region, inputs: mx.sym.Group([inputs[0], inputs[0]])
    with pytest.raises(mx.MXNetError, match=r"2 outputs were returned for a region with 1"):
        diamond().optimize_for("test")
    with pytest.raises(TypeError, match=r"subclass of mx\.sym\.Partitioner"):
        mx.sym.register_partitioner("test")(object)
    with pytest.raises(ValueError, match=r"args has 0 arrays, expected 1: data"):
        diamond().optimize_for("test", [])
