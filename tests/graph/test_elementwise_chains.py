"""Chains of elementwise operators: one loop gives the same results as separate operators, without more memory."""

import asyncio
import itertools
import re
import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx import devices
from flowmx.graph import compiler
from flowmx.graph.graph import predecessors
from flowmx.graph.passes import chains
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.kernels.llvm import chain as kernel
from flowmx.ops.kernels.llvm import compiler as compiler_of_loops
from flowmx.ops.kernels.llvm import strided_loops
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup

pytest.importorskip("llvmlite")

WITHOUT = [graph_pass for graph_pass in compiler.PASSES if graph_pass is not chains.fuse_chains]


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def values_of(shapes, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def bind(net, values, train):
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in values.items()}
    grads = {name: mx.nd.zeros(value.shape, dtype=value.dtype) for name, value in values.items()} if train else None
    return net.bind(mx.cpu(), arrays, args_grad=grads, grad_req="write" if train else "null")


def run(net, values, train=False):
    """Return the executor, its outputs, and its gradients for random heads."""
    bound = bind(net, values, train)
    bound.forward(is_train=train)
    results = [output.asnumpy() for output in bound.outputs]
    if train:
        rng = np.random.default_rng(1)
        bound.backward([mx.nd.array(rng.standard_normal(result.shape), dtype=result.dtype) for result in results])
        results += [gradient.asnumpy() for gradient in bound.grad_dict.values()]
    return bound, results


def both(monkeypatch, net, values, train=False):
    """Return the outputs of a network with and without chains, and the two plans."""
    bound, fused = run(net, values, train)
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "PASSES", WITHOUT)
        plain_bound, plain = run(net, values, train)
    return fused, plain, bound.plan, plain_bound.plan


def loops_of(plan):
    """Return the names of the members of each chain."""
    return [[link.name for link in node.op.links] for node in plan.steps() if node.op.name == "_chain"]


def variables(text):
    return [mx.sym.Variable(name) for name in text.split()]


# -- which operators form a chain --------------------------------------------------------------------------


def lstm_cell(x, h, c, name):
    """The cell of MXNet's ``rnn.LSTMCell``."""
    both = mx.sym.FullyConnected(x, num_hidden=4 * 96, name=f"{name}_i2h")
    both = both + mx.sym.FullyConnected(h, num_hidden=4 * 96, name=f"{name}_h2h")
    gates = mx.sym.SliceChannel(both, num_outputs=4, name=f"{name}_slice")
    come, stay, out = (mx.sym.Activation(gates[i], act_type="sigmoid") for i in (0, 1, 3))
    c = stay * c + come * mx.sym.Activation(gates[2], act_type="tanh")
    return out * mx.sym.Activation(c, act_type="tanh"), c


def test_an_lstm_cell_is_one_loop_with_two_outputs(monkeypatch):
    x, h, c = variables("x h c")
    for step in range(3):
        h, c = lstm_cell(x, h, c, f"step{step}")
    net = mx.sym.Group([h, c])
    shapes, _, _ = net.infer_shape(x=(2, 64), h=(2, 96), c=(2, 96))
    values = values_of(dict(zip(net.list_arguments(), shapes, strict=True)))
    fused, plain, plan, plain_plan = both(monkeypatch, net, values)
    assert [(len(node.op.links), node.outputs()) for node in plan.steps() if node.op.name == "_chain"] == [(9, 2)] * 3
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert plan.internal_bytes() <= plain_plan.internal_bytes()
    fused, plain, plan, plain_plan = both(monkeypatch, net, values, train=True)
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert plan.internal_bytes() <= plain_plan.internal_bytes()


def test_a_chain_lists_its_members():
    (x,) = variables("x")
    net = mx.sym.tanh(x * 2.0, name="bend")
    bound, _ = run(net, values_of({"x": (64, 64)}))
    (node,) = bound.plan.steps()
    assert node.name == "bend"
    assert repr(node.op) == "_chain(_mul_scalar(scalar=2.0) as '_mulscalar0' -> tanh() as 'bend')"
    assert "_mulscalar0, bend are one loop" in bound.plan.graph.notes


