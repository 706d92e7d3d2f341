"""Every deterministic operator on every dtype: the dtypes that MXNet 1.9.1 gives, and values that agree.

The dtypes and the values of integer dtypes are MXNet's (tests/fixtures/record_dtypes.py); floating results are
compared with those of float64. Where MXNet refuses a dtype, flowmx may take it.
"""

import importlib
import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.registry.operators import lookup
from tests.fixtures.record_dtypes import COMPARED, FILE, GIVEN, VALUES, call, inputs
from tests.op_cases import tables
from tests.op_cases.case import by_key
from tests.rows import operator_of_key, rows

# Integer dtypes whose results differ, and why.
OTHERWISE = {
    "norm": "MXNet rounds each partial sum of its scaled squares",
    **dict.fromkeys(["Convolution", "moments"], "MXNet's sums overflow the dtype on the way"),
    "_contrib_hawkesll": "MXNet counts time in integers",
    "erf": "1 from 4 on in float32",
    "erfinv": "infinite from 1 on",
}
# Operators whose first output alone has MXNet's dtype, and why.
FIRST_ONLY = {"LayerNorm": "its statistics of float16 data are float32, for a precise gradient"}
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-6, "indices": 1e-4}


def cases():
    for module, words in json.loads(FILE.read_text()).items():
        table = by_key(tables()[module])
        for name, text in words.items():
            case = table.get(name)
            random = case is not None and (
                lookup(case.op).traits.uses_random is True or "rrelu" in case.params.values()
            )
            if not random:
                yield module, name, case, text.split()


def exactly(case, dtype):
    """The outputs for the same numbers in float64."""
    kinds = [case.dtypes.get(position, "float64") for position in range(len(case.inputs))]
    pairs = zip(inputs(case, dtype), kinds, strict=True)
    arrays = [mx.nd.array(each.astype(kind), dtype=kind) for each, kind in pairs]
    with mx.autograd.pause(train_mode=case.train):
        outputs = mx.nd.op.op(case.op, *arrays, **case.params)
    return [each.asnumpy().astype(np.float64) for each in (outputs if isinstance(outputs, list) else [outputs])]


@pytest.fixture(scope="module")
def recorded():
    with np.load(VALUES) as arrays:
        return dict(arrays)


def close(ours, theirs, tolerance, what):
    size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * size, err_msg=what)


@rows(
    ("module", "name", "case", "words"),
    cases(),
    of=lambda row: operator_of_key(row[1]),
    name=lambda row: row[1],
)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # a NaN as an integer
@pytest.mark.filterwarnings("ignore:_image_normalize. input data has dtype")
def test_dtypes(module, name, case, words, recorded):
    assert case is not None, f"{name} is not in the table any more: record the module again"
    starts = [int(word) for word in words[len(GIVEN) :]]
    for dtype, word in zip(GIVEN, words, strict=False):
        if word == "-":
            continue
        outputs = call(mx, case, dtype)
        expected = [dtype] * len(outputs) if word == "=" else word.split(",")
        kinds = [each.dtype.name for each in outputs]
        compared = 1 if case.op in FIRST_ONLY else len(kinds)
        assert kinds[:compared] == expected[:compared], f"for {dtype}"
        if dtype in TOLERANCE:
            for flowmx_result, exact in zip(outputs, exactly(case, dtype), strict=True):
                if flowmx_result.dtype.kind == "f":  # a dtype's lowest number stands for an empty maximum
                    lowest = np.finfo(flowmx_result.dtype).min
                    exact = np.where(np.isfinite(exact) & (exact < lowest), lowest, exact)
                close(flowmx_result.astype(np.float64), exact, TOLERANCE[dtype], f"for {dtype}")
        elif dtype in COMPARED and case.op not in OTHERWISE:
            start, stop = starts[COMPARED.index(dtype) :][:2]
            if start < stop:
                flowmx_result = np.concatenate([each.ravel() for each in outputs]).astype(np.float64)
                close(flowmx_result, recorded[module][start:stop], 1e-5, f"for {dtype}")


def test_inputs_are_distinct_integers():
    case = importlib.import_module("tests.op_cases.elementwise").CASES[0]
    assert {each.dtype.name for each in inputs(case, "int8")} == {"int8"}
    assert len(np.unique(inputs(case, "int32")[0])) > 3


@pytest.mark.parametrize("train", [False, True])
def test_empty_windows_in_a_graph_return_the_lowest_number(train):
    x = mx.nd.ones((1, 1, 6, 6), dtype="float16")
    net = mx.sym.Pooling(mx.sym.var("x"), kernel=(2, 2), stride=(3, 3), pooling_convention="full")
    bound = net.bind(mx.cpu(), {"x": x}, {"x": mx.nd.zeros_like(x)})
    actual = bound.forward(is_train=train)[0].asnumpy()[0, 0]
    lowest = np.finfo(np.float16).min
    np.testing.assert_array_equal(actual, [[1, 1, lowest], [1, 1, lowest], [lowest] * 3])
    if train:
        bound.backward([mx.nd.ones((1, 1, 3, 3), dtype="float16")])
        assert bound.grad_dict["x"].asnumpy().sum() == 4
