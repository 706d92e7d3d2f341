"""First calls on an event loop: planning happens on other threads."""

import asyncio
import gc
import json
import threading
import weakref

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op.compiled import Compiled
from flowmx.errors import AutogradError
from flowmx.profiler.chrome_trace import text


class Net(mx.gluon.HybridBlock):
    """A network with moving statistics, and an input without a gradient."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3)
            self.norm = mx.gluon.nn.BatchNorm()

    def hybrid_forward(self, F, x, index):
        return self.norm(self.dense(x)) + F.one_hot(index, depth=3)


@pytest.fixture
def planning(monkeypatch):
    """Delay planning until an event is set; return the event, and the list of the planning threads."""
    event, threads, original = threading.Event(), [], Compiled._compile

    def compile_slowly(self):
        threads.append(threading.current_thread())
        assert event.wait(20)
        return original(self)

    monkeypatch.setattr(Compiled, "_compile", compile_slowly)
    event.threads = threads
    return event


def network():
    net = Net()
    net.initialize()
    return net


def step(net, head=None):
    """Enqueue a training step, and return all gradients by name."""
    mx.random.seed(1)  # parameters are initialized in the step
    x, index = mx.nd.array(np.random.default_rng(0).random((4, 5))), mx.nd.array([0, 1, 2, 0])
    x.attach_grad()
    index.attach_grad()
    with mx.autograd.record():
        y = net(x, index)
    y.backward(head, retain_graph=True)
    params = {name.split("_", 1)[1]: each for name, each in net.collect_params().items() if each.grad_req != "null"}
    return {"x": x.grad, "index": index.grad, **{name: each.grad() for name, each in params.items()}}


async def numbers(grads):
    for each in grads.values():
        await each
    return {name: each.asnumpy() for name, each in grads.items()}


async def test_a_first_backward_pass_does_not_wait_for_the_plan(planning):
    head = mx.nd.array(np.arange(12).reshape(4, 3))
    net, plain = network(), network()
    net.hybridize()
    grads = step(net, head)  # while planning is delayed
    planning.set()
    actual = await numbers(grads)
    expected = step(plain, head)
    for name, each in (await numbers(expected)).items():
        np.testing.assert_allclose(actual[name], each, rtol=2e-5, atol=1e-6, err_msg=name)
    assert threading.current_thread() not in planning.threads
    # The next step finds the plan.
    again = step(net, head)
    for name, each in (await numbers(again)).items():
        np.testing.assert_allclose(actual[name], each, rtol=2e-5, atol=1e-6, err_msg=name)


async def test_a_backward_pass_over_changed_arrays_is_refused(planning):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, use_bias=False))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((2, 4))
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
    x += 1
    y.backward()
    planning.set()
    with pytest.raises(AutogradError, match="changed"):
        await net[0].weight.grad()


async def test_another_backward_pass_runs_the_forward_pass_again(planning):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, activation="tanh"))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((2, 4))
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
    y.backward(retain_graph=True)
    first = x.grad.copy()
    y.backward(mx.nd.ones((2, 3)) * 3)
    planning.set()
    await x.grad
    np.testing.assert_allclose(x.grad.asnumpy(), 3 * first.asnumpy(), rtol=1e-5)


def test_plain_code_waits_for_the_plan_and_pushes_piece_by_piece(planning):
    planning.set()
    net = network()
    net.hybridize()
    grads = step(net)
    assert np.isfinite(grads["x"].asnumpy()).all()


async def test_fit_binds_off_the_loop(monkeypatch):
    threads, original = [], mx.mod.Module.bind

    def bind(self, *args, **kwargs):
        threads.append(threading.current_thread())
        original(self, *args, **kwargs)

    monkeypatch.setattr(mx.mod.Module, "bind", bind)
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    data = mx.io.NDArrayIter(np.ones((8, 3), np.float32), np.zeros(8, np.float32), 4)
    module = mx.mod.Module(symbol)
    await module.fit(data, num_epoch=1)
    assert threads
    assert threading.current_thread() not in threads
    assert dict(await module.score(data, "acc"))["accuracy"] == 1


async def test_a_swap_collects_no_garbage(monkeypatch):
    """A full garbage collection holds the interpreter, for 50 ms in a large process."""
    net, other = mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.Dense(2, in_units=3)
    for each in (net, other):
        each.initialize()
    async with mx.serve.Predictor(net, (3,), max_batch=2) as predictor:
        model = weakref.ref(predictor._runner.model)
        monkeypatch.setattr(gc, "collect", lambda *_: pytest.fail("it collects"))
        gc.disable()
        try:
            await predictor.swap(other)
            await predictor(np.ones(3, np.float32))
            async with asyncio.timeout(20):  # the thread that computed the last batch releases it
                while model() is not None:
                    await asyncio.sleep(0)
        finally:
            gc.enable()


def test_a_profile_is_written_as_json_writes_it():
    events = [{"name": f"é{number}", "ts": number / 3, "args": {"x": [number]}} for number in range(1300)]
    for count in (0, 1, 500, 501, 1300):
        trace = {"traceEvents": events[:count], "displayTimeUnit": "ms"}
        assert json.loads(text(trace)) == trace
