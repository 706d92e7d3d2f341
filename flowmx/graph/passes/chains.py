"""Chains of elementwise operators become one loop over memory.

Each of them alone reads its inputs from memory and writes its output there, which takes longer than to compute it. As
one operator (:class:`flowmx.ops.compiled.chain.Chain`) they keep what is between them in registers.

Operators are visited from the last to the first. One joins the earliest group that reads its value, and its value is
an output of the group where something later reads it too. A group runs where its last member stood; so whatever goes
from one group to another goes forward in the old order, and no circle can come about, however many outputs there are.
What a joining operator reads must then live until the group runs. So that plans do not grow for that, it joins only
where this holds for no more bytes than its value had, or where nothing but elementwise operators runs in between.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from flowmx.devices import Context
from flowmx.graph.graph import Graph, Options, Rewriter, is_pure
from flowmx.graph.node import Entry, Node
from flowmx.ops import kernels
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.math.binary import Broadcasting
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Form, Operator, Shape

MOST_OPERATORS = 64
MOST_ARRAYS = 16
MOST_WEIGHT = 400
"""Instructions of a loop, about: more take longer to compile than a user likes to wait."""
SHORTEST_ROW = 16
"""Elements along which a broadcast array goes on or stands still, at least."""
LEAST_BROADCAST = 1 << 14
"""Elements from which one operator that broadcasts becomes a loop by itself."""

Place = tuple[Context | None, Shape, DType, bool]
"""Key that all members of a group share: device, shape and dtype of their values, and the pass that they are in."""


@dataclass(eq=False)
class _Group:
    """Operators that are to be one chain.

    Attributes:
        place: what they have in common.
        end: where in the old order it runs.
        weight: about how many instructions it takes.
        members: from the last to the first.
        inputs: what it reads.
        outputs: the members whose value others read.
    """

    place: Place
    end: int
    weight: int = 0
    members: list[Node] = field(default_factory=list)
    inputs: dict[Entry, None] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)

    def add(self, node: Node, weight: int, is_output: bool) -> None:
        """Let an operator in."""
        self.members.append(node)
        self.weight += weight
        self.inputs.pop((node, 0), None)  # type: ignore[call-overload]  # found by a plain pair
        self.inputs.update(dict.fromkeys(node.inputs))
        if is_output:
            self.outputs.append(node)


def fuse_chains(graph: Graph, options: Options) -> Graph:
    """One node for each group of elementwise operators that one loop can compute."""
    groups = [group for group in _Search(graph, options).groups if len(group.members) > 1 or _is_worth_it(graph, group)]
    if not groups:
        return graph
    member_of = {node: group for group in groups for node in group.members}
    rewriter = Rewriter(graph)
    at = {node: position for position, node in enumerate(rewriter.nodes)}
    for node in rewriter.nodes:
        group = member_of.get(node)
        if node.op is None or (group is not None and node is not group.members[0]):
            continue
        if group is None:
            rewriter.keep(node)
        else:
            # An output takes the memory of the first input that is done with: of what has been there for longest.
            _put(rewriter, group, sorted(group.inputs, key=lambda entry: at[entry.node]))
    return rewriter.result()


def _is_worth_it(graph: Graph, group: _Group) -> bool:
    """Tell whether a chain of one operator pays off: large broadcast arrays, which its own kernel leaves to NumPy."""
    _, shape, _, _ = group.place
    return math.prod(shape) >= LEAST_BROADCAST and any(graph.shapes[entry] != shape for entry in group.inputs)


def _put(rewriter: Rewriter, group: _Group, inputs: Sequence[Entry]) -> None:
    """Put a chain of these inputs in the place of a group."""
    members = group.members[::-1]
    numbers: dict[Any, int] = {entry: number for number, entry in enumerate(inputs)}
    links = []
    for number, node in enumerate(members, len(inputs)):
        assert node.op is not None
        numbers[node, 0] = number
        links.append(Link(node.op, tuple([numbers[entry] for entry in node.inputs]), node.name))
    results = [Entry(node, 0) for node in group.outputs[::-1]]
    chain = Chain.of(len(inputs), links, [numbers[entry] for entry in results])
    made = rewriter.make(chain, [rewriter.new(entry) for entry in inputs], members[-1])
    for index, entry in enumerate(results):
        rewriter.replace(entry, Entry(made, index))
    names = ", ".join([node.name for node in members])
    rewriter.note(f"{names} are one loop" if len(members) > 1 else f"{names} is a loop that broadcasts")


class _Search:
    """The search for groups; see the module's essay.

    Attributes:
        groups: what was found; those of one member too.
    """

    def __init__(self, graph: Graph, options: Options) -> None:
        self.groups: list[_Group] = []
        self._graph = graph
        self._forward = set(graph.forward())
        self._wanted = set(graph.wanted())
        nodes = [node for node in graph.nodes() if node.op is not None]
        self._at = {node: position for position, node in enumerate(nodes)}
        self._may_join: dict[Operator, bool] = {}
        self._known: dict[Any, int | None] = {}
        self._kernels: dict[Context | None, str] = {None: options.device_type}
        self._places: dict[Node, Place] = {}
        self._weights = {node: weight for node in nodes if (weight := self._weight(node)) is not None}
        self._others = [0, *accumulate([node not in self._weights for node in nodes])]
        """For each position, how many operators before it can be in no group."""
        self._users, self._last = self._reading(nodes)
        self._group_of: dict[Node, _Group] = {}
        for node in reversed(nodes):
            if node in self._weights:
                self._visit(node)

    def _reading(self, nodes: Sequence[Node]) -> tuple[dict[Node, list[Node]], dict[Entry, int]]:
        """For each node its readers, and for each entry the position of its last reader."""
        users: defaultdict[Node, list[Node]] = defaultdict(list)
        last: dict[Entry, int] = {}
        for at, node in enumerate(nodes):
            for entry in node.inputs:
                users[entry[0]].append(node)
                last[entry] = at
        return users, last

    def _weight(self, node: Node) -> int | None:
        """The weight of a node as a member of a group, whose place is noted; None if it can not be in any."""
        op, graph, inputs = node.op, self._graph, node.inputs
        assert op is not None
        if op not in self._may_join:
            self._may_join[op] = _may_join(op)
        if not self._may_join[op] or len(inputs) >= MOST_ARRAYS:
            return None
        shapes: Any = graph.shapes
        dtypes: Any = graph.dtypes
        shape, dtype, context = shapes[node, 0], dtypes[node, 0], graph.context(node)
        key = (op, context, shape, dtype, *[shapes[entry] for entry in inputs], *[dtypes[entry] for entry in inputs])
        if key not in self._known:
            if context is not None and context not in self._kernels:
                self._kernels[context] = context.kernels
            forms = [(shapes[entry], dtypes[entry]) for entry in inputs]
            self._known[key] = _weight(op, self._kernels[context], (shape, dtype), forms)
        weight = self._known[key]
        if weight is not None:
            self._places[node] = context, shape, dtype, node in self._forward
        return weight

    def _visit(self, node: Node) -> None:
        """Let a node join a group, or found one."""
        users, group_of, last = self._users.get(node, ()), self._group_of, self._last
        first = users[0] if len(users) == 1 else min(users, key=self._runs_at, default=None)
        group = None if first is None else group_of.get(first)
        if group is None or not self._fits(node, group):
            group = _Group(self._places[node], self._at[node])
            self.groups.append(group)
        is_output = (node, 0) in self._wanted or not all(group_of.get(user) is group for user in users)
        group.add(node, self._weights[node], is_output)
        group_of[node] = group
        end = group.end
        for entry in node.inputs:
            if last[entry] < end:
                last[entry] = end

    def _runs_at(self, node: Node) -> int:
        """The position at which an operator, or the group that it is in, runs."""
        group = self._group_of.get(node)
        return self._at[node] if group is None else group.end

    def _fits(self, node: Node, group: _Group) -> bool:
        """Tell whether a node may join a group."""
        if group.place != self._places[node] or len(group.members) >= MOST_OPERATORS:
            return False
        if group.weight + self._weights[node] > MOST_WEIGHT:
            return False
        arrays = len(group.inputs) + len(group.outputs) + len(node.inputs)
        if arrays > MOST_ARRAYS and len({*group.inputs, *node.inputs}) + len(group.outputs) > MOST_ARRAYS:
            return False
        if self._others[self._at[node]] == self._others[group.end]:
            return True
        last, end = self._last, group.end
        longer = [entry for entry in dict.fromkeys(node.inputs) if last[entry] < end and entry[0].op is not None]
        return not longer or sum(map(self._nbytes, longer)) <= self._nbytes(Entry(node, 0))

    def _nbytes(self, entry: Entry) -> int:
        return math.prod(self._graph.shapes[entry]) * self._graph.dtypes[entry].itemsize


def _may_join(op: Operator) -> bool:
    """Tell whether an operator can be a member of a group for some inputs."""
    return len(op.outputs()) == 1 and is_pure(op) and not op.traits.mode_matters and not op.traits.once


def _weight(op: Operator, device_type: str, made: Form, given: Sequence[Form]) -> int | None:
    """The weight of an operator with one output of this form, for inputs of these; None where it can be no member."""
    whole, dtype = made
    for shape, kind in given:
        if kind != dtype:
            return None
        if shape != whole and not (isinstance(op, Broadcasting) and _walks_well(shape, whole)):
            return None
    return kernels.weight_of_link(device_type, op, dtype, len(given)) if math.prod(whole) else None


def _walks_well(shape: Shape, whole: Shape) -> bool:
    """Tell whether a broadcast array has long enough contiguous (or constant) rows for the loop over a shape."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    row, stands = 1, None
    for length, full in zip(reversed(padded), reversed(whole), strict=True):
        if full != 1:
            if stands not in (None, length == 1):
                return row >= SHORTEST_ROW
            row, stands = row * full, length == 1
    return True
