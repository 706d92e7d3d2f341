"""Plans of graphs: the steps in order, and the place of every value in the memory arenas.

A plan allocates nothing: the code that runs it allocates the arenas, one for each device. Values of both passes with
disjoint lifetimes share memory, so the values are overwritten before a second backward pass.
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
from flowmx.graph.planning import arena_packing
from flowmx.graph.planning.arena_packing import Life, Packing, pack
from flowmx.graph.planning.branches import branch
from flowmx.graph.planning.channels_last import channels_last
from flowmx.graph.planning.order import order
from flowmx.graph.planning.workspace import workspaces
from flowmx.ops.compiled.fused_layers import CopyToDevice
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.kernels import PLANNED


@dataclass
class Plan:
    """The execution plan of a graph: the steps, their order, and the memory of every value.

    Attributes:
        graph: the result of the passes: the outputs, the gradients, shapes and dtypes.
        once: nodes with results that are reused between runs, and recomputed only after their inputs change.
        forward, backward: the other nodes to run, in order.
        external: the entries with external memory: outputs, and gradients written directly.
        separate: entries with separate memory: results of ``once``, sources of copies between devices, and transfers.
        transfers: the nodes that copy to or from a device with separate memory, concurrent with its computation.
        root: the viewed entry of each view.
        place: the number of the arena place of each internal entry; values computed in place share one.
        workspace: the number of the place that a step's kernel uses as its workspace.
        lives: the size of each place in bytes, and the first and last step that use it.
        arena: the offset of each place in the arena of its device, and the bytes of all arenas.
        arenas: the size of the arena of each device in bytes (None: the only device).
        channels_last: the entries with channels-last layout.
        stages: the forward and the backward pass as stages of branches (see ``branches.py``), which several workers may
            run concurrently; empty with one worker.
        keeps_values: whether no value is overwritten, so that a backward pass may run again.
        rough: whether the arena has not been minimized yet (see :func:`tighten`).
    """

    graph: Graph
    forward: list[Node]
    backward: list[Node]
    external: frozenset[Entry] = frozenset()
    once: list[Node] = field(default_factory=list)
    separate: list[Entry] = field(default_factory=list)
    transfers: frozenset[Node] = frozenset()
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
        """The entries that the user requested."""
        return self.graph.outputs

    @property
    def gradients(self) -> Mapping[Node, Entry]:
        """For each differentiated variable, the entry of its gradient."""
        return self.graph.gradients

    def steps(self) -> list[Node]:
        """Return the computing nodes of a forward and a backward pass, in order; positions in the list are times."""
        return [node for node in (*self.forward, *self.backward) if Entry(node, 0) not in self.root]

    def nbytes(self, entry: Entry) -> int:
        """Return the size of one entry in bytes."""
        return math.prod(self.graph.shapes[entry]) * self.graph.dtypes[entry].itemsize

    def internal_bytes(self) -> int:
        """Return the total size of the arenas and of the separate entries, in bytes."""
        return self.arena.size + sum(self.nbytes(entry) for entry in self.separate)

    def picture(self, path: str | Path | None = None) -> str:
        """Draw the places of the values over the steps; see :func:`flowmx.viz.plot_memory`."""
        from flowmx.graph.reports import picture

        return picture.draw(self, path)

    def explain(self, limit: int | None = None) -> str:
        """Explain fusion, placement and memory sharing; see :func:`flowmx.graph.reports.explain.explain`."""
        from flowmx.graph.reports.explain import explain

        return explain(self, limit)

    def unshared_bytes(self) -> int:
        """Return the bytes that the values would take without sharing memory."""
        plan = self.unfold()
        return sum(plan.nbytes(entry) for entry in (*plan.place, *plan.separate))

    def lower_bound(self) -> int:
        """Return the largest sum of bytes alive at one step, a lower bound of the arena."""
        return arena_packing.lower_bound(self.unfold().lives)

    def unfold(self) -> Plan:
        """Return the plan with the steps of its slices expanded; see :mod:`flowmx.graph.reports.unfolded`."""
        from flowmx.graph.reports.unfolded import unfold

        return unfold(self)


def make_plan(
    graph: Graph,
    external: Collection[Entry] = (),
    strided: Collection[Node] = (),
    options: Options | None = None,
    schedule: tuple[list[Node], list[Node]] | None = None,
    layout: Collection[Entry] | None = None,
    rough: bool = False,
) -> Plan:
    """Order the nodes, and place values so that those with disjoint lifetimes share memory.

    Args:
        graph: the graph to compute.
        external: entries with external memory (outputs, and gradients written directly).
        strided: variables whose arrays are not dense in C order.
        options: the compiler options.
        schedule: a valid order of the operators of the forward and of the backward pass (default: computed).
        layout: the entries with channels-last layout (default: chosen here).
        rough: do not minimize the arena, which takes most of the time; :func:`tighten` does it later.
    """
    options = options or Options()
    forward, backward = schedule or order(graph)
    stages = (branch(graph, forward), branch(graph, backward)) if options.workers > 1 else ([], [])
    if options.workers > 1:
        forward, backward = ([n for stage in pass_stages for chain in stage for n in chain] for pass_stages in stages)
    plan = Plan(graph, forward, backward, frozenset(external), keeps_values=not (options.in_place or options.share))
    plan.rough = rough and options.share
    if layout is not None:
        plan.channels_last = frozenset(layout)
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
    plan.transfers = frozenset(node for node in copies if _is_transfer(graph, node))
    roots = [plan.root.get(node.inputs[0], node.inputs[0]) for node in copies]
    separate = [Entry(node, index) for node in plan.once for index in range(node.outputs())]
    separate += [root for root in roots if not root.node.is_variable]
    separate += [Entry(node, 0) for node in copies if node in plan.transfers]
    plan.separate = [entry for entry in dict.fromkeys(separate) if entry not in plan.external]
    plan.stages = stages
    _place(plan, options)
    return plan


def least_bytes(plan: Plan) -> int:
    """Return a lower bound of the arena of a rough plan on one device."""
    lives = list(plan.lives)
    for node, place in _regions(plan):
        lives[place] = lives[place]._replace(size=least_bytes(node.op.plan))
    return arena_packing.lower_bound(lives)


def tighten(plan: Plan) -> None:
    """Minimize the arena of a rough plan on one device."""
    if not plan.rough:
        return
    plan.rough = False
    for node, place in _regions(plan):
        tighten(node.op.plan)
        plan.lives[place] = plan.lives[place]._replace(size=max(PLANNED, node.op.plan.arena.size))
    plan.arena = pack(plan.lives)
    plan.arenas = dict.fromkeys(plan.arenas, plan.arena.size)


def _regions(plan: Plan) -> list[tuple[Any, int]]:
    """Return the steps of a plan that run subplans, with the places of their workspaces."""
    return [(node, place) for node, place in plan.workspace.items() if isinstance(node.op, Sliced)]


def _is_transfer(graph: Graph, copy: Node) -> bool:
    """Return whether the source or the target of a copy is outside the host's memory."""
    contexts = graph.context(copy), graph.context(copy.inputs[0].node)
    return any(context is not None and not context.device_type.startswith("cpu") for context in contexts)


