"""BatchNorm with the channels last, compared with NumPy in float64, for every dtype and number of threads."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx.ops.kernels.llvm import batch_norm, channels_last, compiler, team
from flowmx.ops.registry.operators import lookup

pytestmark = pytest.mark.skipif(not compiler.available(), reason="needs llvmlite")
EPS = 1e-3


def plain(x, gamma, beta):
    """Compute the output, mean and variance in float64."""
    x = x.astype(np.float64)
    mean, var = x.mean(0), x.var(0)
    return (x - mean) / np.sqrt(var + EPS) * gamma + beta, mean, var


def plain_gradients(head, x, gamma):
    """Compute the gradients of data, gamma and beta."""
    head, x = head.astype(np.float64), x.astype(np.float64)
    inverse = 1 / np.sqrt(x.var(0) + EPS)
    normal = (x - x.mean(0)) * inverse
    along, across = (head * normal).sum(0), head.sum(0)
    return (head - across / len(x) - normal * along / len(x)) * gamma * inverse, along, across


def vectors(channels, random):
    return [random.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(2)]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 700), channels=st.integers(1, 150), seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float16", ml_dtypes.bfloat16]), relu=st.booleans(),
)  # fmt: skip
def test_results_match_numpy(rows, channels, seed, dtype, relu):
    random = np.random.default_rng(seed)
    x = (random.standard_normal((rows, channels)) * 2 + 1).astype(dtype)
    gamma, beta = vectors(channels, random)
    mean, var = np.empty(channels, np.float32), np.empty(channels, np.float32)
    assert channels_last.moments(x, mean, var)
    expected, expected_mean, expected_var = plain(x, gamma, beta)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(var, expected_var, rtol=1e-5, atol=1e-5)
    out, inverse = np.empty_like(x), (1 / np.sqrt(var + np.float32(EPS))).astype(np.float32)
    assert channels_last.apply(x, out, mean, inverse * gamma, beta, relu)
    near = 1e-4 if dtype == "float32" else 2e-2
    clipped = np.maximum(expected, 0) if relu else expected
    np.testing.assert_allclose(out.astype(np.float64), clipped, rtol=near, atol=near)
    head = random.standard_normal(x.shape).astype(dtype)
    data_grad, gamma_grad, beta_grad = np.empty_like(x), np.empty(channels, np.float32), np.empty(channels, np.float32)
    assert channels_last.backward(head, x, data_grad, gamma, mean, inverse, gamma_grad, beta_grad, True)
    of_data, of_gamma, of_beta = plain_gradients(head, x, gamma)
    scale = inverse.max() * 2
    np.testing.assert_allclose(data_grad.astype(np.float64), of_data, rtol=near, atol=near * scale)
    np.testing.assert_allclose(gamma_grad, of_gamma, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(beta_grad, of_beta, rtol=1e-3, atol=1e-3)


def test_a_large_mean_does_not_change_the_variance():
    x = (np.random.default_rng(0).standard_normal((20_000, 24)) + 1000).astype(np.float32)
    mean, var = np.empty(24, np.float32), np.empty(24, np.float32)
    assert channels_last.moments(x, mean, var)
    np.testing.assert_allclose(var, x.astype(np.float64).var(0), rtol=1e-3)  # from the mean of squares: 0.1


def test_the_bits_do_not_depend_on_the_threads(monkeypatch):
    x = np.random.default_rng(0).standard_normal((3000, 48)).astype(np.float32)
    results = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(team, "count", lambda threads=threads: threads)
        mean, var = np.empty(48, np.float32), np.empty(48, np.float32)
        assert channels_last.moments(x, mean, var)
        results.append((mean.tobytes(), var.tobytes()))
    assert len(set(results)) == 1


SHAPES = [((4, 6, 9, 8), 1), ((200, 40), 1), ((3, 5, 4, 6, 7), 1), ((50, 3, 70), 2)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_both_memory_orders_agree_and_use_the_loops(shape, axis, monkeypatch):
    random = np.random.default_rng(1)
    x, head = random.standard_normal(shape).astype(np.float32), random.standard_normal(shape).astype(np.float32)
    gamma, beta = vectors(shape[axis], random)
    calls = []
    for name in ("moments", "apply", "backward"):
        function = getattr(channels_last, name)
        monkeypatch.setattr(channels_last, name, lambda *a, f=function, n=name: calls.append(n) or f(*a))
    from flowmx import devices
    from flowmx.devices import cpu
    from flowmx.ops.registry.operators import Run

    op = lookup("BatchNorm").create(axis=axis, eps=EPS, fix_gamma=False)
    back = lookup("_backward_BatchNorm").create(axis=axis, eps=EPS, fix_gamma=False)

    def computed(arrange):
        data, value, out, result = arrange(x), arrange(head), arrange(np.empty_like(x)), arrange(np.empty_like(x))
        states = [np.zeros(shape[axis], np.float32), np.ones(shape[axis], np.float32)]
        statistics = [np.empty(shape[axis], np.float32), np.empty(shape[axis], np.float32), np.empty(1, np.float32)]
        run = Run(devices.get(cpu(0)), True)
        assert batch_norm.forward(op, run, [data, gamma, beta, *states], [out, *statistics])
        grads = [result, np.empty(shape[axis], np.float32), np.empty(shape[axis], np.float32)]
        assert batch_norm.backward(back, [value, data, gamma, *statistics], grads)
        return [out, *states, *statistics, *grads]

    def last(array):
        moved = np.ascontiguousarray(np.moveaxis(array, axis, -1))
        return np.moveaxis(moved, -1, axis)

    actual = computed(last)
    assert calls == ["moments", "apply", "backward"]
    moved = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    expected = plain(moved, gamma, beta)[0]
    np.testing.assert_allclose(np.moveaxis(actual[0], axis, -1).reshape(expected.shape), expected, atol=1e-5)
    gradient = plain_gradients(np.moveaxis(head, axis, -1).reshape(moved.shape), moved, gamma)[0]
    np.testing.assert_allclose(np.moveaxis(actual[6], axis, -1).reshape(moved.shape), gradient, atol=1e-5)


def test_the_moving_statistics_are_used_in_prediction():
    net = mx.gluon.nn.BatchNorm(axis=-1, epsilon=EPS)
    net.initialize()
    x = mx.nd.random.normal(shape=(64, 5, 7, 32))
    with mx.autograd.record():
        net(x)
    mean, var = net.running_mean.data().asnumpy(), net.running_var.data().asnumpy()
    np.testing.assert_allclose(net(x).asnumpy(), (x.asnumpy() - mean) / np.sqrt(var + EPS), atol=1e-4)
