"""Native runs are bit-identical to the steps that they replace, keep the origin of errors, and step aside if needed."""

import os
import sys
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices, settings
from flowmx.cached_op import CachedOp
from flowmx.engine.runtime import engine
from flowmx.gluon import nn, rnn
from flowmx.gluon.model_zoo import vision
from flowmx.graph.node import Node
from flowmx.graph.running import pool
from flowmx.graph.running.native import NativeSteps
from flowmx.graph.running.steps import Step, run_steps
from flowmx.ndarray.computations import forward_of
from flowmx.observability.flight import stacks
from flowmx.ops.kernels.llvm import native_run
from flowmx.ops.kernels.native_steps import can_run_natively, computes_natively
from flowmx.ops.kernels.onednn import algorithm_choice
from flowmx.ops.kernels.recording import Recording
from flowmx.ops.registry.kernels import tied_forward
from flowmx.ops.registry.operators import Run, lookup
from tests.native_runs import eager_native_runs
from tests.op_cases import every_case
from tests.rows import label, operator, rows

pytestmark = pytest.mark.skipif(not native_run.prepare(), reason="native runs are not possible here")

CPU = devices.get(mx.cpu())
CALLS = 200


@pytest.fixture(autouse=True)
def eagerly():
    with eager_native_runs():
        yield


@pytest.fixture
def runners(monkeypatch):
    """The runners that are created."""
    observed = []

    class Observed(pool.Runner):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            observed.append(self)

    monkeypatch.setattr(pool, "Runner", Observed)
    return observed


def pieces_of(runner):
    """The number of steps of each native run, and the names of the operators of the other steps."""
    pieces = runner.whole_forward.launcher.pieces
    return [len(each.steps) if each.run else [step.node.op.name for step in each.steps] for each in pieces]


def static(net, *shapes):
    mx.random.seed(1)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    net(*map(mx.nd.ones, shapes)).wait_to_read()
    return net


def mlp(*units):
    net = nn.HybridSequential()
    for count in units:
        net.add(nn.Dense(count, activation="relu"))
    return net


def convolutions(*filters):
    net = nn.HybridSequential()
    for count in filters:
        net.add(nn.Conv2D(count, 3, padding=1, activation="relu", in_channels=64))
    return net


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# -- operators -------------------------------------------------------------------------------------------------


def step_of(op, inputs, outputs):
    tied = tied_forward("cpu", op, predicts=True)
    forward = forward_of(op, CPU) if tied is None else tied
    is_native = computes_natively("cpu", op) if tied is None else tied.only_native
    return Step(forward, list(inputs), list(outputs), Node(op, op.name), is_native)


def is_compared(case):
    cls = lookup(case.op)
    has_elements = all(np.size(each) for each in case.arrays())
    return has_elements and not cls.traits.uses_random and computes_natively("cpu", cls)


def check_operator(op, inputs, spec, train):
    """Compare runs of one step with its computation on other arrays."""
    run = Run(CPU, train, {})
    steps = [step_of(op, inputs, [np.empty(*form) for form in zip(spec.shapes, spec.dtypes, strict=True)])]
    launcher = NativeSteps(lambda array: False, lambda step: 0)
    for number in range(4):
        values = [np.roll(each, number) for each in inputs]
        expected = [np.full_like(each, 3) for each in steps[0].outputs]
        copies = [each.copy() for each in values]
        step_of(op, copies, expected).forward(run, copies, expected)
        steps[0].inputs[:] = values
        steps[0].outputs[:] = [np.full_like(each, 5) for each in steps[0].outputs]
        run_steps(run, steps, "a test", True, launcher)
        for actual, other in zip((*steps[0].outputs, *values), (*expected, *copies), strict=True):
            np.testing.assert_array_equal(actual, other)
    return sum(piece.run is not None for piece in launcher.pieces)


@rows("case", [case for case in every_case() if is_compared(case)], of=operator, name=label)
def test_operators_give_the_same_bits(case):
    cls = lookup(case.op)
    inputs = [np.asarray(each, case.dtypes.get(at, each.dtype)) for at, each in enumerate(case.arrays())]
    op = cls.create(**dict(case.params) | ({cls.variadic: len(inputs)} if cls.variadic else {}))
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    with np.errstate(all="ignore"):
        check_operator(op, inputs, spec, case.train)


