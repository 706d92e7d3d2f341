"""plan.explain() describes the plan correctly."""

import math
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from benchmarks.workers import networks
from flowmx.graph import infer
from flowmx.graph.compiler import graph_of
from flowmx.graph.graph import Options
from flowmx.graph.passes.placement import place
from flowmx.graph.plan import make_plan
from flowmx.graph.reports.in_place import InPlace
from flowmx.graph.reports.occupancy import Occupancy, label
from flowmx.graph.reports.sizes import format_bytes
from tests.fixtures import record_visualization as small

NETWORKS = [("googlenet", "write"), ("googlenet", "null"), ("resnet_18", "write"), ("resnet_18", "null")]


def image_plan(name, grad_req):
    net = networks.symbol(mx, networks.NETWORKS[name])
    requests = {each: "null" if each in ("data", "softmax_label") else grad_req for each in net.list_arguments()}
    return net.simple_bind(mx.cpu(), grad_req=requests, data=(2, 3, 224, 224), softmax_label=(2,)).plan


def plan_of(symbol, grad_req="write", **shapes):
    return symbol.simple_bind(mx.cpu(), grad_req=grad_req, **shapes).plan


def bare_plan(symbol, groups=None, options=None, **shapes):
    """Return the plan of a symbol for prediction, without passes except placement."""
    nodes = symbol.nodes()
    variables = [node for node in nodes if node.is_variable]
    inferred = infer.infer_shapes(nodes, {node: shapes.get(node.name) for node in variables})
    graph = graph_of(symbol.entries, (), inferred, infer.infer_types(nodes, {}), False, mx.cpu(), groups)
    options = options or Options()
    return make_plan(place(graph, options), graph.outputs, (), options)


def test_totals():
    plan = image_plan("googlenet", "write")
    text = plan.explain(0)
    assert f"Internal values: {format_bytes(plan.internal_bytes())}," in text
    assert f"Without sharing: {format_bytes(plan.unshared_bytes())}" in text
    assert f"{format_bytes(plan.lower_bound())} alive at step" in text
    assert f"(the plan takes {plan.arena.size / plan.lower_bound():.3f} of it)" in text
    assert "Steps:" not in text
    in_place = InPlace(plan)
    done = sum(case.is_done for step in range(len(plan.steps())) for case in in_place.cases(step))
    assert f"In place of an input: {done}; not: " in text


def test_fused_operators_are_listed():
    net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    plan = plan_of(mx.sym.Activation(net, act_type="relu", name="act"), "null", data=(1, 2, 8, 8))
    assert plan.graph.notes
    for note in plan.graph.notes:
        assert note in plan.explain()


