"""Private and removed names of MXNet that packages use: each works as in MXNet 1.9.1."""

from __future__ import annotations

import importlib
import json
import multiprocessing.pool
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import block, nn
from flowmx.gluon import loss as gloss

dataloader: Any = importlib.import_module("flowmx.gluon.data.dataloader")


def values(array):
    return array.asnumpy().tolist()


# -- blocks and parameters -----------------------------------------------------------------------------


def test_nested_arrays_are_flattened_and_nested_again():
    a, b = mx.nd.ones(1), mx.nd.zeros(2)
    pair = mx.sym.split(mx.sym.var("x"), num_outputs=2)
    flat, form = block._flatten([a, [b, None], (pair,)], "input")
    assert form == [0, [0, -1], [2]]
    assert flat[:3] == [a, b, None]
    (first, (second, nothing)), rest = block._regroup([*flat[:3], "left"], [0, [0, -1]])
    assert (first, second, nothing, rest) == (a, b, None, ["left"])
    with pytest.raises(ValueError, match="output"):
        block._flatten([1], "output")
    assert (mx.sym.Symbol, mx.nd.NDArray) == mx.gluon.tensor_types


def test_names_of_blocks_come_from_the_scope_that_is_entered():
    class Named:
        prefix, _empty_prefix = "outer_", False

    entered = block._BlockScope(Named())
    for number in range(2):
        with entered:
            assert mx.name.NameManager.current.get(None, f"hello{number}") == f"outer_hello{number}0"
            assert block._BlockScope.create(None, None, "dense")[0] == f"outer_dense{number}_"
            assert block._BlockScope._current.value is not None
        assert block._BlockScope._current.value is None


def test_a_parameter_shows_its_arrays_as_lists():
    param = mx.gluon.Parameter("w", shape=(2, 3))
    assert (param._data, param._grad, param._deferred_init, param._ctx_list) == (None, None, (), None)
    param.initialize(ctx=[mx.cpu(0), mx.cpu(2)])
    assert [each.context for each in param._data] == param._ctx_list == [mx.cpu(0), mx.cpu(2)]
    assert param._ctx_map == [[], [0, None, 1]]
    assert param._check_and_get(param._data, mx.cpu(2)) is param._data[1]
    assert param._check_and_get(param._grad, list) == param._grad
    with pytest.raises(RuntimeError, match="not on"):
        param._check_and_get(param._data, mx.cpu(1))
    param.grad_req = "null"
    assert param._grad is None
    assert (param._stype, param._grad_stype) == ("default", "default")


def test_a_parameter_takes_the_arrays_of_another():
    first, second = (mx.gluon.Parameter(name, shape=(2,)) for name in "ab")
    first.initialize()
    second._deferred_init, second._ctx_list, second._ctx_map = first._deferred_init, first._ctx_list, first._ctx_map
    second._data, second._grad = first._data, first._grad
    first.set_data(mx.nd.array([1, 2]))
    assert values(second.data()) == [1, 2]
    late = mx.gluon.Parameter("c", shape=(0,), allow_deferred_init=True)
    late.initialize(init="ones")
    assert late._deferred_init[1] == [mx.cpu()]
    second._data, second._deferred_init = None, late._deferred_init
    second._finish_deferred_init()
    assert values(second.data()) == [1, 1]


