"""Fuse chains of elementwise operators into one loop over memory.

A separate operator reads its inputs from memory and writes its output there, which takes longer than the computation.
One operator for the chain (:class:`flowmx.ops.compiled.chain.Chain`) keeps intermediate values in registers.

Operators are visited from the last to the first. An operator joins the earliest group that reads its value, which is an
output of the group if a later operator reads it too. A group runs at the position of its last member. So values pass
between groups only forward in the old order, and there can be no cycle, however many outputs there are. The inputs of a
joining operator must then live until the group runs. To keep plans small, it joins only if this affects no more bytes
than its value has, or if only elementwise operators run in between.
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

MAX_OPERATORS = 64
MAX_ARRAYS = 16
MAX_WEIGHT = 400
"""The approximate number of instructions of a loop, beyond which it takes too long to compile."""
MIN_ROW = 16
"""The smallest number of elements along which a broadcast array is contiguous or constant."""
MIN_BROADCAST = 1 << 14
"""The number of elements from which a single broadcasting operator becomes a loop."""

GroupKey = tuple[Context | None, Shape, DType, bool]
"""A key that all members of a group share: device, shape and dtype of their values, and the pass."""


@dataclass(eq=False)
class _Group:
    """Operators that will become one chain.

    Attributes:
        group_key: the key that they share.
        end: the position in the old order where it runs.
        weight: the approximate number of instructions.
        members: its operators, from the last to the first.
        inputs: the entries that it reads.
        outputs: the members whose value others read.
    """

    group_key: GroupKey
    end: int
    weight: int = 0
    members: list[Node] = field(default_factory=list)
    inputs: dict[Entry, None] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)

    def add(self, node: Node, weight: int, is_output: bool) -> None:
        """Add an operator."""
        self.members.append(node)
        self.weight += weight
        self.inputs.pop(Entry(node, 0), None)
        self.inputs.update(dict.fromkeys(node.inputs))
        if is_output:
            self.outputs.append(node)


def fuse_chains(graph: Graph, options: Options) -> Graph:
    """Replace each group of elementwise operators that one loop can compute with one node."""
    groups = [group for group in _Search(graph, options).groups if len(group.members) > 1 or _is_worth_it(graph, group)]
    if not groups:
        return graph
    member_of = {node: group for group in groups for node in group.members}
    rewriter = Rewriter(graph)
    positions = {node: position for position, node in enumerate(rewriter.nodes)}
    for node in rewriter.nodes:
        group = member_of.get(node)
        if node.op is None or (group is not None and node is not group.members[0]):
            continue
        if group is None:
            rewriter.keep(node)
        else:
            # An output takes the memory of the first input without later readers: of the oldest value.
            _replace(rewriter, group, sorted(group.inputs, key=lambda entry: positions[entry.node]))
    return rewriter.result()


def _is_worth_it(graph: Graph, group: _Group) -> bool:
    """Return whether a chain of one operator pays off: large broadcast arrays, which its kernel leaves to NumPy."""
    _, shape, _, _ = group.group_key
    return math.prod(shape) >= MIN_BROADCAST and any(graph.shapes[entry] != shape for entry in group.inputs)


def _replace(rewriter: Rewriter, group: _Group, inputs: Sequence[Entry]) -> None:
    """Replace a group with a chain that reads these inputs."""
    members = group.members[::-1]
    numbers: dict[Any, int] = {entry: number for number, entry in enumerate(inputs)}
    links = []
    for number, node in enumerate(members, len(inputs)):
        assert node.op is not None
        numbers[node, 0] = number
        links.append(Link(node.op, tuple([numbers[entry] for entry in node.inputs]), node.name))
    results = [Entry(node, 0) for node in group.outputs[::-1]]
    chain = Chain.of(len(inputs), links, [numbers[entry] for entry in results])
    chain_node = rewriter.make(chain, [rewriter.new(entry) for entry in inputs], members[-1])
    for index, entry in enumerate(results):
        rewriter.replace(entry, Entry(chain_node, index))
    names = ", ".join([node.name for node in members])
    rewriter.note(f"{names} are one loop" if len(members) > 1 else f"{names} is a loop that broadcasts")


class _Search:
    """The search for groups; see the module's docstring.

    Attributes:
        groups: the groups, including those of one member.
    """

    def __init__(self, graph: Graph, options: Options) -> None:
        self.groups: list[_Group] = []
        self._graph = graph
        self._forward = set(graph.forward())
        self._results = set(graph.results())
        nodes = [node for node in graph.nodes() if node.op is not None]
        self._at = {node: position for position, node in enumerate(nodes)}
        self._may_join: dict[Operator, bool] = {}
        self._weight_cache: dict[Any, int | None] = {}
        self._kernels: dict[Context | None, str] = {None: options.device_type}
        self._group_keys: dict[Node, GroupKey] = {}
        self._weights = {node: weight for node in nodes if (weight := self._weight(node)) is not None}
        self._others = [0, *accumulate([node not in self._weights for node in nodes])]
        """For each position, the number of earlier operators that cannot be in a group."""
        self._users, self._last = self._find_readers(nodes)
        self._group_of: dict[Node, _Group] = {}
        for node in reversed(nodes):
            if node in self._weights:
                self._visit(node)

    def _find_readers(self, nodes: Sequence[Node]) -> tuple[dict[Node, list[Node]], dict[Entry, int]]:
        """Return the readers of each node, and the position of the last reader of each entry."""
        users: defaultdict[Node, list[Node]] = defaultdict(list)
        last: dict[Entry, int] = {}
        for index, node in enumerate(nodes):
            for entry in node.inputs:
                users[entry[0]].append(node)
                last[entry] = index
        return users, last

    def _weight(self, node: Node) -> int | None:
        """Return the weight of a node as a member of a group, and record its key; None if it cannot be in a group."""
        op, graph, inputs = node.op, self._graph, node.inputs
        assert op is not None
        if op not in self._may_join:
            self._may_join[op] = _may_join(op)
        if not self._may_join[op] or len(inputs) >= MAX_ARRAYS:
            return None
        shapes: Any = graph.shapes
        dtypes: Any = graph.dtypes
        shape, dtype, context = shapes[node, 0], dtypes[node, 0], graph.context(node)
        key = (op, context, shape, dtype, *[shapes[entry] for entry in inputs], *[dtypes[entry] for entry in inputs])
        if key not in self._weight_cache:
            if context is not None and context not in self._kernels:
                self._kernels[context] = context.kernels
            forms = [(shapes[entry], dtypes[entry]) for entry in inputs]
            self._weight_cache[key] = _weight(op, self._kernels[context], (shape, dtype), forms)
        weight = self._weight_cache[key]
        if weight is not None:
            self._group_keys[node] = context, shape, dtype, node in self._forward
        return weight

    def _visit(self, node: Node) -> None:
        """Add a node to a group, or to a new one."""
        users, group_of, last = self._users.get(node, ()), self._group_of, self._last
        first = users[0] if len(users) == 1 else min(users, key=self._runs_at, default=None)
        group = None if first is None else group_of.get(first)
        if group is None or not self._fits(node, group):
            group = _Group(self._group_keys[node], self._at[node])
            self.groups.append(group)
        is_output = (node, 0) in self._results or not all(group_of.get(user) is group for user in users)
        group.add(node, self._weights[node], is_output)
        group_of[node] = group
        end = group.end
        for entry in node.inputs:
            if last[entry] < end:
                last[entry] = end

    def _runs_at(self, node: Node) -> int:
        """Return the position at which an operator, or its group, runs."""
        group = self._group_of.get(node)
        return self._at[node] if group is None else group.end

    def _fits(self, node: Node, group: _Group) -> bool:
        """Return whether a node may join a group."""
        if group.group_key != self._group_keys[node] or len(group.members) >= MAX_OPERATORS:
            return False
        if group.weight + self._weights[node] > MAX_WEIGHT:
            return False
        arrays = len(group.inputs) + len(group.outputs) + len(node.inputs)
        if arrays > MAX_ARRAYS and len({*group.inputs, *node.inputs}) + len(group.outputs) > MAX_ARRAYS:
            return False
        if self._others[self._at[node]] == self._others[group.end]:
            return True
        last, end = self._last, group.end
        longer = [entry for entry in dict.fromkeys(node.inputs) if last[entry] < end and entry[0].op is not None]
        return not longer or sum(map(self._nbytes, longer)) <= self._nbytes(Entry(node, 0))

    def _nbytes(self, entry: Entry) -> int:
        return math.prod(self._graph.shapes[entry]) * self._graph.dtypes[entry].itemsize


def _may_join(op: Operator) -> bool:
    """Return whether an operator can be a member of a group for some inputs."""
    return len(op.outputs()) == 1 and is_pure(op) and not op.traits.mode_matters and not op.traits.once


def _weight(op: Operator, device_type: str, output: Form, inputs: Sequence[Form]) -> int | None:
    """Return the weight of an operator for an output and inputs of these forms; None if it cannot be a member."""
    whole, dtype = output
    for shape, kind in inputs:
        if kind != dtype:
            return None
        if shape != whole and not (isinstance(op, Broadcasting) and _has_long_rows(shape, whole)):
            return None
    return kernels.weight_of_link(device_type, op, dtype, len(inputs)) if math.prod(whole) else None


def _has_long_rows(shape: Shape, whole: Shape) -> bool:
    """Return whether a broadcast array has long enough contiguous (or constant) rows for the loop over a shape."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    row, is_constant = 1, None
    for length, full in zip(reversed(padded), reversed(whole), strict=True):
        if full != 1:
            if is_constant not in (None, length == 1):
                return row >= MIN_ROW
            row, is_constant = row * full, length == 1
    return True