def _place(plan: Plan, options: Options) -> None:
    """Assign places in the arena to entries, compute the lifetime of each place, and pack them."""
    steps = plan.steps()
    last_use = _last_uses(plan, steps)
    concurrent = _concurrent_steps(plan, steps)
    outside_arena = {*plan.external, *plan.separate}
    places = plan.place
    nbytes: dict[Entry, int] = {}
    first: list[int] = []
    last: list[int] = []
    contexts: list[Context | None] = []
    for step, node in enumerate(steps):
        donors: set[Entry] = set()
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in outside_arena:
                continue
            nbytes[entry] = plan.nbytes(entry)
            donor = (
                _in_place_donor(plan, entry, step, last_use, donors, nbytes)
                if options.in_place and step not in concurrent
                else None
            )
            if donor is not None:
                donors.add(donor)
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
    plan.lives = [Life(*life) for life in zip(size, starts, stops, strict=True)]
    contexts += _place_workspaces(plan, steps, concurrent, options)
    offsets, total = [0] * len(plan.lives), 0
    for context in dict.fromkeys(contexts):
        members = [place for place, place_context in enumerate(contexts) if place_context is context]
        lives = [plan.lives[place] for place in members]
        packed = pack(lives, plan.rough) if options.share else arena_packing.pack_separately(lives)
        for place, offset in zip(members, packed.offsets, strict=True):
            offsets[place] = offset
        plan.arenas[context] = packed.size
        total += packed.size
    plan.arena = Packing(offsets, total)


