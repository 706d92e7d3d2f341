"""Casts for mixed precision, inserted where operators want another floating type than their inputs have.

:class:`flowmx.ndarray.core.Casting` says which; :func:`insert_casts` is pure. A value is cast to a type once, however
many operators want it so, and its cast is called ``<value>_amp_cast_<type>``, as MXNet's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowmx.graph import infer
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray.core import Casting
from flowmx.ops.control.control_flow import Flow
from flowmx.ops.optimizers.mixed_precision import AmpCast, AmpMulticast
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone


def insert_casts(entries: Sequence[Entry], known: Mapping[Node, DType | None], casting: Casting) -> list[Entry]:
    """The outputs of the graph with casts.

    Args:
        entries: the outputs of the graph.
        known: the dtypes of variables; what nothing says is float32.
        casting: says what is to be cast.
    """
    return Inserting(known, casting).graph(entries)


def inferred(
    entries: Sequence[Entry], shapes: Mapping[Node, ShapeOrNone], dtypes: Mapping[Node, DType], casting: Casting | None
) -> tuple[tuple[Entry, ...], dict[Entry, Shape], dict[Entry, DType]]:
    """The outputs of the graph, with casts where there is mixed precision, and the shape and dtype of every entry.

    Args:
        entries: the outputs of the graph.
        shapes: of variables.
        dtypes: likewise.
        casting: says what is to be cast (None: nothing).

    Raises:
        ShapeError, TypeInferenceError: they contradict each other, or a shape is unknown.
    """
    entries = tuple(entries if casting is None else insert_casts(entries, dtypes, casting))
    nodes = topological(entries)
    found = infer.from_variables(nodes, shapes, dtypes)
    if found is not None:
        return entries, *found
    all_shapes = infer.known_shapes(nodes, shapes)
    return entries, all_shapes, infer.infer_types(nodes, dtypes, all_shapes)


class Inserting:
    """A graph on its way to one with casts.

    Args:
        known: as for :func:`insert_casts`.
        casting: as there.
        free: variables that take the type of the other inputs where they are read by an operator for which nothing is
            to be cast, in place of their own.

    Attributes:
        dtypes: of the new graph's entries.
        nodes: what stands for each old operator.
    """

    def __init__(
        self, known: Mapping[Node, DType | None], casting: Casting, free: Collection[Node] = frozenset()
    ) -> None:
        self._free = set(free)
        self.dtypes: dict[Entry, DType] = {}
        self.nodes: dict[Node, Node] = {}
        self._known = known
        self._casting = casting
        self._casts: dict[tuple[Entry, DType], Entry] = {}

    def graph(self, entries: Sequence[Entry]) -> list[Entry]:
        """The outputs of the new graph."""
        nodes = topological(entries)
        found = infer.partial_types([node for node in nodes if node.is_variable], self._known)
        for node in nodes:
            if node.op is None:
                self.dtypes[Entry(node, 0)] = found[Entry(node, 0)] or FLOAT32
            else:
                self._add(node, node.op)
        return [self._new(entry) for entry in entries]

    def _new(self, entry: Entry) -> Entry:
        return Entry(self.nodes.get(entry.node, entry.node), entry.index)

    def _add(self, node: Node, op: Operator) -> None:
        inputs = [self._new(entry) for entry in node.inputs]
        self._settle(op, node.name, inputs)
        given = tuple([self.dtypes[entry] for entry in inputs])
        targets = self._casting.targets(op, given, node.name) or given
        if isinstance(op, Flow):
            op = self._inside(op, targets)
        cast = tuple([self.cast(entry, dtype) for entry, dtype in zip(inputs, targets, strict=True)])
        made = node
        if cast != node.inputs or op is not node.op:
            made = Node(op, node.name, cast, node.attributes, node.given, node.origin, node.versions)
        self.nodes[node] = made
        for index, dtype in enumerate(op.infer_type(list(targets))[1]):
            self.dtypes[Entry(made, index)] = dtype or FLOAT32

    def _inside(self, op: Flow, given: Sequence[DType]) -> Flow:
        """A loop, branch or region with casts in its bodies."""
        bodies: list[Any] = []
        dtypes: list[list[DType]] = []
        for number, (body, locations) in enumerate(zip(op.subgraphs, op.locations(), strict=True)):
            known = {node: given[at] for node, at in zip(body.variables, locations, strict=True)}
            inside = Inserting(known, self._casting)
            entries = inside.graph(body.entries)
            for position, dtype in op.settled(number, given, dtypes).items():
                entries[position] = inside.cast(entries[position], dtype)
            bodies.append(body if tuple(entries) == body.entries else type(body)(entries))
            dtypes.append([inside.dtypes[entry] for entry in entries])
        return op if bodies == list(op.subgraphs) else op.over(bodies)

    def _settle(self, op: Operator, name: str, inputs: Sequence[Entry]) -> None:
        """Find the types of variables that are free until their first reader."""
        free = {entry for entry in inputs if entry.node in self._free}
        if not free:
            return
        self._free -= {entry.node for entry in free}
        if self._casting.leaves(op, name):
            found = op.infer_type([None if entry in free else self.dtypes[entry] for entry in inputs])[0]
            self.dtypes.update((entry, found[at] or FLOAT32) for at, entry in enumerate(inputs) if entry in free)

    def cast(self, entry: Entry, dtype: DType) -> Entry:
        """An entry of the new graph as this dtype."""
        if self.dtypes[entry] == dtype:
            return entry
        known = self._casts.get((entry, dtype))
        if known is None:
            node, word = entry.node, name_of(dtype)
            op = AmpCast.create(dtype=word)
            label = f"{node.output_name(entry.index)}_amp_cast_{word}"
            known = Entry(Node(op, label, (entry,), _group(node), {"dtype": word}, node.origin), 0)
            self._casts[entry, dtype], self.dtypes[known] = known, dtype
        return known


def _group(node: Node) -> dict[str, str]:
    """The device group of a node, which its cast belongs to."""
    return {key: value for key, value in node.attributes.items() if key == "__ctx_group__"}


def remove_casts(entries: Sequence[Entry]) -> list[Entry]:
    """The outputs of the graph without the casts of mixed precision, but for casts that are outputs themselves."""
    made: dict[Node, Node] = {}

    def read(entry: Entry) -> Entry:
        while isinstance(entry.node.op, AmpCast | AmpMulticast):
            entry = entry.node.inputs[entry.index]
        return new(entry)

    def new(entry: Entry) -> Entry:
        return Entry(made.get(entry.node, entry.node), entry.index)

    for node in topological(entries):
        inputs = tuple([read(entry) for entry in node.inputs])
        if inputs != node.inputs:
            made[node] = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin, node.versions)
    return [new(entry) for entry in entries]
