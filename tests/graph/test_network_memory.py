"""Plans of whole networks: their memory, checked by counting the bytes alive from the steps alone."""

import importlib
import math
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import benchmarks
import flowmx as mx
from flowmx.graph import infer
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.node import Entry
from flowmx.graph.planning.workspace import workspaces

sys.path.append(str(Path(benchmarks.__file__).parent / "workers"))  # the modules there import each other by these names
symbols = importlib.import_module("symbols")

MIB = 1 << 20
PHASES = ["train", "predict"]

# MiB that MXNet 1.9.1 says it allocates ("Total N MB allocated", rounded down; with the outputs, without workspaces)
# at batch 64, the better of what it plans with and without oneDNN's fusion: `python -m benchmarks figure7`, 2026-11-21.
MXNET = {
    "alexnet": (213, 72), "googlenet": (2009, 408), "vgg_a": (3357, 1212), "resnet_18": (1507, 300),
    "resnet_50": (5802, 447), "inception_bn": (2877, 368), "lstm": (301, 96), "transformer": (368, 112),
}  # fmt: skip


@cache
def graph(name, phase, batch=64):
    """Return a network's graph before any pass, with the gradients of all parameters in training."""
    model = symbols.model(mx, name, batch)
    nodes, arguments = model.symbol.nodes(), model.symbol._variables()[0]
    shapes = infer.infer_shapes(
        nodes, {node: model.inputs[node.name] for node in arguments if node.name in model.inputs}
    )
    variables = [node for node in arguments if node.name not in model.inputs] if phase == "train" else []
    return graph_of(model.symbol.entries, variables, shapes, infer.infer_types(nodes, {}), phase == "train", mx.cpu())


@cache
def plan(name, phase, batch=64):
    """Return the plan that a bound executor would run; nothing is allocated."""
    network_plan = graph(name, phase, batch)
    return compile_graph(network_plan, direct=list(network_plan.gradients))


def size(graph, entry):
    return math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize


def unshared(graph):
    """Return the bytes of all operator outputs of a graph, without views and the user's arrays."""
    outside = {*graph.outputs, *graph.gradients.values()}
    return sum(
        size(graph, entry)
        for node in graph.nodes() if node.op is not None and not node.op.traits.view
        for entry in entries(node) if entry not in outside
    )  # fmt: skip


def entries(node):
    return [Entry(node, index) for index in range(node.outputs())]


class Alive:
    """The values alive at each step of a plan, found from the order of its nodes and their inputs and outputs."""

    def __init__(self, plan):
        self.plan, self.steps = plan, [node for node in (*plan.forward, *plan.backward) if not self.is_view(plan, node)]
        self.shown = {}
        for node in (*plan.once, *plan.forward, *plan.backward):
            if self.is_view(plan, node):
                self.shown[Entry(node, 0)] = self.whole(node.inputs[0])
        always = {*plan.external, *(entry for node in plan.once for entry in entries(node)), *plan.separate}
        self.last = {}
        for step, node in enumerate(self.steps):
            for entry in (*entries(node), *map(self.whole, node.contents())):
                if not entry.node.is_variable and entry not in always:
                    self.last[entry] = step
        for entry in (*plan.outputs, *plan.gradients.values()):
            if self.whole(entry) in self.last:
                self.last[self.whole(entry)] = len(self.steps)

    @staticmethod
    def is_view(plan, node):
        """Return whether a node only views its input with a different shape."""
        return node.op.traits.view and Entry(node, 0) in plan.root

    def whole(self, entry):
        """Return the entry that an entry views."""
        return self.shown.get(entry, entry)

    def overwritten_bytes(self, step):
        """Return the bytes of outputs that may overwrite an input without later readers."""
        node, bytes_taken, used = self.steps[step], 0, set()
        read = Counter(map(self.whole, node.inputs))
        for entry in entries(node):
            for source, index in node.op.traits.in_place:
                donor = self.whole(node.inputs[source]) if source < len(node.inputs) else None
                if (
                    index == entry.index and entry in self.last and self.last.get(donor) == step and read[donor] == 1
                    and donor not in used and size(self.plan.graph, donor) == size(self.plan.graph, entry)
                    and (donor in self.plan.channels_last) == (entry in self.plan.channels_last)
                ):  # fmt: skip
                    used.add(donor)
                    bytes_taken += size(self.plan.graph, entry)
                    break
        return bytes_taken

    def most(self):
        """Return the largest sum of bytes alive at one step, a lower bound of any packing."""
        alive = most = 0
        ending = Counter()
        workspace_bytes = workspaces(self.plan, self.steps, options_of("cpu"))
        for step, node in enumerate(self.steps):
            alive += sum(size(self.plan.graph, entry) for entry in entries(node) if entry in self.last)
            most = max(most, alive - self.overwritten_bytes(step) + workspace_bytes.get(step, 0))
            for entry in entries(node):
                if entry in self.last:
                    ending[self.last[entry]] += size(self.plan.graph, entry)
            alive -= ending[step]
        return most + sum(size(self.plan.graph, entry) for entry in self.plan.separate)


