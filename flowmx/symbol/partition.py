"""Partitioners: classes that choose regions of a graph, each of which becomes one node.

Regions are convex: no path leaves one and comes back, so that the nodes in their places depend on each other in no
circle. ``backends.py`` knows them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.engine import capture
from flowmx.errors import MXNetError
from flowmx.graph.infer import infer_shapes, partial_types
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.storage import declared
from flowmx.graph.subgraph import Body
from flowmx.ops.control.region import Region
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.symbol.symbol import Symbol

__all__ = ["Candidate", "Partitioner", "inlined", "partitioned", "regions"]


class Candidate(NamedTuple):
    """A node that a partitioner may choose.

    Attributes:
        op: the operator's name.
        name: the node's name.
        attributes: its parameters as given, and attributes.
        shapes, dtypes: of its outputs; None where they are not known.
    """

    op: str
    name: str
    attributes: dict[str, str]
    shapes: tuple[Any, ...]
    dtypes: tuple[Any, ...]


class Partitioner:
    """Base of partitioners; a subclass chooses nodes, and may refuse or replace the regions that they form.

    Args:
        args, aux: the arrays given to ``optimize_for``, by name.
        options: its further keywords.

    Example:
        >>> @mx.sym.register_partitioner("products")
        ... class Products(mx.sym.Partitioner):
        ...     def select(self, node):
        ...         return node.op in ("FullyConnected", "Activation")
        >>> net.optimize_for("products")
    """

    def __init__(self, args: Mapping[str, Any], aux: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.args, self.aux, self.options = dict(args), dict(aux), dict(options)

    def select(self, node: Candidate) -> bool:
        """Tell whether a node may be in a region; a subclass overrides it."""
        raise NotImplementedError(f"{type(self).__name__} must define select()")

    def review(self, region: Symbol, number: int) -> bool:
        """Tell whether a region is kept; one that is not stays as it was.

        Args:
            region: the inner graph, over variables.
            number: its place among the regions, from 0.
        """
        return True

    def replace(self, region: Symbol, inputs: list[Symbol]) -> Symbol | None:
        """Give what computes a region: as many outputs, of the inputs; None for a node that runs the inner graph.

        Args:
            region: the inner graph.
            inputs: what its ``list_inputs`` stand for.
        """
        return None


_GROUP = ("ctx_group", "__ctx_group__")
"""Attributes that say which device a node is for: a region is for one."""


def partitioned(
    symbol: Symbol, partitioner: Partitioner, shape_dict: Mapping[str, Any] | None = None,
    type_dict: Mapping[str, Any] | None = None, skip_infer: bool = False,
) -> list[Entry]:  # fmt: skip
    """The graph with the regions that a partitioner chooses as single nodes.

    Args:
        symbol: the graph.
        partitioner: it, with its arrays.
        shape_dict: shapes of further inputs.
        type_dict: their dtypes.
        skip_infer: do not look for shapes and dtypes of nodes.

    Raises:
        MXNetError: a replacement has another number of outputs.
        ShapeError, TypeInferenceError: what is given contradicts the graph.
    """
    nodes = topological(symbol._entries)
    given = {**partitioner.args, **partitioner.aux}
    shapes: Mapping[Entry, Any] = {}
    dtypes: Mapping[Entry, Any] = {}
    if not skip_infer:
        known = {**{key: each.shape for key, each in given.items()}, **(shape_dict or {})}
        kinds = {**{key: each.dtype for key, each in given.items()}, **(type_dict or {})}
        variables = [node for node in nodes if node.op is None]
        shapes = infer_shapes(nodes, {each: tuple(known[each.name]) for each in variables if each.name in known})
        dtypes = partial_types(nodes, {each: as_dtype(kinds[each.name]) for each in variables if each.name in kinds})
    chosen = [node for node in nodes if _may_be_inside(node) and partitioner.select(_candidate(node, shapes, dtypes))]
    entries, now = list(symbol._entries), {node: node for node in nodes}
    for number, region in enumerate(regions(nodes, chosen)):
        new = _contracted(entries, {now[node] for node in region}, partitioner, number)
        entries, moved = _moved(entries, new)
        now = {node: moved.get(at, at) for node, at in now.items()}
    return entries


def _may_be_inside(node: Node) -> bool:
    """Tell whether a region can have a node.

    The shape of what reads nothing, such as zeros, may come from its users; the values of a region have shapes that are
    known beforehand, and are dense.
    """
    traits = None if node.op is None else node.op.traits
    if traits is None or not node.inputs or traits.dynamic or traits.sparse:
        return False
    return all(declared(entry.node) == "default" for entry in node.inputs if entry.node.is_variable)


def _candidate(node: Node, shapes: Mapping[Entry, Any], dtypes: Mapping[Entry, Any]) -> Candidate:
    outputs = [Entry(node, index) for index in range(node.visible_outputs())]
    assert node.op is not None
    return Candidate(
        node.op.name, node.name, {**node.given, **node.attributes},
        tuple([shapes.get(each) for each in outputs]), tuple([dtypes.get(each) for each in outputs]),
    )  # fmt: skip


def regions(nodes: Sequence[Node], chosen: Iterable[Node]) -> list[list[Node]]:
    """The chosen nodes in connected regions, as large as they get one after the other without a circle between them.

    Args:
        nodes: the graph, inputs before users.
        chosen: the nodes that may be in regions.
    """
    members: dict[Node, list[Node]] = {node: [node] for node in nodes}
    home = {node: node for node in nodes}
    after: dict[Node, set[Node]] = {node: set() for node in nodes}
    for node in nodes:
        for entry in node.inputs:
            after[entry.node].add(node)
    picked = dict.fromkeys(chosen)
    for node in picked:
        for entry in node.inputs:
            first, second = home[entry.node], home[node]
            if entry.node not in picked or first is second or _group(entry.node) != _group(node):
                continue
            if _has_detour(first, second, after, home, members):
                continue
            for each in members[second]:
                home[each] = first
            members[first] += members.pop(second)
    order = {node: at for at, node in enumerate(nodes)}
    found = [sorted(each, key=order.__getitem__) for each in members.values() if each[0] in picked]
    return sorted(found, key=lambda region: order[region[0]])


def _group(node: Node) -> list[str | None]:
    return [node.attributes.get(key) for key in _GROUP]


def _has_detour(
    first: Node, second: Node, after: Mapping[Node, set[Node]], home: Mapping[Node, Node],
    members: Mapping[Node, list[Node]],
) -> bool:  # fmt: skip
    """Tell whether a path from one region to another goes through a third."""

    def following(region: Node) -> set[Node]:
        return {home[user] for node in members[region] for user in after[node]} - {region}

    waiting = following(first) - {second}
    seen = set(waiting)
    while waiting:
        reached = following(waiting.pop())
        if second in reached:
            return True
        waiting |= reached - seen
        seen |= reached
    return False


def _contracted(
    entries: Sequence[Entry], inside: set[Node], partitioner: Partitioner, number: int
) -> dict[Entry, Entry]:  # fmt: skip
    """Give what stands in the place of a region's outputs; nothing where the partitioner refuses it."""
    nodes = topological(entries)
    read = dict.fromkeys(e for node in nodes if node not in inside for e in node.inputs if e.node in inside)
    read.update(dict.fromkeys(entry for entry in entries if entry.node in inside))
    order = {node: at for at, node in enumerate(nodes)}
    outputs = sorted(read, key=lambda entry: (order[entry.node], entry.index))
    sources: dict[Node, Entry] = {}
    body = Body(_cut([node for node in nodes if node in inside], outputs, sources))
    inner = Symbol(body.entries)
    if not partitioner.review(inner, number):
        return {}
    inputs = [sources[variable] for variable in body.variables]
    made = partitioner.replace(inner, [Symbol([each]) for each in inputs])
    if made is None:
        label, taken = f"_CachedOp{number}", {node.name for node in nodes}
        while label in taken:
            label += "_"
        groups = {key: group for node in inside for key, group in node.attributes.items() if key in _GROUP}
        node = Node(Region.create(subgraphs=(body,)), label, tuple(inputs), groups, origin=capture())
        new = [Entry(node, index) for index in range(len(outputs))]
    else:
        new = list(made._entries)
    if len(new) != len(outputs):
        raise MXNetError(
            f"{type(partitioner).__name__}.replace: {len(new)} outputs were returned for a region with {len(outputs)}"
        )
    return dict(zip(outputs, new, strict=True))


