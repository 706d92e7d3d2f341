"""The gradient checker must refuse wrong gradients, and let right ones pass."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ndarray import functions
from flowmx.ops.registry.operators import lookup
from flowmx.test_utils import almost_equal, assert_almost_equal, check_numeric_gradient, same


def make(gradient):
    """Return the function x² · y with a custom gradient."""

    class Product(mx.autograd.Function):
        def forward(self, x, y):
            self.save_for_backward(x, y)
            return x * x * y

        def backward(self, head):
            return gradient(head, *self.saved_tensors)

    return lambda x, y: Product()(x, y)


def right(head, x, y):
    return head * x * y * 2, head * x * x


def wrong_in_one_element(head, x, y):
    one, other = right(head, x, y)
    bump = np.zeros(one.shape)
    bump[1, 2] = 1e-3
    return one + mx.nd.array(bump, dtype="float64"), other


WRONG = {
    "sign": lambda head, x, y: (head * x * y * -2, head * x * x),
    "factor": lambda head, x, y: (head * x * y, head * x * x),
    "missing term": lambda head, x, y: (head * y, head * x * x),
    "second input": lambda head, x, y: (head * x * y * 2, head * x),
    "head left out": lambda head, x, y: (x * y * 2, x * x),
    "one element": wrong_in_one_element,
}


def inputs():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((3, 4)), rng.standard_normal((3, 4))]


def test_accepts_a_correct_gradient():
    check_numeric_gradient(make(right), inputs())


@pytest.mark.parametrize("directions", [None, 1, 4])
@pytest.mark.parametrize("gradient", WRONG.values(), ids=WRONG)
def test_refuses_a_wrong_gradient(gradient, directions):
    with pytest.raises(AssertionError, match="gradient of input"):
        check_numeric_gradient(make(gradient), inputs(), directions=directions)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_direction_needs_two_calls(dtype):
    calls = []

    def counted(x, y):
        calls.append((np.dtype(x.dtype).name, np.dtype(y.dtype).name))
        return make(right)(x, y)

    check_numeric_gradient(counted, inputs(), dtype=dtype, directions=3)
    assert calls == [(dtype, dtype)] * (1 + 2 * 2 * 3)


def test_names_the_input_and_the_worst_element():
    with pytest.raises(AssertionError, match=r"gradient of input 0 .* the largest difference is at \(1, 2\)"):
        check_numeric_gradient(make(wrong_in_one_element), inputs())


def test_checks_only_the_requested_inputs():
    check_numeric_gradient(make(WRONG["second input"]), inputs(), grad_nodes=[0])
    x, y = inputs()
    check_numeric_gradient(make(WRONG["second input"]), {"x": x, "y": y}, grad_nodes=["x"])


def test_refuses_an_operator_whose_gradient_is_wrong_in_the_registry(monkeypatch):
    cls = lookup("Activation")
    plain = vars(cls)["gradient"]
    # An operator caches what it learns from its gradient, so this test creates a new instance.
    monkeypatch.setattr(cls, "_interned", {})
    monkeypatch.setattr(functions, "_hidden", {})
    monkeypatch.setattr(cls, "gradient", lambda *args: [grad * 1.01 for grad in plain(*args)])
    with pytest.raises(AssertionError, match="Activation: gradient of input 0"):
        check_numeric_gradient("Activation", inputs()[:1], parameters={"act_type": "tanh"})


def test_comparisons():
    a = mx.nd.array([1.0, 2.0])
    assert same(a, [1, 2]) and not same(a, [1, 3])
    assert almost_equal(a, [1, 2 + 1e-6]) and not almost_equal(a, [1, 2.1])
    assert not almost_equal(a, [[1, 2]])
    assert_almost_equal([1, np.nan], [1, np.nan], equal_nan=True)
    message = r"one and two differ in 1 of 2 elements; the largest difference is at \(1,\)"
    with pytest.raises(AssertionError, match=message):
        assert_almost_equal(a, [1, 2.5], names=("one", "two"))
    with pytest.raises(AssertionError, match="shape"):
        assert_almost_equal(a, np.zeros(3))
    with pytest.raises(AssertionError, match="differ in 1 of 2"):
        assert_almost_equal([1, np.nan], [1, 2.0])