def test_a_used_intermediate_value_is_an_output_of_the_loop(monkeypatch):
    (x,) = variables("x")
    middle = x * 2.0
    net = mx.sym.Group([mx.sym.tanh(middle), middle])
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (100, 100)}))
    assert len(plan.steps()) == 1
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fusion_creates_no_cycle_through_other_operators(monkeypatch):
    x, w = variables("x w")
    a = x * 2.0
    product = mx.sym.dot(a, w)
    net = mx.sym.tanh(a + 1.0) * mx.sym.sigmoid(product)  # a may not join: the product needs it
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (64, 64), "w": (64, 64)}))
    assert [len(names) for names in loops_of(plan)] == [4]
    np.testing.assert_allclose(fused[0], plain[0], rtol=1e-5, atol=1e-6)


def test_fused_groups_have_no_cyclic_dependency(monkeypatch):
    x, w = variables("x w")
    a = mx.sym.sigmoid(x * 2.0)
    b = mx.sym.tanh(x - 1.0)
    left = mx.sym.dot(a, w) + b
    right = mx.sym.dot(b, w) + a
    fused, plain, _, _ = both(monkeypatch, left * right, values_of({"x": (64, 64), "w": (64, 64)}), train=True)
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_chains_do_not_cross_passes():
    (x,) = variables("x")
    net = mx.sym.sigmoid(mx.sym.tanh(x * 2.0))
    bound, _ = run(net, values_of({"x": (100, 100)}), train=True)
    forward, backward = ([node.op.name for node in nodes] for nodes in (bound.plan.forward, bound.plan.backward))
    assert forward == backward == ["_chain"]


def test_chains_do_not_cross_devices():
    (x,) = variables("x")
    with mx.AttrScope(ctx_group="first"):
        a = mx.sym.tanh(x * 2.0)
    with mx.AttrScope(ctx_group="second"):
        b = mx.sym.sigmoid(a + 1.0)
    groups = {"first": mx.cpu(0), "second": mx.cpu(1)}
    bound = b.simple_bind(mx.cpu(0), grad_req="null", group2ctx=groups, x=(100, 100))
    assert [len(names) for names in loops_of(bound.plan)] == [2, 2]


@pytest.mark.parametrize("net", [
    lambda x: mx.sym.Dropout(x * 2.0, p=0.5),
    lambda x: mx.sym.sum(x * 2.0),
    lambda x: mx.sym.LeakyReLU(x * 2.0, act_type="rrelu"),
    lambda x: mx.sym.Cast(x * 2.0, dtype="float64"),
    lambda x: mx.sym.Cast(x, dtype="int32") + 1,
])  # fmt: skip
def test_other_operators_stay_outside(net):
    (x,) = variables("x")
    bound = net(x).simple_bind(mx.cpu(), grad_req="null", x=(100, 100))
    assert loops_of(bound.plan) == []


def test_functions_of_float64_stay_exact(monkeypatch):
    (x,) = variables("x")
    values = values_of({"x": (100, 100)}, dtype=np.float64)
    fused, plain, plan, _ = both(monkeypatch, mx.sym.tanh(x * 2.0 + 1.0), values)
    assert loops_of(plan) == [["_mulscalar0", "_plusscalar0"]]
    np.testing.assert_array_equal(fused[0], plain[0])


@pytest.mark.parametrize(("rows", "number"), [(8, 0), (200, 1)])
def test_one_operator_that_broadcasts_big_arrays_is_a_loop(monkeypatch, rows, number):
    x, y = variables("x y")
    net = mx.sym.broadcast_mul(x, y)
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (rows, 100), "y": (1, 100)}))
    assert len(loops_of(plan)) == number
    np.testing.assert_array_equal(fused[0], plain[0])


def test_short_rows_are_left_to_numpy():
    x, y = variables("x y")
    net = mx.sym.broadcast_mul(x, y) + 1.0
    bound = net.simple_bind(mx.cpu(), grad_req="null", x=(100, 200, 3), y=(100, 200, 1))
    assert loops_of(bound.plan) == []


# -- memory ------------------------------------------------------------------------------------------------


def test_the_number_of_inputs_is_limited(monkeypatch):
    x, w = variables("x w")
    total = mx.sym.dot(x, w)
    for _ in range(8):
        total = total + mx.sym.dot(x, w) * 2.0  # one loop for all would keep every product
        w = w + 1.0
    _, _, plan, plain = both(monkeypatch, total, values_of({"x": (64, 64), "w": (64, 64)}))
    assert loops_of(plan)
    assert plan.internal_bytes() <= plain.internal_bytes()


