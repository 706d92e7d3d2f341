"""Gradients where formulas divide by zero: every operator of the tables at zeros, ones, equal numbers and infinities.

Operators that are added to tests/op_cases, and functions in the table of tests/numpy/test_numpy.py, are tested
automatically. Deliberate differences are in :data:`DELIBERATE`, and in the table of docs/migration.md.
"""

from functools import partial
from typing import NamedTuple

import numpy as onp
import pytest

import flowmx as mx
from flowmx.cached_op import CachedOp
from flowmx.ops.registry.operators import lookup
from tests.degenerate import gradients_of, points, values_of, weights_for, wrong_gradients
from tests.numpy.test_numpy import ROWS
from tests.op_cases import every_case
from tests.rows import label, operator, rows

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Deliberate(NamedTuple):
    """Deliberate gradients that differ from the slopes."""

    names: str
    """A prefix of the operators' names."""
    points: str
    """A part of the points' names."""
    reason: str
    is_number: bool = True
    """An array that is false at elements whose gradient may be NaN."""


DELIBERATE = [
    Deliberate("_random_pdf_", "zero", "where a density is 0 its gradient is 0, also at the edge of the support"),
    Deliberate(
        "Pooling", "zeros", "lp with p = 3 has the slope 1; its gradient is that of other p, which have a corner"
    ),
    Deliberate("broadcast_power", "infinity", "a negative base has no powers nearby", is_number=False),
    Deliberate("_power", "infinity", "a negative base has no powers nearby", is_number=False),
    Deliberate("np.power", "infinity", "a negative base has no powers nearby", is_number=False),
    Deliberate("np.float_power", "infinity", "a negative base has no powers nearby", is_number=False),
    Deliberate("np.arctan2", "infinity", "infinity divided by infinity; PyTorch gives NaN too", is_number=False),
    Deliberate("np.linalg.eig", "", "equal eigenvalues have no order, so no slope is defined"),
    Deliberate(
        "RNN",
        "infinity in input 3",
        "the infinite state of an LSTM is multiplied by a gate's slope of 0",
        is_number=False,
    ),
]

UNDEFINED = {"_linalg_gelqf", "linalg.qr", "linalg.cond", "interp"}
"""Functions undefined at these points: factors and conditions of singular matrices, unsorted positions."""
CASES = [case for case in every_case() if case.gradient and case.numeric and case.op not in UNDEFINED]
MENDED = {
    "prod", "nanprod", "norm", "broadcast_hypot", "broadcast_mod", "broadcast_power", "_rmod_scalar", "_rpower_scalar",
    "_power_scalar", "_linalg_det", "_linalg_syevd", "Pooling", "softmax", "LayerNorm", "L2Normalization",
}  # fmt: skip


