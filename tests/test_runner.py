"""Results of plans are handed out alike by executors, cached graphs and loops, whatever they are made of."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op import CachedOp

SHAPE = (3, 4)

RESULTS = {
    "a value": lambda F, x: [F.exp(x)],
    "a value twice": lambda F, x: [F.exp(x)] * 2,
    "an input": lambda F, x: [x, F.exp(x)],
    "an input seen otherwise": lambda F, x: [F.Reshape(x, shape=(4, 3)), F.sin(x)],
    "a value seen otherwise": lambda F, x: (lambda y: [F.Reshape(y, shape=(4, 3)), y])(F.exp(x)),
    "a value between others": lambda F, x: (lambda y: [F.sin(y), y, F.cos(y)])(F.exp(x)),
    "a constant": lambda F, x: [F.ones(SHAPE) * 3, F.exp(x)],
    "what has no gradient": lambda F, x: [F.BlockGrad(x), F.ones(SHAPE)],
}


def given():
    return mx.nd.array(np.random.default_rng(0).standard_normal(SHAPE), dtype="float32")


def recorded(function, x, request):
    x.attach_grad(request)
    x.grad[:] = 5
    with mx.autograd.record():
        made = function(x)
        made = made if isinstance(made, list) else [made]
        total = mx.nd.add_n(*[(each * (i + 2)).sum() for i, each in enumerate(made)])
    total.backward()
    return [*made, x.grad]


def bound(symbol, request):
    x = given()
    executor = symbol.bind(mx.cpu(), {"x": x}, {"x": mx.nd.full(SHAPE, 5)}, request)
    executor.forward(is_train=True)
    executor.backward([mx.nd.full(each.shape, i + 2) for i, each in enumerate(executor.outputs)])
    return [*executor.outputs, executor.grad_dict["x"]]


def looped(made):
    """The same results, out of a loop of one iteration."""
    x = mx.sym.Variable("x")
    rows = mx.sym.expand_dims(x, axis=0)
    found, _ = mx.sym.contrib.foreach(lambda row, states: (made(row), [states[0] + row]), rows, [mx.sym.zeros_like(x)])
    return mx.sym.Group([mx.sym.squeeze(each, axis=0) for each in found])


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_handed_out_alike(name, request_):
    expected = recorded(lambda x: RESULTS[name](mx.nd, x), given(), request_)
    symbol = mx.sym.Group(RESULTS[name](mx.sym, mx.sym.Variable("x")))
    loop = looped(lambda row: RESULTS[name](mx.sym, row))
    for found in (
        bound(symbol, request_),
        bound(loop, request_),
        recorded(CachedOp(symbol), given(), request_),
        recorded(CachedOp(loop), given(), request_),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5)
