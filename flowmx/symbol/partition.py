"""Partitioners: classes that select regions of a graph, to be replaced by single nodes.

Regions are convex: no path leaves a region and returns to it, so the new nodes form no cycle. ``backends.py``
registers partitioners by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.engine import capture
from flowmx.errors import MXNetError
from flowmx.graph.infer import infer_shapes, partial_types
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.storage_types import declared_stype
from flowmx.graph.subgraph import Body
from flowmx.ndarray import NDArray
from flowmx.ops.control.region import Region
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.symbol.symbol import Symbol

__all__ = ["Candidate", "Partitioner", "inline_regions", "partition", "regions"]


class Candidate(NamedTuple):
    """A node that a partitioner may select.

    Attributes:
        op: the operator's name.
        name: the node's name.
        attributes: its attributes, and its parameters as the user passed them.
        shapes, dtypes: the shapes and dtypes of its outputs; None if unknown.
    """

    op: str
    name: str
    attributes: dict[str, str]
    shapes: tuple[Any, ...]
    dtypes: tuple[Any, ...]


class Partitioner:
    """Base class of partitioners. A subclass selects nodes, and may reject or replace the regions that they form.

    Args:
        args, aux: the arrays passed to ``optimize_for``, by name.
        options: its additional keywords.

    Example:
        >>> @mx.sym.register_partitioner("products")
        ... class Products(mx.sym.Partitioner):
        ...     def select(self, node):
        ...         return node.op in ("FullyConnected", "Activation")
        >>> net.optimize_for("products")
    """

    def __init__(self, args: Mapping[str, NDArray], aux: Mapping[str, NDArray], options: Mapping[str, Any]) -> None:
        self.args, self.aux, self.options = dict(args), dict(aux), dict(options)

    def select(self, node: Candidate) -> bool:
        """Return whether a node may be in a region; subclasses override this method."""
        raise NotImplementedError(f"{type(self).__name__} must define select()")

    def review(self, region: Symbol, number: int) -> bool:
        """Return whether to replace a region; a rejected region stays unchanged.

        Args:
            region: the inner graph, over variables.
            number: its position among the regions, from 0.
        """
        return True

    def replace(self, region: Symbol, inputs: list[Symbol]) -> Symbol | None:
        """Return the replacement of a region, with the same number of outputs; None: a node that runs the inner graph.

        Args:
            region: the inner graph.
            inputs: the inputs that replace its ``list_inputs``.
        """
        return None


_GROUP = ("ctx_group", "__ctx_group__")
"""Attributes that set the device of a node, which are equal in all nodes of a region."""


def partition(
    symbol: Symbol, partitioner: Partitioner, shape_dict: Mapping[str, Any] | None = None,
    type_dict: Mapping[str, Any] | None = None, skip_infer: bool = False,
) -> list[Entry]:  # fmt: skip
    """Replace the regions that a partitioner selects with single nodes.

    Args:
        symbol: the graph.
        partitioner: the partitioner, with its arrays.
        shape_dict: shapes of further inputs.
        type_dict: their dtypes.
        skip_infer: skip the inference of shapes and dtypes.

    Raises:
        MXNetError: the number of outputs of a replacement differs.
        ShapeError, TypeInferenceError: the shapes or dtypes contradict the graph.
    """
    nodes = topological(symbol.entries)
    arrays = {**partitioner.args, **partitioner.aux}
    shapes: Mapping[Entry, Any] = {}
    dtypes: Mapping[Entry, Any] = {}
    if not skip_infer:
        known_shapes = {**{key: array.shape for key, array in arrays.items()}, **(shape_dict or {})}
        known_dtypes = {**{key: array.dtype for key, array in arrays.items()}, **(type_dict or {})}
        variables = [node for node in nodes if node.op is None]
        shapes = infer_shapes(
            nodes, {node: tuple(known_shapes[node.name]) for node in variables if node.name in known_shapes}
        )
        dtypes = partial_types(
            nodes, {node: as_dtype(known_dtypes[node.name]) for node in variables if node.name in known_dtypes}
        )
    selection = [
        node for node in nodes if _may_be_inside(node) and partitioner.select(_candidate(node, shapes, dtypes))
    ]
    cuts = [
        _cut(region, outputs) for region, outputs in _with_outputs(regions(nodes, selection), nodes, symbol.entries)
    ]
    accepted = {number: cut for number, cut in enumerate(cuts) if partitioner.review(Symbol(cut.body.entries), number)}
    return _contract(symbol.entries, nodes, accepted, partitioner)


def _may_be_inside(node: Node) -> bool:
    """Return whether a node can be in a region.

    Operators without inputs, such as zeros, cannot, since their shape may be inferred from readers. The shapes of a
    region must be known beforehand, and its values dense.
    """
    traits = None if node.op is None else node.op.traits
    if traits is None or not node.inputs or traits.dynamic or traits.sparse:
        return False
    return all(declared_stype(entry.node) == "default" for entry in node.inputs if entry.node.is_variable)


def _candidate(node: Node, shapes: Mapping[Entry, Any], dtypes: Mapping[Entry, Any]) -> Candidate:
    outputs = [Entry(node, index) for index in range(node.visible_outputs())]
    assert node.op is not None
    return Candidate(
        node.op.name, node.name, {**node.user_parameters, **node.attributes},
        tuple([shapes.get(output) for output in outputs]), tuple([dtypes.get(output) for output in outputs]),
    )  # fmt: skip


def regions(nodes: Sequence[Node], chosen: Iterable[Node]) -> list[list[Node]]:
    """Return the chosen nodes in the largest connected regions that form no cycle.

    Args:
        nodes: the graph, inputs before users.
        chosen: the nodes that may be in regions.
    """
    position_of = {node: position for position, node in enumerate(nodes)}
    allowed = set(chosen)
    members: dict[int, list[Node]] = {}
    region_of: list[int] = []
    reads: dict[int, set[int]] = {}
    predecessors: dict[int, int] = {}
    """For each region, a bit set of the regions with a path to it."""
    for position, node in enumerate(nodes):
        members[position], reads[position], predecessors[position] = (
            [node],
            {position_of[entry.node] for entry in node.inputs},
            0,
        )
        region_of.append(position)
        for source in reads[position]:
            predecessors[position] |= predecessors[region_of[source]] | 1 << region_of[source]
        for entry in node.inputs if node in allowed else ():
            first, second = region_of[position_of[entry.node]], region_of[position]
            if entry.node not in allowed or first == second or _group(entry.node) != _group(node):
                continue
            others = {region_of[source] for source in reads[second]} - {first, second}
            if any(predecessors[other] >> first & 1 for other in others):
                continue  # a path between them passes through a third region
            _unite(first, second, predecessors)
            for member in members[second]:
                region_of[position_of[member]] = first
            members[first] += members.pop(second)
            reads[first] |= reads.pop(second)
    result = [sorted(group, key=position_of.__getitem__) for group in members.values() if group[0] in allowed]
    return sorted(result, key=lambda region: position_of[region[0]])


def _unite(first: int, second: int, predecessors: dict[int, int]) -> None:
    """Merge the second region's predecessors into those of the first, which then represents both."""
    both = 1 << first | 1 << second
    all_predecessors = (predecessors[first] | predecessors.pop(second)) & ~both
    if all_predecessors == predecessors[first] and not any(bits >> second & 1 for bits in predecessors.values()):
        return
    predecessors[first] = all_predecessors
    for region, bits in predecessors.items():
        if bits & both:
            predecessors[region] = (bits | all_predecessors | 1 << first) & ~(1 << second)