def _cut(region: Sequence[Node], outputs: Sequence[Entry], sources: dict[Node, Entry]) -> list[Entry]:
    """The region over variables, each of which is noted with what it stands for."""
    moved: dict[Entry, Entry] = {}
    taken: set[str] = set()
    for node in region:
        inputs = []
        for entry in node.inputs:
            if entry not in moved:
                label = entry.node.output_name(entry.index)
                while label in taken:
                    label += "_"
                taken.add(label)
                variable = Node(None, label, origin=entry.node.origin)
                sources[variable], moved[entry] = entry, Entry(variable, 0)
            inputs.append(moved[entry])
        made = node.over(tuple(inputs))
        moved.update((Entry(node, index), Entry(made, index)) for index in range(node.outputs()))
    return [moved[entry] for entry in outputs]


def _moved(entries: Sequence[Entry], new: Mapping[Entry, Entry]) -> tuple[list[Entry], dict[Node, Node]]:
    """The graph with other entries in the place of some, and the new nodes by the old."""
    if not new:
        return list(entries), {}
    made: dict[Node, Node] = {}

    def moved(entry: Entry) -> Entry:
        return new.get(entry) or Entry(made.get(entry.node, entry.node), entry.index)

    for node in topological(entries):
        inputs = tuple([moved(entry) for entry in node.inputs])
        if inputs != node.inputs:
            made[node] = node.over(inputs)
    return [moved(entry) for entry in entries], made


def inlined(entries: Sequence[Entry], inputs: Mapping[Entry, Entry] | None = None) -> list[Entry]:
    """The graph with the operators of regions in their places.

    Args:
        entries: the graph's outputs.
        inputs: the entries that stand for its variables, where some do.
    """
    moved = dict(inputs or {})
    for node in topological(entries):
        if node.op is None:
            continue
        read = tuple([moved.get(entry, entry) for entry in node.inputs])
        if isinstance(node.op, Region):
            (body,) = node.op.subgraphs
            found = inlined(body.entries, dict(zip([Entry(each, 0) for each in body.variables], read, strict=True)))
        else:
            made = node if read == node.inputs else node.over(read)
            found = [Entry(made, index) for index in range(node.outputs())]
        moved.update((Entry(node, index), entry) for index, entry in enumerate(found))
    return [moved.get(entry, entry) for entry in entries]
