"""The race check: whether a plan gives the same, bit for bit, in every legal order and with its memory shared.

A plan rests on two claims. Values that share memory never live at the same time; and nothing must run before a step but
what :func:`~flowmx.graph.graph.predecessors` says. A wrong claim often shows nothing: what was given up is still there,
and the usual order happens to be right. So the check runs the plan

* in its own order, with every byte that holds no value overwritten after each step;
* in random legal orders with no memory shared, which tells of missing predecessors;
* in random legal orders planned anew, with memory shared and free bytes overwritten.

Each value is compared with what a run without sharing gives, when it is written, whenever it is read, and at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np

from flowmx.devices import cpu
from flowmx.graph import infer
from flowmx.graph.checking.reference import Comparison
from flowmx.graph.checking.reference import RaceError as RaceError
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.graph import Options, predecessors
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan, make_plan
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Array

Schedule = tuple[list[Node], list[Node]]


class Checked(NamedTuple):
    """Counts of a check that found nothing.

    Attributes:
        plans: how many plans were run.
        steps: the steps of each.
        comparisons: how many values were compared.
    """

    plans: int
    steps: int
    comparisons: int


def check(
    symbol: Any,
    rounds: int = 5,
    seed: int = 0,
    is_train: bool = True,
    values: Mapping[str, Any] | None = None,
    options: Options | None = None,
    **shapes: Sequence[int],
) -> Checked:
    """Check the plan of a symbol.

    Args:
        symbol: the network. User code (Custom) in it is refused, since it need not give the same twice.
        rounds: how many random orders to try.
        seed: of the orders, the content and the numbers that operators draw.
        is_train: check a training step, with gradients of all floating arguments; or else prediction.
        values: content for arguments and auxiliary states by name, which also says their shapes; small random numbers
            for others.
        options: how to compile; by default as the settings say.
        **shapes: of the inputs, by name, as for ``simple_bind``.

    Raises:
        RaceError: the plan is wrong.
        ValueError: there is user code in the symbol, or a name that it does not have.
        ShapeError: the shapes do not fit, or do not say enough.

    Example:
        >>> race.check(net, data=(2, 3, 32, 32), rounds=10)
        Checked(plans=22, steps=104, comparisons=8123)
    """
    options = options or options_of("cpu")
    arguments, auxiliary = symbol._variables()
    nodes, variables = symbol._nodes(), {node.name: node for node in (*arguments, *auxiliary)}
    _refuse(nodes, {*shapes, *(values or {})}, variables)
    content = {variables[name]: np.asarray(value) for name, value in (values or {}).items()}
    known = {node: array.shape for node, array in content.items()}
    known |= {variables[name]: tuple(shape) for name, shape in shapes.items()}
    all_shapes = infer.known_shapes(nodes, known)
    dtypes = infer.infer_types(nodes, dict.fromkeys(variables.values()))
    wanted = [node for node in arguments if is_train and is_floating(dtypes[Entry(node, 0)])]
    graph = graph_of(symbol._entries, wanted, all_shapes, dtypes, is_train, cpu(0))
    plan = compile_graph(graph, straight=wanted, options=options)
    return check_plan(plan, options, content, auxiliary, rounds, seed)


def _refuse(nodes: Sequence[Node], given: Collection[str], known: Collection[str]) -> None:
    for node in nodes:
        if node.op is not None and node.op.traits.detached:
            raise ValueError(f"race check: {node.name} ({node.op!r}) is user code, which need not give the same twice")
    for name in given:
        if name not in known:
            raise ValueError(f"race check: there is no argument {name!r}, expected one of {sorted(known)}")


def check_plan(
    plan: Plan,
    options: Options,
    content: Mapping[Node, Array] | None = None,
    positive: Collection[Node] = (),
    rounds: int = 5,
    seed: int = 0,
) -> Checked:
    """Check a plan, and what is planned for its graph in other orders.

    Args:
        plan: the plan.
        options: how to plan the other orders.
        content: arrays for variables; small random numbers for others.
        positive: variables whose random numbers are to be positive (variances).
        rounds: how many random orders to try.
        seed: of the orders, the content and the numbers that operators draw.

    Raises:
        RaceError: the plan is wrong.
    """
    alone = replace(options, in_place=False, share=False, workers=1)
    watch = Comparison(plan, _content(plan, content or {}, positive, seed), seed)
    watch.record(make_plan(plan.graph, plan.external, options=alone, schedule=_schedule(plan)))
    chooser = Random(seed)
    watch.run(plan, "in the plan's own order", chooser)
    for at in range(rounds):
        schedule = random_order(plan, chooser)
        for how, name in ((alone, "with no memory shared"), (options, "planned anew")):
            other = make_plan(plan.graph, plan.external, options=how, schedule=schedule)
            watch.run(other, f"in random order {at}, {name}", chooser)
    return Checked(1 + 2 * rounds, len(plan.steps()), watch.comparisons)


def _schedule(plan: Plan) -> Schedule:
    return [*plan.once, *plan.forward], plan.backward


def random_order(plan: Plan, chooser: Random) -> Schedule:
    """The operators of both passes in another legal order."""
    nodes = [*plan.once, *plan.forward, *plan.backward]
    before = predecessors(nodes)
    after: list[list[int]] = [[] for _ in nodes]
    for position, needs in enumerate(before):
        for each in needs:
            after[each].append(position)
    missing = [len(needs) for needs in before]
    start = len(plan.once)
    bounds = ((0, start), (start, start + len(plan.forward)), (start + len(plan.forward), len(nodes)))
    parts = [_shuffled(range(*each), missing, after, chooser) for each in bounds]
    once, forward, backward = ([nodes[position] for position in part] for part in parts)
    return [*once, *forward], backward


def _shuffled(part: range, missing: list[int], after: list[list[int]], chooser: Random) -> list[int]:
    """The positions of one pass, each behind what it needs; ``missing`` counts what each still waits for."""
    ready, found = [position for position in part if not missing[position]], []
    while ready:
        at = chooser.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        position = ready.pop()
        found.append(position)
        for user in after[position]:
            missing[user] -= 1
            if not missing[user] and user in part:
                ready.append(user)
    return found


def _content(plan: Plan, given: Mapping[Node, Array], positive: Collection[Node], seed: int) -> dict[Entry, Array]:
    """An array for each variable of a plan."""
    rng = np.random.default_rng(seed)
    nodes = {e.node: None for node in (*plan.once, *plan.forward, *plan.backward) for e in node.inputs}
    nodes |= {entry.node: None for entry in plan.graph.wanted()}
    found = {}
    for node in nodes:
        if node.is_variable:
            entry = Entry(node, 0)
            shape, dtype = plan.graph.shapes[entry], plan.graph.dtypes[entry]
            low, high = (0.5, 1.5) if node in positive else (-1, 1)
            numbers = rng.uniform(low, high, shape) if is_floating(dtype) else rng.integers(0, 2, shape)
            found[entry] = np.array(given.get(node, numbers), dtype).reshape(shape)
    return found
