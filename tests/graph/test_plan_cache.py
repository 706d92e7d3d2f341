"""Plans on disk: a plan that is read equals the one that was written, and outdated ones are made again."""

import os
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import disk_cache
from flowmx.gluon import nn, rnn
from flowmx.graph import plan_cache
from flowmx.graph.node import topological

SIZE = 5


class Unrolled(mx.gluon.HybridBlock):
    """Recurrent cells with Dropout, and residual connections."""

    def __init__(self, steps, **kwargs):
        super().__init__(**kwargs)
        self.steps = steps
        with self.name_scope():
            self.cells = rnn.HybridSequentialRNNCell()
            for cell in (rnn.ResidualCell(rnn.GRUCell(SIZE)), rnn.DropoutCell(0.3), rnn.LSTMCell(SIZE)):
                self.cells.add(cell)

    def hybrid_forward(self, F, x):
        self.cells.reset()
        return self.cells.unroll(self.steps, x, layout="NTC", merge_outputs=True)[0]


class Images(mx.gluon.HybridBlock):
    """Convolutions with BatchNorm and max pooling, and attention over their outputs."""

    def __init__(self, blocks=6, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for _ in range(blocks):
                self.layers.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.GELU())
            self.layers.add(nn.MaxPool2D(2))

    def hybrid_forward(self, F, x):
        for layer in self.layers:
            x = layer(x) * 1.5 + 1
        x = F.reshape(x, (0, 0, -1))
        x = F.batch_dot(F.softmax(F.batch_dot(x, x, transpose_b=True) / 3), x)
        return F.broadcast_add(x, F.ones((1, 1, 16)) + F.ones((1, 1, 16)))


NETWORKS = {
    "recurrent": (lambda: Unrolled(4, prefix="net_"), (2, 4, SIZE)),
    "images": (lambda: Images(prefix="net_"), (2, 3, 8, 8)),
}


@pytest.fixture
def compiled_graphs(tmp_path, monkeypatch):
    """Record the graphs that are compiled, starting with an empty cache."""
    graphs, real = [], plan_cache.compile_graph

    def compiling(graph, *arguments, **kwargs):
        graphs.append(graph)
        return real(graph, *arguments, **kwargs)

    monkeypatch.setattr(plan_cache, "compile_graph", compiling)
    with mx.engine.using(kernel_cache=str(tmp_path), exec_plan_cache=True):
        yield graphs


def files(tmp_path):
    return sorted(tmp_path.glob("*.plan"))


def run(name, train=True, change=lambda net: None):
    """Return the outputs, gradients and states of a new network, and its plan."""
    build, shape = NETWORKS[name]
    mx.random.seed(3)
    net = build()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    change(net)
    x = mx.nd.array(np.random.default_rng(0).standard_normal(shape))
    x.attach_grad()
    arrays = []
    for _ in range(2):
        if train:
            with mx.autograd.record():
                out = net(x)
            out.backward()
            arrays += [x.grad.asnumpy()]
        else:
            out = net(x)
        arrays += [out.asnumpy()]
    for param in net.collect_params().values():
        arrays.append(param.data().asnumpy())
        if train and param.grad_req != "null":
            arrays.append(param.grad().asnumpy())
    (cached,) = net._compiled.values()
    (compiled,) = cached.op._compiled.values()
    return arrays, compiled.results.plan


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_plan_equals_the_saved_one(name, train, compiled_graphs, tmp_path):
    with mx.engine.using(exec_plan_cache=False):
        plain, _ = run(name, train)
    assert not files(tmp_path)
    first, plan = run(name, train)
    assert len(files(tmp_path)) == 1
    count = len(compiled_graphs)
    again, read = run(name, train)
    assert len(compiled_graphs) == count, "it was read"
    assert_same(first, plain)
    assert_same(again, plain)
    assert read.explain() == plan.explain()
    assert (read.internal_bytes(), read.unshared_bytes(), read.lower_bound()) == (
        plan.internal_bytes(), plan.unshared_bytes(), plan.lower_bound(),
    )  # fmt: skip
    assert [repr(node) for node in read.steps()] == [repr(node) for node in plan.steps()]
    assert [node.place() for node in read.steps()] == [node.place() for node in plan.steps()]
    assert list(read.lives) == plan.lives


