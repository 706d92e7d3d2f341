"""Attention as one operator: the subgraphs that it replaces, and cuDNN's kernel for it on a stand-in."""

import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import amp, settings
from flowmx.errors import ParameterError, ShapeError
from flowmx.graph.casts import insert_casts
from flowmx.graph.compiler import PASSES, graph_of, options_of
from flowmx.graph.infer import infer_shapes, infer_types
from flowmx.graph.node import Entry, topological
from flowmx.ops import kernels
from flowmx.ops.kernels.cuda import attention, dnn
from flowmx.ops.registry import kernels as kernel_table
from flowmx.ops.registry.dtypes import FLOAT32, as_dtype
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup
from flowmx.symbol.symbol import Symbol
from tests import cudnn_stand_in as cudnn
from tests.cupy_stand_in.arrays import xp
from tests.graph_runs import device, evaluate

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

HEADS = 2


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setattr(dnn, "library", lambda: cudnn)
    monkeypatch.setattr(dnn, "is_installed", lambda: True)
    monkeypatch.setattr(dnn, "_plans", {})
    monkeypatch.setattr(dnn, "_local", threading.local())
    monkeypatch.setattr(xp, "cuda", cudnn.cuda, raising=False)
    cudnn.built.clear()


# -- attentions as they are written ------------------------------------------------------------------------

S = mx.sym
Q, K, V, BIAS = (S.var(name) for name in ("q", "k", "v", "bias"))
BATCHES = {"q": (4, 5, 8), "k": (4, 16, 8), "v": (4, 16, 8)}
PROJECTIONS = {"q": (2, 5, 16), "k": (2, 16, 16), "v": (2, 16, 16)}
SELF = {"q": (16, 2, 3 * HEADS * 8)}
ENCODER = {"q": (5, 2, HEADS * 8), "k": (16, 2, 2 * HEADS * 8)}


def scores(q=Q, k=K):
    return S.batch_dot(q, k, transpose_b=True)


def summed(weights, v=V):
    return S.batch_dot(weights, v)


def with_heads(x, how="transpose"):
    x = S.Reshape(x, shape=(0, 0, HEADS, -1))
    x = S.transpose(x, axes=(0, 2, 1, 3)) if how == "transpose" else S.SwapAxis(x, dim1=1, dim2=2)
    return S.Reshape(x, shape=(-3, 0, -1))


def without_heads(x):
    x = S.transpose(S.Reshape(x, shape=(-4, -1, HEADS, 0, 0)), axes=(0, 2, 1, 3))
    return S.Reshape(x, shape=(0, 0, -1))


def interleaved(kind, *inputs, between=lambda x: x):
    product, total = (getattr(S.contrib, f"interleaved_matmul_{kind}_{part}") for part in ("qk", "valatt"))
    return total(inputs[-1], between(product(*inputs, heads=HEADS)), heads=HEADS)


def in_float32(x, like=Q):
    return S.op.op("_cast_like", S.softmax(S.Cast(x, dtype="float32")), like)


