"""Outputs, gradients and updated states against those that MXNet 1.9.1 gave (tests/fixtures/record_ops.py)."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx

FOLDER = Path(__file__).parent / "fixtures" / "ops"


def recorded():
    for path in sorted(FOLDER.glob("*.npz")):
        cases = importlib.import_module(f"tests.op_cases.{path.stem}").CASES
        with np.load(path) as arrays:
            for number, case in enumerate(cases):
                if f"{number}/id" in arrays:
                    yield pytest.param(path.stem, number, case, id=f"{path.stem}-{case.id}")


def read(module, number):
    with np.load(FOLDER / f"{module}.npz") as arrays:
        start = f"{number}/"
        return {key.removeprefix(start): arrays[key] for key in arrays.files if key.startswith(start)}


def close(ours, theirs, what):
    # Relative to the array's largest element, since sums come in another order.
    size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * size, err_msg=what)


@pytest.mark.parametrize(("module", "number", "case"), list(recorded()))
def test_as_mxnet(module, number, case):
    found = read(module, number)
    assert str(found["id"]) == case.id, "the table has changed: record it again"
    given = [found[f"i{index}"] for index in range(len(case.inputs))]
    arrays = [mx.nd.array(each, dtype=each.dtype) for each in given]
    positions = case.differentiable()
    for position in positions:
        arrays[position].attach_grad()
    with mx.autograd.record(train_mode=case.train) if positions else mx.autograd.pause(train_mode=case.train):
        outputs = mx.nd.op.op(case.op, *arrays, **case.params, **case.written(arrays))
    outputs = outputs if isinstance(outputs, list) else [outputs]
    if case.outputs is not None:
        outputs = outputs[: case.outputs]
    for index, each in enumerate(outputs):
        close(each.asnumpy(), found[f"o{index}"], f"output {index}")
    if positions:
        heads = [mx.nd.array(found[f"h{index}"]) for index in range(len(outputs))]
        mx.autograd.backward(outputs, heads, train_mode=case.train)
        for position in positions if case.same_gradient else ():
            close(arrays[position].grad.asnumpy(), found[f"g{position}"], f"gradient of input {position}")
    # The states: MXNet's BatchNorm also sets a fixed gamma to 1, where ours leaves it alone.
    states = range(len(arrays) - case.auxiliary, len(arrays)) if case.gradient else range(len(arrays))
    for index in states:
        array = arrays[index]
        close(array.asnumpy(), found.get(f"a{index}", found[f"i{index}"]), f"input {index} afterwards")