def test_the_output_reuses_the_memory_of_an_input():
    x, w = variables("x w")
    net = mx.sym.dot(mx.sym.tanh(mx.sym.dot(x, w) * 2.0), w)
    bound, _ = run(net, values_of({"x": (64, 64), "w": (64, 64)}))
    assert bound.plan.internal_bytes() == 64 * 64 * 4


def test_long_chains_are_cut(monkeypatch):
    x, y = variables("x y")
    net = x
    for _ in range(300):
        net = net * 0.5 + y
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (40, 40), "y": (40, 40)}))
    sizes = [len(names) for names in loops_of(plan)]
    assert sum(sizes) == 600
    assert max(sizes) <= chains.MAX_OPERATORS
    np.testing.assert_array_equal(fused[0], plain[0])
    assert len({id(kernel._form(node.op, np.dtype(np.float32))) for node in plan.steps()}) <= 2


# -- the same numbers --------------------------------------------------------------------------------------

ONE = ["tanh", "sigmoid", "exp", "abs", "square", "relu", "negative"]
TWO = ["broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_maximum", "broadcast_greater"]


def _of_two(name, one, other, inputs):
    """Return an operator of two values, or of the inputs where a difference in the last bit would turn 0 into 1."""
    return getattr(mx.sym, name)(*(inputs if name == "broadcast_greater" else (one, other)))


@st.composite
def graphs(draw):
    """A graph of elementwise operators and products, in which intermediate values are outputs too."""
    shape = (24, 24)
    shapes = {"a": shape, "b": shape, "row": (1, 24), "column": (24, 1), "one": (1,)}
    values = [mx.sym.Variable(name) for name in shapes]
    full = values[:2]
    for _ in range(draw(st.integers(2, 14))):
        one = draw(st.sampled_from(full))
        kind = draw(st.sampled_from(["one", "two", "two", "number", "dot"]))
        if kind == "one":
            value = getattr(mx.sym, draw(st.sampled_from(ONE)))(mx.sym.clip(one, a_min=-3.0, a_max=3.0))
        elif kind == "number":
            value = one * draw(st.sampled_from([0.5, -1.25, 2.0]))
        elif kind == "dot":
            value = mx.sym.tanh(mx.sym.dot(one, draw(st.sampled_from(full))))
        else:
            value = _of_two(draw(st.sampled_from(TWO)), one, draw(st.sampled_from([*full, *values])), values[:2])
        full.append(mx.sym.clip(value, a_min=-10.0, a_max=10.0))
    outputs = draw(st.lists(st.sampled_from(full[2:]), min_size=1, max_size=3))
    net = mx.sym.Group([*outputs, full[-1]])
    return net, {name: shapes[name] for name in net.list_arguments()}


@hypothesis_settings(deadline=None, max_examples=40)
@given(graphs(), st.booleans())
def test_any_graph_gives_the_same_results(case, train):
    net, shapes = case
    assume(shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MIN_SIZE", 0)
        fused, plain, plan, plain_plan = both(patch, net, values_of(shapes), train)
    for one, other in zip(fused, plain, strict=True):
        # Small arrays are computed by NumPy where they are not fused.
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * max(1, np.abs(other).max(initial=0)))
    steps = plan.steps()
    assert all(predecessor < position for position, before in enumerate(predecessors(steps)) for predecessor in before)
    assert len(steps) <= len(plain_plan.steps())


@pytest.mark.parametrize("train", [False, True])
def test_big_arrays_give_the_same_bits(monkeypatch, train, calls):
    x, y = variables("x y")
    net = mx.sym.LeakyReLU(mx.sym.tanh(x * 1.5 + 0.25) * y - mx.sym.sigmoid(y), act_type="gelu")
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (300, 257), "y": (300, 257)}), train)
    assert len(plan.forward) == 1
    assert calls
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_where_is_part_of_chains(monkeypatch):
    x, y = variables("x y")
    net = mx.sym.where(x > 0.0, mx.sym.tanh(x), y * 2.0)
    fused, plain, plan, _ = both(monkeypatch, net, values_of({"x": (300, 257), "y": (300, 257)}))
    assert [len(names) for names in loops_of(plan)] == [4]
    np.testing.assert_array_equal(fused[0], plain[0])


