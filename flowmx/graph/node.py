"""The nodes of a computation graph. A node never changes once it is made; passes make new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flowmx.engine import Origin, describe
from flowmx.ops.registry.operators import Operator


class Node:
    """A variable, or an operator applied to entries of other nodes.

    Attributes:
        op: the operator with its parameters, or None for a variable.
        name: unique among what the user sees, as MXNet's.
        inputs: the entries it reads, auxiliary states last.
        attributes: texts of the user (``__lr_mult__``, ``ctx_group``, ...).
        given: an operator's parameters as the user wrote them, for the JSON.
        origin: the line that made it.
        versions: for a node from a file, how often each input had been written in place (see
            :func:`input_versions`).
    """

    __slots__ = ("attributes", "given", "inputs", "name", "op", "origin", "versions")

    def __init__(
        self,
        op: Operator | None,
        name: str,
        inputs: tuple[Entry, ...] = (),
        attributes: Mapping[str, str] | None = None,
        given: Mapping[str, str] | None = None,
        origin: Origin | None = None,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        self.versions = versions
        self.op = op
        self.name = name
        self.inputs = inputs
        self.attributes = dict(attributes) if attributes else {}
        self.given = dict(given) if given else {}
        self.origin = origin

    def over(self, inputs: tuple[Entry, ...], attributes: Mapping[str, str] | None = None) -> Node:
        """The same operator over other inputs, for a pass that rewrites a graph.

        Args:
            inputs: as many as it has.
            attributes: in place of its own, which the new node shares.
        """
        made = Node.__new__(Node)
        made.op, made.name, made.inputs = self.op, self.name, inputs
        made.attributes = self.attributes if attributes is None else dict(attributes)
        made.given, made.origin, made.versions = self.given, self.origin, None
        return made

    @classmethod
    def beside(cls, source: Node, op: Operator, name: str, inputs: tuple[Entry, ...]) -> Node:
        """A node that was made for the sake of another one: of its line, with its attributes."""
        made = cls.__new__(cls)
        made.op, made.name, made.inputs = op, name, inputs
        made.attributes, made.given, made.versions = source.attributes.copy(), {}, None
        made.origin = source.origin
        return made

    @property
    def is_variable(self) -> bool:
        """True for an input of the graph."""
        return self.op is None

    def outputs(self) -> int:
        """Number of outputs, hidden ones included."""
        return 1 if self.op is None else len(self.op.outputs())

    def contents(self) -> tuple[Entry, ...]:
        """The inputs whose content it reads; of the others it looks at shape and dtype alone."""
        alone = () if self.op is None else self.op.only_shapes()
        return tuple([entry for at, entry in enumerate(self.inputs) if at not in alone]) if alone else self.inputs

    def visible_outputs(self) -> int:
        """Number of outputs that the user sees."""
        return 1 if self.op is None else self.op.visible_outputs()

    def output_name(self, index: int) -> str:
        """The name of one output, as ``list_outputs`` gives it."""
        return self.name if self.op is None else f"{self.name}_{self.op.outputs()[index]}"

    def auxiliary_from(self) -> int:
        """The position of the first auxiliary state among the inputs."""
        return len(self.inputs) - (len(self.op.auxiliary) if self.op is not None else 0)

    def place(self) -> str:
        """The user's line that made the node, for messages."""
        return describe(self.origin)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.op!r}>" if self.op is not None else f"<Variable {self.name}>"


class Entry(NamedTuple):
    """One output of a node.

    A plain pair ``(node, index)`` finds the same in a dict and is made in a fifth of the time, of which passes over big
    graphs make use.
    """

    node: Node
    index: int  # type: ignore[assignment]  # the field's usual name; nobody looks for tuple.index on it


def topological(entries: Iterable[Entry]) -> list[Node]:
    """Every node that the entries depend on, inputs before users, in the order of a depth-first walk.

    The order is that of MXNet, on which the order of ``list_arguments`` rests.
    """
    order: dict[Node, None] = {}
    walk(entries, order)
    return list(order)


def walk(entries: Iterable[Entry], order: dict[Node, None]) -> None:
    """Add the nodes that entries depend on to those that are in order already, as :func:`topological` does."""
    for root, _ in entries:
        stack = [(root, iter(root.inputs))] if root not in order else []
        while stack:
            node, left = stack[-1]
            for source, _ in left:
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
    """The variables that an operator uses as auxiliary states, in order."""
    found: dict[Node, None] = {}
    positions: dict[Operator, tuple[int, ...]] = {}
    for node in nodes:
        op = node.op
        if op is None:
            continue
        if op not in positions:
            positions[op] = op.auxiliary_positions()
        if positions[op]:
            found.update((node.inputs[position].node, None) for position in positions[op])
    return found


def input_versions(nodes: Iterable[Node]) -> tuple[dict[Node, tuple[int, ...]], dict[Node, int]]:
    """Count in-place writes before each node: for each of its inputs, and in all for each variable, as in MXNet's JSON.

    An operator that updates an input (an auxiliary state) makes a new version of the variable and reads that.
    """
    current: dict[Node, int] = {}
    table: dict[Node, tuple[int, ...]] = {}
    for node in nodes:
        if node.op is None:
            continue
        if node.versions is None:
            written = {*node.op.updates, *node.op.auxiliary_positions()}
            for position in written:
                source = node.inputs[position].node
                current[source] = current.get(source, 0) + 1
            table[node] = tuple(current.get(entry.node, 0) for entry in node.inputs)
        else:
            table[node] = node.versions
            for entry, version in zip(node.inputs, node.versions, strict=True):
                current[entry.node] = max(current.get(entry.node, 0), version)
    return table, current
