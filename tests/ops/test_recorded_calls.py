"""Repeated calls of single operators are recorded, with bit-identical results, for any data and layout."""

import os
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd, settings
from flowmx.ndarray.functions import op
from flowmx.ops.kernels import native_steps, recorded_calls
from flowmx.ops.kernels.llvm import native_run
from tests.native_runs import eager_native_runs

pytestmark = pytest.mark.skipif(not native_run.prepare(), reason="native runs are not possible here")


@pytest.fixture(autouse=True)
def eagerly():
    with eager_native_runs():
        yield


@pytest.fixture
def calls(monkeypatch):
    """The results of native calls."""
    results = []
    real = native_run.NativeRun.__call__

    def observed(self):
        results.append(real(self))
        return results[-1]

    monkeypatch.setattr(native_run.NativeRun, "__call__", observed)
    return results


def random(*shape, seed=0, dtype="float32"):
    return nd.array(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def convolve(x):
    return nd.Convolution(x, random(5, 3, 3, 3, seed=1), random(5, seed=2), kernel=(3, 3), num_filter=5)


def pool(x, kind="max"):
    return nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type=kind)


def dense(x, kind):
    return op("_dense", x, random(6, 4, seed=1), random(6, seed=2), num_hidden=6, act_type=kind)


CASES = {
    "convolution": (convolve, (2, 3, 9, 9)),
    "transposed convolution": (
        lambda x: nd.Deconvolution(x, random(3, 4, 3, 3, seed=1), kernel=(3, 3), num_filter=4), (2, 3, 7, 7)
    ),
    "product": (lambda x: nd.FullyConnected(x, random(80, 64, seed=1), random(80, seed=2), num_hidden=80), (72, 64)),
    "small product": (lambda x: nd.FullyConnected(x, random(3, 4, seed=1), num_hidden=3, no_bias=True), (2, 4)),
    "dense layer": (lambda x: dense(x, "relu"), (3, 4)),
    "dense layer of one row": (lambda x: dense(x, "tanh"), (1, 4)),
    "cross-entropy": (lambda x: op("_class_cross_entropy", x, nd.array([0, 2, 9, -1])), (4, 5)),
    "max pooling": (pool, (2, 3, 8, 8)),
    "mean pooling": (lambda x: pool(x, "avg"), (2, 3, 8, 8)),
    "response normalization": (lambda x: nd.LRN(x, nsize=3), (2, 5, 6, 6)),
}  # fmt: skip
NATIVE = list(CASES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_calls_give_the_same_bits(name, dtype):
    def compute():
        function, shape = CASES[name]
        inputs = [random(*shape, seed=seed, dtype=dtype) for seed in range(5)]
        if dtype != "float32":
            return [pool(x, kind).asnumpy() for x in inputs for kind in ("max", "avg") if x.ndim == 4]
        return [function(x).asnumpy() for x in inputs]

    results = compute()
    with settings.override(native_runs=False):
        for one, other in zip(results, compute(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NATIVE)
def test_calls_are_native(name, calls):
    function, shape = CASES[name]
    for seed in range(20):
        function(random(*shape, seed=seed)).wait_to_read()
    assert sum(calls) > 10


@pytest.mark.parametrize("cell", [mx.gluon.rnn.GRUCell, mx.gluon.rnn.LSTMCell])
def test_cells(cell, calls):
    def compute():
        mx.random.seed(1)
        layer = cell(16, input_size=8)
        layer.initialize(mx.init.Xavier())
        states = layer.begin_state(4)
        for seed in range(8):
            out, states = layer(random(4, 8, seed=seed), states)
        return out.asnumpy()

    result = compute()
    assert sum(calls) > 4
    with settings.override(native_runs=False):
        np.testing.assert_array_equal(compute(), result)


def test_other_layouts_and_the_same_array_twice(calls):
    x, w = random(64, 64), random(64, 64, seed=1)
    for one, other in ((x, w), (x, w), (w, x), (x, x), (x.T, w), (x, w), (x, w[::-1]), (x, w)):
        result = nd.FullyConnected(one, other, no_bias=True, num_hidden=64).asnumpy()
        np.testing.assert_allclose(result, one.asnumpy() @ other.asnumpy().T, 1e-4, 1e-4)
    assert any(calls)


def test_the_recording_waits_for_some_calls(calls, monkeypatch):
    monkeypatch.setattr(native_steps, "PLAIN_RUNS", 1)
    for seed in range(recorded_calls.PATIENCE):
        convolve(random(2, 3, 11, 11, seed=seed)).wait_to_read()
    assert not calls
    for seed in range(10):
        convolve(random(2, 3, 11, 11, seed=seed)).wait_to_read()
    assert any(calls)


def test_threads_call_at_the_same_time():
    inputs = [random(2, 3, 9, 9, seed=seed) for seed in range(3)]
    expected = [convolve(x).asnumpy() for x in inputs]
    wrong = []

    def work(x, result):
        for _ in range(30):
            if not np.array_equal(convolve(x).asnumpy(), result):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=each) for each in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_fork_makes_its_own_calls():
    x = random(2, 3, 9, 9)
    expected = [convolve(x).asnumpy() for _ in range(4)][-1]
    pid = os.fork()
    if not pid:
        same = [np.array_equal(convolve(x).asnumpy(), expected) for _ in range(4)]
        os._exit(0 if all(same) else 1)
    assert os.waitpid(pid, 0)[1] == 0