def bound(requests="write"):
    """Return the outputs and gradients of a bound symbol, and its plan."""
    net = Unrolled(4, prefix="net_")(mx.sym.var("data"))
    shapes, _, _ = net.infer_shape(data=(2, 4, SIZE))
    rng = np.random.default_rng(0)
    names = net.list_arguments()
    arrays = {name: mx.nd.array(rng.standard_normal(shape)) for name, shape in zip(names, shapes, strict=True)}
    gradients = {name: mx.nd.ones(each.shape) for name, each in arrays.items()}
    mx.random.seed(3)
    executor = net.bind(mx.cpu(), arrays, gradients, requests)
    executor.forward(is_train=True)
    executor.backward()
    return [array.asnumpy() for array in (*executor.outputs, *gradients.values())], executor.plan


@pytest.mark.parametrize("requests", ["write", "add"])
def test_bound_symbols_read_plans_too(requests, compiled_graphs, tmp_path):
    with mx.engine.using(exec_plan_cache=False):
        plain, _ = bound(requests)
    first, plan = bound(requests)
    count = len(compiled_graphs)
    again, read = bound(requests)
    assert len(compiled_graphs) == count
    assert len(files(tmp_path)) == 1
    assert_same(first, plain)
    assert_same(again, plain)
    assert read.explain() == plan.explain()


def test_requests_have_separate_plans(compiled_graphs, tmp_path):
    bound("write")
    bound("add")
    bound({"data": "write"})
    assert len(compiled_graphs) == len(files(tmp_path)) == 3


@pytest.mark.parametrize(
    "setting", [{"exec_enable_inplace": False}, {"exec_match_range": 0}, {"cpu_kernel_nthreads": 3}], ids=str
)
def test_settings_have_separate_plans(setting, compiled_graphs, tmp_path):
    run("recurrent")
    with mx.engine.using(**setting):
        run("recurrent")
    assert len(compiled_graphs) == len(files(tmp_path)) == 2


def test_modes_shapes_names_and_requests_have_separate_plans(compiled_graphs, tmp_path, monkeypatch):
    run("recurrent")
    run("recurrent", train=False)
    monkeypatch.setitem(NETWORKS, "longer", (lambda: Unrolled(4, prefix="net_"), (3, 4, SIZE)))
    run("longer")
    monkeypatch.setitem(NETWORKS, "renamed", (lambda: Unrolled(4, prefix="other_"), (2, 4, SIZE)))
    run("renamed")
    run("recurrent", change=lambda net: net.collect_params(".*bias").setattr("grad_req", "null"))
    assert len(compiled_graphs) == len(files(tmp_path)) == 5


def test_another_source_of_flowmx_has_separate_plans(compiled_graphs, tmp_path, monkeypatch):
    run("recurrent")
    monkeypatch.setattr(plan_cache, "_identity", lambda: ("other",))
    run("recurrent")
    assert len(compiled_graphs) == len(files(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"", b"\x00", b"(\x00\x00\x00\x00", b"no plan"], ids=repr)
def test_an_invalid_file_is_replaced_by_a_new_plan(content, compiled_graphs, tmp_path):
    first, _ = run("recurrent")
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    assert_same(run("recurrent")[0], first)
    disk_cache.write(file, content)
    assert_same(run("recurrent")[0], first)
    assert len(compiled_graphs) == 3
    assert_same(run("recurrent")[0], first)
    assert len(compiled_graphs) == 3, "it was written again"


def test_larger_workspaces_invalidate_a_plan(compiled_graphs, tmp_path, monkeypatch):
    run("images")
    real = plan_cache.workspaces
    monkeypatch.setattr(
        plan_cache,
        "workspaces",
        lambda *arguments: {index: n + 4096 for index, n in real(*arguments).items()} or {0: 1},
    )
    run("images")
    assert len(compiled_graphs) == 2


