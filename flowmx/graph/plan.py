"""From a graph to a plan: the steps in order, and where in its arenas of memory every value lives.

Pure: nothing is allocated here; whoever runs the plan allocates the arenas (one for each device) and runs the
steps. Values may share bytes once they are done with, across the forward and the backward pass: a backward pass
leaves no values for another one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowmx.devices import Context
from flowmx.graph.graph import Graph, Options
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning import memory
from flowmx.graph.planning.branches import branch
from flowmx.graph.planning.layout import channels_last
from flowmx.graph.planning.memory import Life, Packing, pack
from flowmx.graph.planning.order import order
from flowmx.graph.planning.workspace import workspaces
from flowmx.ops.compiled.fused import CopyToDevice
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.operators import PLANNED


@dataclass
class Plan:
    """The execution plan of a graph: the steps, their order, and the memory of every value.

    Attributes:
        graph: what the passes made: the outputs, the gradients, shapes and dtypes.
        once: nodes whose results are kept from run to run, and computed again only when what they read has changed.
        forward, backward: the other nodes to run, in order.
        external: the entries that get memory from outside: outputs, and gradients written in place.
        kept: entries with memory of their own: results of ``once``, what another device copies, and what travels.
        travelling: the nodes that copy to or from a device with memory of its own, concurrent with what it computes.
        root: for an entry that is a view, the entry whose bytes it shows.
        place: the number of the place in an arena of each entry that has one; those that work in place share it.
        workspace: the number of the place that a step's kernel works in, for those that need one.
        lives: the bytes of each place, and the steps between which it is needed.
        arena: where each place lies in the arena of its device, and the bytes of all arenas.
        arenas: the bytes of the arena of each device (None: the only one).
        channels_last: the entries that lie channels-last in their place.
        stages: the forward and the backward pass as stages of branches (see ``branches.py``), where several workers may
            run these at the same time; empty where there is one worker.
        keeps_values: True where no value is written over, so that a backward pass may run again.
        rough: True where the arena is not small yet (see :func:`tighten`).
    """

    graph: Graph
    forward: list[Node]
    backward: list[Node]
    external: frozenset[Entry] = frozenset()
    once: list[Node] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)
    travelling: frozenset[Node] = frozenset()
    root: dict[Entry, Entry] = field(default_factory=dict)
    place: dict[Entry, int] = field(default_factory=dict)
    workspace: dict[Node, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    arena: Packing = field(default_factory=lambda: Packing([], 0))
    arenas: dict[Context | None, int] = field(default_factory=dict)
    channels_last: frozenset[Entry] = frozenset()
    stages: tuple[list[list[list[Node]]], list[list[list[Node]]]] = ([], [])
    keeps_values: bool = False
    rough: bool = False

    @property
    def outputs(self) -> tuple[Entry, ...]:
        """The entries that the user asked for."""
        return self.graph.outputs

    @property
    def gradients(self) -> Mapping[Node, Entry]:
        """For each differentiated variable, the entry of its gradient."""
        return self.graph.gradients

    def steps(self) -> list[Node]:
        """The nodes of a forward and a backward pass that compute something, in order; positions in it are times."""
        return [node for node in (*self.forward, *self.backward) if Entry(node, 0) not in self.root]

    def nbytes(self, entry: Entry) -> int:
        """Bytes of one entry."""
        return math.prod(self.graph.shapes[entry]) * self.graph.dtypes[entry].itemsize

    def internal_bytes(self) -> int:
        """Bytes of the arenas, and of what is kept outside them."""
        return self.arena.size + sum(self.nbytes(entry) for entry in self.kept)

    def picture(self, path: str | Path | None = None) -> str:
        """Draw where the values lie over the steps; see :func:`flowmx.viz.plot_memory`."""
        from flowmx.graph.reports import picture

        return picture.draw(self, path)

    def explain(self, limit: int | None = None) -> str:
        """Explain fusion, placement and memory sharing; see :func:`flowmx.graph.reports.explain.explain`."""
        from flowmx.graph.reports.explain import explain

        return explain(self, limit)

    def unshared_bytes(self) -> int:
        """Bytes of the values if no two shared memory."""
        plan = self.unfolded()
        return sum(plan.nbytes(entry) for entry in (*plan.place, *plan.kept))

    def lower_bound(self) -> int:
        """The largest sum of bytes alive at one step, below which no arena can be."""
        return memory.lower_bound(self.unfolded().lives)

    def unfolded(self) -> Plan:
        """The plan with the steps of its slices in place; see :mod:`flowmx.graph.reports.unfolded`."""
        from flowmx.graph.reports.unfolded import unfolded

        return unfolded(self)


def make_plan(
    graph: Graph,
    external: Collection[Entry] = (),
    strided: Collection[Node] = (),
    options: Options | None = None,
    schedule: tuple[list[Node], list[Node]] | None = None,
    laid: Collection[Entry] | None = None,
    rough: bool = False,
) -> Plan:
    """Order the nodes, and let values that never live at the same time share memory.

    Args:
        graph: what to compute.
        external: entries that get memory from outside (outputs and gradients written in place).
        strided: variables whose arrays do not lie densely in C order.
        options: how.
        schedule: the operators of the forward and of the backward pass in an order of one's own, which must be legal.
        laid: the entries that lie channels-last, where that is decided.
        rough: leave it to :func:`tighten` to make the arena small, which is most of the work.
    """
    options = options or Options()
    forward, backward = schedule or order(graph)
    stages = (branch(graph, forward), branch(graph, backward)) if options.workers > 1 else ([], [])
    if options.workers > 1:
        forward, backward = ([n for stage in each for chain in stage for n in chain] for each in stages)
    plan = Plan(graph, forward, backward, frozenset(external), keeps_values=not (options.in_place or options.share))
    plan.rough = rough and options.share
    if laid is not None:
        plan.channels_last = frozenset(laid)
    elif options.channels_last:
        plan.channels_last = channels_last(
            (*forward, *backward), graph.shapes, graph.dtypes, plan.external, options.channels_last
        )
    for node in (*forward, *backward):
        source = node.inputs[0] if node.op is not None and node.op.traits.view else None
        if source is not None and source not in plan.channels_last and source.node not in strided:
            plan.root[Entry(node, 0)] = plan.root.get(source, source)
    plan.once = [node for node in (*forward, *backward) if node.op is not None and node.op.traits.once]
    plan.forward = [node for node in forward if node.op is not None and not node.op.traits.once]
    plan.backward = [node for node in backward if node.op is not None and not node.op.traits.once]
    copies = [node for node in (*forward, *backward) if isinstance(node.op, CopyToDevice)]
    plan.travelling = frozenset(node for node in copies if _travels(graph, node))
    roots = [plan.root.get(node.inputs[0], node.inputs[0]) for node in copies]
    kept = [Entry(node, index) for node in plan.once for index in range(node.outputs())]
    kept += [root for root in roots if not root.node.is_variable]
    kept += [Entry(node, 0) for node in copies if node in plan.travelling]
    plan.kept = [entry for entry in dict.fromkeys(kept) if entry not in plan.external]
    plan.stages = stages
    _place(plan, options)
    return plan


def least_bytes(plan: Plan) -> int:
    """The bytes below which a rough plan on one device will not come."""
    lives = list(plan.lives)
    for node, place in _regions(plan):
        lives[place] = lives[place]._replace(size=least_bytes(node.op.plan))
    return memory.lower_bound(lives)


def tighten(plan: Plan) -> None:
    """Make the arena of a plan on one device small, if it is rough."""
    if not plan.rough:
        return
    plan.rough = False
    for node, place in _regions(plan):
        tighten(node.op.plan)
        plan.lives[place] = plan.lives[place]._replace(size=max(PLANNED, node.op.plan.arena.size))
    plan.arena = pack(plan.lives)
    plan.arenas = dict.fromkeys(plan.arenas, plan.arena.size)


def _regions(plan: Plan) -> list[tuple[Any, int]]:
    """The steps of a plan that have plans of their own, with the places that these work in."""
    return [(node, place) for node, place in plan.workspace.items() if isinstance(node.op, Sliced)]


def _travels(graph: Graph, copy: Node) -> bool:
    """Tell whether a copy has an end outside of the host's memory."""
    places = graph.context(copy), graph.context(copy.inputs[0].node)
    return any(each is not None and not each.device_type.startswith("cpu") for each in places)