def _group(node: Node) -> list[str | None]:
    return [node.attributes.get(key) for key in _GROUP]


class _Cut(NamedTuple):
    """A region, copied out of the graph.

    Attributes:
        nodes: its nodes in the graph.
        outputs: the entries that nodes outside the region read.
        body: its inner graph, over variables.
        inputs: the entries that the variables represent.
    """

    nodes: list[Node]
    outputs: list[Entry]
    body: Body
    inputs: list[Entry]


def _with_outputs(
    all_regions: Sequence[list[Node]], nodes: Sequence[Node], entries: Iterable[Entry]
) -> Iterator[tuple[list[Node], list[Entry]]]:
    """Iterate over regions, with those of their entries that are read outside, in the order of the graph."""
    region_of = {node: number for number, region in enumerate(all_regions) for node in region}
    read_entries = set(entries)
    for node in nodes:
        read_entries.update(entry for entry in node.inputs if region_of.get(entry.node) != region_of.get(node))
    for region in all_regions:
        outputs = (Entry(node, index) for node in region for index in range(node.outputs()))
        yield region, [entry for entry in outputs if entry in read_entries]


def _cut(region: list[Node], outputs: list[Entry]) -> _Cut:
    """Copy a region, with variables in place of its inputs."""
    replacements: dict[Entry, Entry] = {}
    sources: dict[Node, Entry] = {}
    labels: set[str] = set()
    for node in region:
        inputs = []
        for entry in node.inputs:
            if entry not in replacements:
                label = entry.node.output_name(entry.index)
                while label in labels:
                    label += "_"
                labels.add(label)
                variable = Node(None, label, origin=entry.node.origin)
                sources[variable], replacements[entry] = entry, Entry(variable, 0)
            inputs.append(replacements[entry])
        copy = node.with_inputs(tuple(inputs))
        replacements.update((Entry(node, index), Entry(copy, index)) for index in range(node.outputs()))
    body = Body([replacements[entry] for entry in outputs])
    return _Cut(region, outputs, body, [sources[variable] for variable in body.variables])