REPLACED = {
    "nothing more": (summed(S.softmax(scores())), BATCHES),
    "scaled scores": (summed(S.softmax(scores() * 0.3)), BATCHES),
    "divided twice": (summed(S.softmax(S.contrib.div_sqrt_dim(scores()) / 0.1, axis=2)), BATCHES),
    "scaled queries": (summed(S.softmax(scores(S.contrib.div_sqrt_dim(Q), K * 0.5))), BATCHES),
    "a shared query": (S.Group([summed(S.softmax(scores(Q * 0.5))), S.sin(Q)]), BATCHES),
    "a bias for all": (summed(S.softmax(S.broadcast_add(scores() / 3, BIAS))), BATCHES | {"bias": (1, 5, 16)}),
    "a bias for each": (summed(S.softmax(BIAS + scores() * 2)), BATCHES | {"bias": (4, 5, 16)}),
    "a bias for each head": (
        without_heads(summed(S.softmax(BIAS + scores(*map(with_heads, (Q, K)))), with_heads(V))),
        PROJECTIONS | {"bias": (4, 5, 16)},
    ),
    "an idle Dropout": (summed(S.Dropout(S.softmax(scores()), p=0.0)), BATCHES),
    "in float32 between": (summed(in_float32(scores() * 0.5)), BATCHES),
    "heads": (without_heads(summed(S.softmax(scores(*map(with_heads, (Q, K)))), with_heads(V))), PROJECTIONS),
    "heads, else turned": (summed(S.softmax(scores(with_heads(Q, "swap"), with_heads(K))), with_heads(V)), PROJECTIONS),
    "heads of the queries": (
        summed(S.softmax(scores(with_heads(Q)))), BATCHES | {"q": PROJECTIONS["q"]},
    ),
    "interleaved": (interleaved("selfatt", Q, between=S.softmax), SELF),
    "interleaved, with a bias": (
        interleaved("selfatt", Q, between=lambda x: S.softmax(S.broadcast_add(x, BIAS))), SELF | {"bias": (1, 16, 16)},
    ),
    "interleaved, in float32 between": (interleaved("selfatt", Q, between=in_float32), SELF),
    "encoder and decoder": (interleaved("encdec", Q, K, between=S.softmax), ENCODER),
}  # fmt: skip
LENGTHS = S.var("lengths")
LEFT = {
    "scores that are read twice": ((lambda x: S.Group([summed(S.softmax(x)), x]))(scores()), BATCHES),
    "weights that are an output": (
        (lambda weights: S.Group([summed(weights), weights]))(S.softmax(scores())), BATCHES,
    ),
    "another axis": (summed(S.softmax(scores(), axis=1)), BATCHES),
    "a temperature": (summed(S.softmax(scores(), temperature=2.0)), BATCHES),
    "lengths": (
        summed(S.softmax(scores(), LENGTHS, use_length=True)), BATCHES | {"lengths": (4, 5)},
    ),
    "a Dropout": (summed(S.Dropout(S.softmax(scores()), p=0.1)), BATCHES),
    "weights that are scaled": (summed(S.softmax(scores()) * 2.0), BATCHES),
    "a scale of 0": (summed(S.softmax(scores() * 0.0)), BATCHES),
    "a scale below 0": (summed(S.softmax(scores(Q * -1.0))), BATCHES),
    "a scale after the bias": (summed(S.softmax((scores() + BIAS) * 0.5)), BATCHES | {"bias": (4, 5, 16)}),
    "a bias of rows off the grid": (
        summed(S.softmax(scores() + BIAS)), dict.fromkeys("qkv", (4, 5, 8)) | {"bias": (4, 5, 5)},
    ),
    "a bias for each row alone": (
        summed(S.softmax(S.broadcast_add(scores(), BIAS))), BATCHES | {"bias": (1, 1, 16)},
    ),
    "vectors of 12": (summed(S.softmax(scores())), dict.fromkeys("qkv", (4, 5, 12))),
    "vectors of 136": (summed(S.softmax(scores())), dict.fromkeys("qkv", (4, 5, 136))),
    "values of another size": (summed(S.softmax(scores())), BATCHES | {"v": (4, 16, 16)}),
    "no examples": (summed(S.softmax(scores())), dict.fromkeys("qkv", (0, 5, 8))),
    "products the other way round": (summed(S.softmax(S.batch_dot(Q, K))), BATCHES | {"k": (4, 8, 16)}),
    "turned values": (S.batch_dot(S.softmax(scores()), V, transpose_b=True), BATCHES | {"v": (4, 8, 16)}),
    "no softmax": (summed(S.sigmoid(scores())), BATCHES),
    "keys of another projection": (
        S.contrib.interleaved_matmul_selfatt_valatt(
            V, S.softmax(S.contrib.interleaved_matmul_selfatt_qk(Q, heads=HEADS)), heads=HEADS
        ),
        SELF | {"v": SELF["q"]},
    ),
}  # fmt: skip


