"""The batch traits of operators are right: in prediction, a part of the inputs gives the same part of the outputs."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.graph.node import Entry
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.compiled.fused_attention import FusedAttention
from flowmx.ops.compiled.fused_layers import BatchNormRelu, FusedConvolution, FusedFullyConnected
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Operator, Run, lookup
from flowmx.ops.registry.traits import BatchWise
from tests.graph_runs import evaluate, graph_for, operator_of
from tests.op_cases import every_case
from tests.rows import family, rows

CASES: dict[str, list[Any]] = {}
for _case in every_case():
    CASES.setdefault(lookup(_case.op).name, []).append(_case)
SAYING = sorted(name for name in CASES if lookup(name).traits.batch_wise is not BatchWise.UNKNOWN)
ENOUGH = 185
"""The minimum number of operators in the tables with a batch trait; a mistake in the traits would lose many."""


def computed(op, arrays, shapes, dtypes, fast):
    """Return the outputs of an operator, by its forward or by the CPU's kernel."""
    outputs = [np.full(shape, 7, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    forward = kernel_for("cpu", op.name) if fast else None
    run = Run(devices.get(mx.cpu()), train=False)
    with np.errstate(all="ignore"):
        (op.forward if forward is None else partial(forward.compute, op))(run, arrays, outputs)
    return outputs


def sliced(array, part, count):
    """Return one of several equal parts of an array along axis 0."""
    rows = len(array) // count
    return array[part * rows : (part + 1) * rows]


def check(op, arrays, fast):
    """Compare outputs of parts with parts of the full outputs; return the number of compared parts."""
    spec = op.spec(tuple(item.shape for item in arrays), tuple(item.dtype for item in arrays))
    parts = op.batch_parts([item.shape for item in arrays], spec.shapes)
    if parts is None or op.draws(False) or not all(map(math.prod, spec.shapes)):
        return 0
    count = math.gcd(
        *[len(arrays[index]) for index in parts.inputs], *[spec.shapes[index][0] for index in parts.outputs]
    )
    full = computed(op, arrays, spec.shapes, spec.dtypes, fast)
    totals = [np.zeros_like(full[index], np.float64) for index in parts.sums]
    for part in () if count == 1 else range(count) if parts.sums else (0, count - 1):
        arguments = [sliced(item, part, count) if index in parts.inputs else item for index, item in enumerate(arrays)]
        expected = [sliced(item, part, count) if index in parts.outputs else item for index, item in enumerate(full)]
        actual = computed(op, arguments, [item.shape for item in expected], spec.dtypes, fast)
        for index, (first, second) in enumerate(zip(actual, expected, strict=True)):
            if index not in parts.sums:
                near(first, second, f"{op!r}, part {part} of {count}")
        totals = [total + actual[index] for total, index in zip(totals, parts.sums, strict=True)]
    if count > 1:
        for total, index in zip(totals, parts.sums, strict=True):
            near(total, full[index], f"{op!r}, the sum of {count} parts")
    return count > 1


def near(first, second, message):
    """Compare results; sums of large numbers get a larger tolerance."""
    size = np.abs(np.nan_to_num(second.astype(np.float64), posinf=0, neginf=0)).max(initial=1)
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5 * size, err_msg=message)


@rows("name", SAYING, of=family)
def test_a_part_of_the_batch_gives_the_same_part_of_the_outputs(name):
    for case in CASES[name]:
        for fast in (False, True)[: 1 + (kernel_for("cpu", name) is not None)]:
            check(operator_of(case), case.call_inputs(), fast)


def along(name, axis):
    """Return an operator of one input along one of three axes, or None."""
    try:
        op = lookup(name).create(axis=axis)
        op.infer_shape([(4, 4, 4)] * len(op.inputs()))
    except (mx.base.MXNetError, ValueError, TypeError):
        return None
    return op if len(op.inputs()) == 1 else None


ALONG_AXES = [name for name in SAYING if hasattr(lookup(name), "axis") and along(name, 1)]


@pytest.mark.parametrize("axis", range(-3, 3))
def test_operators_along_another_axis_than_the_batch_have_parts(axis):
    assert len(ALONG_AXES) > 15
    for name in ALONG_AXES:
        assert check(along(name, axis), random((4, 4, 4)), False) == (axis % 3 != 0 or name == "sum"), name


def gradients_checked(case, fast):
    """Return the names of the operators in a case's gradient whose parts were compared with the full result."""
    arrays, actual = case.call_inputs(), set()
    wrt = [index for index in case.differentiable() if arrays[index].dtype.kind == "f"]
    if not wrt:
        return actual
    graph, variables = graph_for(operator_of(case), arrays, wrt, case.train)
    values = dict(zip(variables, arrays, strict=True))
    values |= {node: np.full(graph.shapes[Entry(node, 0)], 0.5, graph.dtypes[Entry(node, 0)]) for node in graph.heads}

    def call(op, run, inputs, outputs):
        if op.name.startswith(("_backward", "_sum_like", "sum")) and check(op, [np.array(x) for x in inputs], fast):
            actual.add(op.name)
        forward = kernel_for("cpu", op.name) if fast else None
        (op.forward if forward is None else partial(forward.compute, op))(run, inputs, outputs)

    with np.errstate(all="ignore"):
        evaluate(graph, values, Run(devices.get(mx.cpu()), train=case.train), call)
    return actual


@rows("name", sorted(CASES), of=family)
def test_parts_of_the_batch_give_parts_or_summands_of_the_gradients(name):
    for case in CASES[name]:
        for fast in (False, True):
            gradients_checked(case, fast)


def test_the_gradients_of_layers_are_batch_wise():
    requested = {
        "FullyConnected": {"_backward_FullyConnected_data", "_backward_FullyConnected_weight", "_backward_bias"},
        "Convolution": {"_backward_Convolution_data", "_backward_Convolution_weight", "_backward_bias"},
        "Deconvolution": {"_backward_Deconvolution_data", "_backward_Deconvolution_weight"},
        "Activation": {"_backward_Activation"},
        "Concat": {"_backward_Concat"},
        "Embedding": {"_backward_take"},
        "LayerNorm": {"_backward_LayerNorm"},
        "InstanceNorm": {"_backward_InstanceNorm"},
        "LeakyReLU": {"_backward_LeakyReLU"},
        "Pooling": {"_backward_Pooling"},
        "SoftmaxOutput": {"_backward_SoftmaxOutput"},
        "broadcast_add": {"_sum_like"},
        "dot": {"_backward_dot"},
        "log_softmax": {"_backward_log_softmax"},
        "slice_axis": {"_backward_slice_axis"},
        "softmax": {"_backward_softmax"},
    }
    for name, expected in requested.items():
        actual = set().union(*[gradients_checked(case, False) for case in CASES[name]])
        assert expected <= actual, name


def random(*shapes):
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, shape).astype("float32") for shape in shapes]


