"""Plans on disk: what is read is what was made, and what does not hold any more is made anew."""

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
    """Convolutions with BatchNorm and max pooling, and attention over what they make."""

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
def made(tmp_path, monkeypatch):
    """The graphs that were compiled, with nothing known from before."""
    graphs, real = [], plan_cache.compile_graph

    def compiling(graph, *given, **kwargs):
        graphs.append(graph)
        return real(graph, *given, **kwargs)

    monkeypatch.setattr(plan_cache, "compile_graph", compiling)
    with mx.engine.using(kernel_cache=str(tmp_path), exec_plan_cache=True):
        yield graphs


def files(tmp_path):
    return sorted(tmp_path.glob("*.plan"))


def run(name, train=True, change=lambda net: None):
    """The outputs, gradients and states of a new network, and its plan."""
    build, shape = NETWORKS[name]
    mx.random.seed(3)
    net = build()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    change(net)
    x = mx.nd.array(np.random.default_rng(0).standard_normal(shape))
    x.attach_grad()
    found = []
    for _ in range(2):
        if train:
            with mx.autograd.record():
                out = net(x)
            out.backward()
            found += [x.grad.asnumpy()]
        else:
            out = net(x)
        found += [out.asnumpy()]
    for param in net.collect_params().values():
        found.append(param.data().asnumpy())
        if train and param.grad_req != "null":
            found.append(param.grad().asnumpy())
    (cached,) = net._compiled.values()
    (compiled,) = cached.op._compiled.values()
    return found, compiled.results.plan


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_that_was_read_is_the_one_that_was_made(name, train, made, tmp_path):
    with mx.engine.using(exec_plan_cache=False):
        plain, _ = run(name, train)
    assert not files(tmp_path)
    first, plan = run(name, train)
    assert len(files(tmp_path)) == 1
    count = len(made)
    again, read = run(name, train)
    assert len(made) == count, "it was read"
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
    """The outputs and gradients of a bound symbol, and its plan."""
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
    return [each.asnumpy() for each in (*executor.outputs, *gradients.values())], executor.plan


@pytest.mark.parametrize("requests", ["write", "add"])
def test_bound_symbols_read_plans_too(requests, made, tmp_path):
    with mx.engine.using(exec_plan_cache=False):
        plain, _ = bound(requests)
    first, plan = bound(requests)
    count = len(made)
    again, read = bound(requests)
    assert len(made) == count
    assert len(files(tmp_path)) == 1
    assert_same(first, plain)
    assert_same(again, plain)
    assert read.explain() == plan.explain()


def test_requests_have_plans_of_their_own(made, tmp_path):
    bound("write")
    bound("add")
    bound({"data": "write"})
    assert len(made) == len(files(tmp_path)) == 3


@pytest.mark.parametrize(
    "setting", [{"exec_enable_inplace": False}, {"exec_match_range": 0}, {"cpu_kernel_nthreads": 3}], ids=str
)
def test_settings_have_plans_of_their_own(setting, made, tmp_path):
    run("recurrent")
    with mx.engine.using(**setting):
        run("recurrent")
    assert len(made) == len(files(tmp_path)) == 2


def test_modes_shapes_names_and_requests_have_plans_of_their_own(made, tmp_path, monkeypatch):
    run("recurrent")
    run("recurrent", train=False)
    monkeypatch.setitem(NETWORKS, "longer", (lambda: Unrolled(4, prefix="net_"), (3, 4, SIZE)))
    run("longer")
    monkeypatch.setitem(NETWORKS, "renamed", (lambda: Unrolled(4, prefix="other_"), (2, 4, SIZE)))
    run("renamed")
    run("recurrent", change=lambda net: net.collect_params(".*bias").setattr("grad_req", "null"))
    assert len(made) == len(files(tmp_path)) == 5


def test_another_source_of_flowmx_has_plans_of_its_own(made, tmp_path, monkeypatch):
    run("recurrent")
    monkeypatch.setattr(plan_cache, "_identity", lambda: ("other",))
    run("recurrent")
    assert len(made) == len(files(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"", b"\x00", b"(\x00\x00\x00\x00", b"no plan"], ids=repr)