LARGE = {
    "sigmoid": [(64, 300)], "softmax": [(64, 300)], "softsign": [(64, 300)],
    "log_softmax": [(20, 700)], "LayerNorm": [(64, 96), (96,), (96,)], "transpose": [(64, 300)],
    "batch_dot": [(6, 80, 64), (6, 64, 72)], "Flatten": [(8, 30, 90)], "SoftmaxActivation": [(64, 300)],
    "L2Normalization": [(20, 100)],
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_large_arrays_are_computed_natively(name):
    op = lookup(name).create()
    inputs = [random(*shape, seed=at) for at, shape in enumerate(LARGE[name])]
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    assert check_operator(op, inputs, spec, False) == 1


def test_concatenation_of_parts_with_other_strides():
    op = lookup("Concat").create(dim=1, num_args=3)
    inputs = [random(5, count, 7) for count in (3, 200, 4)]
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    assert check_operator(op, inputs, spec, False) == 1


# -- networks --------------------------------------------------------------------------------------------------

NETWORKS = {
    "mlp": (lambda: mlp(32, 16, 5), (3, 20)),
    "many rows": (lambda: mlp(32, 16, 5), (40, 20)),
    "resnet": (lambda: vision.resnet18_v1(classes=4), (1, 3, 32, 32)),
    "wide": (lambda: convolutions(64, 64), (1, 64, 28, 28)),
    "mobilenet": (lambda: vision.mobilenet_v2_0_25(classes=4), (2, 3, 32, 32)),
}


@pytest.mark.parametrize("side", [0, 4])
def test_convolutions_by_any_algorithm(side, runners, monkeypatch):
    monkeypatch.setattr(algorithm_choice, "winograd_side", lambda *_: side)
    net = static(convolutions(64, 64), (1, 64, 28, 28))
    data = [random(1, 64, 28, 28, seed=seed) for seed in range(3)]
    first, *_, again = [net(mx.nd.array(each)).asnumpy() for each in (*data, data[0])]
    np.testing.assert_array_equal(again, first)
    assert pieces_of(runners[0]) == [len(runners[0].whole_forward.steps)]
    assert ("Winograd" in runners[0].plan.explain()) == bool(side)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_native_call_with_the_same_bits(name, runners):
    make, shape = NETWORKS[name]
    net = static(make(), shape)
    data = [random(*shape, seed=seed) for seed in range(4)]
    results = [net(mx.nd.array(each)).asnumpy() for each in data]
    assert pieces_of(runners[0]) == [len(runners[0].whole_forward.steps)]
    with settings.override(native_runs=False):
        net.hybridize(static_alloc=True, static_shape=True)
        for each, result in zip(data, results, strict=True):
            np.testing.assert_array_equal(net(mx.nd.array(each)).asnumpy(), result)
        assert runners[-1].whole_forward.launcher is None


def test_a_quantized_network_is_one_run_with_its_conversions(runners):
    """The factors of the conversions are constants; the recording refers to them."""
    data = np.random.default_rng(0).uniform(-1, 1, (2, 64, 8, 8)).astype("f4")
    net = static(convolutions(64, 64), (2, 64, 8, 8))
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(data, np.zeros(2, "f4")), batch_size=2)
    quantized = mx.contrib.quantization.quantize_net_v2(
        net, quantized_dtype="auto", calib_mode="naive", calib_data=loader, num_calib_examples=2, ctx=mx.cpu()
    )
    quantized.hybridize(static_alloc=True, static_shape=True)
    runners.clear()
    x = mx.nd.array(data)
    expected = quantized(x).asnumpy()
    for _ in range(3):
        np.testing.assert_array_equal(quantized(x).asnumpy(), expected)
    assert [type(each) for each in pieces_of(runners[-1])] == [int]


def test_parameters_that_change_are_read(runners):
    net = static(nn.Dense(3, in_units=4), (2, 4))
    x = random(2, 4)
    for scale in (1, 2, 3):
        net.weight.set_data(mx.nd.array(scale * random(3, 4, seed=1)))
        result = net(mx.nd.array(x)).asnumpy()
        np.testing.assert_allclose(result, scale * x @ random(3, 4, seed=1).T, rtol=1e-5)
    assert pieces_of(runners[0]) == [1]


def test_one_array_for_two_inputs():
    add = CachedOp(mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), no_bias=True, num_hidden=5))
    x, y = (mx.nd.array(random(5, 5, seed=seed)) for seed in (0, 1))
    for first, second in ((x, x), (x, x), (x, y), (y, x), (x, x)):
        expected = first.asnumpy() @ second.asnumpy().T
        np.testing.assert_allclose(add(first, second).asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_short_calls_need_no_operation(monkeypatch):
    net = static(mlp(8, 4), (2, 6))
    x = mx.nd.array(random(2, 6))
    expected, push, pushed = [net(x).asnumpy() for _ in range(3)][-1], CachedOp._push, []

    def observed(*arguments):
        pushed.append(arguments)
        push(*arguments)

    monkeypatch.setattr(CachedOp, "_push", observed)
    monkeypatch.setattr(engine.pushing, "_watch_functions", ())  # of other tests
    for _ in range(CALLS):
        np.testing.assert_array_equal(net(x).asnumpy(), expected)
    assert len(pushed) < CALLS  # another thread may be busy during a call


def test_a_long_sequence_is_no_short_call(runners):
    net = static(rnn.LSTM(16, layout="NTC"), (1, 500, 16))
    for _ in range(3):
        net(mx.nd.ones((1, 500, 16))).wait_to_read()
    whole = runners[0].whole_forward
    assert [piece.run is not None for piece in whole.launcher.pieces] == [True] and not whole.is_short


def test_native_runs_can_be_turned_off_later(runners, monkeypatch):
    net = static(mlp(8, 4), (2, 6))
    x = mx.nd.array(random(2, 6))
    expected = [net(x).asnumpy() for _ in range(3)][-1]
    monkeypatch.setattr(native_run.NativeRun, "__call__", None)
    with settings.override(native_runs=False):
        np.testing.assert_array_equal(net(x).asnumpy(), expected)


def test_training_and_prediction_alternate():
    net = static(nn.Dense(4, in_units=6), (2, 6))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    x, losses = mx.nd.array(random(2, 6)), []
    for _ in range(6):
        with mx.autograd.record():
            loss = (net(x) - 1).square().mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(loss.asscalar()))
        assert float((net(x) - 1).square().mean().asscalar()) < losses[-1]
    assert losses == sorted(losses, reverse=True)


