"""Gradients in graphs: the calls of an operator's gradient are replayed for equal operators."""

import itertools

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.registry.operators import lookup

SHAPE = (3, 4)


@pytest.fixture
def calls_of_gradient(monkeypatch):
    """Record the products whose gradient functions are called."""
    kind, calls = type(lookup("elemwise_mul").create()), []
    real = kind.gradient
    monkeypatch.setattr(kind, "gradient", lambda self, *arguments: calls.append(self) or real(self, *arguments))
    return calls


def gradients(net, values, requests="write"):
    """Return the output's gradient with respect to each variable that has one."""
    bound = net.bind(
        mx.cpu(), {name: mx.nd.array(each) for name, each in values.items()},
        {name: mx.nd.zeros(each.shape) for name, each in values.items()}, requests,
    )  # fmt: skip
    bound.forward(is_train=True)
    bound.backward(mx.nd.ones(SHAPE))
    return {name: each.asnumpy() for name, each in bound.grad_dict.items() if each is not None}


def values_of(names):
    rng = np.random.default_rng(0)
    return {name: rng.uniform(0.5, 1.5, SHAPE).astype(np.float32) for name in names}


def test_the_gradient_of_equal_operators_is_traced_once(calls_of_gradient):
    names = [f"v{number}" for number in range(8)]
    net, values = mx.sym.var(names[0]), values_of(names)
    for name in names[1:]:
        net = net * mx.sym.var(name)
    calls = gradients(net, values)
    assert len(calls_of_gradient) == 1
    whole = np.prod(list(values.values()), axis=0)
    for name in names:
        np.testing.assert_allclose(calls[name], whole / values[name], rtol=1e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(["xx", "xy", "yx", "yy"])), ids="-".join)
def test_values_that_are_read_twice_are_not_mixed_up(order):
    values = values_of("xy")
    x, y = values.values()
    variables = {name: mx.sym.var(name) for name in "xy"}
    net = mx.sym.add_n(*[variables[pair[0]] * variables[pair[1]] * (index + 1.0) for index, pair in enumerate(order)])
    weight = {pair: index + 1.0 for index, pair in enumerate(order)}
    calls = gradients(net, values)
    mixed = weight["xy"] + weight["yx"]
    np.testing.assert_allclose(calls["x"], 2 * weight["xx"] * x + mixed * y, rtol=1e-5)
    np.testing.assert_allclose(calls["y"], 2 * weight["yy"] * y + mixed * x, rtol=1e-5)


def test_shapes_and_requested_inputs_distinguish_operators(calls_of_gradient):
    x, y, z = (mx.sym.var(name) for name in "xyz")
    rows = mx.sym.broadcast_mul(mx.sym.sum(x * y, axis=1, keepdims=True), mx.sym.var("w"))
    net = mx.sym.broadcast_add(x * z, rows * rows)
    values = {**values_of("xyz"), "w": np.full((3, 1), 2, np.float32)}
    calls = gradients(net, values, {"x": "write", "y": "write", "z": "null", "w": "null"})
    assert len(calls_of_gradient) == 3
    a, b, c = (values[name].astype(np.float64) for name in "xyz")
    inner = (a * b).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calls["x"], c + 32 * inner * b, rtol=1e-5)
    np.testing.assert_allclose(calls["y"], 32 * inner * a, rtol=1e-5)
