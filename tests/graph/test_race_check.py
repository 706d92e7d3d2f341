"""The race check accepts correct plans, and detects each kind of error in a plan."""

import importlib
import pkgutil
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flowmx as mx
import tests.op_cases
from benchmarks.workers import networks
from flowmx.graph import compiler
from flowmx.graph import graph as graphs
from flowmx.graph import plan as planning
from flowmx.graph.checking import race
from flowmx.graph.checking.poison import groups, subtract_ranges
from flowmx.graph.checking.race import RaceError
from flowmx.graph.compiler import options_of
from flowmx.graph.graph import Options
from flowmx.graph.node import Entry
from flowmx.graph.planning import branches
from flowmx.graph.planning.arena_packing import pack
from flowmx.ops.registry.dtypes import FLOAT32
from tests.devices import test_model_parallelism as test_place

s: Any = mx.sym


def small(layers):
    """Return the layers of a network with an eighth of the filters, for images of 64 by 64."""

    def shrunk(layer):
        kind, *rest = layer
        if kind == "conv":
            rest[0] //= 8
        elif kind == "pool" and rest[0] == 7:
            rest[0] = 2
        elif kind in ("concat", "add"):
            rest = [small(branch) for branch in rest]
        return (kind, *rest)

    return [shrunk(layer) for layer in layers]


def lstm(steps=4, units=6):
    hidden, cell = s.Variable("hidden"), s.Variable("cell")
    weights = {name: s.Variable(name) for name in ("x_weight", "x_bias", "h_weight", "h_bias")}
    outputs = []
    for x in s.SliceChannel(s.Variable("data"), num_outputs=steps, axis=0, squeeze_axis=True):
        gates = s.FullyConnected(x, weights["x_weight"], weights["x_bias"], num_hidden=4 * units)
        gates = gates + s.FullyConnected(hidden, weights["h_weight"], weights["h_bias"], num_hidden=4 * units)
        i, f, o, g = s.SliceChannel(gates, num_outputs=4)
        cell = s.sigmoid(f) * cell + s.sigmoid(i) * s.tanh(g)
        hidden = s.sigmoid(o) * s.tanh(cell)
        outputs.append(s.Dropout(hidden, p=0.3))
    return s.SoftmaxOutput(s.FullyConnected(s.Concat(*outputs, dim=0), num_hidden=5), name="softmax")


def mlp():
    x = s.Activation(s.FullyConnected(s.Variable("data"), num_hidden=16, name="fc1"), act_type="relu", name="relu")
    x = s.BatchNorm(s.Dropout(x, p=0.5, name="drop1"), name="norm")
    x = s.Dropout(s.tanh(x, name="tanh"), p=0.3, name="drop2") + x
    return s.SoftmaxOutput(s.FullyConnected(x, num_hidden=4, name="fc2"), name="softmax")


NETS = {
    "googlenet": (lambda: networks.symbol(mx, small(networks.GOOGLENET)), {"data": (2, 3, 64, 64)}),
    "resnet_18": (lambda: networks.symbol(mx, small(networks.RESNET_18)), {"data": (2, 3, 64, 64)}),
    "lstm": (lstm, {"data": (4, 3, 5), "hidden": (3, 6), "cell": (3, 6)}),
    "mlp": (mlp, {"data": (8, 6)}),
}  # fmt: skip


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_plans_are_right_in_every_order(name, is_train):
    make, shapes = NETS[name]
    orders = race.check(make(), rounds=1, is_train=is_train, **shapes)
    assert orders.plans == 3
    assert orders.comparisons > orders.plans * orders.steps


