"""Every operator's gradient against central differences, for all tables of tests/op_cases."""

import importlib
import pkgutil

import pytest

import flowmx as mx
import tests.op_cases
from flowmx.test_utils import check_numeric_gradient

CASES = [
    case
    for module in pkgutil.iter_modules(tests.op_cases.__path__)
    for case in getattr(importlib.import_module(f"tests.op_cases.{module.name}"), "CASES", [])
]


def split(case):
    arrays = case.arrays()
    count = len(arrays) - case.auxiliary
    return arrays[:count], arrays[count:]


@pytest.mark.parametrize("case", [c for c in CASES if c.numeric and c.gradient], ids=lambda case: case.id)
def test_gradient(case):
    inputs, states = split(case)
    check_numeric_gradient(
        case.op, inputs, states, grad_nodes=case.wrt, use_forward_train=case.train, parameters=case.params
    )


@pytest.mark.parametrize("case", [c for c in CASES if c.second], ids=lambda case: case.id)
def test_second_gradient(case):
    inputs, states = split(case)

    def gradients(*arrays):
        wrt = [arrays[position] for position in case.differentiable()]
        for each in wrt:
            if each._entry is None:
                each.attach_grad()
        with mx.autograd.record(train_mode=case.train):
            outputs = mx.nd.op.op(case.op, *arrays, **case.params)
            # A product with itself, so that the gradient depends on every input.
            loss = (outputs * outputs).sum()
            return mx.autograd.grad(loss, wrt, create_graph=True, retain_graph=True, train_mode=case.train)

    check_numeric_gradient(
        gradients, inputs, states, grad_nodes=case.wrt, use_forward_train=case.train, rtol=1e-4, atol=1e-6
    )
