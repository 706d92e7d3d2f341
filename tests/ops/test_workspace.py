"""Workspaces: the memory that kernels need is planned, used, never overlaps with values, and is released."""

import weakref

import numpy as np
import pytest

import flowmx as mx
from benchmarks.workers import networks
from flowmx import devices, settings
from flowmx.graph.planning.workspace import strides
from flowmx.ops.kernels.onednn import convolution, layouts, library, work
from flowmx.ops.registry.kernels import ArrayLayout, kernel_for, tied_forward, workspace_of
from flowmx.ops.registry.operators import Run, lookup
from tests.ops.test_onednn import assert_close, in_order
from tests.strided import strided

pytestmark = pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")


def network():
    x = mx.sym.Variable("data")
    for name in ("one", "two"):
        x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=16, pad=(1, 1), name=name)
        x = mx.sym.LRN(mx.sym.relu(x), nsize=3)
    return mx.sym.FullyConnected(x, num_hidden=64, name="dense")


def bound(grad_req="write", net=None, **shapes):
    executor = (net or network()).simple_bind(mx.cpu(), grad_req=grad_req, **(shapes or {"data": (4, 8, 12, 12)}))
    rng = np.random.default_rng(0)
    for _, array in sorted(executor.arg_dict.items()):
        array[:] = rng.standard_normal(array.shape) * 0.1
    return executor


def results(executor):
    executor.forward(is_train=True)
    executor.backward()
    return [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)]


def clash(plan, offsets):
    """Return a step whose workspace overlaps with its arrays or with a value that is read later, or None."""
    steps = plan.steps()
    for node, place in plan.workspace.items():
        step = steps.index(node)
        start, stop = offsets[place], offsets[place] + plan.lives[place].size
        for other, life in enumerate(plan.lives):
            together = other != place and life.first <= step <= life.last
            if together and start < offsets[other] + life.size and offsets[other] < stop:
                return node
    return None


def test_every_kernel_that_needs_a_workspace_has_one_for_its_step():
    plan = bound().plan
    steps = plan.steps()
    names = {node.op.name for node in plan.workspace}
    assert {"_fused_Convolution", "_backward_Convolution_weight_bias", "_backward_LRN", "FullyConnected"} <= names
    for node, place in plan.workspace.items():
        assert plan.lives[place].first == plan.lives[place].last == steps.index(node)
    assert plan.internal_bytes() >= max(plan.lives[place].size for place in plan.workspace.values())
    assert clash(plan, plan.arena.offsets) is None
    assert clash(plan, [0] * len(plan.lives)) is not None, "the check does not detect a wrong plan"


@pytest.mark.parametrize("name", ["alexnet", "resnet_18"])
@pytest.mark.parametrize("grad_req", ["write", "null"])
def test_workspaces_do_not_overlap(name, grad_req):
    net = networks.symbol(mx, networks.NETWORKS[name])
    requests = {each: "null" if each in ("data", "softmax_label") else grad_req for each in net.list_arguments()}
    plan = net.simple_bind(mx.cpu(), grad_req=requests, data=(1, 3, 224, 224), softmax_label=(1,)).plan
    assert plan.workspace
    assert clash(plan, plan.arena.offsets) is None


