"""Executors, cached graphs and loops return the same results of a plan."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op import CachedOp

SHAPE = (3, 4)

RESULTS = {
    "a value": lambda F, x: [F.exp(x)],
    "a value twice": lambda F, x: [F.exp(x)] * 2,
    "an input": lambda F, x: [x, F.exp(x)],
    "an input in another shape": lambda F, x: [F.Reshape(x, shape=(4, 3)), F.sin(x)],
    "a value in another shape": lambda F, x: (lambda y: [F.Reshape(y, shape=(4, 3)), y])(F.exp(x)),
    "a value between others": lambda F, x: (lambda y: [F.sin(y), y, F.cos(y)])(F.exp(x)),
    "a constant": lambda F, x: [F.ones(SHAPE) * 3, F.exp(x)],
    "values without gradients": lambda F, x: [F.BlockGrad(x), F.ones(SHAPE)],
}


def make_input():
    return mx.nd.array(np.random.default_rng(0).standard_normal(SHAPE), dtype="float32")


def recorded(function, x, request):
    x.attach_grad(request)
    x.grad[:] = 5
    with mx.autograd.record():
        outputs = function(x)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        total = mx.nd.add_n(*[(each * (i + 2)).sum() for i, each in enumerate(outputs)])
    total.backward()
    return [*outputs, x.grad]


def bound(symbol, request):
    x = make_input()
    executor = symbol.bind(mx.cpu(), {"x": x}, {"x": mx.nd.full(SHAPE, 5)}, request)
    executor.forward(is_train=True)
    executor.backward([mx.nd.full(each.shape, i + 2) for i, each in enumerate(executor.outputs)])
    return [*executor.outputs, executor.grad_dict["x"]]


def looped(function):
    """Return the same results, from a loop with one iteration."""
    x = mx.sym.Variable("x")
    rows = mx.sym.expand_dims(x, axis=0)
    results, _ = mx.sym.contrib.foreach(
        lambda row, states: (function(row), [states[0] + row]), rows, [mx.sym.zeros_like(x)]
    )
    return mx.sym.Group([mx.sym.squeeze(result, axis=0) for result in results])


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("name", RESULTS)
def test_all_callers_return_the_same_results(name, request_):
    expected = recorded(lambda x: RESULTS[name](mx.nd, x), make_input(), request_)
    symbol = mx.sym.Group(RESULTS[name](mx.sym, mx.sym.Variable("x")))
    loop = looped(lambda row: RESULTS[name](mx.sym, row))
    for results in (
        bound(symbol, request_),
        bound(loop, request_),
        recorded(CachedOp(symbol), make_input(), request_),
        recorded(CachedOp(loop), make_input(), request_),
    ):
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5)
