"""From a graph to a plan: the steps in order, and which of them may share a buffer.

Pure: nothing is allocated here. A plan says, for every entry, in which numbered buffer it lives; the
executor allocates the buffers and runs the steps. Forward values that the backward steps read keep a
buffer of their own, so that ``backward`` may be called again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowmx.graph.layout import channels_last
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
        buffer: the number of the buffer of each entry that has one.
        sizes: bytes of each buffer.
        channels_last: the entries that lie channels-last in their buffer.
    """

    forward: list[Node]
    backward: list[Node]
    outputs: list[Entry]
    gradients: dict[Node, Entry]
    shapes: Mapping[Entry, Shape]
    dtypes: Mapping[Entry, DType]
    root: dict[Entry, Entry] = field(default_factory=dict)
    buffer: dict[Entry, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    channels_last: frozenset[Entry] = frozenset()

    def nbytes(self, entry: Entry) -> int:
        """Bytes of one entry."""
        return math.prod(self.shapes[entry]) * self.dtypes[entry].itemsize

    def internal_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self.sizes)

    def unshared_bytes(self) -> int:
        """What the buffers would take if every value had its own."""
        return sum(self.nbytes(entry) for entry in self.buffer)


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
    """Order the nodes and share buffers among values that never live at the same time.

    Args:
        outputs: what the user asked for.
        gradients: an entry for each differentiated variable.
        shapes: of every entry.
        dtypes: likewise.
        external: entries that get memory from outside (outputs and gradients written in place).
        in_place: let an operator write over an input that is done with.
        share: let values that never live at the same time share a buffer.
        lay_out: let values lie channels-last where kernels are faster then.
    """
    external = set(external)
    forward = [node for node in topological(outputs) if not node.is_variable]
    before = set(forward)
    backward = [node for node in topological(gradients.values()) if not node.is_variable and node not in before]
    plan = Plan(forward, backward, list(outputs), dict(gradients), shapes, dtypes)
    if lay_out:
        plan.channels_last = channels_last((*forward, *backward), shapes, dtypes, external)
    for node in (*forward, *backward):
        if node.op is not None and node.op.name in VIEWS and node.inputs[0] not in plan.channels_last:
            source = node.inputs[0]
            plan.root[Entry(node, 0)] = plan.root.get(source, source)
    _place(plan, external, in_place, share)
    return plan


def _place(plan: Plan, external: set[Entry], in_place: bool, share: bool) -> None:
    """Give every entry that needs one a buffer, step by step."""
    steps = [node for node in (*plan.forward, *plan.backward) if Entry(node, 0) not in plan.root]
    first_backward = len([node for node in plan.forward if Entry(node, 0) not in plan.root])
    last_use = _last_uses(plan, steps, first_backward)
    free: dict[int, list[int]] = {}
    dies: dict[int, list[Entry]] = {}
    for entry, step in last_use.items():
        dies.setdefault(step, []).append(entry)
    for step, node in enumerate(steps):
        op = node.op
        assert op is not None
        taken: set[Entry] = set()
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in external:
                continue
            size = plan.nbytes(entry)
            donor = _in_place_donor(plan, node, index, step, last_use, taken) if in_place else None
            if donor is not None:
                taken.add(donor)
                plan.buffer[entry] = plan.buffer[donor]
            elif free.get(size):
                plan.buffer[entry] = free[size].pop()
            else:
                plan.buffer[entry] = len(plan.sizes)
                plan.sizes.append(size)
        for entry in dies.get(step, ()):
            if share and entry in plan.buffer and entry not in taken:
                number = plan.buffer[entry]
                free.setdefault(plan.sizes[number], []).append(number)


def _last_uses(plan: Plan, steps: Sequence[Node], first_backward: int) -> dict[Entry, int]:
    """For each entry with bytes of its own, the last step that touches it (one past the end: kept)."""
    kept = len(steps)
    last: dict[Entry, int] = {}
    position = {node: step for step, node in enumerate(steps)}
    for step, node in enumerate(steps):
        for index in range(node.outputs()):
            last[Entry(node, index)] = step
    for user, step in position.items():
        for entry in user.inputs:
            root = plan.root.get(entry, entry)
            if not root.node.is_variable:
                crosses = step >= first_backward > position[root.node]
                last[root] = kept if crosses else max(last[root], step)
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
            root in plan.buffer
            and root not in taken
            and last_use[root] == step
            and roots.count(root) == 1
            and plan.nbytes(root) == plan.nbytes(Entry(node, index))
            and (root in plan.channels_last) == (Entry(node, index) in plan.channels_last)
        ):
            return root
    return None