def _place(plan: Plan, options: Options) -> None:
    """Say which entries share a place in the arena, how long each place is needed, and where it lies."""
    steps = plan.steps()
    last_use = _last_uses(plan, steps)
    concurrent = _concurrent_steps(plan, steps)
    elsewhere = {*plan.external, *plan.kept}
    places = plan.place
    nbytes: dict[Entry, int] = {}
    first: list[int] = []
    last: list[int] = []
    contexts: list[Context | None] = []
    for step, node in enumerate(steps):
        taken: set[Entry] = set()
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in elsewhere:
                continue
            nbytes[entry] = plan.nbytes(entry)
            donor = (
                _in_place_donor(plan, entry, step, last_use, taken, nbytes)
                if options.in_place and step not in concurrent
                else None
            )
            if donor is not None:
                taken.add(donor)
                places[entry] = place = places[donor]
                last[place] = max(last[place], last_use[entry])
            else:
                places[entry] = len(first)
                first.append(step)
                last.append(last_use[entry])
                contexts.append(plan.graph.context(node))
    size = [0] * len(first)
    for entry, place in places.items():
        size[place] = max(size[place], nbytes[entry])
    starts = [concurrent.get(step, (step, step))[0] for step in first]
    stops = [concurrent.get(step, (step, step))[1] for step in last]
    plan.lives = [Life(*each) for each in zip(size, starts, stops, strict=True)]
    contexts += _place_workspaces(plan, steps, concurrent, options)
    offsets, total = [0] * len(plan.lives), 0
    for context in dict.fromkeys(contexts):
        members = [place for place, where in enumerate(contexts) if where is context]
        lives = [plan.lives[place] for place in members]
        packing = pack(lives, plan.rough) if options.share else memory.apart(lives)
        for place, offset in zip(members, packing.offsets, strict=True):
            offsets[place] = offset
        plan.arenas[context] = packing.size
        total += packing.size
    plan.arena = Packing(offsets, total)


