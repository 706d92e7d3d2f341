"""Every operator's gradient against central differences, for all tables of tests/op_cases; second ones too."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import AutogradError
from flowmx.test_utils import check_numeric_gradient
from tests.op_cases import every_case
from tests.rows import label, operator, rows

CASES = every_case()


SOME_OR_ALL = [
    # An element that is wrong changes the slope along each of them.
    pytest.param(4, id="four directions"),
    pytest.param(None, marks=pytest.mark.soak, id="every element"),
]


def split(case):
    arrays = case.arrays()
    count = len(arrays) - case.auxiliary
    return arrays[:count], arrays[count:]


@pytest.mark.parametrize("directions", SOME_OR_ALL)
@rows("case", [c for c in CASES if c.numeric and c.gradient], of=operator, name=label)
def test_gradient(case, directions):
    inputs, states = split(case)
    check_numeric_gradient(
        case.op, inputs, states, grad_nodes=case.wrt, use_forward_train=case.train, parameters=case.params,
        directions=directions,
    )  # fmt: skip


@pytest.mark.parametrize("directions", SOME_OR_ALL)
@rows("case", [c for c in CASES if c.second], of=operator, name=label)
def test_second_gradient(case, directions):
    inputs, states = split(case)

    def gradients(*arrays):
        wrt = [arrays[position] for position in case.differentiable()]
        for each in wrt:
            if each.tape_entry is None:
                each.attach_grad()
        with mx.autograd.record(train_mode=case.train):
            outputs = mx.nd.op.op(case.op, *arrays, **case.params)
            # A product with itself, so that the gradient depends on every input.
            loss = (outputs * outputs).sum()
            return mx.autograd.grad(loss, wrt, create_graph=True, retain_graph=True, train_mode=case.train)

    check_numeric_gradient(
        gradients, inputs, states, grad_nodes=case.wrt, use_forward_train=case.train, rtol=1e-4, atol=1e-6,
        directions=directions,
    )  # fmt: skip


@rows("case", [c for c in CASES if c.gradient and c.numeric and not c.second], of=operator, name=label)
def test_second_gradient_or_an_error(case):
    rng = np.random.default_rng(0)
    arrays = case.arrays()
    directions = {position: rng.standard_normal(arrays[position].shape) for position in case.differentiable()}

    def gradients(step, create_graph):
        moved = [each + step * directions.get(position, 0.0) for position, each in enumerate(arrays)]
        inputs = [mx.nd.array(each, dtype="float64") for each in moved]
        variables = [inputs[position] for position in directions]
        mx.autograd.mark_variables(variables, [mx.nd.zeros_like(each) for each in variables])
        mx.random.seed(0)
        with mx.autograd.record(train_mode=case.train):
            outputs = mx.nd.op.op(case.op, *inputs, **case.params)
            loss = sum((each * each).sum() for each in (outputs if isinstance(outputs, list) else [outputs]))
            return variables, mx.autograd.grad(loss, variables, create_graph=create_graph, train_mode=case.train)

    def weighted(actual):
        with mx.autograd.record(train_mode=case.train):
            weights = np.random.default_rng(1)
            dense = [each.tostype("default") for each in actual]
            return sum(
                (each * mx.nd.array(weights.standard_normal(each.shape), dtype="float64")).sum() for each in dense
            )

    try:
        variables, actual = gradients(0, True)
        weighted(actual).backward(train_mode=case.train)
    except AutogradError as error:
        if "has no gradient" not in str(error):
            raise
        return
    above, below = (weighted(gradients(step, False)[1]).asscalar() for step in (1e-5, -1e-5))
    slope = sum((each.grad.asnumpy() * d).sum() for each, d in zip(variables, directions.values(), strict=True))
    assert slope == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-4)