def few(cases, at_most=3):
    """Return up to ``at_most`` rows of each operator, spread from first to last."""
    groups = {}
    for case in cases:
        groups.setdefault(case.op, []).append(case)
    return [case for group in groups.values() for case in group[:: -(-len(group) // at_most)]]


def make(array):
    return mx.nd.array(array, dtype="float64")


def call(case, arrays):
    mx.random.seed(0)
    outputs = mx.nd.op.op(case.op, *[make(a) if isinstance(a, onp.ndarray) else a for a in arrays], **case.params)
    return outputs if isinstance(outputs, list) else [outputs]


def check(name, wrong):
    unexplained = []
    for where, message, is_number in wrong:
        fits = [each for each in DELIBERATE if name.startswith(each.names) and each.points in where]
        if not any(is_number or not each.is_number for each in fits):
            unexplained.append(f"{where}: {message}")
    assert not unexplained, "\n".join(unexplained)


def check_case(case):
    check(case.op, wrong_gradients(partial(call, case), case.arrays(), case.differentiable(), make, case.train))


@rows("case", few(CASES), of=operator, name=label)
def test_gradients_are_slopes(case):
    check_case(case)


@pytest.mark.soak
@rows("case", CASES, of=operator, name=label)
def test_gradients_of_all_rows_are_slopes(case):
    check_case(case)


# -- functions of mx.np ----------------------------------------------------------------------------------------


def arrays_in(values, result):
    for value in values:
        if isinstance(value, list):
            arrays_in(value, result)
        elif isinstance(value, onp.ndarray) and value.dtype == onp.float64:
            result.append(value)
    return result


def call_np(name, args, kwargs, arrays):
    left = iter(arrays)

    def taken(value):
        if isinstance(value, list):
            return [taken(each) for each in value]
        if not isinstance(value, onp.ndarray):
            return value
        one = next(left) if value.dtype == onp.float64 else value
        return mx.np.array(one, dtype=one.dtype) if isinstance(one, onp.ndarray) else one

    function = mx.np
    for part in name.split("."):
        function = getattr(function, part)
    outputs = function(*map(taken, args), **{key: taken(value) for key, value in kwargs.items()})
    return [
        each for each in (outputs if isinstance(outputs, (list, tuple)) else [outputs]) if each.dtype == onp.float64
    ]


@rows(
    "row",
    [row for row in ROWS if row[0] not in UNDEFINED],
    of=lambda row: row[0].split(".")[0][:4],
    name=lambda row: f"{row[0]} {row[2]}",
)
def test_gradients_of_functions_are_slopes(row):
    name, args, kwargs = row
    arrays = arrays_in([*args, *kwargs.values()], [])
    check(f"np.{name}", wrong_gradients(partial(call_np, *row), arrays, range(len(arrays)), mx.np.array))


# -- every way to compute ----------------------------------------------------------------------------------------

_EACH = [case for case in few(CASES, 1) if not lookup(case.op).traits.uses_random]
SAMPLE = [case for position, case in enumerate(_EACH) if position % 4 == 0 or case.op in MENDED]


def degenerate(case):
    """Yield the inputs of a row with zeros, and with some zeros, in all differentiable inputs."""
    inputs = dict(points(case.arrays(), case.differentiable()))
    return [(inputs[name], values) for name in ("zeros", "some zeros") if (values := values_in(case, inputs[name]))]


def values_in(case, arrays):
    return values_of(partial(call, case), arrays, case.train)


def symbol_of(case):
    names = [f"x{position}" for position in range(len(case.inputs))]
    return getattr(mx.sym.op, case.op)(*map(mx.sym.Variable, names), **case.params), names


def in_a_graph(case, **ways):
    symbol, names = symbol_of(case)
    graph, order = CachedOp(symbol, **ways), [names.index(each) for each in symbol.list_inputs()]

    def function(arrays):
        outputs = graph(
            *[
                make(arrays[position]) if isinstance(arrays[position], onp.ndarray) else arrays[position]
                for position in order
            ]
        )
        return outputs if isinstance(outputs, (list, tuple)) else [outputs]

    return function


def bound_gradients(case, arrays, weights):
    symbol, names = symbol_of(case)
    bindings = dict(zip(names, map(make, arrays), strict=True))
    states = {name: bindings.pop(name) for name in symbol.list_auxiliary_states()}
    buffers = {names[position]: make(arrays[position]) * 0 for position in case.differentiable()}
    requests = {name: "write" if name in buffers else "null" for name in symbol.list_arguments()}
    executor = symbol.bind(mx.cpu(), bindings, buffers, requests, states)
    outputs = executor.forward(is_train=True)
    executor.backward([make(weight).astype(each.dtype) for weight, each in zip(weights, outputs, strict=True)])
    return [buffers[names[position]].asnumpy() for position in case.differentiable()]


def check_ways(case):
    for arrays, base in degenerate(case):
        weights = weights_for(base)
        expected = gradients_of(partial(call, case), arrays, case.differentiable(), weights, make)
        for ways in ({}, {"static_alloc": True, "static_shape": True}):
            actual = gradients_of(in_a_graph(case, **ways), arrays, case.differentiable(), weights, make)
            for one, other in zip(actual, expected, strict=True):
                onp.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
        for one, other in zip(bound_gradients(case, arrays, weights), expected, strict=True):
            onp.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@rows("case", [case for case in SAMPLE if case.train], of=operator, name=label)
def test_graphs_and_bound_symbols_have_the_same_gradients(case):
    check_ways(case)


@pytest.mark.soak
@rows("case", [case for case in _EACH if case.train], of=operator, name=label)
def test_all_graphs_and_bound_symbols_have_the_same_gradients(case):
    check_ways(case)


def check_dtypes(case):
    if case.dtypes or case.auxiliary:
        return
    for arrays, base in degenerate(case)[-1:]:
        weights = weights_for(base)
        wide = gradients_of(partial(call, case), arrays, case.differentiable(), weights, make, case.train)
        for dtype in ("float32", "float16", *(() if case.op.startswith("_image") else ("bfloat16",))):

            def narrow(array, dtype=dtype):
                return mx.nd.array(array, dtype=dtype)

            def function(arguments, narrow=narrow):
                arrays = [narrow(a) if isinstance(a, onp.ndarray) else a for a in arguments]
                outputs = mx.nd.op.op(case.op, *arrays, **case.params)
                return outputs if isinstance(outputs, list) else [outputs]

            actual = gradients_of(function, arrays, case.differentiable(), weights, narrow, case.train)
            for one, other in zip(actual, wide, strict=True):
                assert not onp.isnan(one.astype("float64")[onp.isfinite(other)]).any(), dtype


@rows("case", SAMPLE, of=operator, name=label)
def test_narrow_dtypes_have_finite_gradients_where_float64_has(case):
    check_dtypes(case)


@pytest.mark.soak
@rows("case", _EACH, of=operator, name=label)
def test_narrow_dtypes_of_all_operators(case):
    check_dtypes(case)


# -- second derivatives ------------------------------------------------------------------------------------------

SECOND = [
    *(("nd", name, [0.0, 2.0, 3.0, -1.5, 0.5], {}) for name in ("prod", "nanprod")),
    ("nd", "prod", [0.0, 0.0, 3.0], {}),
    ("nd", "prod", [[0.0, 2.0, 0.0], [1.0, 0.0, 4.0]], {"axis": 1}),
    ("nd", "prod", [[0.0, 2.0, 0.0], [1.0, 0.0, 4.0]], {"axis": 0}),
    ("nd", "linalg_det", [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [1.0, 0.0, 3.0]], {}),
    ("nd", "linalg_det", onp.zeros((2, 2)).tolist(), {}),
    *(("np", name, [0.0, 2.0, 3.0, 0.0, -1.0], {}) for name in ("prod", "cumprod", "nancumprod")),
    ("np", "prod", [[0.0, 2.0], [3.0, 0.0], [1.0, 5.0]], {"axis": 0}),
    ("np", "linalg.det", [[1.0, 2.0], [2.0, 4.0]], {}),
    ("np", "power", [0.5, 1.0, 2.0], {"x2": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("space", "name", "value", "params"), SECOND, ids=lambda each: str(each)[:20])
def test_second_derivatives_at_zeros(space, name, value, params):
    array = onp.array(value)
    module = mx.nd if space == "nd" else mx.np
    function = module
    for part in name.split("."):
        function = getattr(function, part)
    new = (lambda a: mx.nd.array(a, dtype="float64")) if space == "nd" else mx.np.array

    def slope(arguments):
        x = new(arguments)
        x.attach_grad()
        with mx.autograd.record():
            output = function(x, *params.values()) if name == "power" else function(x, **params)
            output = output * new(onp.linspace(0.5, 1.5, max(1, output.size)).reshape(output.shape))
            (result,) = mx.autograd.grad(output.sum(), [x], create_graph=True)
            weighted = (result * new(onp.cos(onp.arange(array.size)).reshape(array.shape))).sum()
        return x, weighted

    x, weighted = slope(array)
    weighted.backward()
    for position in range(array.size):
        step = onp.zeros(array.size)
        step[position] = 1e-5
        above, below = (float(slope(array + side * step.reshape(array.shape))[1].asnumpy().sum()) for side in (1, -1))
        assert x.grad.asnumpy().reshape(-1)[position] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-6)


# -- samples -----------------------------------------------------------------------------------------------------


def test_the_gradient_of_samples_is_0_for_invalid_distributions():
    p = mx.nd.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    p.attach_grad()
    with mx.autograd.record():
        _, logarithms = mx.nd.random.multinomial(p, 2, get_prob=True)
    logarithms.backward()
    assert p.grad.asnumpy().tolist() == [[0, 2, 0], [0, 0, 2]]


def test_infinite_matrices_are_refused_and_do_not_keep_lapack_busy():
    matrix = mx.np.array([[onp.inf, 1.0], [1.0, 2.0]])
    for name in ("svd", "pinv"):
        actual = getattr(mx.np.linalg, name)(matrix)
        with pytest.raises(onp.linalg.LinAlgError, match=f"linalg.{name}: the matrix contains infinity or NaN"):
            (actual if name == "pinv" else actual[0]).asnumpy()


# -- functions of mx.np in graphs --------------------------------------------------------------------------------

AT_ZEROS = [
    ("prod", [0.0, 2.0, 3.0], {}),
    ("prod", [[0.0, 2.0], [3.0, 4.0]], {"axis": 1}),
    ("nanprod", [0.0, 2.0, onp.nan], {}),
    ("cumprod", [[0.0, 2.0, 3.0], [1.0, 0.0, 5.0]], {"axis": 1}),
    ("std", [2.0, 2.0, 2.0], {}),
    ("nanstd", [2.0, 2.0, 2.0], {}),
    ("var", [2.0, 2.0], {"ddof": 1}),
    ("linalg.norm", [[0.0, 0.0], [3.0, 4.0]], {"axis": 1}),
    ("linalg.norm", [0.0, 0.0, 0.0], {"ord": 3}),
    ("linalg.det", [[1.0, 2.0], [2.0, 4.0]], {}),
    ("linalg.eigvalsh", [[1.0, 0.0], [0.0, 1.0]], {}),
    ("hypot", [0.0, 3.0], {"x2": 4.0}),
    ("arctan2", [0.0, 3.0], {"x2": 0.0}),
    ("power", [0.0, 2.0], {"x2": 0.0}),
    ("logaddexp", [-onp.inf, 0.0], {"x2": -onp.inf}),
]


@pytest.mark.parametrize(("name", "value", "params"), AT_ZEROS, ids=lambda each: str(each)[:20])
def test_functions_in_graphs(name, value, params):
    class Calling(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            function = F.np
            for part in name.split("."):
                function = getattr(function, part)
            return function(x, *params.values()) if "x2" in params else function(x, **params)

    gradients = []
    for ways in ({"active": False}, {}, {"static_alloc": True, "static_shape": True}):
        block = Calling()
        block.hybridize(**ways)
        x = mx.np.array(value)
        x.attach_grad()
        with mx.autograd.record():
            y = block(x)
        y.backward()
        gradients.append(x.grad.asnumpy())
    assert not onp.isnan(gradients[0]).any()
    for each in gradients[1:]:
        onp.testing.assert_allclose(each, gradients[0], rtol=1e-6, atol=1e-9)
