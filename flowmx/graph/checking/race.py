"""The race check: does a plan give bit-identical results in every valid order and with shared memory?

A plan relies on two claims: values that share memory are never alive at the same time, and a step only depends on its
:func:`~flowmx.graph.graph.predecessors`. A wrong claim often has no effect, since a released value is still there and
the usual order happens to be right. So the check runs the plan

* in its order, with every byte that holds no value overwritten after each step;
* in random valid orders without shared memory, which reveals missing predecessors;
* in random valid orders with new plans, with shared memory and free bytes overwritten.

Each value is compared with that of a run without sharing: when written, at each read, and at the end.
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
    """Counts of a successful check.

    Attributes:
        plans: the number of plans that were run.
        steps: the steps of each.
        comparisons: the number of compared values.
    """

    plans: int
    steps: int
    comparisons: int


def check(
    symbol: Any,
    rounds: int = 5,
    seed: int = 0,
    is_train: bool = True,
    values: Mapping[str, object] | None = None,
    options: Options | None = None,
    **shapes: Sequence[int],
) -> Checked:
    """Check the plan of a symbol.

    Args:
        symbol: the network. User code (Custom) in it raises an error, since it need not be reproducible.
        rounds: the number of random orders to try.
        seed: the seed of the orders, the content and random operators.
        is_train: check a training step, with gradients of all floating-point arguments; otherwise prediction.
        values: content for arguments and auxiliary states by name, which also sets their shapes (default: small random
            numbers).
        options: the compiler options (default: from the settings).
        **shapes: the shapes of the inputs, by name, as for ``simple_bind``.

    Raises:
        RaceError: the plan is wrong.
        ValueError: the symbol contains user code, or has no argument of a given name.
        ShapeError: the shapes do not match, or are not sufficient.

    Example:
        >>> race.check(net, data=(2, 3, 32, 32), rounds=10)
        Checked(plans=22, steps=104, comparisons=8123)
    """
    options = options or options_of("cpu")
    arguments, auxiliary = symbol._variables()
    nodes, variables = symbol.nodes(), {node.name: node for node in (*arguments, *auxiliary)}
    _refuse(nodes, {*shapes, *(values or {})}, variables)
    content = {variables[name]: np.asarray(value) for name, value in (values or {}).items()}
    variable_shapes = {node: array.shape for node, array in content.items()}
    variable_shapes |= {variables[name]: tuple(shape) for name, shape in shapes.items()}
    all_shapes = infer.known_shapes(nodes, variable_shapes)
    dtypes = infer.infer_types(nodes, dict.fromkeys(variables.values()))
    grad_variables = [node for node in arguments if is_train and is_floating(dtypes[Entry(node, 0)])]
    graph = graph_of(symbol.entries, grad_variables, all_shapes, dtypes, is_train, cpu(0))
    plan = compile_graph(graph, direct=grad_variables, options=options)
    return check_plan(plan, options, content, auxiliary, rounds, seed)


def _refuse(nodes: Sequence[Node], names: Collection[str], arguments: Collection[str]) -> None:
    for node in nodes:
        if node.op is not None and node.op.traits.detached:
            raise ValueError(f"race check: {node.name} ({node.op!r}) is user code, which need not be reproducible")
    for name in names:
        if name not in arguments:
            raise ValueError(f"race check: there is no argument {name!r}, expected one of {sorted(arguments)}")


def check_plan(
    plan: Plan,
    options: Options,
    content: Mapping[Node, Array] | None = None,
    positive: Collection[Node] = (),
    rounds: int = 5,
    seed: int = 0,
) -> Checked:
    """Check a plan, and other plans for its graph in other orders.

    Args:
        plan: the plan.
        options: the compiler options of the other plans.
        content: arrays for variables (default: small random numbers).
        positive: variables whose random numbers must be positive (variances).
        rounds: the number of random orders to try.
        seed: the seed of the orders, the content and random operators.

    Raises:
        RaceError: the plan is wrong.
    """
    separate_options = replace(options, in_place=False, share=False, workers=1)
    comparison = Comparison(plan, _content(plan, content or {}, positive, seed), seed)
    comparison.record(make_plan(plan.graph, plan.external, options=separate_options, schedule=_schedule(plan)))
    chooser = Random(seed)
    comparison.run(plan, "in the plan's own order", chooser)
    for index in range(rounds):
        schedule = random_order(plan, chooser)
        for plan_options, name in ((separate_options, "with no memory shared"), (options, "with a new plan")):
            other = make_plan(plan.graph, plan.external, options=plan_options, schedule=schedule)
            comparison.run(other, f"in random order {index}, {name}", chooser)
    return Checked(1 + 2 * rounds, len(plan.steps()), comparison.comparisons)


def _schedule(plan: Plan) -> Schedule:
    return [*plan.once, *plan.forward], plan.backward


def random_order(plan: Plan, chooser: Random) -> Schedule:
    """Return the operators of both passes in another valid order."""
    nodes = [*plan.once, *plan.forward, *plan.backward]
    before = predecessors(nodes)
    after: list[list[int]] = [[] for _ in nodes]
    for position, needs in enumerate(before):
        for earlier in needs:
            after[earlier].append(position)
    missing = [len(needs) for needs in before]
    start = len(plan.once)
    bounds = ((0, start), (start, start + len(plan.forward)), (start + len(plan.forward), len(nodes)))
    parts = [_shuffle(range(*bound), missing, after, chooser) for bound in bounds]
    once, forward, backward = ([nodes[position] for position in part] for part in parts)
    return [*once, *forward], backward


def _shuffle(part: range, missing: list[int], after: list[list[int]], chooser: Random) -> list[int]:
    """Return the positions of one pass in a valid random order; ``missing`` counts the pending predecessors of each."""
    ready, result = [position for position in part if not missing[position]], []
    while ready:
        index = chooser.randrange(len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        position = ready.pop()
        result.append(position)
        for user in after[position]:
            missing[user] -= 1
            if not missing[user] and user in part:
                ready.append(user)
    return result


def _content(plan: Plan, values: Mapping[Node, Array], positive: Collection[Node], seed: int) -> dict[Entry, Array]:
    """Return an array for each variable of a plan."""
    rng = np.random.default_rng(seed)
    nodes = {e.node: None for node in (*plan.once, *plan.forward, *plan.backward) for e in node.inputs}
    nodes |= {entry.node: None for entry in plan.graph.results()}
    content = {}
    for node in nodes:
        if node.is_variable:
            entry = Entry(node, 0)
            shape, dtype = plan.graph.shapes[entry], plan.graph.dtypes[entry]
            low, high = (0.5, 1.5) if node in positive else (-1, 1)
            numbers = rng.uniform(low, high, shape) if is_floating(dtype) else rng.integers(0, 2, shape)
            content[entry] = np.array(values.get(node, numbers), dtype).reshape(shape)
    return content