@pytest.mark.parametrize("module", [info.name for info in pkgutil.iter_modules(tests.op_cases.__path__)])
def test_every_operator_of_the_tables(monkeypatch, module):
    """Each operator between internal values, so that it may work in place, and its gradient."""
    monkeypatch.setattr(compiler, "PASSES", [])
    for case in getattr(importlib.import_module(f"tests.op_cases.{module}"), "CASES", ()):
        arrays = {f"i{position}": array for position, array in enumerate(case.call_inputs())}
        states = {*mx.ops.lookup(case.op).updates, *range(len(arrays) - case.auxiliary, len(arrays))}
        inputs = [s.Variable(name, shape=array.shape, dtype=array.dtype) for name, array in arrays.items()]
        inputs = [operand if index in states else s.identity(operand) for index, operand in enumerate(inputs)]
        outputs = list(s.op.op(case.op, *inputs, **case.params))
        try:
            net = s.Group([s.identity(output) for output in outputs] or inputs)
            race.check(net, rounds=0, is_train=case.train and case.gradient, values=arrays)
        except RaceError as error:
            raise AssertionError(f"{case.id}: {error}") from None


@pytest.mark.parametrize(
    "options", [Options(in_place=False), Options(share=False), Options(channels_last=frozenset([FLOAT32]))]
)
def test_other_planning_options(options):
    race.check(mlp(), rounds=2, options=options, data=(8, 6))
    layers = [networks.conv(16, 3, norm=True), networks.residual(16, 1, True), ("fc", 10, False)]
    race.check(networks.symbol(mx, small(layers)), rounds=1, options=options, data=(2, 3, 9, 9))


def test_branches_that_run_at_the_same_time(monkeypatch):
    monkeypatch.setattr(branches, "WORTH_NS", 0)
    options = Options(workers=2)
    layers = [networks.conv(64, 3), networks.inception(64, 96, 128, 16, 32, 32), ("fc", 10, False)]
    net = networks.symbol(mx, small(layers))
    race.check(net, rounds=3, options=options, data=(1, 3, 16, 16))
    race.check(mlp(), rounds=3, options=options, data=(8, 6))
    monkeypatch.setattr(planning, "_concurrent_steps", lambda plan, steps: {})
    with pytest.raises(RaceError, match="was overwritten before"):
        race.check(net, options=options, is_train=False, data=(1, 3, 16, 16))


def test_values_without_elements_and_plans_without_steps():
    x = s.Variable("data")
    assert race.check(x, data=(3,)).steps == 0
    race.check(s.tanh(s.slice_axis(x * 2, axis=0, begin=0, end=0)), data=(3,))
    race.check(s.Reshape(x, shape=(-1,)), data=(2, 3))


def test_on_several_devices():
    plan = test_place.bound(test_place.TWO).plan
    assert len(plan.arenas) == 2
    race.check_plan(plan, options_of("cpu"))
    short = {
        index: life._replace(last=life.first) for index, life in enumerate(plan.lives) if life.last > life.first + 1
    }
    for index, life in short.items():
        lives = [life if index == place else other for place, other in enumerate(plan.lives)]
        with pytest.raises(RaceError, match="its bytes count as free"):
            race.check_plan(replace(plan, lives=lives), options_of("cpu"), rounds=0)


def test_integers_and_custom_values():
    net = s.Embedding(s.Variable("data"), input_dim=5, output_dim=3, name="embed") * 2
    weight = np.full((5, 3), 7)
    race.check(net, values={"data": [1, 4, 2], "embed_weight": weight}, rounds=1, data=(3,))
    with pytest.raises(ValueError, match=r"no argument 'other', expected one of \['data', 'embed_weight'\]"):
        race.check(net, values={"other": weight}, data=(3,))


def test_user_code_is_refused():
    @mx.operator.register("refused_by_race")
    class Prop(mx.operator.CustomOpProp):
        pass

    with pytest.raises(ValueError, match="user code"):
        race.check(s.Custom(s.Variable("data"), op_type="refused_by_race", name="mine"), data=(3,))


# -- random orders -----------------------------------------------------------------------------------------


def plan_of(net, **shapes):
    with mx.engine.using(exec_enable_inplace=True, exec_match_range=10):
        return net.simple_bind(mx.cpu(), **shapes).plan


def test_random_orders_are_legal_and_differ():
    plan = plan_of(lstm(), **NETS["lstm"][1])
    before = {}
    nodes = [*plan.once, *plan.forward, *plan.backward]
    for node, needs in zip(nodes, graphs.predecessors(nodes), strict=True):
        before[node] = {nodes[index] for index in needs}
    orders = set()
    for seed in range(5):
        forward, backward = race.random_order(plan, random.Random(seed))
        assert set(forward) == {*plan.once, *plan.forward}
        assert set(backward) == set(plan.backward)
        done = set()
        for node in (*forward, *backward):
            assert before[node] <= done
            done.add(node)
        orders.add(tuple(map(id, forward)))
    assert len(orders) == 5