def chain():
    links = [Link(lookup("broadcast_add").create(), (0, 1), "sum"), Link(lookup("tanh").create(), (2,), "tanh")]
    return Chain.of(2, links, (2, 3))


CONV = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 4, "scaled": True, "has_addend": True, "activation": "relu"}
MADE = {
    "chain": (chain(), random((4, 3, 5), (1, 3, 5))),
    "convolution": (FusedConvolution.create(**CONV), random((4, 2, 6, 6), (4, 2, 3, 3), (4,), (4,), (4, 4, 6, 6))),
    "product": (
        FusedFullyConnected.create(num_hidden=4, has_addend=True, activation="relu"),
        random((4, 6), (4, 6), (4,), (4, 4))
    ),
    "normalization": (BatchNormRelu.create(), random((4, 4, 5), (4,), (4,), (4,), (4,))),
    "attention": (
        FusedAttention.create(biased=True),
        random((4, 6, 2, 1, 8), (4, 6, 2, 1, 8), (4, 6, 2, 1, 8), (4, 1, 6, 6)),
    ),
    "convolution's gradients": (
        lookup("_backward_Convolution_weight_bias").create(kernel=(3, 3), pad=(1, 1), num_filter=4),
        random((4, 4, 6, 6), (4, 2, 6, 6)),
    ),
    "noted pooling": (lookup("_noted_Pooling").create(kernel=(2, 2), stride=(2, 2)), random((4, 3, 6, 6))),
    "attention's gradients": (
        lookup("_backward_fused_attention").create(biased=True, parts=(3,)),
        random((4, 6, 2, 8), (4, 6, 2, 8), (4, 2, 6, 1), (4, 6, 2, 3, 8), (1, 1, 6, 6)),
    ),
    "attention, one bias": (
        FusedAttention.create(biased=True, parts=(3,)), random((4, 6, 2, 3, 8), (1, 1, 6, 6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_operators_of_passes_are_batch_wise(name):
    op, arrays = MADE[name]
    for fast in (False, True):
        assert check(op, arrays, fast)


def test_many_operators_have_a_batch_trait_that_is_checked():
    shown = [
        name for name in SAYING if any(check(operator_of(case), case.call_inputs(), False) for case in CASES[name])
    ]
    assert len(shown) >= ENOUGH


@pytest.mark.parametrize(
    ("name", "parameters", "shapes"),
    [
        ("softmax", {"axis": 0}, [(4, 3)]),
        ("Concat", {"dim": 0, "num_args": 2}, [(4, 3), (4, 3)]),
        ("max", {"axis": ()}, [(4, 3)]),
        ("_backward_mean", {"axis": ()}, [(1,), (4, 3)]),
        ("_backward_SoftmaxOutput", {"normalization": "batch"}, [(4, 3), (4,)]),
        ("transpose", {}, [(4, 4)]),
        ("dot", {"transpose_a": True}, [(4, 4), (4, 4)]),
        ("BatchNorm", {"axis": 0}, [(4, 3), *[(4,)] * 4]),
        ("_np_cumsum", {}, [(4, 1)]),
        ("RNN", {"mode": "gru", "state_size": 2, "num_layers": 1}, [(4, 4, 2), (36,), (1, 4, 2)]),
    ],
)
def test_operators_that_mix_the_batch(name, parameters, shapes):
    op = lookup(name).create(**parameters)
    outputs = op.spec(tuple(shapes), (np.dtype(np.float32),) * len(shapes)).shapes
    assert op.batch_parts(shapes, outputs) is None


def test_a_subclass_does_not_inherit_the_batch_trait():
    for base in (Operator, lookup("relu"), lookup("softmax"), lookup("BatchNorm"), lookup("Reshape"), lookup("take")):
        result = type("Made", (base,), {})
        assert result.traits.batch_wise is BatchWise.UNKNOWN
        shapes = [(4, 3), *[(3,)] * (len(base.arguments) + len(base.auxiliary) - 1)]
        assert result().batch_parts(shapes, [(4, 3)]) is None
    assert lookup("_backward_BatchNorm").traits.batch_wise is BatchWise.UNKNOWN


@pytest.mark.parametrize(
    ("step", "mixes"), [((), False), ((1,), False), ((None, 2), False), ((2,), True), ((-1,), True)]
)
def test_a_slice_with_steps_mixes_the_batch(step, mixes):
    ends = (3,) * max(1, len(step))
    op = lookup("slice").create(begin=(0,) * len(ends), end=ends, step=step)
    assert op.mixes_batch([(3, 4)]) is mixes
