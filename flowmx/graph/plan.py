"""From a graph to a plan: the steps in order, and where in one arena of memory every value lives.

Pure: nothing is allocated here; the executor allocates the arena and runs the steps. Values may share bytes once
they are done with, across the forward and the backward pass: a backward pass leaves no values for another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowmx.graph import memory
from flowmx.graph.layout import channels_last
from flowmx.graph.memory import Life, Packing, pack
from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.dtypes import DType
from flowmx.ops.registry import Shape

# Operators whose output is their first input's bytes with another shape: they need no step of their own.
VIEWS = frozenset({"Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like"})


@dataclass
class Plan:
    """What runs, in which order, and where every value lives.

    Attributes:
        forward, backward: the nodes to run, in order.
        outputs: the entries that the user asked for.
        gradients: for each differentiated variable, the entry of its gradient.
        root: for an entry that is a view, the entry whose bytes it shows.
        place: the number of the place in the arena of each entry that has one; those that work in place share it.
        lives: the bytes of each place, and the steps between which it is needed.
        arena: where each place lies.
        channels_last: the entries that lie channels-last in their place.
        keeps_values: True where no value is written over, so that a backward pass may run again.
    """

    forward: list[Node]
    backward: list[Node]
    outputs: list[Entry]
    gradients: dict[Node, Entry]
    shapes: Mapping[Entry, Shape]
    dtypes: Mapping[Entry, DType]
    root: dict[Entry, Entry] = field(default_factory=dict)
    place: dict[Entry, int] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    arena: Packing = field(default_factory=lambda: Packing([], 0))
    channels_last: frozenset[Entry] = frozenset()
    keeps_values: bool = False

    def nbytes(self, entry: Entry) -> int:
        """Bytes of one entry."""
        return math.prod(self.shapes[entry]) * self.dtypes[entry].itemsize

    def internal_bytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.size

    def unshared_bytes(self) -> int:
        """What the values would take if none shared anything."""
        return sum(self.nbytes(entry) for entry in self.place)

    def lower_bound(self) -> int:
        """The largest sum of bytes alive at one step, below which no arena can be."""
        return memory.lower_bound(self.lives)


def make_plan(
    outputs: Sequence[Entry],
    gradients: Mapping[Node, Entry],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
    external: Iterable[Entry],
    in_place: bool = True,
    share: bool = True,
    lay_out: bool = False,
) -> Plan:
    """Order the nodes, and let values that never live at the same time share memory.

    Args:
        outputs: what the user asked for.
        gradients: an entry for each differentiated variable.
        shapes: of every entry.
        dtypes: likewise.
        external: entries that get memory from outside (outputs and gradients written in place).
        in_place: let an operator write over an input that is done with.
        share: let values that never live at the same time share memory.
        lay_out: let values lie channels-last where kernels are faster then.
    """
    external = set(external)
    forward = [node for node in topological(outputs) if not node.is_variable]
    before = set(forward)
    backward = [node for node in topological(gradients.values()) if not node.is_variable and node not in before]
    plan = Plan(forward, backward, list(outputs), dict(gradients), shapes, dtypes, keeps_values=not (in_place or share))
    if lay_out:
        plan.channels_last = channels_last((*forward, *backward), shapes, dtypes, external)
    for node in (*forward, *backward):
        if node.op is not None and node.op.name in VIEWS and node.inputs[0] not in plan.channels_last:
            source = node.inputs[0]
            plan.root[Entry(node, 0)] = plan.root.get(source, source)
    _place(plan, external, in_place, share)
    return plan


def _place(plan: Plan, external: set[Entry], in_place: bool, share: bool) -> None:
    """Say which entries share a place in the arena, how long each place is needed, and where it lies."""
    steps = [node for node in (*plan.forward, *plan.backward) if Entry(node, 0) not in plan.root]
    last_use = _last_uses(plan, steps)
    first: list[int] = []
    for step, node in enumerate(steps):
        taken: set[Entry] = set()
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in external:
                continue
            donor = _in_place_donor(plan, node, index, step, last_use, taken) if in_place else None
            if donor is not None:
                taken.add(donor)
                plan.place[entry] = plan.place[donor]
            else:
                plan.place[entry] = len(first)
                first.append(step)
    size, last = [0] * len(first), [0] * len(first)
    for entry, place in plan.place.items():
        size[place] = max(size[place], plan.nbytes(entry))
        last[place] = max(last[place], last_use[entry])
    plan.lives = [Life(*each) for each in zip(size, first, last, strict=True)]
    plan.arena = pack(plan.lives) if share else memory.apart(plan.lives)


def _last_uses(plan: Plan, steps: Sequence[Node]) -> dict[Entry, int]:
    """For each entry with bytes of its own, the last step that touches it (one past the end: kept)."""
    kept = len(steps)
    last: dict[Entry, int] = {}
    for step, node in enumerate(steps):
        for index in range(node.outputs()):
            last[Entry(node, index)] = step
    for step, node in enumerate(steps):
        for entry in node.inputs:
            root = plan.root.get(entry, entry)
            if not root.node.is_variable:
                last[root] = max(last[root], step)
    for entry in (*plan.outputs, *plan.gradients.values()):
        root = plan.root.get(entry, entry)
        if not root.node.is_variable:
            last[root] = kept
    return last


def _in_place_donor(
    plan: Plan, node: Node, index: int, step: int, last_use: Mapping[Entry, int], taken: set[Entry]
) -> Entry | None:
    """An input whose buffer this output may take over, or None."""
    assert node.op is not None
    roots = [plan.root.get(entry, entry) for entry in node.inputs]
    for position, output in node.op.in_place:
        if output != index or position >= len(roots):
            continue
        root = roots[position]
        if (
            root in plan.place
            and root not in taken
            and last_use[root] == step
            and roots.count(root) == 1
            and plan.nbytes(root) == plan.nbytes(Entry(node, index))
            and (root in plan.channels_last) == (Entry(node, index) in plan.channels_last)
        ):
            return root
    return None
