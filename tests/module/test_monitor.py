"""``mx.mon.Monitor``: statistics of executors and blocks."""

import asyncio
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.gluon import nn
from tests.fixtures.record_monitor import bound, symbol

FIXTURE = json.loads((Path(__file__).parent.parent / "fixtures" / "monitor.json").read_text())


def test_statistics_match_mxnet():
    """Names and values of outputs, gradients and weights, as in MXNet 1.9.1."""
    executor = bound(mx)
    monitor = mx.mon.Monitor(1)
    monitor.install(executor)
    monitor.tic()
    executor.forward(is_train=True)
    executor.backward()
    statistics = {name: float(text) for step, name, text in monitor.toc()}
    # MXNet's passes add entries (sums of gradients, workspaces) that are not the user's operators.
    expected = {name: value for name, value in FIXTURE.items() if name in statistics}
    assert len(expected) >= 30
    missing = {name for name in FIXTURE if name not in statistics}
    assert all(re.match("pool0_workspace|split0_backward|sum_grad|zeros_without", name) for name in missing)
    assert {name: statistics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_results_are_unchanged():
    one, other = bound(mx), bound(mx)
    monitor = mx.mon.Monitor(1)
    monitor.install(one)
    for executor in (one, other):
        monitor.tic()
        executor.forward_backward()
        monitor.toc()
    for tables in ((one.grad_dict, other.grad_dict), (one.aux_dict, other.aux_dict)):
        for name in tables[0]:
            a, b = (table[name].asnumpy() for table in tables)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(one.outputs[0].asnumpy(), other.outputs[0].asnumpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda x: mx.sym.Activation(x, act_type="relu", name="a"), ["x", "a_input0", "a_output"]),
        (lambda x: mx.sym.softmax(x, name="a"), ["x", "a_data", "a_output"]),
        (lambda x: mx.sym.concat(x, x, name="a"), ["x", "a_arg0", "x", "a_arg1", "a_output"]),
        (lambda x: mx.sym.Pooling(x, kernel=(1, 1), name="a"), ["x", "a_data", "a_output"]),
    ],
)
def test_inputs_have_mxnets_names(layer, expected):
    executor = layer(mx.sym.var("x", shape=(1, 1, 2, 2))).simple_bind(mx.cpu(), grad_req="null")
    names = []
    executor.set_monitor_callback(lambda name, array: names.append(name), monitor_all=True)
    executor.forward()
    assert names == expected


def test_accumulated_gradients():
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, no_bias=True, name="fc")
    grads = {"fc_weight": mx.nd.ones((2, 3))}
    args = {"x": mx.nd.ones((1, 3)), "fc_weight": mx.nd.ones((2, 3))}
    executor = net.bind(mx.cpu(), args, grads, grad_req={"x": "null", "fc_weight": "add"})
    names = []
    executor.set_monitor_callback(lambda name, array: names.append(name), monitor_all=True)
    executor.forward(is_train=True)
    executor.backward(mx.nd.array([[2, 3]]))
    assert grads["fc_weight"].asnumpy().tolist() == [[3] * 3, [4] * 3]
    assert names == [
        "x",
        "fc_data",
        "fc_weight",
        "fc_weight",
        "fc_output",
        "fc_backward_output0",
        "fc_backward_output1",
    ]
    executor.set_monitor_callback(None)
    executor.forward(is_train=True)
    assert len(names) == 7


def test_pattern_sort_and_interval():
    executor = bound(mx)
    monitor = mx.mon.Monitor(2, stat_func=lambda x: [x.max(), x.min()], pattern=".*(weight|fc0_output)", sort=True)
    monitor.install(executor)
    rows = []
    for _ in range(3):
        monitor.tic()
        executor.forward()
        rows.append(monitor.toc())
    assert [name for _, name, _ in rows[0]] == ["conv0_weight", "fc0_output", "fc0_weight"]
    assert [len(row) for row in rows] == [3, 0, 3]
    assert [step for step, _, _ in rows[2]] == [3, 3, 3]
    words = rows[0][0][2].split("\t")
    weight = executor.arg_dict["conv0_weight"].asnumpy()
    assert [float(word) for word in words[:2]] == pytest.approx([weight.max(), weight.min()])