# -- stepping aside --------------------------------------------------------------------------------------------


def product_steps(x, w, out):
    return [step_of(lookup("FullyConnected").create(num_hidden=len(w), no_bias=True), [x, w], [out])]


def test_another_layout_runs_step_by_step():
    run, launcher = Run(CPU, False, {}), NativeSteps(lambda array: False, lambda step: 0)
    x, w, out = random(4, 6), random(5, 6), np.empty((4, 5), np.float32)
    steps = product_steps(x, w, out)
    run_steps(run, steps, "a test", True, launcher)
    assert [piece.run is not None for piece in launcher.pieces] == [True]
    for array in (x, random(6, 4).T, x, random(4, 12)[:, ::2]):
        steps[0].inputs[0] = array
        run_steps(run, steps, "a test", True, launcher)
        np.testing.assert_allclose(out, array @ w.T, rtol=1e-5, atol=1e-5)


def test_an_item_that_is_no_array_is_refused():
    run, launcher = Run(CPU, False, {}), NativeSteps(lambda array: False, lambda step: 0)
    steps = product_steps(random(4, 6), random(5, 6), np.empty((4, 5), np.float32))
    run_steps(run, steps, "a test", True, launcher)
    steps[0].inputs[0] = None
    assert launcher.pieces[0].run() is False


def test_arrays_that_overlap_while_recording_are_not_recorded():
    memory = random(48)
    steps = product_steps(memory[:24].reshape(4, 6), memory[12:42].reshape(5, 6), np.empty((4, 5), np.float32))
    launcher = NativeSteps(lambda array: False, lambda step: 0)
    run_steps(Run(CPU, False, {}), steps, "a test", True, launcher)
    assert [piece.run for piece in launcher.pieces] == [None]
    other = random(5, 6, seed=3)
    steps[0].inputs[1] = other
    run_steps(Run(CPU, False, {}), steps, "a test", True, launcher)
    np.testing.assert_allclose(steps[0].outputs[0], steps[0].inputs[0] @ other.T, rtol=1e-5, atol=1e-5)


def test_a_failing_primitive_names_its_step(monkeypatch):
    net = static(vision.resnet18_v1(classes=4), (1, 3, 32, 32))
    record, count = Recording.add_primitive, iter(range(1000))

    def spoiled(self, call, threads):
        record(self, call, threads)
        if next(count) == 3:
            call.count = 0

    monkeypatch.setattr(Recording, "add_primitive", spoiled)
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.array(random(1, 3, 32, 32))
    net(x).wait_to_read()
    with pytest.raises(RuntimeError, match="oneDNN: primitive_execute failed") as error:
        net(x).wait_to_read()
    assert any("in node 'resnetv1" in note for note in error.value.__notes__)


def test_a_fork_runs_its_own_calls():
    net = static(mlp(8, 4), (2, 6))
    x = mx.nd.array(random(2, 6))
    expected = [net(x).asnumpy() for _ in range(3)][-1]
    pid = os.fork()
    if not pid:
        same = [np.array_equal(net(x).asnumpy(), expected) for _ in range(3)]
        os._exit(0 if all(same) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal(net(x).asnumpy(), expected)


def test_threads_predict_at_the_same_time():
    net = static(vision.resnet18_v1(classes=4), (1, 3, 32, 32))
    data = [random(1, 3, 32, 32, seed=seed) for seed in range(3)]
    expected = [net(mx.nd.array(each)).asnumpy() for each in data]
    wrong = []

    def predict(x, result):
        for _ in range(20):
            if not np.array_equal(net(mx.nd.array(x)).asnumpy(), result):
                wrong.append(x)

    threads = [threading.Thread(target=predict, args=pair) for pair in zip(data, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_only_the_cpu_has_native_runs(monkeypatch):
    assert can_run_natively(CPU)
    monkeypatch.setattr(native_run, "knows_objects", lambda: False)
    assert not can_run_natively(CPU)


def test_reports_name_the_step_of_a_native_run(runners):
    net = static(mlp(8, 4), (2, 6))
    x = mx.nd.array(random(2, 6))
    for _ in range(3):
        net(x).wait_to_read()
    (piece,) = runners[0].whole_forward.launcher.pieces
    steps = []

    def observed():
        steps.append(stacks.step_in(stacks.stack_of(sys._getframe())))
        return True

    runners[0].whole_forward.launcher._run_natively(piece, observed)
    assert steps == [piece.steps[-1].node]
