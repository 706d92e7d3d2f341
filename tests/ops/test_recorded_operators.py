"""Outputs, gradients and updated states are those of MXNet 1.9.1, recorded by tests/fixtures/record_ops.py."""

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures.record_ops import FOLDER, keys, read
from tests.op_cases import tables
from tests.op_cases.case import Case, by_key
from tests.rows import operator_of_key, rows


def recorded():
    for module in sorted(path.stem for path in FOLDER.glob("*.npz")):
        table = by_key(tables()[module])
        for key in keys(module):
            yield module, key, table.get(key)


def close(ours, reference, what):
    # Relative to the array's largest element, since sums have a different order.
    size = np.abs(reference[np.isfinite(reference)]).max(initial=1.0)
    np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5 * size, err_msg=what)


@rows(("module", "key", "case"), recorded(), of=lambda row: operator_of_key(row[1]), name=lambda row: row[1])
def test_as_mxnet(module, key, case):
    assert case is not None, f"{key} is not in the table any more: record the module again"
    actual = read(module)[key]
    inputs = [actual[f"i{index}"] for index in range(len(case.inputs))]
    arrays = [mx.nd.array(item, dtype=item.dtype) for item in inputs]
    positions = case.differentiable()
    for position in positions:
        arrays[position].attach_grad()
    with mx.autograd.record(train_mode=case.train) if positions else mx.autograd.pause(train_mode=case.train):
        outputs = mx.nd.op.op(case.op, *arrays, **case.params, **case.written(arrays))
    outputs = outputs if isinstance(outputs, list) else [outputs]
    if case.outputs is not None:
        outputs = outputs[: case.outputs]
    for index, item in enumerate(outputs):
        close(item.asnumpy(), actual[f"o{index}"], f"output {index}")
    if positions:
        heads = [mx.nd.array(actual[f"h{index}"]) for index in range(len(outputs))]
        mx.autograd.backward(outputs, heads, train_mode=case.train)
        for position in positions if case.same_gradient else ():
            close(arrays[position].grad.asnumpy(), actual[f"g{position}"], f"gradient of input {position}")
    # The states: MXNet's BatchNorm also sets a fixed gamma to 1; flowmx leaves it alone.
    states = range(len(arrays) - case.auxiliary, len(arrays)) if case.gradient else range(len(arrays))
    for index in states:
        array = arrays[index]
        close(array.asnumpy(), actual.get(f"a{index}", actual[f"i{index}"]), f"input {index} afterwards")


def test_rows_with_the_same_key_are_refused():
    row = Case("exp", [(2, 3)])
    assert list(by_key([row, Case("exp", [(3, 2)]), Case("exp", [(2, 3)], note="again")])) == [
        "exp (2,3)", "exp (3,2)", "exp-again (2,3)",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"two rows of the table are 'exp \(2,3\)': give one of them a note"):
        by_key([row, Case("exp", [(2, 3)])])
