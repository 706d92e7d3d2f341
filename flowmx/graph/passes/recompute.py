"""Recomputation: values that the backward pass computes again, so that they need not be kept.

A node that is computed again gets a copy in the backward pass, which reads the copy's results; the node's own die in
the forward pass. Copies run just before they are needed (``LATE`` in ``planning/order.py``). They give the same to the
last bit: what draws random numbers, runs user code or writes a variable is never copied, and BatchNorm's copy leaves
the moving statistics alone (``ops/compiled/recomputed.py``).

Which nodes are computed again is said by the user (``force_mirroring``), by MXNet's rule (``mirror``), or chosen to fit
into so many bytes (``budget.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from flowmx.errors import BudgetError
from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.budget import choose
from flowmx.graph.passes.repeat import Repeats
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning.live import external
from flowmx.graph.planning.order import LATE
from flowmx.graph.reports.sizes import in_words
from flowmx.ops.compiled.recomputed import AGAIN
from flowmx.ops.nn.common import bound

FORCE = ("__force_mirroring__", "force_mirroring")
_TRIES = 4
"""Number of times that a choice is tightened whose plan is larger than the bytes that are alive."""


def recompute(graph: Graph, options: Options) -> Graph:
    """Compute again what the options say, or what must be to fit into their budget.

    Raises:
        BudgetError: nothing that was found fits.
    """
    if options.budget is not None:
        return fit(graph, options, options.budget).graph
    forced = [node for node in graph.forward() if is_forced(node)] if graph.gradients else []
    if not forced and not (options.mirror and graph.gradients):
        return graph
    repeats = Repeats(graph)
    chosen = repeats.select(lambda at: options.mirror and is_cheap(repeats.nodes[at]), forced=is_forced)
    before, after = repeats.weigh(())[0], repeats.weigh(chosen)[0]
    if not forced and after >= before:
        return graph.with_notes("nothing is computed again: it would save no memory")
    return _with_note(compute_again(graph, [repeats.nodes[at] for at in chosen]), before, after)


def fit(
    graph: Graph, options: Options, budget: int, repeats: Repeats | None = None,
    planned: Callable[[Graph], Plan] | None = None,
) -> Plan:  # fmt: skip
    """The plan that computes as little again as makes the internal values fit into so many bytes.

    Args:
        graph: the graph.
        options: how it will be planned.
        budget: the bytes.
        repeats: what may be computed again, where it is known that the graph does not fit as it is.
        planned: makes a plan; by default as the compiler does where all outputs get memory from outside.

    Raises:
        BudgetError: nothing that was found fits.
    """
    planned = planned or (lambda made: make_plan(made, external(made), (), options))
    if repeats is None:
        plain = planned(graph)
        if plain.internal_bytes() <= budget:
            return plain
        repeats = Repeats(graph, in_workspaces(plain))
    before, target, least = repeats.weigh(())[0], budget, 0
    for left in reversed(range(_TRIES)):
        choice = choose(repeats, target if left else 0)  # at last the smallest of all
        made = compute_again(graph, [repeats.nodes[at] for at in choice.again])
        plan = planned(made)
        found = plan.internal_bytes()
        if found <= budget:
            plan.graph = _with_note(made, before, choice.peak)
            return plan
        least = min(least or found, found)
        if choice.peak > target:
            break  # there is nothing smaller
        target -= found - budget
    raise BudgetError(_advice(repeats, options, budget, least))


def in_workspaces(plan: Plan) -> dict[Node, int]:
    """The bytes that steps of a plan need while they run."""
    return {node: plan.lives[place].size for node, place in plan.workspace.items()}


def _with_note(made: Graph, before: int, after: int) -> Graph:
    """The new graph, with a note of what is computed again."""
    count = sum(LATE in node.attributes for node in made.nodes())
    if not count:
        return made.with_notes("nothing is computed again: the backward pass reads none of what was asked for")
    return made.with_notes(
        f"{count} nodes are computed again for the backward pass: {in_words(after)} are alive at most, not "
        f"{in_words(before)}"
    )


def _advice(repeats: Repeats, options: Options, budget: int, least: int) -> str:
    """Why a budget cannot be kept, and what would help."""
    if not (options.share and options.in_place):
        hint = "let values share memory: FLOWMX_EXEC_ENABLE_INPLACE=1 and FLOWMX_EXEC_MATCH_RANGE=10"
    else:
        largest = max(range(len(repeats.nodes)), key=repeats.touched)
        node = repeats.nodes[largest]
        hint = (
            f"the step that touches the most is {node.name!r} ({node.op!r}) with {repeats.touched(largest)} bytes; a "
            "smaller batch makes every value smaller"
        )
    return (
        f"the internal values do not fit into a budget of {budget} bytes: the least that was found is {least} bytes, "
        f"by computing again what can be; raise FLOWMX_EXEC_MEMORY_BUDGET to that, or need less: {hint}"
    )


def is_forced(node: Node) -> bool:
    """True if the user has asked for this node to be computed again."""
    return any(node.attributes.get(key, "").lower() in ("true", "1") for key in FORCE)


def is_cheap(node: Node) -> bool:
    """True if ``mirror`` computes this node again."""
    return node.op is not None and node.op.traits.mirrored and not node.op.traits.heavy


def compute_again(graph: Graph, nodes: Collection[Node], shapes_too: bool = False) -> Graph:
    """Let the backward pass read copies of these nodes of the forward pass, which it computes itself.

    Args:
        graph: the graph.
        nodes: those to copy.
        shapes_too: read copies also where the shape alone is looked at, for which else none is made.
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
            again = {entry: copies[entry] for entry in read if entry in copies}
            inputs = tuple([again.get(entry, rewriter.new(entry)) for entry in node.inputs])
            if inputs != node.inputs:
                made = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin)
                for index in range(node.outputs()):
                    rewriter.replace(Entry(node, index), Entry(made, index))
    return rewriter.result()


def _copy(rewriter: Rewriter, node: Node, copies: dict[Entry, Entry]) -> None:
    """Make the node that computes a node of the forward pass again."""
    assert node.op is not None
    op = node.op
    inputs = tuple([copies.get(entry, entry) for entry in node.inputs])
    if op.name in AGAIN:
        cls = AGAIN[op.name]
        stateless = bool(op.moved_inputs(rewriter.graph.train))
        op = cls.create(**bound(op), stateless=stateless)
        inputs += tuple([Entry(node, index) for index in cls.outputs_read])
    made = Node(op, f"{node.name} again", inputs, {**node.attributes, LATE: "1"}, None, node.origin)
    for index in range(made.outputs()):
        copies[Entry(node, index)] = Entry(made, index)
        rewriter.shapes[Entry(made, index)] = rewriter.shapes[Entry(node, index)]
        rewriter.dtypes[Entry(made, index)] = rewriter.dtypes[Entry(node, index)]
