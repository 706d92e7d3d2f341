"""Insert casts for mixed precision where operators need another floating-point type than their inputs have.

:class:`flowmx.ndarray.core.Casting` chooses the types; :func:`insert_casts` is pure. A value is cast to a type once,
however many operators read it, and its cast is called ``<value>_amp_cast_<type>``, as in MXNet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowmx.graph import infer
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray.core import Casting
from flowmx.ops.control.control_flow import Flow
from flowmx.ops.math.amp_cast import AmpCast, AmpMulticast
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone


def insert_casts(entries: Sequence[Entry], dtypes: Mapping[Node, DType | None], casting: Casting) -> list[Entry]:
    """Return the outputs of the graph with casts.

    Args:
        entries: the outputs of the graph.
        dtypes: the dtypes of variables (default: float32).
        casting: chooses the casts.
    """
    return Inserting(dtypes, casting).graph(entries)


def infer_outputs(
    entries: Sequence[Entry], shapes: Mapping[Node, ShapeOrNone], dtypes: Mapping[Node, DType], casting: Casting | None
) -> tuple[tuple[Entry, ...], dict[Entry, Shape], dict[Entry, DType]]:
    """Return the outputs of the graph, with casts for mixed precision, and the shape and dtype of every entry.

    Args:
        entries: the outputs of the graph.
        shapes: the shapes of variables.
        dtypes: the dtypes of variables.
        casting: chooses the casts (None: no casts).

    Raises:
        ShapeError, TypeInferenceError: they contradict each other, or a shape is unknown.
    """
    entries = tuple(entries if casting is None else insert_casts(entries, dtypes, casting))
    nodes = topological(entries)
    complete = infer.from_variables(nodes, shapes, dtypes)
    if complete is not None:
        return entries, *complete
    all_shapes = infer.known_shapes(nodes, shapes)
    return entries, all_shapes, infer.infer_types(nodes, dtypes, all_shapes)


class Inserting:
    """Copies a graph and inserts casts.

    Args:
        dtypes: as for :func:`insert_casts`.
        casting: as for :func:`insert_casts`.
        free: variables that take the dtype of the other inputs, if an operator that needs no cast reads them.

    Attributes:
        dtypes: the dtypes of the new graph's entries.
        nodes: the new node of each old operator.
    """

    def __init__(
        self, dtypes: Mapping[Node, DType | None], casting: Casting, free: Collection[Node] = frozenset()
    ) -> None:
        self._free = set(free)
        self.dtypes: dict[Entry, DType] = {}
        self.nodes: dict[Node, Node] = {}
        self._variable_dtypes = dtypes
        self._casting = casting
        self._casts: dict[tuple[Entry, DType], Entry] = {}

    def graph(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the outputs of the new graph."""
        nodes = topological(entries)
        dtypes = infer.partial_types([node for node in nodes if node.is_variable], self._variable_dtypes)
        for node in nodes:
            if node.op is None:
                self.dtypes[Entry(node, 0)] = dtypes[Entry(node, 0)] or FLOAT32
            else:
                self._add(node, node.op)
        return [self._new(entry) for entry in entries]

    def _new(self, entry: Entry) -> Entry:
        return Entry(self.nodes.get(entry.node, entry.node), entry.index)

    def _add(self, node: Node, op: Operator) -> None:
        inputs = [self._new(entry) for entry in node.inputs]
        self._resolve_free(op, node.name, inputs)
        current = tuple([self.dtypes[entry] for entry in inputs])
        targets = self._casting.targets(op, current, node.name) or current
        if isinstance(op, Flow):
            op = self._inside(op, targets)
        cast = tuple([self.cast(entry, dtype) for entry, dtype in zip(inputs, targets, strict=True)])
        new = node
        if cast != node.inputs or op is not node.op:
            new = Node(op, node.name, cast, node.attributes, node.user_parameters, node.origin, node.versions)
        self.nodes[node] = new
        for index, dtype in enumerate(op.infer_type(list(targets))[1]):
            self.dtypes[Entry(new, index)] = dtype or FLOAT32

    def _inside(self, op: Flow, inputs: Sequence[DType]) -> Flow:
        """Return a loop, branch or region with casts in its bodies."""
        bodies: list[object] = []
        dtypes: list[list[DType]] = []
        for number, (body, locations) in enumerate(zip(op.subgraphs, op.locations(), strict=True)):
            variables = {node: inputs[index] for node, index in zip(body.variables, locations, strict=True)}
            inside = Inserting(variables, self._casting)
            entries = inside.graph(body.entries)
            for position, dtype in op.required_dtypes(number, inputs, dtypes).items():
                entries[position] = inside.cast(entries[position], dtype)
            bodies.append(body if tuple(entries) == body.entries else type(body)(entries))
            dtypes.append([inside.dtypes[entry] for entry in entries])
        return op if bodies == list(op.subgraphs) else op.with_bodies(bodies)

    def _resolve_free(self, op: Operator, name: str, inputs: Sequence[Entry]) -> None:
        """Choose the dtypes of free variables at their first reader."""
        free = {entry for entry in inputs if entry.node in self._free}
        if not free:
            return
        self._free -= {entry.node for entry in free}
        if self._casting.leaves(op, name):
            dtypes = op.infer_type([None if entry in free else self.dtypes[entry] for entry in inputs])[0]
            self.dtypes.update((entry, dtypes[index] or FLOAT32) for index, entry in enumerate(inputs) if entry in free)

    def cast(self, entry: Entry, dtype: DType) -> Entry:
        """Return an entry of the new graph as this dtype."""
        if self.dtypes[entry] == dtype:
            return entry
        result = self._casts.get((entry, dtype))
        if result is None:
            node, word = entry.node, name_of(dtype)
            op = AmpCast.create(dtype=word)
            label = f"{node.output_name(entry.index)}_amp_cast_{word}"
            result = Entry(Node(op, label, (entry,), _group(node), {"dtype": word}, node.origin), 0)
            self._casts[entry, dtype], self.dtypes[result] = result, dtype
        return result


def _group(node: Node) -> dict[str, str]:
    """Return the device group of a node, for its cast."""
    return {key: value for key, value in node.attributes.items() if key == "__ctx_group__"}


def remove_casts(entries: Sequence[Entry]) -> list[Entry]:
    """Return the outputs of the graph without mixed-precision casts, except casts that are outputs themselves."""
    copies: dict[Node, Node] = {}

    def read(entry: Entry) -> Entry:
        while isinstance(entry.node.op, AmpCast | AmpMulticast):
            entry = entry.node.inputs[entry.index]
        return new(entry)

    def new(entry: Entry) -> Entry:
        return Entry(copies.get(entry.node, entry.node), entry.index)

    for node in topological(entries):
        inputs = tuple([read(entry) for entry in node.inputs])
        if inputs != node.inputs:
            copies[node] = Node(
                node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin, node.versions
            )
    return [new(entry) for entry in entries]
