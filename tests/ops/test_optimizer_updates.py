"""Updates of many weights, and AdamW: in place, skipped, errors; for values see tests/op_cases/optimizers.py."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.registry.operators import lookup
from flowmx.optimizer import grouped_updates

rng = np.random.default_rng(0)


def arrays(*shapes, dtype="float32"):
    return [mx.nd.array(rng.uniform(0.5, 1.5, shape), dtype=dtype) for shape in shapes]


def test_many_weights_are_updated_in_place():
    weights, grads, moments = (arrays((3, 2), (4,)) for _ in range(3))
    before = [[array.asnumpy() for array in group] for group in (weights, grads, moments)]
    inputs = [array for group in zip(weights, grads, moments, strict=True) for array in group]
    mx.nd.multi_sgd_mom_update(*inputs, lrs=[0.1, 0.2], wds=(0, 0), momentum=0.9, out=weights, num_weights=2)
    for weight, moment, w, g, m, lr in zip(weights, moments, *before, (0.1, 0.2), strict=True):
        np.testing.assert_allclose(moment.asnumpy(), 0.9 * m - lr * g, rtol=1e-5)
        np.testing.assert_allclose(weight.asnumpy(), w + 0.9 * m - lr * g, rtol=1e-5)


def test_rates_in_arrays():
    (w, v), (g, h) = arrays(3, 2), arrays(3, 2)
    rates = mx.nd.array([0.1, 0.2]), mx.nd.array([0, 0.5])
    updated = mx.nd.preloaded_multi_sgd_update(w, g, v, h, *rates, num_weights=2)
    np.testing.assert_allclose(updated[0].asnumpy(), w.asnumpy() - 0.1 * g.asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(updated[1].asnumpy(), 0.9 * v.asnumpy() - 0.2 * h.asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("factor", [0.0, np.nan, np.inf])
def test_adamw_is_skipped_if_the_factor_is_not_a_finite_number(factor):
    weight, grad, mean, var = arrays(3, 3, 3, 3)
    before = [array.asnumpy() for array in (weight, mean, var)]
    mx.nd.contrib.adamw_update(weight, grad, mean, var, factor, lr=0.1, eta=1, out=weight)
    for array, value in zip((weight, mean, var), before, strict=True):
        np.testing.assert_array_equal(array.asnumpy(), value)


def test_variants_of_adamw_agree():
    w, g, m, v = arrays(3, 3, 3, 3)
    rates = {"lr": 0.1, "eta": 0.5, "wd": 0.1}
    one = mx.nd.contrib.adamw_update(w, g, m.copy(), v.copy(), mx.nd.array([2]), **rates).asnumpy()
    expected_m = 0.9 * m.asnumpy() + 0.1 * 2 * g.asnumpy()
    expected_v = 0.999 * v.asnumpy() + 0.001 * (2 * g.asnumpy()) ** 2
    step = 0.5 * (0.1 * expected_m / (np.sqrt(expected_v) + 1e-8) + 0.1 * w.asnumpy())
    np.testing.assert_allclose(one, w.asnumpy() - step, rtol=1e-5)
    small, weight32 = w.astype("float16"), w.copy()
    mixed = mx.nd.contrib.mp_adamw_update(small, g.astype("float16"), m.copy(), v.copy(), weight32, 2, **rates)
    assert mixed.dtype == np.float16
    np.testing.assert_allclose(weight32.asnumpy(), one, rtol=1e-3)
    many = mx.nd.contrib.multi_adamw_update(
        [w, w], [g, g], [m.copy(), m.copy()], [v.copy(), v.copy()], 2, lrs=[0.1, 0.1], wds=[0.1, 0], etas=[0.5, 0.5]
    )
    np.testing.assert_allclose(many[0].asnumpy(), one, rtol=1e-6)
    single = mx.nd.contrib.multi_mp_adamw_update([small], [g.astype("float16")], [m.copy()], [v.copy()], [w.copy()], 2,
                                                 lrs=[0.1], wds=[0.1], etas=[0.5])  # fmt: skip
    np.testing.assert_array_equal(single.asnumpy(), mixed.asnumpy())
    symbols = [mx.sym.var(name) for name in "wgmv"]
    executor = mx.sym.contrib.adamw_update(*symbols, 2, **rates).bind(
        mx.cpu(), {"w": w, "g": g, "m": m.copy(), "v": v.copy()}
    )
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), one, rtol=1e-6)


def test_lamb_in_one_call_matches_its_two_phases():
    w, g, m, v = arrays(6, 6, 6, 6)
    states = [array.copy() for array in (m, v)]
    direction = mx.nd.lamb_update_phase1(w, g, m, v, t=2, wd=0.1)
    norms = mx.nd.norm(w).reshape(1), mx.nd.norm(direction).reshape(1)
    expected = mx.nd.lamb_update_phase2(w, direction, *norms, lr=0.1)
    updated = mx.nd.contrib.multi_lamb_update([w], [g], states[:1], states[1:], [2], [0.1], [0.1])
    np.testing.assert_allclose(updated.asnumpy(), expected.asnumpy(), rtol=1e-5)
    np.testing.assert_allclose(states[0].asnumpy(), m.asnumpy(), rtol=1e-6)


def test_lamb_in_mixed_precision_updates_the_copy():
    weight, g, weight32 = arrays(4, 4, 4)
    weight = weight.astype("float16")
    one, two, before = mx.nd.ones(1), mx.nd.full(1, 2), weight32.asnumpy()
    mx.nd.mp_lamb_update_phase2(weight, g, one, two, weight32, lr=0.1, out=weight)
    np.testing.assert_allclose(weight32.asnumpy(), before - 0.05 * g.asnumpy(), rtol=1e-6)
    np.testing.assert_array_equal(weight.asnumpy(), weight32.asnumpy().astype(np.float16))


def test_adagrad():
    w, g, rows, history = arrays((4, 3), (4, 3), (4, 1), (4, 3))
    before = rows.asnumpy(), history.asnumpy()
    updated = mx.nd.contrib.group_adagrad_update(w, g, rows, lr=0.1, epsilon=0.01)
    summed = before[0] + (g.asnumpy() ** 2).mean(1, keepdims=True)
    np.testing.assert_allclose(rows.asnumpy(), summed, rtol=1e-6)
    np.testing.assert_allclose(updated.asnumpy(), w.asnumpy() - 0.1 * g.asnumpy() / np.sqrt(summed + 0.01), rtol=1e-5)
    updated = mx.nd.op.op("_sparse_adagrad_update", w, g, history, lr=0.1, epsilon=0.01)
    summed = before[1] + g.asnumpy() ** 2
    np.testing.assert_allclose(history.asnumpy(), summed, rtol=1e-6)
    np.testing.assert_allclose(updated.asnumpy(), w.asnumpy() - 0.1 * g.asnumpy() / np.sqrt(summed + 0.01), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda w: mx.nd.multi_sgd_update(w, w, w, w, lrs=(1,), wds=(1, 1), num_weights=2), mx.MXNetError,
         "parameter lrs has 1 values, expected 2"),
        (lambda w: mx.nd.multi_sgd_update(w, w, w, lrs=(1,), wds=(1,), num_weights=1), TypeError,
         "num_weights is 1, but 3 inputs were given"),
        (lambda w: mx.nd.multi_sgd_update(w, mx.nd.zeros(3), lrs=(1,), wds=(1,)), mx.MXNetError,
         r"an input of weight 0 has shape \(3,\), expected \(2,\)"),
        (lambda w: mx.nd.contrib.group_adagrad_update(w, w, mx.nd.zeros(3), lr=1), mx.MXNetError,
         r"input history has shape \(3,\), expected \(2,\)"),
    ],
)  # fmt: skip
def test_refuses_invalid_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(mx.nd.ones(2))


def test_the_kernel_of_an_update_is_looked_up_once_per_device(monkeypatch):
    devices = []

    def forward_of(op, device):
        devices.append(device)
        return f"kernel of {device}"

    monkeypatch.setattr(grouped_updates, "forward_of", forward_of)
    op = lookup("sgd_update").create(lr=0.1)
    kernels = [grouped_updates._forward(op, device) for device in ("cpu", "cpu", "gpu", "gpu", "cpu")]
    assert kernels == [f"kernel of {device}" for device in ("cpu", "cpu", "gpu", "gpu", "cpu")]
    assert devices == ["cpu", "gpu", "cpu"]
