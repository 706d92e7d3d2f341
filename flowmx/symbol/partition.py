"""Partitioners: classes that choose regions of a graph, each of which becomes one node.

Regions are convex: no path leaves one and comes back, so that the nodes in their places depend on each other in no
circle. ``backends.py`` knows them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.engine import capture
from flowmx.errors import MXNetError
from flowmx.graph.infer import infer_shapes, partial_types
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.storage_types import declared
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
    found = [_cut(region, outputs) for region, outputs in _with_outputs(regions(nodes, chosen), nodes, symbol._entries)]
    kept = {number: cut for number, cut in enumerate(found) if partitioner.review(Symbol(cut.body.entries), number)}
    return _contracted(symbol._entries, nodes, kept, partitioner)


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
    number = {node: at for at, node in enumerate(nodes)}
    picked = set(chosen)
    members: dict[int, list[Node]] = {}
    home: list[int] = []
    reads: dict[int, set[int]] = {}
    before: dict[int, int] = {}
    """For each region those from which a path leads to it, as a set of bits."""
    for at, node in enumerate(nodes):
        members[at], reads[at], before[at] = [node], {number[entry.node] for entry in node.inputs}, 0
        home.append(at)
        for each in reads[at]:
            before[at] |= before[home[each]] | 1 << home[each]
        for entry in node.inputs if node in picked else ():
            first, second = home[number[entry.node]], home[at]
            if entry.node not in picked or first == second or _group(entry.node) != _group(node):
                continue
            others = {home[each] for each in reads[second]} - {first, second}
            if any(before[each] >> first & 1 for each in others):
                continue  # a path between them goes through a third
            _unite(first, second, before)
            for moved in members[second]:
                home[number[moved]] = first
            members[first] += members.pop(second)
            reads[first] |= reads.pop(second)
    found = [sorted(each, key=number.__getitem__) for each in members.values() if each[0] in picked]
    return sorted(found, key=lambda region: number[region[0]])


def _unite(first: int, second: int, before: dict[int, int]) -> None:
    """Let what is before either of two regions be before the first, which stands for both from now on."""
    both = 1 << first | 1 << second
    all_before = (before[first] | before.pop(second)) & ~both
    if all_before == before[first] and not any(each >> second & 1 for each in before.values()):
        return
    before[first] = all_before
    for each, given in before.items():
        if given & both:
            before[each] = (given | all_before | 1 << first) & ~(1 << second)


def _group(node: Node) -> list[str | None]:
    return [node.attributes.get(key) for key in _GROUP]


class _Cut(NamedTuple):
    """A region that was cut out.

    Attributes:
        nodes: its nodes in the graph.
        outputs: those of their entries that others read.
        body: its inner graph, over variables.
        inputs: the entries that these stand for.
    """

    nodes: list[Node]
    outputs: list[Entry]
    body: Body
    inputs: list[Entry]


def _with_outputs(
    found: Sequence[list[Node]], nodes: Sequence[Node], entries: Iterable[Entry]
) -> Iterator[tuple[list[Node], list[Entry]]]:
    """Regions, and the entries of each that others read, in the order of the graph."""
    home = {node: number for number, region in enumerate(found) for node in region}
    read = set(entries)
    for node in nodes:
        read.update(entry for entry in node.inputs if home.get(entry.node) != home.get(node))
    for region in found:
        outputs = (Entry(node, index) for node in region for index in range(node.outputs()))
        yield region, [entry for entry in outputs if entry in read]


def _cut(region: list[Node], outputs: list[Entry]) -> _Cut:
    """Copy a region over variables."""
    moved: dict[Entry, Entry] = {}
    sources: dict[Node, Entry] = {}
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
    body = Body([moved[entry] for entry in outputs])
    return _Cut(region, outputs, body, [sources[variable] for variable in body.variables])


def _contracted(
    entries: Sequence[Entry], nodes: Sequence[Node], cuts: Mapping[int, _Cut], partitioner: Partitioner
) -> list[Entry]:  # fmt: skip
    """The graph with what stands in the places of regions, by their numbers."""
    home: dict[Node, int] = {node: number for number, cut in cuts.items() for node in cut.nodes}
    taken = {node.name for node in nodes}
    moved: dict[Entry, Entry] = {}
    for unit in _in_order(nodes, home, cuts):
        if isinstance(unit, Node):
            inputs = tuple([moved.get(entry, entry) for entry in unit.inputs])
            if inputs != unit.inputs:
                made = unit.over(inputs)
                moved.update((Entry(unit, index), Entry(made, index)) for index in range(unit.outputs()))
        else:
            cut = cuts[unit]
            read = [moved.get(entry, entry) for entry in cut.inputs]
            moved.update(zip(cut.outputs, _replaced(cut, read, partitioner, f"_CachedOp{unit}", taken), strict=True))
    return [moved.get(entry, entry) for entry in entries]


def _in_order(nodes: Sequence[Node], home: Mapping[Node, int], cuts: Mapping[int, _Cut]) -> Iterator[Node | int]:
    """The nodes outside of regions, and the numbers of regions, each after what it reads."""
    done: set[Node | int] = set()
    for node in nodes:
        waiting: list[Node | int] = [home.get(node, node)]
        while waiting:
            unit = waiting[-1]
            read = unit.inputs if isinstance(unit, Node) else cuts[unit].inputs
            missing = [each for entry in read if (each := home.get(entry.node, entry.node)) not in done]
            if unit in done or not missing:
                waiting.pop()
            if unit not in done and not missing:
                done.add(unit)
                yield unit
            elif unit not in done:
                waiting += missing


def _replaced(
    cut: _Cut, inputs: Sequence[Entry], partitioner: Partitioner, label: str, taken: set[str]
) -> list[Entry]:  # fmt: skip
    """Give what stands in the place of a region's outputs.

    Args:
        cut: the region.
        inputs: its inputs in the new graph.
        partitioner: it may replace the region.
        label: the name of a node that runs it; with underscores behind it where that is taken.
        taken: the names of nodes; a new one is added.

    Raises:
        MXNetError: the partitioner's replacement has another number of outputs.
    """
    made = partitioner.replace(Symbol(cut.body.entries), [Symbol([each]) for each in inputs])
    if made is None:
        while label in taken:
            label += "_"
        taken.add(label)
        groups = {key: group for node in cut.nodes for key, group in node.attributes.items() if key in _GROUP}
        node = Node(Region.create(subgraphs=(cut.body,)), label, tuple(inputs), groups, origin=capture())
        return [Entry(node, index) for index in range(len(cut.outputs))]
    if len(made) != len(cut.outputs):
        raise MXNetError(
            f"{type(partitioner).__name__}.replace: {len(made)} outputs were returned for a region with "
            f"{len(cut.outputs)}"
        )
    return list(made._entries)


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