def graph_for(symbol, shapes, context, dtype="float16", train=True, gradients_of="qkv"):
    """Return the graph with gradients for a device, and its variables."""
    nodes = topological(symbol.entries)
    variables = [node for node in nodes if node.is_variable]
    dtypes = {node: as_dtype("int32" if node.name == "lengths" else dtype) for node in variables}
    shapes_and_dtypes = infer_shapes(nodes, {node: shapes[node.name] for node in variables}), infer_types(nodes, dtypes)
    differentiated = [node for node in variables if node.name in gradients_of]
    return graph_of(symbol.entries, differentiated, *shapes_and_dtypes, train, context), variables


def names(graph):
    return [node.op.name for node in graph.nodes() if node.op is not None]


def by_kernel(op, run, inputs, outputs):
    """Compute attention by its kernel, and all other operators by their forward."""
    fast = kernel_for("gpu", op.name) if "attention" in op.name else None
    (op.forward if fast is None else lambda *arguments: fast.compute(op, *arguments))(run, inputs, outputs)


def computed(graph, variables, space, dtype):
    """Return outputs and gradients for random numbers that are exact in 16 bits."""
    rng = np.random.default_rng(3)
    host = {node: rng.standard_normal(graph.shapes[Entry(node, 0)]) for node in (*variables, *graph.heads)}
    arguments = {node: space.asarray(((array * 16).round() / 16).astype(dtype)) for node, array in host.items()}
    run = Run(device(space, "gpu" if space is xp else ""), graph.train)
    values = evaluate(graph, arguments, run, by_kernel if space is xp else None)
    requested = [*graph.outputs, *(graph.gradients[node] for node in variables if node in graph.gradients)]
    return [np.asarray(values[e].get() if space is xp else values[e]).astype("float32") for e in requested]


def assert_same(actual, expected, rtol):
    assert len(actual) == len(expected)
    for first, second in zip(actual, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=rtol, atol=rtol * max(1, np.abs(second).max()))


def checked(symbol, shapes, dtype="float16", rtol=4e-3, passes=(), gradients_of="qkv"):
    """Return the graph for a GPU after a comparison with the unfused one in float32."""
    graph, variables = graph_for(symbol, shapes, mx.gpu(0), dtype, gradients_of=gradients_of)
    for graph_pass in passes:
        graph = graph_pass(graph, options_of("gpu"))
    plain, others = graph_for(symbol, shapes, mx.cpu(), "float32", gradients_of=gradients_of)
    expected = computed(plain, others, np, "float32")
    assert_same(computed(graph, variables, xp, as_dtype(dtype)), expected, rtol)
    return graph


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_subgraphs(name):
    graph = checked(*REPLACED[name])
    actual = names(graph)
    assert actual.count("_fused_attention") == actual.count("_backward_fused_attention") == len(cudnn.built) / 2 == 1
    assert "softmax" not in actual
    assert "fused with its softmax" in graph.notes[0]


def test_bfloat16():
    checked(*REPLACED["heads"], dtype="bfloat16", rtol=2e-2)


@pytest.mark.parametrize("name", LEFT)
def test_subgraphs_that_are_not_replaced(name):
    symbol, shapes = LEFT[name]
    graph, _ = graph_for(symbol, shapes, mx.gpu(0))
    assert graph.outputs == tuple(symbol.entries)
    assert "_fused_attention" not in names(graph)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_dtypes_are_not_replaced(dtype):
    assert "_fused_attention" not in names(graph_for(*REPLACED["heads"], mx.gpu(0), dtype)[0])


@pytest.mark.parametrize(("function", "is_replaced"), [(S.sin, False), (lambda x: x > 0, True)])
def test_a_learned_bias_is_not_replaced(function, is_replaced):
    symbol, shapes = summed(S.softmax(scores() + function(BIAS))), BATCHES | {"bias": (4, 5, 16)}
    for requested, expected in (("q",), True), (("q", "bias"), is_replaced):
        graph, _ = graph_for(symbol, shapes, mx.gpu(0), gradients_of=requested)
        assert ("_fused_attention" in names(graph)) == expected


def test_nothing_changes_on_a_cpu_or_without_cudnn(monkeypatch):
    symbol, shapes = REPLACED["heads"]
    assert graph_for(symbol, shapes, mx.cpu())[0].outputs == tuple(symbol.entries)
    monkeypatch.setattr(dnn, "is_installed", lambda: False)
    assert graph_for(symbol, shapes, mx.gpu(0))[0].outputs == tuple(symbol.entries)


