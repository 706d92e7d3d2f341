"""Recomputation: the backward pass recomputes values, so that they need not be kept.

A recomputed node gets a copy in the backward pass, which reads the results of the copy; those of the node are freed in
the forward pass. Copies run just before they are needed (``LATE`` in ``planning/order.py``). Their results are bitwise
equal: nodes that draw random numbers, run user code or write a variable are never copied, and BatchNorm's copy does not
update the moving statistics (``ops/compiled/recomputed.py``).

The nodes are chosen by the user (``force_mirroring``), by MXNet's rule (``mirror``), or to fit into a memory budget
(``recompute_choice.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from flowmx.errors import BudgetError
from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.recompute_candidates import RecomputeCandidates
from flowmx.graph.passes.recompute_choice import choose
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning.live_bytes import external
from flowmx.graph.planning.order import LATE
from flowmx.graph.reports.sizes import format_bytes
from flowmx.ops.compiled.recomputed import RECOMPUTED
from flowmx.ops.nn.common import non_defaults

FORCE = ("__force_mirroring__", "force_mirroring")
_ATTEMPTS = 4
"""The number of attempts at a choice whose plan is larger than its estimated peak."""


def recompute(graph: Graph, options: Options) -> Graph:
    """Recompute the nodes that the options request, or that must be recomputed to fit into their budget.

    Raises:
        BudgetError: no plan within the budget was found.
    """
    if options.budget is not None:
        return fit(graph, options, options.budget).graph
    forced = [node for node in graph.forward() if is_forced(node)] if graph.gradients else []
    if not forced and not (options.mirror and graph.gradients):
        return graph
    repeats = RecomputeCandidates(graph)
    chosen = repeats.select(lambda index: options.mirror and is_cheap(repeats.nodes[index]), forced=is_forced)
    before, after = repeats.measure(())[0], repeats.measure(chosen)[0]
    if not forced and after >= before:
        return graph.with_notes("nothing is recomputed: it would save no memory")
    return _with_note(recompute_nodes(graph, [repeats.nodes[index] for index in chosen]), before, after)


def fit(
    graph: Graph, options: Options, budget: int, repeats: RecomputeCandidates | None = None,
    make: Callable[[Graph], Plan] | None = None,
) -> Plan:  # fmt: skip
    """Return the plan that recomputes as little as possible so that its internal values fit into a budget.

    Args:
        graph: the graph.
        options: the compiler options.
        budget: the maximum size of internal values in bytes.
        repeats: the recomputable nodes, if it is known that the graph does not fit as it is.
        make: makes a plan (default: as the compiler does if all outputs have external memory).

    Raises:
        BudgetError: no plan within the budget was found.
    """
    make = make or (lambda candidate: make_plan(candidate, external(candidate), (), options))
    if repeats is None:
        plain = make(graph)
        if plain.internal_bytes() <= budget:
            return plain
        repeats = RecomputeCandidates(graph, workspace_bytes(plain))
    before, target, minimum = repeats.measure(())[0], budget, 0
    for attempts in reversed(range(_ATTEMPTS)):
        choice = choose(repeats, target if attempts else 0)  # at last the smallest choice
        recomputed = recompute_nodes(graph, [repeats.nodes[index] for index in choice.recomputed])
        plan = make(recomputed)
        nbytes = plan.internal_bytes()
        if nbytes <= budget:
            plan.graph = _with_note(recomputed, before, choice.peak)
            return plan
        minimum = min(minimum or nbytes, nbytes)
        if choice.peak > target:
            break  # there is no smaller choice
        target -= nbytes - budget
    raise BudgetError(_advice(repeats, options, budget, minimum))


def workspace_bytes(plan: Plan) -> dict[Node, int]:
    """Return the size in bytes of the workspace that steps of a plan need while they run."""
    return {node: plan.lives[place].size for node, place in plan.workspace.items()}


def _with_note(graph: Graph, before: int, after: int) -> Graph:
    """Return a graph with a note about its recomputed nodes."""
    count = sum(LATE in node.attributes for node in graph.nodes())
    if not count:
        return graph.with_notes("nothing is recomputed: the backward pass reads none of the requested values")
    return graph.with_notes(
        f"{count} nodes are recomputed for the backward pass: at most {format_bytes(after)} are alive, not "
        f"{format_bytes(before)}"
    )


def _advice(repeats: RecomputeCandidates, options: Options, budget: int, minimum: int) -> str:
    """Return a message why a budget is too small, and what would help."""
    if not (options.share and options.in_place):
        hint = "let values share memory: FLOWMX_EXEC_ENABLE_INPLACE=1 and FLOWMX_EXEC_MATCH_RANGE=10"
    else:
        largest = max(range(len(repeats.nodes)), key=repeats.touched_bytes)
        node = repeats.nodes[largest]
        hint = (
            f"the step that uses the most memory is {node.name!r} ({node.op!r}) with "
            f"{repeats.touched_bytes(largest)} bytes; a smaller batch makes every value smaller"
        )
    return (
        f"the internal values do not fit into a budget of {budget} bytes: with all possible recomputation they take at "
        f"least {minimum} bytes; raise FLOWMX_EXEC_MEMORY_BUDGET to that, or reduce memory: {hint}"
    )


def is_forced(node: Node) -> bool:
    """Return whether the user has requested recomputation of a node."""
    return any(node.attributes.get(key, "").lower() in ("true", "1") for key in FORCE)


def is_cheap(node: Node) -> bool:
    """Return whether ``mirror`` recomputes a node."""
    return node.op is not None and node.op.traits.mirrored and not node.op.traits.heavy


def recompute_nodes(graph: Graph, nodes: Collection[Node], shapes_too: bool = False) -> Graph:
    """Make the backward pass read copies of forward nodes, which it computes itself.

    Args:
        graph: the graph.
        nodes: the nodes to copy.
        shapes_too: also read copies where only their shape is used, which otherwise needs no copy.
    """
    rewriter, chosen = Rewriter(graph), set(nodes)
    forward = {node for node in graph.forward() if node.op is not None}
    copies: dict[Entry, Entry] = {}
    for node in rewriter.nodes:
        if node in forward:
            if node in chosen:
                _copy(rewriter, node, copies)
        elif node.op is not None:
            read = node.inputs if shapes_too else node.contents()
            copied = {entry: copies[entry] for entry in read if entry in copies}
            inputs = tuple([copied.get(entry, rewriter.new(entry)) for entry in node.inputs])
            if inputs != node.inputs:
                new = Node(node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin)
                for index in range(node.outputs()):
                    rewriter.replace(Entry(node, index), Entry(new, index))
    return rewriter.result()


def _copy(rewriter: Rewriter, node: Node, copies: dict[Entry, Entry]) -> None:
    """Create the copy of a forward node."""
    assert node.op is not None
    op = node.op
    inputs = tuple([copies.get(entry, entry) for entry in node.inputs])
    if op.name in RECOMPUTED:
        cls = RECOMPUTED[op.name]
        stateless = bool(op.updated_inputs(rewriter.graph.train))
        op = cls.create(**non_defaults(op), stateless=stateless)
        inputs += tuple([Entry(node, index) for index in cls.outputs_read])
    copy = Node(op, f"{node.name} again", inputs, {**node.attributes, LATE: "1"}, None, node.origin)
    for index in range(copy.outputs()):
        copies[Entry(node, index)] = Entry(copy, index)
        rewriter.shapes[Entry(copy, index)] = rewriter.shapes[Entry(node, index)]
        rewriter.dtypes[Entry(copy, index)] = rewriter.dtypes[Entry(node, index)]