def _concurrent_steps(plan: Plan, steps: Sequence[Node]) -> dict[int, tuple[int, int]]:
    """For each step of a stage of concurrent steps, the first and the last step of that stage.

    A value alive at one of these is taken to be alive at all of them.
    """
    at = {node: step for step, node in enumerate(steps)}
    found: dict[int, tuple[int, int]] = {}
    for stage in (*plan.stages[0], *plan.stages[1]):
        if len(stage) > 1:
            members = [at[node] for chain in stage for node in chain if node in at]
            found.update(dict.fromkeys(members, (min(members), max(members))))
    return found


def _place_workspaces(
    plan: Plan, steps: Sequence[Node], concurrent: Mapping[int, tuple[int, int]], options: Options
) -> list[Context | None]:
    """Give each step that needs a workspace a place for it; returns the devices of these places.

    It is needed for that one step, so it shares bytes with values. Where nothing shares, as many places as the settings
    allow serve the steps of a device in turns.
    """
    contexts: list[Context | None] = []
    turns: dict[Context | None, list[int]] = {}
    for step, nbytes in workspaces(plan, steps, options).items():
        node, (first, last) = steps[step], concurrent.get(step, (step, step))
        places = turns.setdefault(plan.graph.context(node), [])
        alone = options.share or step in concurrent
        if not alone and len(places) == options.workspaces:
            place = places.pop(0)
            size, first, _ = plan.lives[place]
            plan.lives[place] = Life(max(size, nbytes), first, last)
        else:
            place = len(plan.lives)
            plan.lives.append(Life(nbytes, first, last))
            contexts.append(plan.graph.context(node))
        if not alone:
            places.append(place)
        plan.workspace[node] = place
    return contexts


def _last_uses(plan: Plan, steps: Sequence[Node]) -> dict[Entry, int]:
    """For each entry with bytes of its own, the last step that touches it (one past the end: kept)."""
    kept = len(steps)
    last: dict[Entry, int] = {}
    root_of = plan.root.get
    for step, node in enumerate(steps):
        for index in range(node.outputs()):
            last[Entry(node, index)] = step
    for step, node in enumerate(steps):
        for entry in node.contents():
            root = root_of(entry, entry)
            if root in last:
                last[root] = step  # those before it, and its own, come earlier
    for entry in (*plan.outputs, *plan.gradients.values()):
        root = plan.root.get(entry, entry)
        if root in last:
            last[root] = kept
    return last


def _in_place_donor(
    plan: Plan, made: Entry, step: int, last_use: Mapping[Entry, int], taken: set[Entry], nbytes: Mapping[Entry, int]
) -> Entry | None:
    """An input whose buffer an output may take over, or None."""
    node, index = made
    assert node.op is not None
    inputs, root_of = node.inputs, plan.root.get
    for position, output in node.op.traits.in_place:
        if output != index or position >= len(inputs):
            continue
        root = root_of(inputs[position], inputs[position])
        if (
            last_use.get(root) == step
            and root in plan.place
            and root not in taken
            and sum([root_of(entry, entry) == root for entry in inputs]) == 1
            and nbytes[root] == nbytes[made]
            and (root in plan.channels_last) == (made in plan.channels_last)
        ):
            return root
    return None
