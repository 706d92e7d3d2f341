"""Symbols: composition, names, attributes, inference, text."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import MXNetError, ParameterError, ShapeError, TypeInferenceError
from flowmx.ops.registry import calling


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def mlp():
    data = mx.sym.Variable("data")
    fc1 = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    act = mx.sym.Activation(fc1, act_type="relu", name="act")
    fc2 = mx.sym.FullyConnected(act, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(fc2, name="softmax")


def test_lists():
    net = mlp()
    assert net.list_arguments() == ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias", "softmax_label"]
    assert net.list_outputs() == ["softmax_output"]
    assert net.list_auxiliary_states() == []
    assert net.name == "softmax"
    assert len(net) == net.num_outputs == 1


def test_auxiliary_states_are_listed_apart():
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn")
    assert net.list_arguments() == ["data", "bn_gamma", "bn_beta"]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.list_inputs() == ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]


def test_internals_children_and_picking():
    net = mlp()
    inner = net.get_internals()["fc1_output"]
    assert inner.list_arguments() == ["data", "fc1_weight", "fc1_bias"]
    assert net.get_children().list_outputs() == ["fc2_output", "softmax_label"]
    assert mx.sym.Variable("x").get_children() is None
    with pytest.raises(ValueError, match="0 outputs are called 'nowhere'"):
        net["nowhere"]
    with pytest.raises(IndexError):
        net[1]


def test_multiple_outputs_and_groups():
    parts = mx.sym.SliceChannel(mx.sym.Variable("x"), num_outputs=3, name="slice")
    assert parts.list_outputs() == ["slice_output0", "slice_output1", "slice_output2"]
    assert [part.list_outputs() for part in parts] == [[name] for name in parts.list_outputs()]
    group = mx.sym.Group([parts[2], parts[0] * 2])
    assert group.list_outputs() == ["slice_output2", "_mulscalar0_output"]
    assert group.name is None
    with pytest.raises(TypeError, match="3 outputs: pick one"):
        mx.sym.exp(parts)
    with pytest.raises(TypeError, match="not a Symbol"):
        mx.sym.Group([parts, 3])


def test_composition_in_place():
    data = mx.sym.Variable("data")
    first = mx.sym.FullyConnected(data, name="fc1", num_hidden=10)
    second = mx.sym.FullyConnected(name="fc3", num_hidden=10)
    before, other = second.list_arguments(), second
    assert second._compose(fc3_data=first, name="composed") is None
    assert other.name == "composed"
    assert before == ["fc3_data", "fc3_weight", "fc3_bias"]
    assert second.list_arguments() == ["data", "fc1_weight", "fc1_bias", "fc3_weight", "fc3_bias"]
    assert second.infer_shape(data=(2, 3))[1] == [(2, 10)]
    with pytest.raises(TypeError, match="not both"):
        second._compose(data, fc3_bias=data)


def test_composition_by_call():
    net = mlp()
    front = mx.sym.Flatten(mx.sym.Variable("image"), name="flat")
    joined = net(data=front, name="whole")
    assert joined.list_arguments()[0] == "image"
    assert joined.name == "whole"
    assert net.list_arguments()[0] == "data", "the composed symbol itself does not change"
    assert net(front).list_arguments()[0] == "image"
    with pytest.raises(ValueError, match="no argument 'dta'"):
        net(dta=front)
    with pytest.raises(TypeError, match="not both"):
        net(front, data=front)


def test_automatic_names_and_prefixes():
    x = mx.sym.Variable("x")
    assert mx.sym.Flatten(x).name == "flatten0"
    assert mx.sym.Flatten(x).name == "flatten1"
    assert (x + 1).name == "_plusscalar0"
    assert (x - x).name == "_minus0"
    with mx.name.Prefix("stage1_"):
        assert mx.sym.Flatten(x, name="f").name == "stage1_f"
        assert mx.sym.Flatten(x).name == "stage1_flatten0"


def test_attributes_and_scopes():
    with mx.AttrScope(ctx_group="dev1", custom="yes"):
        x = mx.sym.Variable("x", lr_mult=2)
        with mx.AttrScope(ctx_group="dev2"):
            y = mx.sym.FullyConnected(x, num_hidden=2, name="fc", attr={"__own__": "1"})
    assert x.attr("ctx_group") == "dev1"
    assert x.attr("__lr_mult__") == "2"
    assert y.attr("ctx_group") == "dev2"
    assert y.attr("custom") == "yes"
    assert y.attr("num_hidden") == "2"
    assert y.attr("nothing") is None
    assert y.attr_dict()["fc"]["__own__"] == "1"
    assert y.attr_dict()["fc_weight"]["__ctx_group__"] == "dev2"
    with pytest.raises(ValueError, match="expected text"):
        mx.AttrScope(group=3)


async def test_scopes_of_two_tasks_are_independent_of_each_other():
    import asyncio

    async def make(group):
        with mx.AttrScope(ctx_group=group), mx.name.Prefix(f"{group}_"):
            await asyncio.sleep(0)
            symbol = mx.sym.Flatten(mx.sym.Variable("x"), name="f")
            await asyncio.sleep(0)
        return symbol

    one, two = await asyncio.gather(make("a"), make("b"))
    assert (one.name, one.attr("ctx_group")) == ("a_f", "a")
    assert (two.name, two.attr("ctx_group")) == ("b_f", "b")


def test_mxnets_attributes_have_two_names_and_are_text():
    x = mx.sym.Variable("x", attr={"force_mirroring": "True", "mood": "angry"})
    assert x.list_attr() == {"force_mirroring": "True", "__force_mirroring__": "True", "mood": "angry"}
    net = mx.sym.FullyConnected(x, num_hidden=3, lr_mult=0.0, __wd_mult__=0.5, name="fc")
    both = {"lr_mult": "0.0", "__lr_mult__": "0.0", "wd_mult": "0.5", "__wd_mult__": "0.5"}
    assert net.list_attr() == {**both, "num_hidden": "3"}
    assert net.attr_dict()["fc_weight"] == {**both, "num_hidden": "3"}
    (node,) = [each for each in json.loads(net.tojson())["nodes"] if each["name"] == "fc"]
    assert node["attrs"] == {"__lr_mult__": "0.0", "__wd_mult__": "0.5", "num_hidden": "3"}
    with mx.AttrScope(ctx_group="dev1", group="4"):
        assert mx.sym.Variable("y").list_attr() == {"ctx_group": "dev1", "__ctx_group__": "dev1", "group": "4"}


def test_keywords_of_operators_that_have_none_are_ignored_with_a_warning():
    a = mx.nd.array([1, -1])
    for _ in range(2):
        with pytest.warns(UserWarning, match="relu: it has no parameters, so foo is ignored"):
            assert mx.nd.relu(a, foo=1).asnumpy().tolist() == [1, 0]
        with pytest.warns(UserWarning, match="axis is ignored"):
            assert mx.nd.broadcast_maximum(a, a, axis=1).shape == (2,)
        with pytest.warns(UserWarning, match="foo is ignored"):
            assert mx.sym.elemwise_add(mx.sym.Variable("x"), mx.sym.Variable("y"), foo=1).attr("foo") == "1"
        calling._warned.clear()


def test_shapes_and_numbers_in_all_their_forms():
    x = mx.sym.Variable("x", shape=(4))
    assert x.infer_shape()[1] == [(4,)]
    assert mx.sym.Variable("y", shape=np.array([2, 3])).infer_shape()[1] == [(2, 3)]
    assert mx.sym.maximum(x, np.float32(2)).eval(x=mx.nd.arange(4))[0].asnumpy().tolist() == [2, 2, 2, 3]
    for symbol, expected in (
        (np.float32(2) * x, [0, 2, 4, 6]),
        (np.int64(2) - x, [2, 1, 0, -1]),
        (np.float64(2) > x, [1, 1, 0, 0]),
        (np.float32(2) == x, [0, 0, 1, 0]),
    ):
        assert symbol.eval(x=mx.nd.arange(4))[0].asnumpy().tolist() == expected
    with pytest.raises(TypeError):
        x + np.ones(4)


def test_infer_shape():
    net = mlp()
    arguments, outputs, auxiliary = net.infer_shape(data=(4, 6))
    assert dict(zip(net.list_arguments(), arguments, strict=True)) == {
        "data": (4, 6), "fc1_weight": (8, 6), "fc1_bias": (8,), "fc2_weight": (3, 8), "fc2_bias": (3,),
        "softmax_label": (4,),
    }  # fmt: skip
    assert outputs == [(4, 3)]
    assert auxiliary == []
    assert net.infer_shape() == (None, None, None)
    assert net.infer_shape((4, 6))[1] == [(4, 3)]


def test_infer_shape_partial_and_backwards():
    net = mlp()
    arguments, outputs, _ = net.infer_shape_partial()
    assert arguments == [()] * len(arguments), "without the data's shape, no shape of a layer is known"
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y", shape=(0, 5))
    arguments, outputs, _ = (x + y).infer_shape(x=(3, 0))
    assert arguments == [(3, 5), (3, 5)]
    assert outputs == [(3, 5)]


def var(name, *shape):
    return mx.sym.Variable(name, shape=shape)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda: mx.sym.Convolution(var("x", 0, 10, 0, 0), num_filter=21, kernel=(3, 3), pad=(1, 1))
            + var("y", 5, 21, 32, 32), (5, 10, 32, 32)),
        (lambda: mx.sym.Convolution(var("x", 0, 10, 32), num_filter=21, kernel=3, stride=2) + var("y", 5, 21, 15),
            (5, 10, 32)),
        (lambda: mx.sym.Concat(var("x", 0, 10), var("z", 0, 5), dim=1) + var("y", 2, 0), (2, 10)),
        (lambda: mx.sym.Concat(var("x", 2, 0), var("z", 0, 5), dim=1) + var("y", 2, 15), (2, 10)),
        (lambda: mx.sym.SliceChannel(var("x", 0, 10), num_outputs=10, squeeze_axis=True)[1] + var("y", 5), (5, 10)),
        (lambda: mx.sym.SliceChannel(var("x", 0, 15, 0), num_outputs=3)[1] + var("y", 3, 5, 2), (3, 15, 2)),
        (lambda: mx.sym.split_v2(var("x", 0, 0), (2, 5), axis=1)[0] + var("y", 3, 2), None),
        (lambda: mx.sym.where(var("c", 2), mx.sym.Variable("x"), mx.sym.Variable("z")) + var("y", 2, 3), (2, 3)),
        (lambda: mx.sym.transpose(mx.sym.Variable("x"), axes=(1, 2, 0)) + var("y", 2, 3, 4), (4, 2, 3)),
        (lambda: mx.sym.expand_dims(mx.sym.Variable("x"), axis=-1) + var("y", 2, 4, 1), (2, 4)),
        (lambda: mx.sym.reverse(mx.sym.Variable("x"), axis=0) + var("y", 2, 4), (2, 4)),
    ],
)  # fmt: skip
def test_shapes_go_backwards_through_operators(result, expected):
    symbol = result()
    arguments, _, _ = symbol.infer_shape()
    if expected is None:
        assert arguments is None
    else:
        assert dict(zip(symbol.list_arguments(), arguments, strict=True))["x"] == expected


def test_constants_infer_unknown_lengths_from_their_readers():
    total = mx.sym.ones(shape=(2, -1)) + mx.sym.transpose(mx.sym.ones(shape=(3, 0)))
    assert total.bind(mx.cpu(), {}).forward()[0].shape == (2, 3)


def test_a_given_shape_overrides_the_declared_one():
    net = mx.sym.FullyConnected(mx.sym.Variable("data", shape=(32, 3)), num_hidden=2, name="fc")
    assert net.infer_shape(data=(1, 3))[1] == [(1, 2)]
    assert net.infer_shape(data=(0, 4))[1] == [(32, 2)]
    assert net.simple_bind(mx.cpu(), data=(1, 3)).forward()[0].shape == (1, 2)
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (5, 3))], for_training=False)
    assert module.output_shapes == [("fc_output", (5, 2))]


def test_partial_inference_returns_none_for_unknown_shapes():
    data = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(mx.sym.Cast(data, dtype="float16"), num_hidden=3)
    assert net.infer_type_partial() == ([None, np.float16, np.float16], [np.float16], [])
    assert net.infer_type() == (None, None, None)
    assert net.infer_type(data="float64")[0] == [np.float64, np.float16, np.float16]
    chosen = mx.sym.where(mx.sym.Variable("c"), mx.sym.Variable("x"), mx.sym.Variable("y"))
    assert chosen.infer_shape_partial(c=(0, 2), x=(0, 2))[1] == [()], "the condition may have one axis"
    product = mx.sym.batch_dot(mx.sym.Variable("x"), mx.sym.Variable("y"))
    assert product.infer_shape_partial(x=(0, 3, 4), y=(0, 4, 5))[1] == [(0, 3, 5)]
    assert product.infer_shape_partial(x=(0, 3, 4), y=(0, 0, 5))[1] == [()]


def test_shape_error_names_node_inputs_and_line():
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    z = mx.sym.elemwise_add(x, y, name="total")  # the line to be named
    with pytest.raises(ShapeError) as caught:
        mx.sym.exp(z).infer_shape(x=(2, 3), y=(2, 4))
    text = str(caught.value)
    assert "'total'" in text
    assert "x: (2, 3)" in text
    assert "y: (2, 4)" in text
    assert "test_symbol.py" in text
    assert "the line to be named" in text


def test_infer_type():
    net = mlp()
    arguments, outputs, _ = net.infer_type(data=np.float64)
    assert set(arguments) == {np.float64}
    assert outputs == [np.float64]
    with pytest.raises(TypeInferenceError, match="dtype"):
        (mx.sym.Variable("a", dtype="float32") + mx.sym.Variable("b", dtype="float64")).infer_type()


def test_bad_parameters_are_refused_when_composed():
    x = mx.sym.Variable("x")
    with pytest.raises(ParameterError, match="FullyConnected: missing parameter num_hidden"):
        mx.sym.FullyConnected(x)
    with pytest.raises(ParameterError, match=r"Activation: parameter act_type is 'rleu', expected one of"):
        mx.sym.Activation(x, act_type="rleu")
    with pytest.raises(ParameterError, match="did you mean 'num_hidden'"):
        mx.sym.FullyConnected(x, num_hiden=3)
    with pytest.raises(TypeError, match="expected a Symbol"):
        mx.sym.exp(mx.nd.array([1]))
    with pytest.raises(AttributeError, match="did you mean"):
        mx.sym.FullyConected(x)


def test_json_round_trip_copies_and_pickles():
    net = mlp()
    assert mx.sym.load_json(net.tojson()).tojson() == net.tojson()
    assert pickle.loads(pickle.dumps(net)).tojson() == net.tojson()
    assert copy.deepcopy(net).tojson() == net.tojson()


def test_save_and_load(tmp_path):
    net = mlp()
    net.save(tmp_path / "net-symbol.json")
    assert mx.sym.load(str(tmp_path / "net-symbol.json")).tojson() == net.tojson()
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(MXNetError, match=r"bad\.json"):
        mx.sym.load(tmp_path / "bad.json")


def test_arithmetic_values():
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    a, b = np.array([1.0, 2.0, 3.0], np.float32), np.array([4.0, 5.0, 6.0], np.float32)
    cases = [
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x**y, a**b), (y % x, b % a), (-x, -a),
        (x + 1, a + 1), (1 - x, 1 - a), (2 / x, 2 / a), (2**x, 2**a), (x > 1, a > 1), (x == y, a == b),
        (x.sum(), a.sum(keepdims=True)), (x.reshape((3, 1)), a.reshape(3, 1)),
    ]  # fmt: skip
    for symbol, expected in cases:
        arrays = {name: mx.nd.array(v) for name, v in (("x", a), ("y", b)) if name in symbol.list_arguments()}
        (result,) = symbol.eval(mx.cpu(), **arrays)
        np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-6)


def test_a_symbol_has_no_truth_value():
    with pytest.raises(TypeError, match="cannot be converted to bool"):
        bool(mx.sym.Variable("x") == mx.sym.Variable("y"))


def test_debug_str_reports_memory():
    net = mx.sym.exp(mx.sym.Variable("x", shape=(1024, 1024)), name="e")
    assert "Op:exp, Name=e" in net.debug_str()
    assert "8.00 MiB" in net.debug_str()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: mx.sym.Concat(name="c", num_args=2), ["c_arg0", "c_arg1"]),
        (lambda: mx.sym.Concat(mx.sym.Variable("a"), name="c", num_args=3), ["a", "c_arg1", "c_arg2"]),
        (lambda: mx.sym.add_n(name="s", num_args=2), ["s_arg0", "s_arg1"]),
        (lambda: mx.sym.UpSampling(scale=2, sample_type="nearest", num_args=1, name="u"), ["u_arg0"]),
    ],
)
def test_inputs_that_num_args_counts_become_variables(make, names):
    assert make().list_arguments() == names


def test_more_inputs_than_num_args_counts_are_refused():
    with pytest.raises(TypeError, match="num_args is 1, but 2 inputs were given"):
        mx.sym.Concat(mx.sym.Variable("a"), mx.sym.Variable("b"), num_args=1)
    with pytest.raises(TypeError, match="num_args is 2, but 1 inputs were given"):
        mx.nd.concat(mx.nd.ones((1, 1)), num_args=2)


def test_division_has_its_older_names_too():
    x = mx.sym.Variable("x")
    for symbol in (x.__div__(2), x.__rdiv__(2)):
        assert symbol.list_arguments() == ["x"]
    a = mx.nd.array([2.0, 4.0])
    assert a.__div__(2).asnumpy().tolist() == [1, 2]
    assert a.__rdiv__(8).asnumpy().tolist() == [4, 2]
    assert a.__idiv__(2) is a