def spoilt(plan, offsets):
    """Simulate the steps; return the first value that is read after it was overwritten, or None."""
    alive, context = Alive(plan), plan.graph.context
    valid = {}  # valid values: entry -> (device, start, stop)
    for node in alive.steps:
        read = [entry for entry in map(alive.whole, node.contents()) if entry in plan.place]
        areas = {e: (context(node), offsets[plan.place[e]], offsets[plan.place[e]] + size(plan.graph, e))
              for e in entries(node) if e in plan.place}  # fmt: skip
        if node in plan.workspace:
            start = offsets[plan.workspace[node]]
            scratch = (context(node), start, start + plan.lives[plan.workspace[node]].size)
            if any(overlap(scratch, its) for its in areas.values()):
                return node
            valid = {entry: its for entry, its in valid.items() if not overlap(scratch, its)}
        for entry in read:
            if entry not in valid:
                return entry
        for entry, ours in areas.items():
            for other in [each for each, its in valid.items() if overlap(ours, its)]:
                if other.node is node or (other in read and not may_take(alive, node, other, entry)):
                    return other
                del valid[other]
            valid[entry] = ours
    results = map(alive.whole, (*plan.outputs, *plan.gradients.values()))
    return next((entry for entry in results if entry in plan.place and entry not in valid), None)


def overlap(one, other):
    return one[0] is other[0] and one[1] < other[2] and other[1] < one[2]


def may_take(alive, node, donor, entry):
    """Return whether the operator may write an output over an input on the same bytes."""
    return any(
        index == entry.index and source < len(node.inputs) and alive.whole(node.inputs[source]) == donor
        for source, index in node.op.traits.in_place
    )  # fmt: skip


def small(**settings):
    """Return a plan of a network with branches, in-place operators and a view."""
    x = mx.sym.Variable("x")
    y = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=64, name="one"), act_type="tanh")
    z = mx.sym.FullyConnected(mx.sym.Reshape(y, shape=(-1, 32)), num_hidden=32, name="two")
    net = mx.sym.SoftmaxOutput(mx.sym.Flatten(z) + mx.sym.softmax(z), name="softmax")
    with mx.engine.using(**settings):
        return net.simple_bind(mx.cpu(), x=(16, 64)).plan


def test_the_counter_counts():
    x = mx.sym.Variable("x")
    products = [mx.sym.FullyConnected(x, num_hidden=units, name=f"fc{units}") for units in (64, 128, 64)]
    a, b, c = products
    net = mx.sym.Concat(mx.sym.Concat(a, b), mx.sym.Reshape(c, shape=(0, 64)), name="out")
    network_plan = net.simple_bind(mx.cpu(), grad_req="null", x=(256, 8)).plan
    row = 256 * 4
    assert Alive(network_plan).most() == max(64 + 128 + 192, 192 + 64) * row
    assert network_plan.internal_bytes() == Alive(network_plan).most()


def test_the_checker_detects_wrong_plans():
    network_plan = small()
    assert spoilt(network_plan, network_plan.arena.offsets) is None
    assert spoilt(network_plan, [0] * len(network_plan.lives)) is not None
    apart = small(exec_enable_inplace=False, exec_match_range=0)
    assert spoilt(apart, apart.arena.offsets) is None
    assert apart.internal_bytes() > Alive(apart).most()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", symbols.NAMES)
def test_planned_memory_is_at_the_bound_and_no_value_is_overwritten(name, phase):
    network_plan = plan(name, phase)
    assert network_plan.internal_bytes() <= 1.02 * Alive(network_plan).most()
    assert spoilt(network_plan, network_plan.arena.offsets) is None


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", symbols.NAMES)
def test_planned_memory_is_at_most_mxnets(name, phase):
    assert plan(name, phase).internal_bytes() <= MXNET[name][PHASES.index(phase)] * MIB


@pytest.mark.parametrize(("phase", "most"), [("train", 0.5), ("predict", 0.3)])
def test_planned_memory_is_a_fraction_of_separate_allocation(phase, most):
    parts = [plan(name, phase).internal_bytes() / unshared(graph(name, phase)) for name in symbols.NAMES]
    assert sum(parts) / len(parts) <= most


def test_vgg_predicts_an_image_in_less_than_16_mib():
    assert plan("vgg_a", "predict", 1).internal_bytes() < 16 * MIB
