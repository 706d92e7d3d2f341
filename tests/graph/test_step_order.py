"""The order of steps: valid, never worse than depth-first, better where that is poor, and with the same results."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx.graph.compiler import options_of
from flowmx.graph.graph import predecessors
from flowmx.graph.node import topological
from flowmx.graph.plan import make_plan
from flowmx.graph.planning import order as orders
from flowmx.graph.planning.live_bytes import Values, external

WALKS = dict(zip(("depth_first", "memory_first", "earliest_first", "least_added"), orders.WALKS, strict=True))


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def bound(net, grad_req="write", **shapes):
    requests = {name: "null" if name in shapes else grad_req for name in net.list_arguments()}
    return net.simple_bind(mx.cpu(), grad_req=requests, **shapes)


def depth_first(graph):
    """Return the passes in the order of a plain walk."""
    forward = graph.forward()
    backward = topological(graph.gradients.values())
    return forward, [node for node in backward if node.op is not None and node not in set(forward)]


def too_early(nodes, order):
    """Return the first node that runs before a predecessor, or None."""
    before = {node: [nodes[index] for index in needs] for node, needs in zip(nodes, predecessors(nodes), strict=True)}
    done = set()
    for node in order:
        if not done.issuperset(before[node]):
            return node
        done.add(node)
    return None


@st.composite
def networks(draw):
    """Layers of different widths that read earlier outputs, with random draws among them."""
    values = [mx.sym.Variable("x")]
    for _ in range(draw(st.integers(1, 12))):
        kind, source = draw(st.integers(0, 4)), draw(st.sampled_from(values))
        if kind < 2:
            values.append(mx.sym.FullyConnected(source, num_hidden=draw(st.sampled_from([1, 8, 64]))))
        elif kind == 2:
            values.append(mx.sym.sigmoid(source))
        elif kind == 3:
            values.append(mx.sym.Dropout(source, p=0.5))
        else:
            other = mx.sym.FullyConnected(draw(st.sampled_from(values)), num_hidden=8)
            values.append(mx.sym.FullyConnected(source, num_hidden=8) * other)
    return mx.sym.Group(
        [mx.sym.sum(value) for value in draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))]
    )


@settings(max_examples=40, deadline=None)
@given(networks(), st.sampled_from(["write", "null"]))
def test_orders_are_legal_and_never_worse_than_depth_first(net, grad_req):
    graph = bound(net, grad_req, x=(4, 8)).plan.graph
    plain = depth_first(graph)
    ordered = orders.order(graph)
    assert [set(each) for each in ordered] == [set(each) for each in plain]
    nodes = [*plain[0], *plain[1]]
    assert too_early(nodes, [*ordered[0], *ordered[1]]) is None
    for walk in orders.WALKS:
        steps = orders.Steps(graph, nodes)
        cut = len(plain[0])
        each = [*walk(steps, range(cut)), *walk(steps, range(cut, len(nodes)))]
        assert too_early(nodes, [nodes[index] for index in each]) is None
    needs = [make_plan(graph, external(graph), schedule=each).lower_bound() for each in (ordered, plain)]
    assert needs[0] <= needs[1]


@settings(max_examples=40, deadline=None)
@given(networks(), st.sampled_from(["write", "null"]))
def test_bytes_are_counted_as_the_plan_counts_them(net, grad_req):
    graph = bound(net, grad_req, x=(4, 8)).plan.graph
    passes = depth_first(graph)
    nodes = [*passes[0], *passes[1]]
    counted = max(Values(graph, nodes).alive(range(len(nodes))), default=0)
    plan = make_plan(graph, external(graph), schedule=passes)
    for place in plan.workspace.values():  # the kernels' own memory, which depends on the processor
        plan.lives[place] = plan.lives[place]._replace(size=0)
    assert counted == plan.lower_bound()


def test_the_checker_detects_steps_that_run_too_early():
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    graph = mx.sym.FullyConnected(mx.sym.sigmoid(x), num_hidden=2).simple_bind(mx.cpu(), x=(2, 2)).plan.graph
    nodes = depth_first(graph)[0]
    assert too_early(nodes, nodes) is None
    assert too_early(nodes, nodes[::-1]) is nodes[-1]
    two = mx.sym.Group([mx.sym.Dropout(x), mx.sym.Dropout(y)]).simple_bind(mx.cpu(), x=(2,), y=(2,))
    nodes = depth_first(two.plan.graph)[0]
    assert too_early(nodes, nodes[::-1]) is nodes[1], "draws have an order, too"


def unrolled(steps, width=64):
    """A network that reads an input at each step; depth-first, all inputs are computed before the first step."""
    state = mx.sym.Variable("start")
    for step in range(steps):
        read = mx.sym.FullyConnected(mx.sym.Variable(f"x{step}"), mx.sym.Variable("w"), num_hidden=width, no_bias=True)
        value = mx.sym.FullyConnected(state, mx.sym.Variable("v"), num_hidden=width, no_bias=True)
        state = mx.sym.tanh(read * value)
    return state, {"start": (8, width), **{f"x{step}": (8, 4) for step in range(steps)}}


def test_an_unrolled_network_predicts_in_the_memory_of_one_step():
    net, shapes = unrolled(50)
    plan = bound(net, "null", **shapes).plan
    graph, one = plan.graph, 8 * 64 * 4
    plain = make_plan(graph, external(graph), schedule=depth_first(graph), options=options_of("cpu"))
    assert plan.internal_bytes() <= plain.internal_bytes() - 40 * one


def test_shared_gradients_are_accumulated_immediately():
    net, shapes = unrolled(50)
    graph = bound(net, **shapes).plan.graph
    steps = orders.Steps(graph, [node for each in depth_first(graph) for node in each])
    cut = len(graph.forward())
    for step in steps.values.steps[:cut]:
        for value in step.writes:
            steps.values.sizes[value] = 0
    backward = orders.earliest_first(steps, range(cut, len(steps.nodes)))
    weights = 2 * 3 * 64 * 64 * 4
    assert max(steps.values.alive([*range(cut), *backward])) <= weights + 8 * 8 * 64 * 4


@pytest.mark.parametrize("name", WALKS)
def test_results_do_not_depend_on_the_order(name, monkeypatch):
    x = mx.sym.Variable("x")
    left = mx.sym.Dropout(mx.sym.FullyConnected(x, num_hidden=8), p=0.3)
    right = mx.sym.Dropout(mx.sym.sigmoid(mx.sym.FullyConnected(x, num_hidden=8)), p=0.6)
    net = mx.sym.LinearRegressionOutput(mx.sym.BatchNorm(left * right + left), mx.sym.Variable("label"))

    def results():
        executor = bound(net, x=(16, 5), label=(16, 8))
        rng = np.random.default_rng(0)
        for array in executor.arg_dict.values():
            array[:] = rng.normal(size=array.shape)
        mx.random.seed(1)
        executor.forward(is_train=True)
        executor.backward()
        arrays = [*executor.outputs, *(g for g in executor.grad_arrays if g is not None), *executor.aux_arrays]
        return [array.asnumpy() for array in arrays]

    expected = results()
    monkeypatch.setattr(orders, "WALKS", [WALKS[name]])
    for one, other in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_time_grows_with_the_number_of_nodes():
    times = []
    for length in (250, 1000):
        net, shapes = unrolled(length, 2)
        graph = bound(net, **shapes).plan.graph
        start = time.process_time()
        orders.order(graph)
        times.append((time.process_time() - start) / length)
    assert times[1] < 3 * times[0] + 1e-4
    assert 1000 * times[1] < 2