def test_a_trainer_shows_its_updaters_and_when_its_store_was_decided():
    net = nn.Dense(3, in_units=2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", kvstore="local")
    trainer._init_kvstore()
    assert trainer._kv_initialized
    assert trainer._params_to_init == [net.bias, net.weight]
    trainer._init_params()
    assert trainer._params_to_init == []
    assert trainer._kvstore is None
    assert isinstance(trainer._updaters[0].get_states(dump_optimizer=False), bytes)


def test_a_block_is_saved_with_its_nesting(tmp_path):
    class Chain(mx.gluon.Block):
        def add(self, child):
            self._children[child.name + str(len(self._children))] = child

        def forward(self, x):
            for child in self._children.values():
                x = child(x)
            return x

    def network():
        inside, net = Chain(), Chain()
        inside.add(nn.Dense(4))
        net.add(inside)
        net.add(nn.Dense(3))
        return net

    first, second, x = network(), network(), mx.nd.ones((1, 5))
    first.initialize()
    first.hybridize()
    out = first(x)
    first.save(tmp_path / "model")
    second.load(tmp_path / "model")
    assert values(second(x)) == values(out)
    assert list(second._children) == list(first._children)
    with pytest.raises(ValueError, match="a model of the saved structure"):
        Chain().load(tmp_path / "model")


def test_losses_are_weighted():
    loss = mx.nd.array([[1, 2], [3, 4]])
    assert values(gloss._apply_weighting(mx.nd, loss, 2.0, mx.nd.array([[1], [0]]))) == [[2, 4], [0, 0]]
    assert gloss._reshape_like(mx.nd, loss, mx.nd.ones(4)).shape == (4,)
    assert gloss._reshape_like(mx.sym, mx.sym.var("x"), mx.sym.var("y")).list_arguments() == ["x", "y"]
    with pytest.raises(AssertionError, match="expected a number"):
        gloss._apply_weighting(mx.nd, loss, "2")


def test_a_cell_over_a_sequence_whose_length_the_graph_does_not_fix():
    cell = mx.gluon.rnn.LSTMCell(5)
    cell.initialize()
    data, states = mx.nd.random.normal(shape=(3, 2, 5)), [mx.nd.zeros((2, 5))] * 2
    lengths = mx.nd.array([2, 3])
    out, (last, _) = mx.gluon.contrib.rnn.rnn_cell.dynamic_unroll(cell, data, states, valid_length=lengths)
    wanted, (expected_states, _) = cell.unroll(3, data, states, layout="TNC", merge_outputs=True, valid_length=lengths)
    np.testing.assert_allclose(
        out.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=1e-7
    )  # sums near zero round as their largest terms do
    np.testing.assert_allclose(last.asnumpy(), expected_states.asnumpy(), rtol=1e-5)


# -- arrays, symbols, executors ------------------------------------------------------------------------


def test_the_graph_of_a_recorded_array():
    x, z = mx.nd.array([3]), mx.nd.array([5])
    x.attach_grad()
    z.attach_grad()
    with mx.autograd.record():
        one, two = x * x + 2 * x - 1, x * x + 2 * z - 1
    assert len(mx.autograd.get_symbol(one).list_arguments()) == 1
    graph = mx.autograd.get_symbol(two)
    (actual,) = graph.eval(**dict(zip(graph.list_arguments(), (x, z), strict=True)))
    assert values(actual) == values(two) == [18]
    with pytest.raises(mx.MXNetError, match="record"):
        mx.autograd.get_symbol(x + 1)


def test_the_graph_of_a_hybridized_block_that_was_recorded():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.random.normal(shape=(4, 2))
    with mx.autograd.record():
        y = net(x) * 2
    graph = mx.autograd.get_symbol(y)
    assert len(graph.list_arguments()) == 5 and len(graph.list_auxiliary_states()) == 2
    assert [node["op"] for node in json.loads(graph.tojson())["nodes"] if node["op"] != "null"] == [
        "FullyConnected", "BatchNorm", "_mul_scalar"
    ]  # fmt: skip


def test_a_symbol_as_a_function_of_arrays():
    op = mx.nd.CachedOp(mx.sym.var("x") * 2 + mx.sym.var("y"), flags=[("static_alloc", True)])
    x, y, out = mx.nd.array([1, 2]), mx.nd.array([10, 20]), mx.nd.zeros(2)
    assert values(op(x, y)) == [12, 24]
    assert op(x, y, out=out) is out
    assert values(out) == [12, 24]


def test_a_gradient_is_fresh_until_it_is_marked_otherwise():
    x, grad = mx.nd.ones(2), mx.nd.zeros(2)
    mx.autograd.mark_variables([x], [grad])
    assert not x._fresh_grad
    with mx.autograd.record():
        y = x * 2
    y.backward()
    assert x._fresh_grad
    x._fresh_grad = False
    assert not x._fresh_grad


@pytest.mark.parametrize(
    ("key", "shape", "wanted"),
    [
        ((slice(0, 2), slice(0, 3)), (4, 3), True),
        ((1, slice(0, 2)), (4, 3), True),
        ((slice(0, 2), slice(0, 2)), (4, 3), False),
        ((slice(0, 4, 2), slice(0, 3)), (4, 3), False),
        ((slice(None), 1), (4, 3), False),
        ((slice(None), 0, slice(None)), (2, 1, 4), True),
    ],
)
def test_basic_indexing_returns_contiguous_arrays(key, shape, wanted):
    whole = np.arange(np.prod(shape)).reshape(shape)[key]
    assert bool(whole.size <= 1 or np.ptp(whole) == whole.size - 1) is wanted
    assert mx.nd.NDArray._basic_indexing_slice_is_contiguous(key, shape) is wanted


def test_an_executor_shows_its_device_and_its_graph():
    a, b = mx.sym.var("a"), mx.sym.var("b")
    symbol = (a + b) + (a + b)
    executor = symbol.bind(mx.cpu(), {"a": mx.nd.ones(2), "b": mx.nd.ones(2)})
    assert executor._ctx == mx.cpu()
    assert len(symbol.get_internals()) == len(executor.get_optimized_symbol().get_internals()) + 1


@pytest.mark.parametrize("eliminate", [0, 1])
def test_the_graph_of_an_executor_is_the_one_that_it_was_bound_with(eliminate, monkeypatch):
    a, b = mx.sym.var("a"), mx.sym.var("b")
    twice = [mx.sym.Dropout(a) + mx.sym.Dropout(a), (a + b) + (a + b), mx.sym.Group([a * 2 + b, a * 2 + b])]
    monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", str(eliminate))
    arrays = {"a": mx.nd.ones(2), "b": mx.nd.ones(2)}
    bound = [each.bind(mx.cpu(), {name: arrays[name] for name in each.list_arguments()}) for each in twice]
    monkeypatch.undo()
    # Random numbers are drawn twice, and two equal outputs are two arrays.
    saved = [
        len(each.get_internals()) - len(executor.get_optimized_symbol().get_internals())
        for each, executor in zip(twice, bound, strict=True)
    ]
    assert saved == ([0, 1, 1] if eliminate else [0, 0, 0])
    assert all((out.asnumpy() == 3).all() for out in bound[2].forward())


def test_the_operator_of_a_symbol_alone():
    symbol = mx.sym.split(mx.sym.var("x") + 1, num_outputs=2, name="parts")
    alone = symbol._gen_atomic_symbol()
    assert alone.list_outputs() == ["parts_output0", "parts_output1"]
    assert alone.list_arguments() == ["parts_data"]


class Softmax(mx.operator.NumpyOp):  # type: ignore[name-defined,misc]
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

    def forward(self, in_data, out_data):
        out_data[0][:] = np.exp(in_data[0] - in_data[0].max(axis=1, keepdims=True))
        out_data[0] /= out_data[0].sum(axis=1, keepdims=True)

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_data[0]
        in_grad[0][np.arange(len(in_data[1])), in_data[1].astype(int)] -= 1.0


class Square(mx.operator.NDArrayOp):  # type: ignore[name-defined,misc]
    def forward(self, in_data, out_data):
        out_data[0][:] = in_data[0] * in_data[0]

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = 2 * in_data[0] * out_grad[0]


def test_operators_on_numpys_arrays():
    with pytest.warns(UserWarning, match="CustomOp"):
        symbol = Softmax()(data=mx.sym.var("data"), name="softmax")
    assert symbol.list_arguments() == ["data", "softmax_label"]
    executor = symbol.simple_bind(mx.cpu(), data=(2, 3))
    executor.arg_dict["data"][:] = mx.nd.array([[0, 1, 2], [3, 3, 3]])
    executor.arg_dict["softmax_label"][:] = mx.nd.array([2, 0])
    (out,) = executor.forward(is_train=True)
    executor.backward()
    np.testing.assert_allclose(out.asnumpy().sum(axis=1), [1, 1], rtol=1e-6)
    wanted = out.asnumpy() - np.eye(3)[[2, 0]]
    np.testing.assert_allclose(executor.grad_dict["data"].asnumpy(), wanted, rtol=1e-6)


def test_operators_on_arrays():
    with pytest.warns(UserWarning, match="CustomOp"):
        symbol = Square()(mx.sym.var("data"))
    executor = symbol.simple_bind(mx.cpu(), data=(3,))
    executor.arg_dict["data"][:] = 3
    assert values(executor.forward(is_train=True)[0]) == [9, 9, 9]
    executor.backward(mx.nd.array([1, 2, 3]))
    assert values(executor.grad_dict["data"]) == [6, 12, 18]


# -- modules -------------------------------------------------------------------------------------------


def linear():
    return mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")


def test_a_module_shows_its_executors():
    module = mx.mod.Module(linear(), label_names=None)
    assert module._exec_group is None
    assert module._label_shapes is None
    module.bind([("data", (4, 3))])
    module.init_params(mx.init.One())
    group = module._exec_group
    assert group.param_names == ["fc_weight", "fc_bias"]
    assert [[each.shape for each in arrays] for arrays in group.param_arrays] == [[(2, 3)], [(2,)]]
    assert group.execs[0].grad_dict["fc_bias"] is group.grad_arrays[1][0]
    assert group.get_output_shapes() == [("fc_output", (4, 2))]


def test_a_group_of_executors_by_itself():
    group = mx.module.executor_group.DataParallelExecutorGroup(
        linear(), [mx.cpu(0), mx.cpu(1)], None, [("data", (4, 3))], None, ["fc_weight", "fc_bias"], True, False
    )
    group.set_params({"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.zeros(2)}, {})
    group.forward(mx.io.DataBatch([mx.nd.ones((4, 3))], []))
    assert values(group.get_outputs()[0]) == [[3, 3]] * 4
    assert [each.context for each in group.get_outputs(merge_multi_context=False)[0]] == [mx.cpu(0), mx.cpu(1)]
    group.backward([mx.nd.ones((4, 2))])
    assert [values(each) for each in group.grad_arrays[1]] == [[2, 2], [2, 2]]
    params = {}
    group.get_params(params, {})
    assert values(params["fc_bias"]) == [0, 0]


def test_shared_groups_have_one_pool_of_non_parameter_arrays():
    def group(symbol, shared=None):
        return mx.module.executor_group.DataParallelExecutorGroup(
            symbol,
            [mx.cpu(0), mx.cpu(1)],
            None,
            [("data", (4, 3))],
            None,
            ["fc_weight", "fc_bias"],
            True,
            False,
            shared,
        )

    first = group(linear())
    assert [sorted(pool) for pool in first.shared_data_arrays] == [["data"]] * 2
    second = group(mx.sym.FullyConnected(linear(), num_hidden=2, name="more"), first)
    for one, other in zip(first.shared_data_arrays, second.shared_data_arrays, strict=True):
        assert sorted(one) == sorted(other) == ["data", "more_bias", "more_weight"]
        assert all(mx.test_utils.same_array(one[name], other[name]) for name in one)


def test_batches_are_split_as_mxnet_splits_them():
    split = mx.executor_manager._split_input_slice
    assert split(10, [1, 1, 1]) == [slice(0, 3), slice(3, 6), slice(6, 10)]
    assert split(6, [1, 2]) == [slice(0, 2), slice(2, 6)]
    with pytest.raises(ValueError, match="cannot be split"):
        split(1, [1, 1])


def test_executors_of_a_loop_written_by_hand():
    data = mx.io.NDArrayIter(np.ones((4, 3), np.float32), np.zeros(4, np.float32), batch_size=4)
    net = mx.sym.SoftmaxOutput(linear(), name="softmax")
    manager = mx.executor_manager.DataParallelExecutorManager(net, [mx.cpu()], data)
    manager.set_params({"fc_weight": mx.nd.zeros((2, 3)), "fc_bias": mx.nd.zeros(2)}, {})
    batch = data.next()
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    manager.backward()
    assert values(manager.grad_arrays[1][0]) == [-2, 2]
    metric = mx.metric.create("acc")
    manager.update_metric(metric, batch.label)
    assert metric.get() == ("accuracy", 1.0)


def test_executors_of_a_loop_over_buckets_share_their_parameters():
    def network(_):
        hidden = mx.sym.FullyConnected(mx.sym.sum(mx.sym.var("data"), axis=1), num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(hidden, name="softmax")

    def batch(length):
        described = {"provide_data": [("data", (4, length, 3))], "provide_label": [("softmax_label", (4,))]}
        return mx.io.DataBatch([mx.nd.ones((4, length, 3))], [mx.nd.zeros(4)], bucket_key=length, **described)

    first = batch(5)
    data = SimpleNamespace(batch_size=4, default_bucket_key=5, provide_data=first.provide_data,
                           provide_label=first.provide_label)  # fmt: skip
    manager = mx.executor_manager.DataParallelExecutorManager(network(5), [mx.cpu()], data, sym_gen=network)
    with pytest.raises(NotImplementedError, match="does not support buckets"):
        manager.install_monitor(None)
    manager.set_params({"fc_weight": mx.nd.array([[0.1] * 3, [0] * 3]), "fc_bias": mx.nd.zeros(2)}, {})
    for length in (5, 2, 5):
        manager.load_data_batch(batch(length))
        manager.forward(is_train=True)
        manager.backward()
        away = 4 / (1 + np.exp(0.3 * length))  # of the four examples
        np.testing.assert_allclose(manager.grad_arrays[1][0].asnumpy(), [-away, away], rtol=1e-4)
    assert sorted(manager.execgrp_bucket) == [2, 5] and manager.execgrp_bucket[5] is manager.execgrp


# -- data, images, files -------------------------------------------------------------------------------


def test_batches_that_a_pool_makes():
    data = mx.gluon.data.SimpleDataset([np.float32(i) for i in range(5)])
    order = mx.gluon.data.BatchSampler(mx.gluon.data.SequentialSampler(5), 2, "keep")
    with multiprocessing.pool.ThreadPool(2) as pool:
        batches = dataloader._MultiWorkerIter(
            pool, dataloader.default_mp_batchify_fn, order, worker_fn=dataloader._thread_worker_fn, prefetch=2,
            dataset=data, pin_memory=True,
        )  # fmt: skip
        actual = list(batches)
    assert [values(each) for each in actual] == [[0, 1], [2, 3], [4]]
    assert actual[0].context == mx.cpu_pinned()
    assert mx.gluon.data.DataLoader(data, 2)._pin_memory is False


def test_batches_of_a_loader_for_a_module():
    data = mx.gluon.data.ArrayDataset(mx.nd.arange(5), mx.nd.arange(5))
    batches = mx.contrib.io.DataLoaderIter(mx.gluon.data.DataLoader(data, 2))
    assert batches.provide_data[0].shape == (2,)
    assert [(values(each.data[0]), each.pad) for each in batches] == [([0, 1], 0), ([2, 3], 0), ([4, 0], 1)]


def test_data_of_iterators_has_names():
    assert [name for name, _ in mx.io.utils._init_data([np.ones(1), np.ones(2)], False, "x")] == ["_0_x", "_1_x"]
    assert [name for name, _ in mx.io.utils._init_data({"b": np.ones(1), "a": np.ones(1)}, False, "x")] == ["a", "b"]
    assert mx.io.utils._init_data(None, True, "x") == []
    with pytest.raises(TypeError, match="expected an array"):
        mx.io.utils._init_data(3, False, "x")


def test_interpolations_follow_sizes():
    assert mx.image.image._get_interp_method(9, (10, 10, 20, 20)) == 2
    assert mx.image.image._get_interp_method(9, (20, 20, 10, 10)) == 3


def test_folders_and_addresses_follow_the_settings():
    with mx.settings.override(home="/models", gluon_repo="http://localhost:1"):
        assert mx.base.data_dir() == "/models"
        assert mx.gluon.utils._get_repo_file_url("gluon/models", "a.zip") == "http://localhost:1/gluon/models/a.zip"
    assert mx.gluon.model_zoo.model_store._model_sha1["resnet18_v1"].startswith("a0666292")


def test_texts_of_c():
    assert mx.base.py_str(b"text") == "text"
    assert mx.base.c_str("text").value == b"text"
    assert list(mx.base.c_array(mx.base.mx_uint, [1, 2])) == [1, 2]
    assert mx.base._as_list(1) == [1]
    assert mx.base._as_list((1,)) == (1,)


# -- what is current ------------------------------------------------------------------------------------


def test_the_current_value_can_be_set():
    before = mx.current_context()
    mx.Context.default_ctx = mx.cpu(3)
    try:
        assert mx.nd.ones(1).context == mx.Context._default_ctx.value == mx.cpu(3)
    finally:
        mx.Context._default_ctx.value = before
    assert mx.current_context() == before
    with mx.AttrScope(a="1"):
        mx.AttrScope.current = mx.AttrScope(b="2")
        assert mx.AttrScope.current._attr == {"b": "2"}
        assert mx.AttrScope._current.value._attr == {"b": "2"}
    assert mx.AttrScope.current._attr == {}


def test_the_interface_before_autograd():
    from flowmx.contrib import autograd

    gradient = autograd.grad_and_loss(lambda x, y: x * y, argnum=0)
    (actual,), out = gradient(mx.nd.array([2]), mx.nd.array([5]))
    assert (values(actual), values(out)) == ([5], [10])
    with autograd.train_section():
        assert mx.autograd.is_recording()
        with autograd.test_section():
            assert not mx.autograd.is_training()
    assert not mx.autograd.is_recording()


def test_a_hybridized_block_computes_the_same():
    mx.test_utils.check_gluon_hybridize_consistency(lambda prefix: nn.Dense(3, prefix=prefix), [mx.nd.ones((2, 4))])


def test_a_block_whose_gradient_differs_when_it_is_hybridized_is_found():
    class Differs(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.identity(x) if F is mx.nd else F.BlockGrad(x)

    mx.test_utils.check_gluon_hybridize_consistency(Differs, [mx.nd.ones((2, 4))], test_grad=False)
    with pytest.raises(AssertionError):
        mx.test_utils.check_gluon_hybridize_consistency(Differs, [mx.nd.ones((2, 4))])


def test_weights_of_each_device_are_updated_by_their_gradients():
    updates = []
    weights = [[mx.nd.zeros(2), mx.nd.zeros(2)] for _ in range(4)]
    grads = [[mx.nd.ones(2), mx.nd.ones(2) * 2], [None, None], [mx.nd.ones(2) * 3, mx.nd.ones(2) * 4]]

    def updater(index, grad, weight):
        updates.append((index, grad.asnumpy()[0]))

    mx.model._update_params(weights, grads, updater, 2)  # weights beyond the gradients stay, as in MXNet
    assert sorted(updates) == [(0, 1), (1, 2), (4, 3), (5, 4)]


def test_finding_the_library_fails():
    with pytest.raises(RuntimeError, match="there is no library libmxnet: mxnet is an alias of flowmx"):
        mx.libinfo.find_lib_path()


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("layer", ["dense", "conv", "nested", "norm"])
def test_an_array_put_into_the_list_of_a_parameters_arrays_is_used_and_has_gradients(layer, hybridized):
    """MXFusion computes the weights of a block, and puts them into the list."""
    nn = mx.gluon.nn
    net = {
        "dense": lambda: nn.Dense(3, in_units=4, activation="tanh"),
        "conv": lambda: nn.Conv2D(3, 2, in_channels=2),
        "nested": lambda: nn.HybridSequential(),
        "norm": lambda: nn.LayerNorm(in_channels=4),
    }[layer]()
    if layer == "nested":
        net.add(nn.Dense(5, in_units=4, activation="relu"), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Normal(0.5))
    if hybridized:
        net.hybridize()
    x = mx.nd.random.normal(shape=(2, 2, 5, 5) if layer == "conv" else (2, 4))
    before = net(x).asnumpy()
    weights = {name: param.data().copy() for name, param in net.collect_params().items()}
    scale = mx.nd.array([2.0])
    scale.attach_grad()
    for _ in range(3):  # from the second call on steps may be replayed
        with mx.autograd.record():
            for name, param in net.collect_params().items():
                param._data[0] = weights[name] * scale
            total = (net(x) ** 2).sum()
        total.backward()
        actual = scale.grad.asscalar()
    assert np.abs(net(x).asnumpy() - before).max() > 1e-2

    def computed(factor):
        for name, param in net.collect_params().items():
            param.set_data(weights[name] * factor)
        return float((net(x) ** 2).sum().asscalar())

    slope = (computed(2.002) - computed(1.998)) / 0.004
    assert actual == pytest.approx(slope, rel=2e-2)