# -- wrong plans -------------------------------------------------------------------------------------------


def checked(plan, rounds=0):
    return race.check_plan(plan, options_of("cpu"), rounds=rounds)


@pytest.fixture(scope="module")
def plan():
    """A correct plan."""
    network_plan = plan_of(mlp(), data=(8, 6))
    checked(network_plan, rounds=1)
    return network_plan


def test_values_at_the_same_place_are_an_error(plan):
    wrong = replace(plan, arena=plan.arena._replace(offsets=[0] * len(plan.lives)))
    with pytest.raises(RaceError, match=r"own order: .*(was overwritten before|it shares bytes with).* step \d+ \("):
        checked(wrong)


def test_every_shortened_lifetime_is_detected(plan):
    used = {place for place, life in enumerate(plan.lives) if life.last > life.first and life.size}
    assert len(used) > 5
    for place in used:
        life = plan.lives[place]
        lives = list(plan.lives)
        lives[place] = life._replace(last=life.last - 1)
        packing = pack(lives)
        wrong = replace(plan, lives=lives, arena=packing, arenas=dict.fromkeys(plan.arenas, packing.size))
        with pytest.raises(RaceError, match="was overwritten before"):
            checked(wrong)


def test_an_early_freed_byte_is_named(plan):
    entry = next(entry for entry in plan.place if entry.node.name == "norm" and entry.index == 0)
    lives = list(plan.lives)
    place = plan.place[entry]
    lives[place] = lives[place]._replace(last=lives[place].first)
    with pytest.raises(RaceError, match=r"norm_output .* others: its bytes count as free after step \d+ \(norm"):
        checked(replace(plan, lives=lives))


def test_in_place_work_on_a_live_value_is_detected(plan):
    steps = plan.steps()
    reader = {entry: index for index, node in enumerate(steps) for entry in node.inputs}
    count = 0
    for index, node in enumerate(steps):
        for donor in node.inputs:
            out = Entry(node, 0)
            if (
                donor in plan.place
                and out in plan.place
                and reader[donor] > index
                and plan.nbytes(donor) == plan.nbytes(out)
            ):
                wrong = replace(plan, place={**plan.place, out: plan.place[donor]})
                with pytest.raises(RaceError, match="was overwritten before"):
                    checked(wrong)
                count += 1
    assert count


def test_an_operator_that_cannot_work_in_place(monkeypatch):
    op = mx.ops.lookup("dot")
    plain = op.forward

    def forward(self, run, inputs, outputs):
        outputs[0].fill(0)
        plain(self, run, inputs, outputs)

    monkeypatch.setattr(op, "forward", forward)
    race.check(s.dot(s.exp(s.Variable("data")), s.Variable("other")) * 2, data=(64, 64), other=(64, 64))
    monkeypatch.setattr(op, "traits", replace(op.traits, in_place=((0, 0),)))
    net = s.dot(s.exp(s.Variable("data")), s.Variable("other"))
    with pytest.raises(RaceError, match=r"\(dot.* computes another .*: it works in place of exp"):
        race.check(net * 2, is_train=False, data=(64, 64), other=(64, 64))


def test_an_operator_that_changes_its_input(monkeypatch):
    op = mx.ops.lookup("tanh")
    plain = op.forward

    def forward(self, run, inputs, outputs):
        plain(self, run, inputs, outputs)
        inputs[0][...] = 0

    monkeypatch.setattr(op, "forward", forward)
    monkeypatch.setattr(compiler, "PASSES", [])
    monkeypatch.setattr("flowmx.ops.registry.kernels._kernels", {})
    x = s.exp(s.Variable("data"), name="exp")
    with pytest.raises(RaceError, match=r"exp_output was overwritten .* changes its input without declaring it"):
        race.check(s.tanh(x) + x, is_train=False, data=(3,))