def test_plans_that_cannot_be_serialized_are_not_saved(compiled_graphs, tmp_path, monkeypatch):
    class Loops(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            for _ in range(plan_cache.MIN_OPERATORS):
                x = F.tanh(x + 1)
            return F.contrib.foreach(lambda row, state: (row * 2, state + row), x, F.zeros((3,)))[0]

    monkeypatch.setitem(NETWORKS, "loops", (lambda: Loops(prefix="net_"), (2, 3)))
    assert_same(run("loops")[0], run("loops")[0])
    assert len(compiled_graphs) == 2
    assert not files(tmp_path)


def test_foreign_attributes_of_operators_are_not_saved(compiled_graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "topological", lambda entries: kept_on(topological(entries)))
    first = run("recurrent")[0]
    assert len(compiled_graphs) == len(files(tmp_path)) == 1
    assert_same(run("recurrent")[0], first)
    assert len(compiled_graphs) == 1


def kept_on(nodes):
    for node in nodes:
        if node.op is not None:
            object.__setattr__(node.op, "_kept_by_a_test", None)
    return nodes


def test_small_graphs_are_planned_each_time(compiled_graphs, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "small", (lambda: nn.Dense(3, prefix="net_"), (2, 3)))
    run("small")
    run("small")
    assert len(compiled_graphs) == 2
    assert not files(tmp_path)


def test_another_process_finds_the_plan(tmp_path):
    """The plan does not depend on the order of sets, which follows from hashes that differ between processes."""
    script = "from tests.graph.test_plan_cache import run; run('images', train=False)"
    arrays = []
    for seed in ("1", "2", "3"):
        here = {"FLOWMX_KERNEL_CACHE": str(tmp_path), "FLOWMX_EXEC_PLAN_CACHE": "1", "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script], env={**os.environ, **here}, check=True, timeout=120)
        arrays.append(files(tmp_path))
    assert len(arrays[0]) == 1
    assert arrays[0] == arrays[1] == arrays[2]


def test_the_oldest_plans_are_evicted(compiled_graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "_FILE_LIMIT", 2)
    for batch in (1, 2, 3):
        monkeypatch.setitem(NETWORKS, "many", (lambda: Unrolled(4, prefix="net_"), (batch, 4, SIZE)))
        run("many", train=False)
    assert len(files(tmp_path)) == 2
    run("many", train=False)
    assert len(compiled_graphs) == 3


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_plans_in_slices_are_cached(compiled_graphs, train, joint):
    """For predictions and for training, if a plan holds both passes or a part of each."""
    with mx.name.NameManager():
        x = mx.sym.var("data")
        for filters in (4, 8, 16, 16):
            for _ in range(4):
                x = mx.sym.relu(mx.sym.Convolution(x, num_filter=filters, kernel=(3, 3), pad=(1, 1)))
            x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4), mx.sym.var("label"))

    def run(**settings):
        with mx.engine.using(**settings):
            request = {n: "null" if n in ("data", "label") else "write" for n in net.list_arguments()}
            executor = net.simple_bind(mx.cpu(), grad_req=request if train else "null", data=(8, 3, 16, 16))
        rng = np.random.default_rng(0)
        for name, array in executor.arg_dict.items():
            array[:] = rng.integers(0, 4, array.shape) if name == "label" else rng.normal(0, 0.2, array.shape)
        if train and joint:
            executor.forward_backward()
        else:
            executor.forward(is_train=train)
            executor.backward()
        arrays = [*executor.outputs, *[gradient for gradient in executor.grad_arrays if gradient is not None]]
        return executor._modes.get(train, executor._joint).plan, [each.asnumpy() for each in arrays]

    plain, expected = run()
    cut = {"exec_memory_budget": plain.internal_bytes() * 4 // 10} if train else {"exec_slice": 2}
    first, actual = run(**cut)
    count = len(compiled_graphs)
    again, read = run(**cut)
    assert len(compiled_graphs) == count
    one, other = first.unfold(), again.unfold()
    assert [node.name for node in one.steps()] == [node.name for node in other.steps()]
    assert (one.lives, one.arena) == (other.lives, other.arena)
    assert any("slices of" in line for line in again.explain().splitlines())
    for one, other, another in zip(actual, read, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, another, rtol=1e-4, atol=1e-5 * max(1, np.abs(another).max()))