def test_prediction_has_no_dropout_and_no_statistics():
    graph, variables = graph_for(*LEFT["a Dropout"], mx.gpu(0), train=False, gradients_of=())
    assert names(graph) == ["Reshape"] * 3 + ["_fused_attention", "Reshape"]
    plain, others = graph_for(*LEFT["a Dropout"], mx.cpu(), "float32", train=False, gradients_of=())
    assert_same(computed(graph, variables, xp, "float16"), computed(plain, others, np, "float32"), 4e-3)
    (built,) = cudnn.built
    assert len(built.operation.outputs) == 1


def layer(x, name):
    return S.FullyConnected(x, num_hidden=16, flatten=False, no_bias=True, name=name)


def network():
    """Return projections, attention with two heads, and a projection."""
    q, k, v = (with_heads(layer(S.var("data"), name)) for name in "qkv")
    symbol = layer(without_heads(summed(S.softmax(scores(q, k) * 0.3), v)), "out")
    return symbol, {"data": (2, 5, 16)} | {f"{name}_weight": (16, 16) for name in ("q", "k", "v", "out")}


def test_projections_are_read_in_place():
    symbol, shapes = network()
    graph = checked(symbol, shapes, rtol=1e-2, passes=PASSES, gradients_of=list(shapes))
    assert not {"transpose", "SwapAxis", "batch_dot"} & set(names(graph))
    forward, backward = cudnn.built
    assert [item.stride for item in forward.tensors] == [[80, 8, 16, 1]] * 3
    assert [item.stride for item in backward.operation.outputs] == [[80, 8, 16, 1]] * 3


@pytest.mark.parametrize("lists", [{}, {"lp16": ["FullyConnected", "batch_dot"]}], ids=["MXNet's lists", "others"])
def test_mixed_precision(lists):
    symbol, shapes = network()
    dtypes = {node: FLOAT32 for node in symbol.nodes() if node.is_variable}
    cast = Symbol(insert_casts(symbol.entries, dtypes, amp.Policy("float16", **lists)))
    actual = names(checked(cast, shapes, dtype="float32", rtol=1e-2, gradients_of=list(shapes)))
    assert "amp_cast" in actual
    assert actual.count("_fused_attention") == actual.count("_backward_fused_attention") == 1


def test_interleaved_projections_are_read_in_place():
    checked(*REPLACED["interleaved"], passes=PASSES)
    forward, backward = cudnn.built
    assert [item.stride for item in forward.tensors] == [[48, 24, 96, 1]] * 3
    assert [item.stride for item in backward.operation.outputs] == [[48, 24, 96, 1]] * 3


def test_attention_in_one_group_of_devices():
    with mx.AttrScope(ctx_group="far"):
        symbol = summed(S.softmax(S.batch_dot(S.var("q"), S.var("k"), transpose_b=True)), S.var("v"))
    nodes = topological(symbol.entries)
    entry_shapes = infer_shapes(nodes, {n: BATCHES[n.name] for n in nodes if n.is_variable})
    types = infer_types(nodes, {n: as_dtype("float16") for n in nodes if n.is_variable})
    for far, is_replaced in ((mx.gpu(0), True), (mx.cpu(1), False)):
        graph = graph_of(symbol.entries, (), entry_shapes, types, True, mx.cpu(), {"far": far})
        assert ("_fused_attention" in names(graph)) == is_replaced


# -- the kernel --------------------------------------------------------------------------------------------


def run_attention(arrays, op=None, out=(2, 5, 2, 8)):
    op = op or lookup("_fused_attention").create(scale=0.5)
    result = xp.empty(out, "float16")
    kernel_for("gpu", "_fused_attention").compute(op, Run(device(xp, "gpu"), False), arrays, [result])
    expected = np.empty(out, "float32")
    op.forward(Run(device(np), False), [item.get().astype("float32") for item in arrays], [expected])
    np.testing.assert_allclose(result.get().astype("float32"), expected, rtol=4e-3, atol=4e-3)