@pytest.mark.parametrize(("name", "grad_req"), NETWORKS)
def test_every_value_has_its_address(name, grad_req):
    plan = image_plan(name, grad_req)
    text = plan.explain()
    offsets = dict(re.findall(r"^    +(\S+): [^,]+? at (\d+) until", text, re.MULTILINE))
    assert offsets == {label(entry): str(plan.arena.offsets[place]) for entry, place in plan.place.items()}
    for view, root in plan.root.items():
        assert f"{label(view)} shows {label(root)}" in text
    for entry in plan.external:
        assert re.search(rf"^    +{re.escape(label(entry))}: .*in an array of the user$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "grad_req"), NETWORKS)
def test_reasons_against_working_in_place_are_correct(name, grad_req):
    plan = image_plan(name, grad_req)
    steps, in_place = plan.steps(), InPlace(plan)
    for step, node in enumerate(steps):
        done = {case.output for case in in_place.cases(step) if case.is_done}
        for case in in_place.missed_cases(step):
            reason, text = case.why_not()
            assert case.output not in done
            assert reason != "switched off", "the planner has a reason that explain() does not know"
            if reason == "read again":
                assert case.source in [plan.root.get(e, e) for e in steps[case.later].inputs]
                assert text.endswith(f"by step {case.later}")
                assert case.later > step
        for entry in done:
            assert plan.place[entry] in [plan.place.get(plan.root.get(e, e)) for e in node.inputs]


def reason(text, output):
    """Return the reason why an output does not overwrite an input."""
    return re.search(rf"{output} is not in place of \S+: (.*)", text)[1]


def test_reasons():
    x = mx.sym.Variable("x")
    s = mx.sym.sin(x, name="s")
    t = mx.sym.tanh(s, name="t")
    text = bare_plan(mx.sym.Group([mx.sym.exp(t, name="e"), mx.sym.dot(t, t, name="d")]), x=(3, 3)).explain()
    assert reason(text, "s_output") == "x is an array of the user"
    assert reason(text, "e_output") == "the output is in an array of the user, or is kept"
    assert re.search(r"t_output: 36 B at 0 until step 3, in place of s_output", text)
    text = bare_plan(mx.sym.dot(mx.sym.exp(t, name="e"), t), x=(3, 3)).explain()
    assert reason(text, "e_output") == "t_output is read again by step 3"
    text = bare_plan(mx.sym.dot(mx.sym.elemwise_add(t, t, name="a"), x), x=(3, 3)).explain()
    assert reason(text, "a_output") == "this step reads t_output twice"


def test_outputs_without_user_arrays_are_handed_out():
    t = mx.sym.tanh(mx.sym.sin(mx.sym.Variable("x")), name="t")
    e = mx.sym.exp(t, name="e")
    text = make_plan(bare_plan(mx.sym.Group([t, mx.sym.dot(e, e)]), x=(3, 3)).graph).explain()
    assert "t_output: 36 B at 0 until the end" in text
    assert reason(text, "e_output") == "t_output is an output or a gradient, which is returned at the end"


def test_working_in_place_may_be_switched_off():
    t = mx.sym.tanh(mx.sym.sin(mx.sym.Variable("x")), name="t")
    text = bare_plan(mx.sym.dot(t, t), options=Options(in_place=False), x=(3, 3)).explain()
    assert reason(text, "t_output") == "in-place operation is disabled (FLOWMX_EXEC_ENABLE_INPLACE)"


def test_limit():
    plan = image_plan("resnet_18", "null")
    text = plan.explain(3)
    assert len(text.splitlines()) < 40
    hidden = int(re.search(r"Steps:\n(?:.*\n){3}  \.\.\. and (\d+) more lines", text)[1])
    assert hidden + 3 == len(plan.explain().partition("Steps:\n")[2].splitlines())


def test_kept_values_and_devices():
    with mx.AttrScope(ctx_group="first"):
        one = mx.sym.exp(mx.sym.Variable("x"), name="one")
    with mx.AttrScope(ctx_group="second"):
        three = mx.sym.cos(mx.sym.sin(one, name="two"), name="three")
    plan = bare_plan(three, {"first": mx.cpu(1), "second": mx.cpu(2)}, x=(100,))
    text = plan.explain()
    assert "one_output is copied from cpu(1) to cpu(2)" in text
    assert "one_output: 400 B on cpu(1)" in text
    for context, size in plan.arenas.items():
        assert f"Arena on {context}: {format_bytes(size)}" in text


# -- previous values on the same bytes ---------------------------------------------------------------------


def last_holders(plan):
    """Return the places that last held each byte of each place, computed byte by byte."""
    inferred = [[] for _ in plan.lives]
    last = {}
    for number in sorted(range(len(plan.lives)), key=lambda number: plan.lives[number].first):
        start = plan.arena.offsets[number]
        stretch = range(start, start + plan.lives[number].size)
        inferred[number] = sorted({last[byte] for byte in stretch if byte in last})
        last.update(dict.fromkeys(stretch, number))
    return inferred


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=30))
def test_previous_values_of_a_place(stretches):
    lives = [PLAN.lives[0]._replace(size=size, first=step, last=step) for step, (_, size) in enumerate(stretches)]
    arena = PLAN.arena._replace(offsets=[start for start, _ in stretches])
    where = Occupancy(PLAN)
    where.plan = replace(PLAN, lives=lives, arena=arena)
    where.contexts = [None] * len(lives)
    assert [sorted(each) for each in where.previous_places()] == last_holders(where.plan)


PLAN = plan_of(small.perceptron(mx), data=(4, 784))


def test_bytes_in_words():
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 1 << 20, 5 << 40, 5 << 50)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "5 TiB", "5120 TiB",
    ]  # fmt: skip


def test_debug_str_reports_the_total_as_mxnet_does():
    executor = small.lenet(mx).simple_bind(mx.cpu(), data=(64, 1, 28, 28))
    total = re.search(r"Total ([0-9.e+]+) Mi?B allocated", executor.debug_str())
    assert float(total[1]) == math.ceil(executor.plan.internal_bytes() / (1 << 20))  # scripts read it, in MXNet's words


def test_large_plans_are_described_and_drawn_quickly():
    x = mx.sym.Variable("x")
    for layer in range(500):
        x = mx.sym.FullyConnected(x, num_hidden=8, name=f"fc{layer}")
    plan = plan_of(x, x=(4, 8))
    start = time.process_time()
    assert len(plan.explain(0).splitlines()) < 12
    assert len(plan.explain().splitlines()) > len(plan.steps())
    plan.picture()
    assert time.process_time() - start < 2
