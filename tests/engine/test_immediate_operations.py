"""Small operators that run at their call, and what the tape records of them."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx.engine import pushing
from flowmx.ndarray import computations, core, fast_calls
from tests.interruptions import strike

FILES = {pushing.__file__, computations.__file__, core.__file__, fast_calls.__file__}
CALLS = {
    "a ufunc": lambda x: x * 2,
    "a loop": lambda x: mx.nd.softmax(x * 0) * 8,
    "several outputs": lambda x: mx.nd.split(x * 2, num_outputs=1, axis=0),
}


@pytest.fixture(autouse=True)
def unwatched(monkeypatch):
    """Remove the watches, such as those of simulated devices of other tests."""
    monkeypatch.setattr(core.engine.pushing, "_watch_functions", [])


@pytest.fixture
def pushed(monkeypatch):
    """Record the names of the operations that are created."""
    names, enqueue = [], core.engine.enqueue
    monkeypatch.setattr(core.engine, "enqueue", lambda op: (names.append(op.name), enqueue(op)))
    return names


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_immediate_call_creates_no_operation(call, pushed):
    x = mx.nd.ones((2, 4))
    call(x).wait_to_read()
    pushed.clear()
    before = mx.engine.stats()["pushed"]
    assert call(x).shape == (2, 4)
    assert not pushed and mx.engine.stats()["pushed"] > before


def test_calls_with_pending_inputs_are_pushed(pushed):
    x, y = mx.nd.ones((600, 600)), mx.nd.ones((4,))
    mx.nd.waitall()
    mx.engine.push(lambda: None, writes=[y])
    pushed.clear()
    z = y * 2
    assert (mx.nd.dot(x, x)[0, 0].asscalar(), z.asnumpy().tolist()) == (600, [2] * 4)
    assert pushed


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("waits", [False, True])
def test_concurrent_code_runs_before_or_after_it(call, waits):
    moment, came = 0, True
    while came:
        x, outputs = mx.nd.ones((2, 4)), []
        call(x).wait_to_read()

        def blow(x=x):
            x[:] = 3
            other = x * 5
            if waits:
                assert (other.asnumpy() == 15).all()

        came = strike(lambda x=x, outputs=outputs: outputs.append(call(x).asnumpy()), moment, FILES, blow)
        if came:
            assert (x.asnumpy() == 3).all()
        assert len(np.unique(outputs[0])) == 1 and outputs[0][0, 0] in (2, 6)
        moment += 1
    assert moment > 20


def test_an_interrupt_leaves_nothing_behind():
    def blow():
        raise KeyboardInterrupt

    moment, came = 0, True
    while came:
        x = mx.nd.ones((4,))
        try:
            came = strike(lambda x=x: x * 2, moment, FILES, blow)
        except KeyboardInterrupt:
            pass
        assert ((x * 3).asnumpy() == 3).all()
        moment += 1
    assert moment > 10
    mx.nd.waitall()


def test_the_tape_keeps_three_objects_for_a_call_and_is_freed_by_itself():
    def record():
        with mx.autograd.record():
            y = x
            for _ in range(500):
                y = y * 0.9 + x
        return y

    x = mx.nd.ones((4,))
    x.attach_grad()
    record().backward()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        y = record()
        gc.collect()  # stops looking at tuples of numbers
        assert len(gc.get_objects()) - before < 4.1 * 1000  # the array's memory, and three of the tape
        del y
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()


# -- on event loops ------------------------------------------------------------------------------------------

ON_A_LOOP = """
import asyncio, sys
import numpy as np
import flowmx as mx

DATA = np.random.default_rng(0).standard_normal((64, 128)).astype("f")
FEW = DATA[:16, :96]
CALLS = [mx.nd.erf, mx.nd.softmax, lambda x: mx.nd.LeakyReLU(x, act_type="gelu"), lambda x: mx.nd.softmax(x, axis=0)]
GRAPHS = [
    lambda F, x: F.softmax(F.tanh(F.erf(x) * 3)),
    lambda F, x: F.LeakyReLU(F.softmax(x * 2, axis=0), act_type="gelu"),
]
for graph in GRAPHS:
    CALLS.append(mx.gluon.nn.HybridLambda(graph))
    CALLS[-1].hybridize()

def data_of(call):
    return mx.nd.array(FEW if isinstance(call, mx.gluon.Block) else DATA)

def run(call, x):
    x.attach_grad()
    with mx.autograd.record():
        y = call(x)
    return y

async def main():
    await (mx.nd.array(DATA) * 2)  # the engine runs
    results = []
    for call in CALLS:
        x = data_of(call)
        for _ in range(3):
            y = await run(call, x)
            y.backward(y)
            results.append((call, (await y).asnumpy(), (await x.grad).asnumpy()))
    return results

for call, y, grad in asyncio.run(main()):
    x = data_of(call)
    z = run(call, x)
    z.backward(z)
    np.testing.assert_array_equal(y, z.asnumpy())
    np.testing.assert_array_equal(grad, x.grad.asnumpy())
"""


def test_the_first_calls_on_an_event_loop_give_the_bits_of_all_others(tmp_path):
    pytest.importorskip("llvmlite")
    environment = {**os.environ, "FLOWMX_KERNEL_CACHE": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", ON_A_LOOP], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["Convolution", "FullyConnected", "batch_dot", "Embedding"])
def test_products_and_picks_of_a_small_network_are_run_at_once(name, pushed):
    x, table = mx.nd.ones((32, 64)), mx.nd.ones((5000, 64))
    call = {
        "Convolution": lambda: mx.nd.Convolution(
            mx.nd.ones((1, 1, 28, 28)), mx.nd.ones((8, 1, 3, 3)), num_filter=8, kernel=(3, 3), no_bias=True
        ),
        "FullyConnected": lambda: mx.nd.FullyConnected(x, mx.nd.ones((192, 64)), num_hidden=192, no_bias=True),
        "batch_dot": lambda: mx.nd.batch_dot(mx.nd.ones((8, 32, 16)), mx.nd.ones((8, 16, 32))),
        "Embedding": lambda: mx.nd.Embedding(x[0] * 3, table, input_dim=5000, output_dim=64),
    }[name]
    call().wait_to_read()
    mx.nd.waitall()
    pushed.clear()
    call().wait_to_read()
    assert name not in pushed


def test_a_product_with_a_vector_that_is_large_is_pushed(pushed):
    data, weight = mx.nd.ones((1, 200)), mx.nd.ones((200, 200))
    mx.nd.waitall()
    pushed.clear()
    mx.nd.FullyConnected(data, weight, num_hidden=200, no_bias=True).wait_to_read()
    assert pushed == ["FullyConnected"]