def test_passes_between_intervals_are_not_monitored():
    executor = bound(mx)
    monitor = mx.mon.Monitor(2)
    monitor.install(executor)
    monitored = []
    for _ in range(3):
        monitor.tic()
        executor.forward(is_train=True)
        executor.backward()
        monitor.toc()
        monitored.append(executor._was_monitored)
    assert monitored == [True, False, True]


@pytest.mark.parametrize("hybridize", [False, True])
def test_blocks(hybridize):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=2, activation="relu"), nn.Dense(1, in_units=3))
    net.initialize(mx.init.One())
    if hybridize:
        net.hybridize()
    monitor = mx.mon.Monitor(1, stat_func=mx.nd.max, monitor_all=hybridize)
    monitor.install(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    monitor.tic()
    with autograd.record():
        loss = net(mx.nd.full((4, 2), 2)).sum()
    loss.backward()
    trainer.step(1)
    statistics = {name: float(text) for _, name, text in monitor.toc()}
    assert statistics["net_dense1_weight"] == 1 and statistics["net_dense1_weight_grad"] == 16
    assert statistics["net_output"] == 12
    inner = "net_dense0_fwd_output" if hybridize else "net_dense0_output"
    assert statistics[inner] == 4
    if hybridize:
        assert statistics["net_dense1_fwd_backward_1"] == 16 and statistics["net_dense1_fwd_data"] == 4


def test_op_hooks_see_operators():
    net = nn.Dense(2, in_units=2, activation="tanh", prefix="one_")
    net.initialize()
    net.hybridize()
    names = []
    net.register_op_hook(lambda name, operator, array: names.append((name, operator, array.shape)))
    net(mx.nd.ones((3, 2)))
    assert names == [("one_fwd_output", "FullyConnected", (3, 2)), ("one_tanh_fwd_output", "Activation", (3, 2))]


def test_fit_logs_statistics_periodically(caplog):
    caplog.set_level(logging.INFO)
    data = mx.io.NDArrayIter(np.random.RandomState(0).randn(8, 1, 8, 8), np.zeros(8), 2)
    module = mx.mod.Module(symbol(mx))
    monitor = mx.mon.Monitor(2, pattern="fc0_weight|softmax_output")

    async def main():
        await module.fit(data, num_epoch=1, monitor=monitor)

    asyncio.run(main())
    lines = [record.message for record in caplog.records if record.message.startswith("Batch:")]
    assert [line.split()[1:3] for line in lines] == [
        ["1", "softmax_output"], ["1", "fc0_weight"], ["3", "softmax_output"], ["3", "fc0_weight"],
    ]  # fmt: skip


def test_refuses_invalid_targets_and_statistics():
    with pytest.raises(TypeError, match="expected an Executor or a Block"):
        mx.mon.Monitor(1).install(symbol(mx))
    executor, monitor = bound(mx), mx.mon.Monitor(1, stat_func=lambda x: 3)
    monitor.install(executor)
    monitor.tic()
    with pytest.raises(TypeError, match="stat_func returned 3 for conv0_output"):
        executor.forward()


def test_initial_states_have_the_shape_of_the_batch():
    outputs, _ = mx.rnn.LSTMCell(num_hidden=3).unroll(2, mx.sym.var("data"))
    executor = mx.sym.Group(outputs).simple_bind(mx.cpu(), data=(4, 2, 5), grad_req="null")
    shapes = {}
    executor.set_monitor_callback(lambda name, array: shapes.setdefault(name, array.shape), monitor_all=True)
    outputs = executor.forward()
    assert [output.shape for output in outputs] == [(4, 3), (4, 3)]
    assert {shape[0] for name, shape in shapes.items() if "begin_state" in name} == {4}