def test_a_missing_predecessor_is_detected(monkeypatch):
    """Two operators draw random numbers, where only the data determines their order."""
    plain = graphs.predecessors

    def forgetful(nodes):
        positions = {node: position for position, node in enumerate(nodes)}
        return [sorted({positions[e.node] for e in node.inputs if e.node in positions}) for node in nodes]

    x = s.Variable("data")
    net = s.Dropout(x * 2, p=0.5) + s.Dropout(x * 3, p=0.5)
    race.check(net, rounds=5, data=(50,))
    assert race.predecessors is plain
    monkeypatch.setattr(race, "predecessors", forgetful)
    with pytest.raises(RaceError, match=r"in random order \d, with no memory shared: .* computes another dropout"):
        race.check(net, rounds=5, data=(50,))


# -- poison in executors -----------------------------------------------------------------------------------


def test_freed_bytes_are_unused(plan):
    """By definition: after each step, no byte that became free is in a place that is still needed."""
    for step, group in enumerate(groups(plan)):
        assert group.single_step() is plan.steps()[step]
        alive, dying, poisoned = (np.zeros(plan.arena.size, bool) for _ in range(3))
        for life, start in zip(plan.lives, plan.arena.offsets, strict=True):
            if life.first <= step < life.last:
                alive[start : start + life.size] = True
            elif life.last == step:
                dying[start : start + life.size] = True
        for start, stop in group.freed.get(mx.cpu(), ()):
            poisoned[start:stop] = True
        np.testing.assert_array_equal(poisoned, dying & ~alive)


def test_stretches():
    assert subtract_ranges((2, 8), [(0, 3), (4, 5), (4, 6), (8, 9)]) == [(3, 4), (6, 8)]
    assert subtract_ranges((2, 8), [(0, 9)]) == subtract_ranges((2, 8), [(0, 5), (5, 9)]) == []
    assert subtract_ranges((2, 8), [(0, 2), (8, 9)]) == [(2, 8)]


def results(net, **shapes):
    executor = net.simple_bind(mx.cpu(), **shapes)
    rng = np.random.default_rng(0)
    for name in sorted(executor.arg_dict):
        executor.arg_dict[name][:] = rng.standard_normal(executor.arg_dict[name].shape)
    mx.random.seed(3)
    for _ in range(2):
        executor.forward_backward()
        executor.forward(is_train=True)
        executor.backward()
    executor.forward()
    arrays = [*executor.outputs, *executor.grad_dict.values(), *executor.aux_dict.values()]
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize("name", ["lstm", "mlp"])
def test_executors_give_the_same_with_free_memory_overwritten(name):
    make, shapes = NETS[name]
    plain = results(make(), **shapes)
    with mx.engine.using(exec_check=True):
        for one, other in zip(plain, results(make(), **shapes), strict=True):
            np.testing.assert_array_equal(one, other)


def test_several_devices_and_retained_values():
    expected = test_place.results(test_place.bound(None))
    with mx.engine.using(exec_check=True):
        orders = test_place.results(test_place.bound(test_place.TWO))
        for one, other in zip(expected, orders, strict=True):
            np.testing.assert_array_equal(one, other)
    with mx.engine.using(exec_check=True, exec_enable_inplace=False, exec_match_range=0):
        executor = s.tanh(s.Variable("x")).simple_bind(mx.cpu(), x=(3,))
        executor.forward(is_train=True)
        for _ in range(2):
            executor.backward()
            np.testing.assert_array_equal(executor.grad_dict["x"].asnumpy(), np.ones(3))


def test_an_executor_reveals_a_wrong_plan(monkeypatch):
    plain = planning._last_uses

    def short(plan, steps):
        return {entry: min(last, steps.index(entry.node) + 1) for entry, last in plain(plan, steps).items()}

    expected = results(mlp(), data=(8, 6))
    monkeypatch.setattr(planning, "_last_uses", short)
    with mx.engine.using(exec_check=True):
        orders = results(mlp(), data=(8, 6))
    assert any(np.isnan(array).any() for array in orders)
    assert not any(np.isnan(array).any() for array in expected)
