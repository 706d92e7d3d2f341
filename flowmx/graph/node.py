"""Nodes of a computation graph. Nodes are immutable; passes create new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flowmx.engine import Origin, describe
from flowmx.ops.registry.operators import Operator


class Node:
    """A variable, or an operator applied to entries of other nodes.

    Attributes:
        op: the operator with its parameters, or None for a variable.
        name: unique among the nodes that the user sees, as in MXNet.
        inputs: the entries it reads, auxiliary states last.
        attributes: string attributes set by the user (``__lr_mult__``, ``ctx_group``, ...).
        user_parameters: the operator's parameters as the user wrote them, for the JSON.
        origin: the user's line that created the node.
        versions: for a node from a file, how often each input had been written in place (see
            :func:`input_versions`).
    """

    __slots__ = ("attributes", "inputs", "name", "op", "origin", "user_parameters", "versions")

    def __init__(
        self,
        op: Operator | None,
        name: str,
        inputs: tuple[Entry, ...] = (),
        attributes: Mapping[str, str] | None = None,
        user_parameters: Mapping[str, str] | None = None,
        origin: Origin | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        self.versions = versions
        self.op = op
        self.name = name
        self.inputs = inputs
        self.attributes = dict(attributes) if attributes else {}
        self.user_parameters = dict(user_parameters) if user_parameters else {}
        self.origin = origin

    def with_inputs(self, inputs: tuple[Entry, ...], attributes: Mapping[str, str] | None = None) -> Node:
        """Return a node with the same operator and other inputs, for passes that rewrite a graph.

        Args:
            inputs: as many as before.
            attributes: replacements; without them the new node shares this node's attributes.
        """
        node = Node.__new__(Node)
        node.op, node.name, node.inputs = self.op, self.name, inputs
        node.attributes = self.attributes if attributes is None else dict(attributes)
        node.user_parameters, node.origin, node.versions = self.user_parameters, self.origin, None
        return node

    @classmethod
    def derive(cls, source: Node, op: Operator, name: str, inputs: tuple[Entry, ...]) -> Node:
        """Return a new node with the origin and the attributes of ``source``, such as a part of its gradient."""
        node = cls.__new__(cls)
        node.op, node.name, node.inputs = op, name, inputs
        node.attributes, node.user_parameters, node.versions = source.attributes.copy(), {}, None
        node.origin = source.origin
        return node

    @property
    def is_variable(self) -> bool:
        """Whether the node is an input of the graph."""
        return self.op is None

    def outputs(self) -> int:
        """Return the number of outputs, hidden ones included."""
        return 1 if self.op is None else len(self.op.outputs())

    def contents(self) -> tuple[Entry, ...]:
        """Return the inputs whose contents the operator reads; it uses only shape and dtype of the others."""
        unread = () if self.op is None else self.op.shape_only_inputs()
        return (
            tuple([entry for index, entry in enumerate(self.inputs) if index not in unread]) if unread else self.inputs
        )

    def visible_outputs(self) -> int:
        """Return the number of outputs that the user sees."""
        return 1 if self.op is None else self.op.visible_outputs()

    def output_name(self, index: int) -> str:
        """Return the name of an output, as ``list_outputs`` shows it."""
        return self.name if self.op is None else f"{self.name}_{self.op.outputs()[index]}"

    def auxiliary_from(self) -> int:
        """Return the position of the first auxiliary state among the inputs."""
        return len(self.inputs) - (len(self.op.auxiliary) if self.op is not None else 0)

    def place(self) -> str:
        """Return the user's line that created the node, for messages."""
        return describe(self.origin)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.op!r}>" if self.op is not None else f"<Variable {self.name}>"


class Entry(NamedTuple):
    """One output of a node.

    A plain pair ``(node, index)`` is an equal dict key and five times cheaper to create; passes over big graphs use it.
    """

    node: Node
    index: int  # type: ignore[assignment]  # the usual name; tuple.index is not used


def topological(entries: Iterable[Entry]) -> list[Node]:
    """Return every node that the entries depend on, inputs before users, in depth-first order.

    The order matches MXNet's, which determines the order of ``list_arguments``.
    """
    order: dict[Node, None] = {}
    walk(entries, order)
    return list(order)


def walk(entries: Iterable[Entry], order: dict[Node, None]) -> None:
    """Append the nodes that the entries depend on to ``order``, in the order of :func:`topological`."""
    for root, _ in entries:
        stack = [(root, iter(root.inputs))] if root not in order else []
        while stack:
            node, sources = stack[-1]
            for source, _ in sources:
                if source in order:
                    continue
                if source.inputs:
                    stack.append((source, iter(source.inputs)))
                    break
                order[source] = None  # a leaf: the most common case
            else:
                stack.pop()
                order[node] = None


def auxiliary_nodes(nodes: Iterable[Node]) -> dict[Node, None]:
    """Return the variables that operators use as auxiliary states, in order."""
    states: dict[Node, None] = {}
    positions: dict[Operator, tuple[int, ...]] = {}
    for node in nodes:
        op = node.op
        if op is None:
            continue
        if op not in positions:
            positions[op] = op.auxiliary_positions()
        if positions[op]:
            states.update((node.inputs[position].node, None) for position in positions[op])
    return states


def input_versions(nodes: Iterable[Node]) -> tuple[dict[Node, tuple[int, ...]], dict[Node, int]]:
    """Count in-place writes before each node, per input, and in total per variable, as in MXNet's JSON.

    An operator that updates an input (an auxiliary state) creates a new version of the variable and reads that version.
    """
    current: dict[Node, int] = {}
    table: dict[Node, tuple[int, ...]] = {}
    for node in nodes:
        if node.op is None:
            continue
        if node.versions is None:
            positions = {*node.op.updates, *node.op.auxiliary_positions()}
            for position in positions:
                source = node.inputs[position].node
                current[source] = current.get(source, 0) + 1
            table[node] = tuple(current.get(entry.node, 0) for entry in node.inputs)
        else:
            table[node] = node.versions
            for entry, version in zip(node.inputs, node.versions, strict=True):
                current[entry.node] = max(current.get(entry.node, 0), version)
    return table, current