def operands(shape=(2, 5, 2, 1, 8)):
    rng = np.random.default_rng(0)
    return [xp.asarray(rng.standard_normal(shape).astype("float16")) for _ in range(3)]


def test_one_cudnn_plan_per_form_and_scale():
    for scale in (0.5, 0.5, 0.25):
        run_attention(operands(), lookup("_fused_attention").create(scale=scale))
    assert [graph.ran for graph in cudnn.built] == [[None, None], [None]]
    assert cudnn.built[0].types["compute_data_type"] == "float32"
    assert cudnn.built[0].refused == []
    with settings.override(cuda_allow_tensor_core=False):
        run_attention(operands())
    assert cudnn.built[2].refused == ["TENSOR_CORE"]


@pytest.mark.parametrize("heads", [1, 2])
def test_unaligned_arrays_are_copied(heads):
    q, k, v = operands((2, 5, heads, 1, 8))
    off = xp.empty((k.size + 1,), "float16")[1:].reshape(k.shape)
    off[...] = k
    run_attention([xp.asarray(np.asarray(q.get(), order="F")), off, v], out=(2, 5, heads, 8))
    assert len(cudnn.built) == 1


def test_the_fallback_runs_without_a_compiled_kernel():
    wide = xp.zeros((2, 5, 2, 9), "float16")[..., 1:]
    op = lookup("_fused_attention").create(scale=0.5)
    kernel_for("gpu", op.name).compute(op, Run(device(xp, "gpu"), False), operands(), [wide])
    assert wide.get().any()
    run_attention(operands((1 << 16, 1, 1, 1, 8)), out=(1 << 16, 1, 1, 8))
    assert not cudnn.built


def test_the_fallback_runs_if_cudnn_refuses(monkeypatch):
    def refuse(graph):
        raise cudnn.cudnnGraphNotSupportedError("no engine")

    monkeypatch.setattr(cudnn.Graph, "check_support", refuse)
    checked(*REPLACED["a bias for each head"], rtol=2e-2)
    checked(*REPLACED["interleaved"], rtol=2e-2)
    assert not cudnn.built


def test_the_fallback_runs_if_cudnn_refuses_only_the_gradient():
    checked(summed(S.softmax(scores())), dict.fromkeys("qkv", (4, 1, 8)))
    assert [graph.operation.method for graph in cudnn.built] == ["sdpa"]


def test_wrong_statistics_are_detected():
    q, k, v = operands()
    op = lookup("_backward_fused_attention").create(scale=0.5)
    head, out = (xp.ones((2, 5, 2, 8), "float16") for _ in range(2))
    result = []
    for value in (1.0, 1.5):
        grads = [xp.empty(q.shape, "float16") for _ in range(3)]
        stats = xp.asarray(np.full((2, 2, 5, 1), value, "float32"))
        kernel_for("gpu", op.name).compute(op, Run(device(xp, "gpu"), True), [head, out, stats, q, k, v], grads)
        result.append(grads[2].get())
    np.testing.assert_allclose(result[0], result[1] * np.exp(0.5), rtol=1e-2)


def test_wrong_strides_are_detected(monkeypatch):
    def swapped(array, real=attention._tensor):
        result = real(array)
        batch, heads, length, first = result.strides
        return result._replace(strides=(batch, length, heads, first))

    monkeypatch.setattr(attention, "_tensor", swapped)
    with pytest.raises(AssertionError):
        run_attention(operands((2, 5, 2, 1, 8)))


# -- bound and hybridized ----------------------------------------------------------------------------------


@pytest.fixture
def take(monkeypatch):
    """Fuse attention on the CPU as on a GPU, computed by the fallback; return the calls of the operators."""

    def take():
        called = []

        def note(op, run, inputs, outputs):
            called.append(op.name)
            op.forward(run, inputs, outputs)

        for name in ("_fused_attention", "_backward_fused_attention"):
            monkeypatch.setitem(kernel_table._kernels, ("cpu", name), kernel_table.FunctionKernel(note))
        monkeypatch.setattr(kernels, "computes_attention", lambda device_type, dtype, size, pairs, predicts: True)
        return called

    return take


