"""Attention on a CPU by blocks of queries: it matches the fallback, and memory is linear in the length."""

import math
import re

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.ops.kernels import attention as products
from flowmx.ops.kernels.llvm import attention
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup

pytest.importorskip("llvmlite")

# parts, layout, shapes, the bias's shape
FORMS = [
    ((1, 1, 1), "NTC", [(2, 300, 2, 1, 8), (2, 70, 2, 1, 8), (2, 70, 2, 1, 12)], None),
    ((1, 1, 1), "NTC", [(2, 300, 3, 1, 8)] * 3, (1, 1, 300, 300)),
    ((1, 1, 1), "NTC", [(2, 260, 3, 1, 8)] * 3, (2, 3, 260, 260)),
    ((1, 1, 1), "NTC", [(2, 40, 3, 1, 8)] * 3, (2, 1, 40, 40)),
    ((3,), "TNC", [(270, 2, 2, 3, 16)], None),
    ((1, 2), "TNC", [(270, 2, 2, 1, 16), (33, 2, 2, 2, 16)], (1, 2, 270, 33)),
]


def computed(op, inputs, fast):
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    outputs = [np.full(shape, np.nan, dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
    run = Run(devices.get(mx.cpu()), True)
    kernel = kernel_for("cpu", op.name)
    assert kernel is not None
    if fast:
        kernel.compute(op, run, inputs, outputs)
    else:
        op.forward(run, inputs, outputs)
    return outputs


# dtype, the relative error that it may have, and that of what is summed with cancellation
DTYPES = [("float32", 2e-4, 2e-5), ("bfloat16", 2**-6, 2**-6)]


@pytest.mark.parametrize(("dtype", "relative", "absolute"), DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("parts", "layout", "shapes", "bias"), FORMS, ids=str)
def test_attention_matches_the_plain_forward(parts, layout, shapes, bias, dtype, relative, absolute, monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK", 1)  # 256 queries at a time
    rng = np.random.default_rng(0)
    narrow = as_dtype(dtype)
    inputs = [rng.standard_normal(shape).astype(narrow).astype("float32") for shape in shapes]
    if bias is not None:
        inputs.append(np.where(rng.uniform(size=bias) < 0.3, -1e9, rng.standard_normal(bias)).astype("float32"))
    params = {"parts": parts, "layout": layout, "scale": 0.3, "biased": bias is not None}
    op = lookup("_fused_attention").create(**params, differentiable=True)
    expected, actual = computed(op, inputs, False), computed(op, [each.astype(narrow) for each in inputs], True)
    head = rng.standard_normal(expected[0].shape).astype(narrow).astype("float32")
    back = lookup("_backward_fused_attention").create(**params)
    out, stats = expected
    gradient_inputs = [head.astype(narrow), out.astype(narrow), stats, *(each.astype(narrow) for each in inputs)]
    actual += computed(back, gradient_inputs, True)
    expected += computed(back, [head, *expected, *inputs], False)
    for one, other in zip(actual, expected, strict=True):
        atol = absolute * np.abs(other).max()
        np.testing.assert_allclose(one.astype("float32"), other, rtol=relative, atol=atol)


class Attention(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, q, k, v):
        return F.batch_dot(F.softmax(F.batch_dot(q * 0.25, k, transpose_b=True)), v)


def step(net, length, rng):
    """Return the outputs and gradients of a training step."""
    arrays = [mx.nd.array(rng.standard_normal((2, length, 16)), dtype="float32") for _ in range(3)]
    for each in arrays:
        each.attach_grad()
    with mx.autograd.record():
        out = net(*arrays)
    out.backward(mx.nd.array(rng.standard_normal(out.shape), dtype="float32"))
    return [out.asnumpy(), *(each.grad.asnumpy() for each in arrays)]


@pytest.fixture
def taken(monkeypatch):
    """Record the lengths that the kernel is called for."""
    lengths = []
    parts = attention._parts
    monkeypatch.setattr(attention, "_parts", lambda queries, keys: lengths.append(queries) or parts(queries, keys))
    return lengths


def test_only_long_networks_use_blocks_of_queries(taken):
    imperative, hybrid = Attention(), Attention()
    hybrid.hybridize()
    for length in (512, 128):
        actual, expected = (step(net, length, np.random.default_rng(1)) for net in (hybrid, imperative))
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert taken == [512] * 4  # both heads, forward and backward


@pytest.mark.parametrize("scores", [1, 1 << 18])
@pytest.mark.parametrize(
    ("parts", "layout", "shapes"), [form[:3] for form in FORMS if form[3] is None] + [((1, 1, 1), "NTC", FORMS[1][2])]
)
def test_prediction_of_few_positions(monkeypatch, parts, layout, shapes, scores):
    monkeypatch.setattr(products, "_SCORES", scores)  # one sample at a time, or all
    called = []
    monkeypatch.setattr(attention, "attention", lambda *arguments: called.append(arguments))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    op = lookup("_fused_attention").create(parts=parts, layout=layout, scale=0.3)
    (expected,), (actual,) = computed(op, inputs, False), computed(op, inputs, True)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)
    assert not called


def test_heads_are_read_in_place():
    def heads(x):
        x = mx.sym.transpose(mx.sym.Reshape(x, shape=(2, 40, 4, 16)), axes=(0, 2, 1, 3))
        return mx.sym.Reshape(x, shape=(8, 40, 16))

    x = mx.sym.Variable("data")
    query, key, value = (heads(mx.sym.FullyConnected(x, num_hidden=64, flatten=False, name=name)) for name in "qkv")
    weights = mx.sym.softmax(mx.sym.batch_dot(query, key, transpose_b=True) * 0.25, axis=-1)
    mixed = mx.sym.Reshape(mx.sym.batch_dot(weights, value), shape=(2, 4, 40, 16))
    net = mx.sym.Reshape(mx.sym.transpose(mixed, axes=(0, 2, 1, 3)), shape=(2, 40, 64))
    results = []
    for request in ("null", "write"):  # a training graph has no such operator
        bound, rng = net.simple_bind(mx.cpu(), grad_req=request, data=(2, 40, 64)), np.random.default_rng(0)
        for name in sorted(bound.arg_dict):
            bound.arg_dict[name][:] = rng.standard_normal(bound.arg_dict[name].shape) / 8
        results.append([bound.forward()[0].asnumpy() for _ in range(12)])  # the last ones are native
        names = [node.op.name for node in bound.plan.forward]
        assert ("_fused_attention" in names) is (request == "null")
        assert ("transpose" in names) is (request == "write")
    for result in results[0]:
        np.testing.assert_allclose(result, results[1][0], rtol=2e-5, atol=2e-5)


def planned(length):
    """Return the megabytes of internal values that a training step of attention keeps."""
    q, k, v = (mx.sym.var(name) for name in "qkv")
    out = mx.sym.batch_dot(mx.sym.softmax(mx.sym.batch_dot(q, k, transpose_b=True)), v)
    bound = out.simple_bind(mx.cpu(), **dict.fromkeys("qkv", (2, length, 16)))
    match = re.search(r"Total ([0-9.e+-]+) Mi?B allocated", bound.debug_str())
    assert match is not None
    return float(match.group(1))


def test_memory_follows_the_length(monkeypatch):
    assert planned(4096) < 2.2 * planned(2048)
    shapes: list[tuple[int, ...]] = []
    memory = attention._memory
    monkeypatch.setattr(
        attention, "_memory", lambda run, slot, *shape: shapes.append(shape) or memory(run, slot, *shape)
    )
    net = Attention()
    net.hybridize()
    step(net, 3000, np.random.default_rng(0))
    assert max(math.prod(shape) for shape in shapes) == 256 * 3000