# -- layouts -----------------------------------------------------------------------------------------------


def chain_of_two():
    """Broadcast addition, then a product: arg0 · 2 + arg1, times arg2."""
    links = [
        Link(lookup("_mul_scalar").create(scalar=2.0), (0,), "double"),
        Link(lookup("broadcast_add").create(), (3, 1), "add"),
        Link(lookup("broadcast_mul").create(), (4, 2), "times"),
    ]
    return Chain.of(3, links, [4, 5])


def channels_last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


SHAPES = {
    "one shape": ((6, 5, 20, 18), (6, 5, 20, 18)),
    "numbers": ((1,), (1, 1, 1)),
    "last axis": ((18,), (1, 1, 1, 18)),
    "rows": ((6, 5, 20, 1), (6, 1, 1, 1)),
    "channels": ((1, 5, 1, 1), (5, 1, 1)),
    "masks": ((6, 1, 20, 18), (1, 1, 20, 18)),
    "crossing": ((6, 1, 20, 1), (1, 5, 1, 18)),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("lay", [np.ascontiguousarray, channels_last], ids=["plain", "channels last"])
@pytest.mark.parametrize("case", SHAPES)
def test_broadcasting(case, lay, threads, calls):
    shape = (6, 5, 20, 18)
    values = values_of({"x": shape, "a": SHAPES[case][0], "b": SHAPES[case][1]})
    x, a, b = (lay(value) if value.shape == shape else value for value in values.values())
    outputs = [lay(np.full(shape, 7, np.float32)) for _ in range(2)]
    with mx.engine.using(cpu_kernel_nthreads=threads), pytest.MonkeyPatch.context() as patch:
        patch.setattr(strided_loops, "WORTH_A_THREAD_NS", 0)
        patch.setattr(strided_loops, "MIN_TASK_SIZE", 64)
        kernel.compute(chain_of_two(), run_of(), [x, a, b], outputs)
    assert calls == [threads]
    np.testing.assert_array_equal(outputs[0], x * 2 + a)
    np.testing.assert_array_equal(outputs[1], (x * 2 + a) * b)


def run_of():
    return Run(devices.get(mx.cpu()), False)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1023, 100_003])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sizes(size, threads):
    x, a, b = values_of({"x": size, "a": size, "b": 1}).values()
    outputs = [np.full(size + 8, 7, np.float32) for _ in range(2)]
    with mx.engine.using(cpu_kernel_nthreads=threads), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MIN_SIZE", 0)
        patch.setattr(strided_loops, "WORTH_A_THREAD_NS", 0)
        kernel.compute(chain_of_two(), run_of(), [x, a, b], [output[:size] for output in outputs])
    np.testing.assert_array_equal(outputs[1][:size], (x * 2 + a) * b)
    for output in outputs:
        assert (output[size:] == 7).all()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_in_place(position):
    values = list(values_of({"x": (300, 70), "a": (300, 70), "b": (300, 70)}).values())
    x, a, b = (value.copy() for value in values)
    outputs = [np.empty_like(x), values[position]]
    kernel.compute(chain_of_two(), run_of(), values, outputs)
    np.testing.assert_array_equal(outputs[0], x * 2 + a)
    np.testing.assert_array_equal(values[position], (x * 2 + a) * b)


def test_an_input_in_another_memory_order_is_copied(calls):
    x, a, b = values_of({"x": (70, 300), "a": (300, 70), "b": (300, 70)}).values()
    outputs = [np.empty((300, 70), np.float32) for _ in range(2)]
    kernel.compute(chain_of_two(), run_of(), [x.T, a, b], outputs)
    assert calls
    np.testing.assert_array_equal(outputs[1], (x.T * 2 + a) * b)