def test_what_is_no_plan_is_made_anew(content, made, tmp_path):
    first, _ = run("recurrent")
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    assert_same(run("recurrent")[0], first)
    disk_cache.write(file, content)
    assert_same(run("recurrent")[0], first)
    assert len(made) == 3
    assert_same(run("recurrent")[0], first)
    assert len(made) == 3, "it was written again"


def test_kernels_that_need_more_room_have_the_plan_made_anew(made, tmp_path, monkeypatch):
    run("images")
    real = plan_cache.workspaces
    monkeypatch.setattr(
        plan_cache, "workspaces", lambda *given: {at: n + 4096 for at, n in real(*given).items()} or {0: 1}
    )
    run("images")
    assert len(made) == 2


def test_what_can_not_be_written_down_is_not_kept(made, tmp_path, monkeypatch):
    class Loops(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            for _ in range(plan_cache.LEAST):
                x = F.tanh(x + 1)
            return F.contrib.foreach(lambda row, state: (row * 2, state + row), x, F.zeros((3,)))[0]

    monkeypatch.setitem(NETWORKS, "loops", (lambda: Loops(prefix="net_"), (2, 3)))
    assert_same(run("loops")[0], run("loops")[0])
    assert len(made) == 2
    assert not files(tmp_path)


def test_what_others_keep_on_operators_is_no_part_of_a_plan(made, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "topological", lambda entries: kept_on(topological(entries)))
    first = run("recurrent")[0]
    assert len(made) == len(files(tmp_path)) == 1
    assert_same(run("recurrent")[0], first)
    assert len(made) == 1


def kept_on(nodes):
    for node in nodes:
        if node.op is not None:
            object.__setattr__(node.op, "_kept_by_a_test", None)
    return nodes


def test_small_graphs_are_planned_each_time(made, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "small", (lambda: nn.Dense(3, prefix="net_"), (2, 3)))
    run("small")
    run("small")
    assert len(made) == 2
    assert not files(tmp_path)


def test_another_process_finds_the_plan(tmp_path):
    """Whatever order its sets have: they follow from hashes, which are others in every process."""
    script = "from tests.test_plan_cache import run; run('images', train=False)"
    found = []
    for seed in ("1", "2", "3"):
        here = {"FLOWMX_KERNEL_CACHE": str(tmp_path), "FLOWMX_EXEC_PLAN_CACHE": "1", "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script], env={**os.environ, **here}, check=True, timeout=120)
        found.append(files(tmp_path))
    assert len(found[0]) == 1
    assert found[0] == found[1] == found[2]


def test_the_oldest_plans_make_room(made, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache, "_MOST_FILES", 2)
    for batch in (1, 2, 3):
        monkeypatch.setitem(NETWORKS, "many", (lambda: Unrolled(4, prefix="net_"), (batch, 4, SIZE)))
        run("many", train=False)
    assert len(files(tmp_path)) == 2
    run("many", train=False)
    assert len(made) == 3


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("joint", [False, True])
def test_plans_in_slices_are_kept(made, train, joint):
    """Of predictions and of training, where it holds both passes or a part of each."""
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
        arrays = [*executor.outputs, *[each for each in executor.grad_arrays if each is not None]]
        return executor._modes.get(train, executor._joint).plan, [each.asnumpy() for each in arrays]

    plain, expected = run()
    cut = {"exec_memory_budget": plain.internal_bytes() * 4 // 10} if train else {"exec_slice": 2}
    first, found = run(**cut)
    count = len(made)
    again, read = run(**cut)
    assert len(made) == count
    one, other = first.unfolded(), again.unfolded()
    assert [node.name for node in one.steps()] == [node.name for node in other.steps()]
    assert (one.lives, one.arena) == (other.lives, other.arena)
    assert any("slices of" in line for line in again.explain().splitlines())
    for one, other, another in zip(found, read, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, another, rtol=1e-4, atol=1e-5 * max(1, np.abs(another).max()))