def _concurrent_steps(plan: Plan, steps: Sequence[Node]) -> dict[int, tuple[int, int]]:
    """Return the first and the last step of the stage of each concurrent step.

    A value alive at one step of a stage counts as alive at all of them.
    """
    positions = {node: step for step, node in enumerate(steps)}
    spans: dict[int, tuple[int, int]] = {}
    for stage in (*plan.stages[0], *plan.stages[1]):
        if len(stage) > 1:
            members = [positions[node] for chain in stage for node in chain if node in positions]
            spans.update(dict.fromkeys(members, (min(members), max(members))))
    return spans


def _place_workspaces(
    plan: Plan, steps: Sequence[Node], concurrent: Mapping[int, tuple[int, int]], options: Options
) -> list[Context | None]:
    """Assign a place to each step that needs a workspace; return the devices of these places.

    A workspace is used by one step, so it shares bytes with values. If sharing is off, the steps of a device use a
    limited number of places in rotation.
    """
    contexts: list[Context | None] = []
    rotations: dict[Context | None, list[int]] = {}
    for step, nbytes in workspaces(plan, steps, options).items():
        node, (first, last) = steps[step], concurrent.get(step, (step, step))
        places = rotations.setdefault(plan.graph.context(node), [])
        is_exclusive = options.share or step in concurrent
        if not is_exclusive and len(places) == options.workspaces:
            place = places.pop(0)
            size, first, _ = plan.lives[place]
            plan.lives[place] = Life(max(size, nbytes), first, last)
        else:
            place = len(plan.lives)
            plan.lives.append(Life(nbytes, first, last))
            contexts.append(plan.graph.context(node))
        if not is_exclusive:
            places.append(place)
        plan.workspace[node] = place
    return contexts


def _last_uses(plan: Plan, steps: Sequence[Node]) -> dict[Entry, int]:
    """Return the last step that uses each entry that is not a view; for results, one past the last step."""
    end = len(steps)
    last: dict[Entry, int] = {}
    root_of = plan.root.get
    for step, node in enumerate(steps):
        for index in range(node.outputs()):
            last[Entry(node, index)] = step
    for step, node in enumerate(steps):
        for entry in node.contents():
            root = root_of(entry, entry)
            if root in last:
                last[root] = step  # steps are visited in order
    for entry in (*plan.outputs, *plan.gradients.values()):
        root = plan.root.get(entry, entry)
        if root in last:
            last[root] = end
    return last


def _in_place_donor(
    plan: Plan,
    output: Entry,
    step: int,
    last_use: Mapping[Entry, int],
    donors: set[Entry],
    nbytes: Mapping[Entry, int],
) -> Entry | None:
    """Return an input whose buffer an output may overwrite (in-place sharing), or None."""
    node, index = output
    assert node.op is not None
    inputs, root_of = node.inputs, plan.root.get
    for position, number in node.op.traits.in_place:
        if number != index or position >= len(inputs):
            continue
        root = root_of(inputs[position], inputs[position])
        if (
            last_use.get(root) == step
            and root in plan.place
            and root not in donors
            and sum([root_of(entry, entry) == root for entry in inputs]) == 1
            and nbytes[root] == nbytes[output]
            and (root in plan.channels_last) == (output in plan.channels_last)
        ):
            return root
    return None