def test_the_bits_do_not_depend_on_addresses(calls):
    links = [Link(lookup("sigmoid").create(), (0,), "gate"), Link(lookup("elemwise_mul").create(), (1, 2), "times")]
    chain, (x, a) = Chain.of(2, links, [2, 3]), values_of({"x": (6, 5, 20, 18), "a": (6, 5, 20, 18)}).values()
    lays = [np.ascontiguousarray, channels_last]
    results = []
    for lay_x, lay_a, lay_gate, lay_times in itertools.product(lays, repeat=4):
        outputs = [lay_gate(np.empty_like(x)), lay_times(np.empty_like(x))]
        kernel.compute(chain, run_of(), [lay_x(x), lay_a(a)], outputs)
        results.append([output.tobytes() for output in outputs])
    assert results == results[:1] * 16
    assert len(calls) == 16


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softsign", "erf"])
def test_the_bits_of_one_operator_do_not_depend_on_addresses(name, dtype):
    op, x = lookup(name).create(), mx.nd.array(values_of({"x": (6, 5, 20, 18)})["x"]).astype(dtype).asnumpy()
    compute = kernel_for("cpu", name).compute
    results = set()
    for lay_x, lay_out in itertools.product([np.ascontiguousarray, channels_last], repeat=2):
        out = lay_out(np.empty_like(x))
        compute(op, run_of(), [lay_x(x)], [out])
        results.add(out.tobytes())
    assert len(results) == 1


def test_the_plain_forward_may_overwrite_any_input():
    values = list(values_of({"x": (9, 9), "a": (9, 9), "b": (9, 9)}).values())
    x, a, b = (value.copy() for value in values)
    chain_of_two().forward(run_of(), values, [values[2], values[0]])
    np.testing.assert_array_equal(values[2], x * 2 + a)
    np.testing.assert_array_equal(values[0], (x * 2 + a) * b)


def aligned(*shape, offset=0):
    """Return an array that begins ``offset`` elements after the start of a cache line."""
    memory = np.zeros(int(np.prod(shape)) + 32, np.float32)
    start = -memory.ctypes.data // 4 % 16 + offset
    return memory[start : start + int(np.prod(shape))].reshape(shape)


@pytest.mark.parametrize(("offset", "width", "passes"), [(0, 256, True), (1, 256, False), (0, 250, False)])
def test_stores_past_the_caches_need_whole_lines(monkeypatch, offset, width, passes):
    monkeypatch.setattr(strided_loops, "_STREAMING_BYTES", 0)
    calls = []
    monkeypatch.setattr(kernel, "streams", lambda *inputs: calls.append(strided_loops.streams(*inputs)) or calls[-1])
    x, a, b = values_of({"x": (100, width), "a": (width,), "b": (100, 1)}).values()
    outputs = [aligned(100, width, offset=offset), aligned(100, width)]
    kernel.compute(chain_of_two(), run_of(), [x, a, b], outputs)
    assert calls == [passes]
    np.testing.assert_array_equal(outputs[0], x * 2 + a)
    np.testing.assert_array_equal(outputs[1], (x * 2 + a) * b)


def test_axes():
    x = np.zeros((4, 5, 6), np.float32)
    assert strided_loops.axes_of([x, x]) == ((120,), ((1,), (1,)))
    assert strided_loops.axes_of([np.zeros(6, np.float32), x]) == ((20, 6), ((0, 1), (6, 1)))
    assert strided_loops.axes_of([np.zeros((5, 1), np.float32), x]) == ((4, 5, 6), ((0, 1, 0), (30, 6, 1)))
    assert strided_loops.axes_of([x[:, :3], np.zeros((4, 3, 6), np.float32)]) == ((4, 18), ((30, 1), (18, 1)))
    assert strided_loops.axes_of([x.transpose(1, 0, 2), x.transpose(1, 0, 2)]) == ((120,), ((1,), (1,)))
    assert strided_loops.axes_of([x[..., ::2], np.zeros((4, 5, 3), np.float32)]) is None
    assert strided_loops.axes_of([np.zeros((1, 1), np.float32)] * 2) == ((1,), ((1,), (1,)))


# -- what is compiled --------------------------------------------------------------------------------------


