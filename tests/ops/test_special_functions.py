"""The special functions: precision over their full range, limits, other dtypes, and agreement with the formulas."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.math import special, special_gamma

reference = pytest.importorskip("scipy.special")

# Points at which piecewise functions meet, and their neighbors.
EVEN = np.concatenate([np.nextafter(np.arange(0.125, 13, 0.125), to) for to in (0, np.arange(0.125, 13, 0.125), 20)])
POSITIVE = np.concatenate([np.geomspace(1e-12, 1, 400), np.linspace(0.01, 12, 1500), np.geomspace(12, 170, 300), EVEN])
NEGATIVE = -np.concatenate(
    [(np.arange(10)[:, None] + np.linspace(0.1, 0.9, 90)).ravel(), (np.arange(10)[:, None] + [0.25, 0.5, 0.75]).ravel()]
)
UNIT = np.concatenate([np.geomspace(1e-12, 0.1, 200), np.linspace(0.1, 0.999, 700), 1 - np.geomspace(1e-3, 1e-15, 200)])
RANGES = {
    "erf": np.concatenate([-np.linspace(0, 7, 500), np.geomspace(1e-300, 7, 1500), EVEN]),
    "erfinv": np.concatenate([-UNIT, UNIT, np.arange(-63, 64) / 64]),
    "gamma": np.concatenate([POSITIVE, NEGATIVE]),
    "gammaln": np.concatenate([POSITIVE, 1 + np.geomspace(1e-9, 0.5, 50), np.geomspace(170, 1e300, 100), NEGATIVE]),
    "digamma": np.concatenate([POSITIVE, NEGATIVE]),
}
FUNCTIONS = {
    "erf": special.erf,
    "erfinv": special.erfinv,
    "gamma": special_gamma.gamma,
    "gammaln": special_gamma.gammaln,
    "digamma": special_gamma.digamma,
}


def compute(function, x):
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        function(np, x, out)
    return out


@pytest.mark.parametrize("name", RANGES)
def test_float64_has_machine_precision(name):
    x = RANGES[name]
    expected = getattr(reference, name)(x)
    # Near a zero, the error is that of the argument times the slope: compare absolute errors there.
    slack = 4e-15 * np.maximum(np.abs(expected), 1.0 if name in ("gammaln", "digamma") else 0.0)
    assert (np.abs(compute(FUNCTIONS[name], x) - expected) <= slack).all()


@pytest.mark.parametrize("name", RANGES)
def test_float32_is_within_a_few_ulp(name):
    with np.errstate(all="ignore"):
        x = np.unique(RANGES[name].astype(np.float32))
        expected = getattr(reference, name)(x.astype(np.float64))
        rounded = expected.astype(np.float32)
    x, expected, rounded = (item[np.isfinite(rounded)] for item in (x, expected, rounded))
    actual = compute(FUNCTIONS[name], x).astype(np.float64)
    assert (np.abs(actual - expected) <= 3 * np.spacing(np.abs(rounded))).all()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_polygamma(order):
    x = np.concatenate([np.linspace(0.05, 40, 500), np.geomspace(40, 1e6, 50), EVEN])
    np.testing.assert_allclose(compute(special_gamma.polygamma(order), x), reference.polygamma(order, x), rtol=4e-15)


def test_polygamma_of_negative_numbers_is_the_derivative():
    x = -(np.arange(4)[:, None] + np.linspace(0.1, 0.9, 9)).ravel()
    step = 1e-5
    slope = (reference.digamma(x + step) - reference.digamma(x - step)) / (2 * step)
    np.testing.assert_allclose(compute(special_gamma.polygamma(1), x), slope, rtol=1e-6)


def test_limits():
    x = np.array([0.0, -0.0, -1.0, -2.0, np.inf, -np.inf, np.nan, 180.0, -190.5])
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(compute(special_gamma.gamma, x), [inf, -inf, nan, nan, inf, nan, nan, inf, 0])
    large = compute(special_gamma.gammaln, x)
    np.testing.assert_array_equal(large[:7], [inf, inf, inf, inf, inf, inf, nan])
    np.testing.assert_array_equal(compute(special_gamma.digamma, x)[:7], [inf, inf, inf, inf, inf, inf, nan])
    edge = np.array([1.0, -1.0, 1.5, nan, 0.0])
    np.testing.assert_array_equal(compute(special.erfinv, edge), [inf, -inf, nan, nan, 0])
    np.testing.assert_array_equal(compute(special.erf, np.array([inf, -inf, nan, -0.0])), [1, -1, nan, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("result", [mx.nd.array, mx.np.array], ids=["nd", "np"])
def test_gradients_at_and_near_poles(result, dtype):
    inf, nan = np.inf, np.nan
    poles = [0.0, -0.0, -1.0, -2.0, -3.0, -inf]
    steps = np.geomspace(1e-6, 1e-2, 9)
    nearby = np.concatenate([pole + sign * steps for pole in (0, -1, -2, -7) for sign in (1, -1)])
    x = result(np.concatenate([poles, nearby]), dtype=dtype)
    nearby = x.asnumpy().astype("float64")[len(poles) :]
    functions = mx.nd if result is mx.nd.array else mx.npx
    gradients = {}
    x.attach_grad()
    for name in ("gamma", "gammaln"):
        with mx.autograd.record():
            y = getattr(functions, name)(x)
        y.backward()
        gradients[name] = x.grad.asnumpy()
    # As MXNet 1.9.1: Γ at negative integers is NaN, and so is its gradient.
    np.testing.assert_array_equal(gradients["gamma"][:6], [inf, -inf, nan, nan, nan, nan])
    np.testing.assert_array_equal(gradients["gammaln"][:6], [inf] * 6)
    slope, rtol = reference.digamma(nearby), 1e-5 if dtype == "float32" else 1e-9  # SciPy's precision near poles
    np.testing.assert_allclose(gradients["gammaln"][6:], slope, rtol=rtol)
    np.testing.assert_allclose(gradients["gamma"][6:], slope * reference.gamma(nearby), rtol=rtol)


def test_factorials_are_exact():
    x = np.arange(1, 9, dtype=np.float64)
    np.testing.assert_array_equal(compute(special_gamma.gamma, x), [1, 1, 2, 6, 24, 120, 720, 5040])


@pytest.mark.parametrize("name", ["erf", "erfinv", "gamma", "gammaln"])
def test_half_precision_and_views(name):
    x = np.linspace(0.1, 0.9, 24).reshape(4, 6)
    expected = getattr(reference, name)(x)
    half = getattr(mx.nd, name)(mx.nd.array(x, dtype="float16"))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.asnumpy(), expected, rtol=1e-2)
    view = getattr(mx.nd, name)(mx.nd.array(x, dtype="float64").T)
    np.testing.assert_allclose(view.asnumpy(), expected.T, rtol=1e-14)


def test_large_arrays_in_blocks():
    x = np.random.default_rng(0).uniform(-6, 30, 100_001)
    actual = mx.nd.gammaln(mx.nd.array(x, dtype="float64")).asnumpy()
    np.testing.assert_allclose(actual, reference.gammaln(x), rtol=1e-12, atol=1e-13)


def test_inverse():
    x = mx.nd.array(np.linspace(-0.99, 0.99, 101), dtype="float64")
    np.testing.assert_allclose(mx.nd.erf(mx.nd.erfinv(x)).asnumpy(), x.asnumpy(), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [50, 40_000], ids=["small", "large"])
@pytest.mark.parametrize("name", ["operator", "activation"])
def test_small_values_of_sigmoid_are_precise(name, size, dtype):
    x = mx.nd.array(np.linspace(-80, 20, size), dtype=dtype)
    y = mx.nd.sigmoid(x) if name == "operator" else mx.nd.Activation(x, act_type="sigmoid")
    expected = reference.expit(x.astype("float64").asnumpy())
    smallest, rtol = {
        "float64": (0, 1e-14), "float32": (1e-37, 1e-6), "float16": (6.2e-5, 1e-3), "bfloat16": (1e-37, 8e-3),
    }[dtype]  # fmt: skip
    where = expected > smallest
    np.testing.assert_allclose(y.astype("float64").asnumpy()[where], expected[where], rtol=rtol)