HEAD, *NUMBERS = np.random.default_rng(0).standard_normal((4, 2, 16, 16)).astype("float32")
STEP = ["_fused_attention", "_backward_fused_attention"]


def bound():
    """Return outputs and gradients of a bound symbol after two steps, and the report of its plan."""
    result = REPLACED["heads"][0].simple_bind(mx.cpu(), **dict.fromkeys("qkv", (2, 16, 16)))
    for name, value in zip("qkv", NUMBERS, strict=True):
        result.arg_dict[name][:] = value
    for _ in range(2):
        result.forward(is_train=True)
        result.backward(mx.nd.array(HEAD))
    arrays = [*result.outputs, *(result.grad_dict[name] for name in "qkv")]
    return [item.asnumpy() for item in arrays], result.plan.explain()


def test_a_bound_symbol(take):
    expected, _ = bound()
    called = take()
    actual, explanation = bound()
    assert called == STEP * 2
    assert "fused with its softmax" in explanation
    assert_same(actual, expected, 1e-5)


class Attention(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, q, k, v):
        return F.batch_dot(F.softmax(F.batch_dot(q, k, transpose_b=True) * 0.5), v)


def hybridized(train_mode):
    """Return the output and the gradients of a hybridized block."""
    block, arrays = Attention(), list(map(mx.nd.array, NUMBERS))
    block.hybridize()
    for item in arrays:
        item.attach_grad()
    with mx.autograd.record(train_mode=train_mode):
        out = block(*arrays)
    out.backward(mx.nd.array(HEAD))
    return [item.asnumpy() for item in (out, *(item.grad for item in arrays))]


@pytest.mark.parametrize("train_mode", [True, False])
def test_a_hybridized_block(take, train_mode):
    expected = hybridized(train_mode)
    called = take()
    assert_same(hybridized(train_mode), expected, 1e-5)
    assert called == STEP


def test_gradients_of_gradients(take):
    def second():
        block, x = Attention(), mx.nd.array(NUMBERS[0])
        block.hybridize()
        x.attach_grad()
        with mx.autograd.record():
            (first,) = mx.autograd.grad(block(x, x, x), [x], create_graph=True)
            loss = (first * first).sum()
        loss.backward()
        return [x.grad.asnumpy()]

    expected = second()
    take()
    assert_same(second(), expected, 1e-4)


# -- the operator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "parameters", "message"),
    [
        ([(2, 5, 2, 8)] * 3, {}, "expected 5 axes"),
        ([(2, 5, 2, 3, 8)] * 3, {}, r"\(1, 1, 1\) on the fourth"),
        ([(2, 5, 2, 1, 8), (2, 6, 2, 1, 8), (2, 7, 2, 1, 8)], {}, "do not match"),
        ([(2, 5, 2, 1, 8)] * 3 + [(5, 5)], {"biased": True}, r"expected \(2, 2, 5, 5\)"),
    ],
)
def test_shapes_that_do_not_match(shapes, parameters, message):
    op = lookup("_fused_attention").create(**parameters)
    with pytest.raises(ShapeError, match=message):
        op.spec(tuple(shapes), (np.dtype("float16"),) * len(shapes))


def test_invalid_parts():
    with pytest.raises(ParameterError, match=r"parts are \(2, 1\), expected one of \(1, 1, 1\), \(1, 2\), \(3,\)"):
        lookup("_fused_attention").create(parts=(2, 1))


def test_a_gradient_without_statistics():
    op = lookup("_fused_attention").create()
    with pytest.raises(NotImplementedError, match="differentiable"):
        op.gradient(None, [], [], [])


def test_costs():
    op, back = (lookup(name).create() for name in ("_fused_attention", "_backward_fused_attention"))
    shapes = [(2, 5, 3, 1, 8), *[(2, 7, 3, 1, 8)] * 2]
    product = 2 * 2 * 3 * 5 * 7 * 8
    assert op.cost(shapes, [(2, 5, 3, 8)])[0] == 2 * product
    assert back.cost([(2, 5, 3, 8)] * 2 + [(2, 3, 5, 1), *shapes], shapes)[0] == 5 * product