def gates(order):
    """Return a chain of the product x · tanh(y) + z, with its inputs in this order."""
    x, y, z = (order.index(name) for name in "xyz")
    links = [
        Link(lookup("tanh").create(), (y,), "tanh"),
        Link(lookup("elemwise_mul").create(), (x, 3), "times"),
        Link(lookup("elemwise_add").create(), (4, z), "plus"),
    ]
    return Chain.of(3, links, [5])


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Record the texts that are compiled, starting with an empty cache."""
    texts, emit = [], compiler_of_loops._emit
    monkeypatch.setattr(compiler_of_loops, "_loaded", {})

    def emitting(text, is_baseline=False):
        if is_baseline:  # queued optimization of earlier loops would be counted
            texts.append(text)
        return emit(text, is_baseline)

    monkeypatch.setattr(compiler_of_loops, "_emit", emitting)
    monkeypatch.setattr(kernel, "_forms", {})
    with mx.engine.using(kernel_cache=str(tmp_path)):
        yield texts


def test_chains_that_differ_in_the_order_of_inputs_are_compiled_once(compiled):
    values = values_of(dict.fromkeys("xyz", (30, 70)))
    results = []
    for order in itertools.permutations("xyz"):
        out = np.empty((30, 70), np.float32)
        kernel.compute(gates(order), run_of(), [values[name] for name in order], [out])
        results.append(out)
    assert len(compiled) == 1
    np.testing.assert_allclose(results[0], values["x"] * np.tanh(values["y"]) + values["z"], rtol=1e-5, atol=1e-6)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_chains_share_prepared_code_across_names_but_not_dtypes(compiled):
    chain = gates("xyz")
    renamed = Chain.of(3, [link._replace(name=f"other {link.name}") for link in chain.links], [5])
    assert renamed.prepared is chain.prepared
    for dtype in (np.float32, np.float64, np.float32):
        for fused in (chain, renamed):
            x, y, z = (value.astype(dtype) for value in values_of(dict.fromkeys("xyz", (30, 70))).values())
            out = np.empty((30, 70), dtype)
            kernel.compute(fused, run_of(), [x, y, z], [out])
            np.testing.assert_allclose(out, x * np.tanh(y) + z, rtol=1e-5, atol=1e-6)
    assert len(compiled) <= 2


def test_the_bits_do_not_depend_on_how_many_elements_there_are(compiled):
    values = values_of(dict.fromkeys("xyz", (1 << 16,)))
    chain = gates("xyz")

    def computed(size):
        out = np.empty(size, np.float32)
        kernel.compute(chain, run_of(), [value[:size] for value in values.values()], [out])
        return out

    whole = computed(1 << 16)
    for size in (300, 1001, 5000, 20_000):
        np.testing.assert_array_equal(computed(size), whole[:size])
    assert len(compiled) > 2, "each size class has separate code"


def test_a_graphs_loops_are_compiled_before_it_runs(compiled):
    x, y = variables("x y")
    bound = bind(mx.sym.tanh(x * 1.5 + y) * y, values_of({"x": (60, 50), "y": (60, 50)}), train=True)
    assert loops_of(bound.plan)
    while len(compiled) < len(loops_of(bound.plan)):  # the test's timeout is the limit
        time.sleep(0)
    before = list(compiled)
    bound.forward(is_train=True)
    bound.backward(mx.nd.ones((60, 50)))
    mx.nd.waitall()
    assert compiled == before


def test_on_an_event_loop_the_plain_forward_runs_until_the_loop_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "_forms", {})
    values = list(values_of({"x": (300, 70), "a": (300, 70), "b": (300, 70)}).values())
    outputs = [np.empty((300, 70), np.float32) for _ in range(2)]

    async def compute():
        kernel.compute(chain_of_two(), run_of(), values, outputs)

    with mx.engine.using(kernel_cache=str(tmp_path)):
        asyncio.run(compute())
    x, a, b = values
    np.testing.assert_array_equal(outputs[1], (x * 2 + a) * b)


def test_without_a_compiler_there_are_no_chains(monkeypatch):
    monkeypatch.setattr(kernel, "can_compile", lambda: False)
    (x,) = variables("x")
    bound = mx.sym.tanh(x * 2.0).simple_bind(mx.cpu(), grad_req="null", x=(100, 100))
    assert loops_of(bound.plan) == []


# -- errors ------------------------------------------------------------------------------------------------


def test_an_error_inside_names_the_members(monkeypatch):
    (x,) = variables("x")
    net = mx.sym.tanh(x * 2.0, name="bend")

    def fails(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(strided_loops.StridedLoop, "run", fails)
    bound = bind(net, values_of({"x": (100, 100)}), False)
    with pytest.raises(MemoryError) as caught:
        bound.forward()[0].asnumpy()
    assert re.search(r"in node 'bend' \(_chain\(.*'_mulscalar0' -> .*'bend'\)\)", "\n".join(caught.value.__notes__))