def test_a_bound_graph_uses_only_its_arena(monkeypatch):
    executor, sizes = bound(), []
    expected = results(executor)
    monkeypatch.setattr(work, "workspace_memory", lambda nbytes: sizes.append(nbytes) or np.empty(nbytes, np.uint8))
    for one, other in zip(expected, results(bound()), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(sizes)


def test_old_content_of_the_arena_does_not_matter():
    executor = bound()
    expected = results(executor)
    for block in executor.arena._blocks.values():
        block.memory.view(np.float32)[: block.memory.nbytes // 4] = np.nan
    for one, other in zip(expected, results(executor), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [1, 3])
def test_workspaces_are_reused_without_sharing_values(monkeypatch, count):
    expected = results(bound())
    monkeypatch.setenv("FLOWMX_EXEC_MATCH_RANGE", "0")
    monkeypatch.setenv("FLOWMX_EXEC_NUM_TEMP", str(count))
    settings.reload()
    try:
        executor = bound()
        assert len(set(executor.plan.workspace.values())) == count
        assert clash(executor.plan, executor.plan.arena.offsets) is None
        for one, other in zip(expected, results(executor), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    finally:
        monkeypatch.undo()
        settings.reload()


def test_a_variable_with_an_unplanned_memory_order():
    whole = mx.nd.random.normal(shape=(4, 16, 12, 12))
    arrays = {
        "data": strided(whole, slice(None), slice(0, 16)),
        "one_weight": strided(mx.nd.random.normal(shape=(16, 32, 3, 3)), slice(None), slice(8, 24)),
    }
    net = mx.sym.relu(
        mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=16, no_bias=True, name="one")
    )
    result = net.bind(mx.cpu(), arrays).forward()[0].asnumpy()
    dense = net.bind(mx.cpu(), {name: mx.nd.array(each.asnumpy()) for name, each in arrays.items()})
    np.testing.assert_allclose(result, dense.forward()[0].asnumpy(), rtol=1e-5, atol=1e-5)


OP = {"kernel": (3, 3), "num_filter": 16, "no_bias": True}


def arrays(seed, order="C"):
    rng = np.random.default_rng(seed)
    shapes = (2, 16, 9, 9), (16, 16, 3, 3)
    return [in_order(rng.standard_normal(shape).astype(np.float32), order) for shape in shapes]


def test_the_workspace_size_depends_on_strides():
    op = lookup("Convolution").create(**OP)
    shapes = (2, 16, 9, 9), (16, 16, 3, 3), (2, 16, 7, 7)

    def needed(data_last, out_last, dtype=np.float32):
        laid = [
            ArrayLayout(shape, strides(shape, last), np.dtype(dtype))
            for shape, last in zip(shapes, (data_last, False, out_last), strict=True)
        ]
        return workspace_of("cpu", op)(op, laid[:2], laid[2:])

    copies = 4 * 2 * 16 * 9 * 9, 4 * 2 * 16 * 7 * 7
    assert needed(False, True) - needed(True, True) == -(-copies[0] // 64) * 64
    assert needed(True, False) - needed(True, True) == -(-copies[1] // 64) * 64
    assert needed(True, True) >= 4 * 16 * 16 * 9
    assert needed(True, True, np.float64) == 0
    assert workspace_of("cpu", lookup("Flatten").create()) is None


def test_planned_strides_match_arrays():
    for shape in [(2, 3, 4, 5), (1, 1, 3), (4, 3, 2, 2, 2), (0, 3, 2)]:
        array = np.zeros(shape, np.float32)
        if array.size:
            assert strides(shape, False) == tuple(each // 4 for each in array.strides)
            assert strides(shape, True) == layouts.channels_last_strides(shape)


def test_a_bound_forward_follows_its_arrays_and_workspace():
    run, op = Run(devices.get(mx.cpu()), True), lookup("Convolution").create(**OP)
    forward, plain = tied_forward("cpu", op), kernel_for("cpu", "Convolution")
    memories = [None, np.empty(1 << 20, np.uint8), np.empty(64, np.uint8), np.empty(1 << 20, np.uint8)]
    outs = [np.empty((2, 16, 7, 7), np.float32) for _ in range(2)]
    for turn, memory in enumerate(memories):
        forward.use(memory)
        for seed in (turn, turn, turn + 1):
            for order in ("C", "channels last"):
                inputs, expected = arrays(seed, order), np.empty((2, 16, 7, 7), np.float32)
                plain.compute(op, run, inputs, [expected])
                for out in (outs[seed % 2], outs[seed % 2], in_order(outs[seed % 2], order)):
                    out.fill(7)
                    forward(run, inputs, [out])
                    np.testing.assert_array_equal(out, expected)


def test_a_bound_forward_keeps_no_array_alive():
    run, op = Run(devices.get(mx.cpu()), True), lookup("Convolution").create(**OP)
    forward, inputs, out = tied_forward("cpu", op), arrays(0), np.empty((2, 16, 7, 7), np.float32)
    forward.use(np.empty(1 << 20, np.uint8))
    forward(run, inputs, [out])
    calls = weakref.ref(out)
    del out
    assert calls() is None


@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("batch", [1, 6, 7])
def test_large_data_is_processed_in_parts(monkeypatch, batch, order):
    monkeypatch.setattr(convolution, "_PART", 3 * 4 * 8 * 9 * 9)
    monkeypatch.setattr(work, "_plans", {})
    rng, run = np.random.default_rng(0), Run(devices.get(mx.cpu()), True)
    op = lookup("_fused_Convolution").create(
        kernel=(3, 3), num_filter=8, pad=(1, 1), has_addend=True, activation="relu"
    )
    shapes, (out,) = op.infer_shape([(batch, 8, 9, 9), None, None, None])
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    plain = np.empty(out, np.float32)
    op.forward(run, inputs, [plain])
    laid = [inputs[0], *inputs[1:3], in_order(inputs[3], order)]
    for fast in (in_order(np.full(out, 7, np.float32), order), laid[3]):  # the second writes over the addend
        kernel_for("cpu", op.name).compute(op, run, laid, [fast])
        assert_close([plain], [fast])


def test_the_workspace_of_a_thread_is_bounded(monkeypatch):
    monkeypatch.setattr(work, "_KEPT_BYTES", 1 << 16)
    monkeypatch.setattr(work, "_thread", work._ThreadMemory())
    run, op = Run(devices.get(mx.cpu()), True), lookup("_backward_Convolution_weight").create(**OP)
    for batch in (1, 64):
        head, data = np.ones((batch, 16, 7, 7), np.float32), np.ones((batch, 16, 9, 9), np.float32)
        kernel_for("cpu", op.name).compute(op, run, [head, data], [np.empty((16, 16, 3, 3), np.float32)])
        assert work._thread.memory.nbytes <= (1 << 16)