def _contract(
    entries: Sequence[Entry], nodes: Sequence[Node], cuts: Mapping[int, _Cut], partitioner: Partitioner
) -> list[Entry]:  # fmt: skip
    """Replace regions, by number, with their nodes or replacements."""
    region_of: dict[Node, int] = {node: number for number, cut in cuts.items() for node in cut.nodes}
    names = {node.name for node in nodes}
    replacements: dict[Entry, Entry] = {}
    for unit in _in_order(nodes, region_of, cuts):
        if isinstance(unit, Node):
            inputs = tuple([replacements.get(entry, entry) for entry in unit.inputs])
            if inputs != unit.inputs:
                copy = unit.with_inputs(inputs)
                replacements.update((Entry(unit, index), Entry(copy, index)) for index in range(unit.outputs()))
        else:
            cut = cuts[unit]
            region_inputs = [replacements.get(entry, entry) for entry in cut.inputs]
            replacements.update(
                zip(cut.outputs, _replacement(cut, region_inputs, partitioner, f"_CachedOp{unit}", names), strict=True)
            )
    return [replacements.get(entry, entry) for entry in entries]


def _in_order(nodes: Sequence[Node], region_of: Mapping[Node, int], cuts: Mapping[int, _Cut]) -> Iterator[Node | int]:
    """Iterate over the nodes outside regions and the numbers of regions, inputs before users."""
    done: set[Node | int] = set()
    for node in nodes:
        stack: list[Node | int] = [region_of.get(node, node)]
        while stack:
            unit = stack[-1]
            inputs = unit.inputs if isinstance(unit, Node) else cuts[unit].inputs
            missing = [source for entry in inputs if (source := region_of.get(entry.node, entry.node)) not in done]
            if unit in done or not missing:
                stack.pop()
            if unit not in done and not missing:
                done.add(unit)
                yield unit
            elif unit not in done:
                stack += missing


def _replacement(
    cut: _Cut, inputs: Sequence[Entry], partitioner: Partitioner, label: str, names: set[str]
) -> list[Entry]:  # fmt: skip
    """Return the entries that replace a region's outputs.

    Args:
        cut: the region.
        inputs: its inputs in the new graph.
        partitioner: may replace the region.
        label: the name of a node that runs the region; underscores are appended if the name exists.
        names: the names of nodes; a new one is added.

    Raises:
        MXNetError: the number of outputs of the partitioner's replacement differs.
    """
    replacement = partitioner.replace(Symbol(cut.body.entries), [Symbol([entry]) for entry in inputs])
    if replacement is None:
        while label in names:
            label += "_"
        names.add(label)
        groups = {key: group for node in cut.nodes for key, group in node.attributes.items() if key in _GROUP}
        node = Node(Region.create(subgraphs=(cut.body,)), label, tuple(inputs), groups, origin=capture())
        return [Entry(node, index) for index in range(len(cut.outputs))]
    if len(replacement) != len(cut.outputs):
        raise MXNetError(
            f"{type(partitioner).__name__}.replace: {len(replacement)} outputs were returned for a region with "
            f"{len(cut.outputs)}"
        )
    return list(replacement.entries)


def inline_regions(entries: Sequence[Entry], inputs: Mapping[Entry, Entry] | None = None) -> list[Entry]:
    """Replace regions with their operators.

    Args:
        entries: the graph's outputs.
        inputs: the entries that replace its variables (default: none).
    """
    replacements = dict(inputs or {})
    for node in topological(entries):
        if node.op is None:
            continue
        new_inputs = tuple([replacements.get(entry, entry) for entry in node.inputs])
        if isinstance(node.op, Region):
            (body,) = node.op.subgraphs
            outputs = inline_regions(
                body.entries, dict(zip([Entry(variable, 0) for variable in body.variables], new_inputs, strict=True))
            )
        else:
            copy = node if new_inputs == node.inputs else node.with_inputs(new_inputs)
            outputs = [Entry(copy, index) for index in range(node.outputs())]
        replacements.update((Entry(node, index), entry) for index, entry in enumerate(outputs))
    return [replacements.get(entry, entry) for entry in entries]
