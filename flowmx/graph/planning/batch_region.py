"""A region of a graph as one operator, which runs the region for one part of the batch at a time.

Values inside have the size of a part, and a separate plan; inputs and outputs have the whole batch. Sums over the
batch are accumulated in place, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from flowmx.graph.graph import RANK, Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused_operator
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning.order import LATE
from flowmx.ops.compiled.fused_layers import FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed_weights import Pack, RepackConvolution
from flowmx.ops.compiled.sliced import Sliced, Staged, Summed
from flowmx.ops.math.matmul import SMALL
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import packed_size
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import BatchParts


def reorders_weight(graph: Graph, node: Node) -> bool:
    """Return whether a layer reorders its weight for its kernel in each run."""
    is_layer = FUSED.get(type(node.op)) is FusedConvolution and not getattr(node.op, "packed", False)
    return is_layer and graph.dtypes[node.inputs[0]] == graph.dtypes[node.inputs[1]]


class Region:
    """A region that becomes an operator.

    Args:
        rewriter: the rewriter of the graph.
        members: the operators, in order, with their batch parts.
        units: the number of equal parts that the batch can be cut into.
        length: the number of units in a slice.
        layout: the entries with channels-last layout.
        ahead: layers (see :func:`reorders_weight`) whose weights are reordered once, before all slices.
    """

    def __init__(
        self, rewriter: Rewriter, members: Mapping[Node, BatchParts], units: int, length: int,
        layout: Collection[Entry], ahead: Collection[Node] = (),
    ) -> None:  # fmt: skip
        self._ahead = ahead
        self._rewriter, self._members, self._layout = rewriter, members, layout
        self._units, self._length = units, length
        self._graph = rewriter.graph
        forward = set(self._graph.forward()) if self._graph.gradients else set()
        self._forward = forward if any(node in forward for node in members) else members.keys()
        self._shapes: dict[Entry, Shape] = {}
        self._dtypes: dict[Entry, DType] = {}
        self._entries: dict[Entry, Entry] = {}
        self._variables: dict[tuple[Entry, bool], Entry] = {}
        self._channels_last: set[Entry] = set()
        self._packs: list[Node] = []
        self._staged: dict[Entry, Entry] | None = None
        """The copies of slices of variables, if they are staged."""

    def insert(
        self, strided: Collection[Node], options: Options, change: Callable[[Graph], Graph] | None = None,
        rough: bool = False,
    ) -> list[Node]:  # fmt: skip
        """Replace the region with the operator; return its node and those before it.

        If that is impossible, keep the region and return its nodes.

        Args:
            strided: the variables whose arrays are not dense in C order.
            options: the compiler options.
            change: a pass over the graph of a slice, whose steps are then reordered.
            rough: as for :func:`flowmx.graph.plan.make_plan`.
        """
        if options.staged and not self._graph.gradients:
            self._staged = {}
        outputs = self._outputs()
        result_nodes = {entry.node for entry in outputs}
        steps = [self._step(node, options, node in result_nodes) for node in self._members]
        if None in steps:
            return [self._rewriter.keep(node) for node in self._members]
        inner = [step for step in steps if step is not None]
        results = [self._result(entry) for entry in outputs]
        if self._staged is not None:
            results = [
                self._stage(entry, result, entry.index in self._members[entry.node].outputs)
                for entry, result in zip(outputs, results, strict=True)
            ]
            inner = [*[copy.node for copy in self._staged.values()], *inner, *[result.node for result in results]]
        early = [result for entry, result in zip(outputs, results, strict=True) if entry.node in self._forward]
        late: dict[Node, Entry] = {}
        for entry, result in zip(outputs, results, strict=True):
            if entry.node not in self._forward:
                late[self._variable_like(entry)] = result
        graph = Graph(
            tuple(early), late, self._shapes, self._dtypes, self._graph.train, groups=self._graph.groups,
            default=self._graph.default, direct=frozenset(late),
        )  # fmt: skip
        if change is not None:
            graph = change(graph)
        strided_nodes = [result.node for (entry, _), result in self._variables.items() if entry.node in strided]
        plan = make_plan(
            graph, graph.results(), strided_nodes, replace(options, workers=1, slice=0, budget=None),
            None if change is not None else (inner, []), self._channels_last, rough,
        )  # fmt: skip
        outputs.sort(key=lambda entry: entry.node not in self._forward)
        node = self._node(plan, outputs)
        for index, entry in enumerate(outputs):
            self._rewriter.replace(entry, Entry(node, index))
        return [*self._packs, node]

    def _step(self, node: Node, options: Options, is_result: bool) -> Node | None:
        """Return the operator of a slice, without the late mark if it is a result; None if kernels lack its form."""
        parts, op = self._members[node], node.op
        inputs = [self._input(entry, position in parts.inputs) for position, entry in enumerate(node.inputs)]
        if getattr(op, "packed", False):
            pack = self._repack(node, self._shapes[inputs[0]], options)
            if pack is None:
                return None
            self._packs.append(pack)
            inputs[1] = self._variable(Entry(pack, 0), False)
        elif node in self._ahead:
            op, inputs = self._reorder(node, inputs, options)
        elif FUSED.get(type(op)) is FusedFullyConnected and self._is_large(node):
            op = fused_operator(node, whole=True)
        attributes = {key: text for key, text in node.attributes.items() if not (is_result and key == LATE)}
        step = Node(op, node.name, tuple(inputs), attributes, node.user_parameters, node.origin)
        for index in range(node.outputs()):
            self._record(Entry(node, index), Entry(step, index), index in parts.outputs)
            self._entries[Entry(node, index)] = Entry(step, index)
        return step

    def _is_large(self, node: Node) -> bool:
        """Return whether a product of the whole batch has a kernel that one with fewer rows may not have."""
        shapes = self._rewriter.shapes
        return prod(shapes[Entry(node, 0)]) * shapes[node.inputs[1]][-1] >= SMALL

    def _reorder(self, node: Node, inputs: list[Entry], options: Options) -> tuple[Operator | None, list[Entry]]:
        """Return a layer that reads a reordered weight, and its inputs; or the unchanged layer."""
        # The scale stays with the layer: multiplied into the weight, it would round differently than for the whole
        # batch.
        layer, data = fused_operator(node, packed=True), self._shapes[inputs[0]]
        context = self._graph.context(node)
        kind = options.device_type if context is None else context.kernels
        dtype = self._rewriter.dtypes[node.inputs[0]]
        size = packed_size(kind, layer, data, dtype) if dtype in options.product_dtypes else None
        if size is None or node.op is None:
            return node.op, inputs
        op = RepackConvolution.create(**{**non_defaults(layer), "scaled": False, "data_shape": data, "size": size})
        reordered = self._rewriter.make(op, [self._rewriter.new(node.inputs[1])], node, f"{node.name} weight in order")
        self._packs.append(reordered)
        return layer, [inputs[0], self._variable(Entry(reordered, 0), False), *inputs[2:]]

    def _input(self, entry: Entry, along: bool) -> Entry:
        """Return the entry of a slice for one of the graph."""
        return self._entries[entry] if entry in self._entries else self._variable(entry, along)

    def _variable(self, entry: Entry, along: bool) -> Entry:
        variable = self._variables.get((entry, along))
        if variable is None:
            variable = Entry(Node(None, entry.node.output_name(entry.index), attributes=entry.node.attributes), 0)
            self._variables[entry, along] = variable
            self._record(entry, variable, along)
            if along and self._staged is not None:
                self._staged[variable] = self._stage(entry, variable, along)
        return self._staged[variable] if along and self._staged is not None else variable

    def _stage(self, entry: Entry, source: Entry, along: bool) -> Entry:
        """Return a copy of an entry of a slice, to be staged."""
        copy = Entry(
            Node(Staged(), f"slice of {entry.node.name}", (source,), source.node.attributes, None, entry.node.origin), 0
        )
        self._record(entry, copy, along)
        return copy

    def _variable_like(self, entry: Entry) -> Node:
        """Return a variable whose gradient is a result that only gradients need."""
        variable = Node(None, entry.node.output_name(entry.index))
        self._record(entry, Entry(variable, 0), entry.index in self._members[entry.node].outputs)
        return variable

    def _record(self, entry: Entry, slice_entry: Entry, along: bool) -> None:
        """Record the shape, dtype and layout of a slice's entry."""
        shape = self._rewriter.shapes[entry]
        self._shapes[slice_entry] = (self._rows(entry), *shape[1:]) if along else shape
        self._dtypes[slice_entry] = self._rewriter.dtypes[entry]
        if entry in self._layout:
            self._channels_last.add(slice_entry)

    def _rows(self, entry: Entry) -> int:
        """Return the number of rows of an entry in a slice."""
        return self._rewriter.shapes[entry][0] // self._units * self._length

    def _repack(self, node: Node, data: Shape, options: Options) -> Node | None:
        """Return the node that packs a layer's weight for a slice of its data; None if kernels lack the layout."""
        source = node.inputs[1].node
        assert isinstance(source.op, Pack) and node.op is not None
        context = self._graph.context(node)
        kind = options.device_type if context is None else context.kernels
        size = packed_size(kind, node.op, data, self._rewriter.dtypes[node.inputs[0]])
        if size is None:
            return None
        parameters = {name: getattr(source.op, name) for name in source.op.parameters}
        op = type(source.op).create(**{**parameters, "data_shape": data, "size": size})
        return self._rewriter.make(op, [self._rewriter.new(entry) for entry in source.inputs], source)

    def _outputs(self) -> list[Entry]:
        """Return the entries that are read outside the region."""
        read = dict.fromkeys(entry for entry in self._graph.results() if entry.node in self._members)
        for node in self._rewriter.nodes:
            if node not in self._members:
                read.update(dict.fromkeys(entry for entry in node.inputs if entry.node in self._members))
        return list(read)

    def _result(self, entry: Entry) -> Entry:
        """Return the result of a slice for an entry that is read outside; sums are accumulated over the slices."""
        result = self._entries[entry]
        if entry.index not in self._members[entry.node].sums:
            return result
        summed = Entry(Node(Summed(), entry.node.name, (result,), result.node.attributes, None, entry.node.origin), 0)
        self._shapes[summed], self._dtypes[summed] = self._shapes[result], self._dtypes[result]
        return summed

    def _node(self, plan: Plan, outputs: Sequence[Entry]) -> Node:
        """Create the operator's node."""
        units, length, members = self._units, self._length, self._members
        first, *_, last = [*members, *members]
        shapes, dtypes = self._rewriter.shapes, self._rewriter.dtypes
        rows = [self._rows(entry) if is_split else 0 for entry, is_split in self._variables]
        firsts = [*rows, *[self._rows(e) if e.index in members[e.node].outputs else 0 for e in outputs]]
        begins = [min(index, units - length) for index in range(0, units, length)]
        op = Sliced.of(
            plan=plan,
            variables=tuple(self._variables.values()),
            rows=tuple(firsts),
            starts=tuple([tuple([begin * count // length for count in firsts]) for begin in begins]),
            forms=tuple([(shapes[entry], dtypes[entry]) for entry in outputs]),
            batch=(units, length),
            channels_last=tuple([entry in self._layout for entry in outputs]),
            staged=self._staged is not None,
        )
        name = first.name if len(members) == 1 else f"{first.name} to {last.name}"
        self._rewriter.note(f"{name}: {len(plan.steps())} steps run in {op.description()}")
        inputs = tuple([self._rewriter.new(entry) for entry, _ in self._variables])
        ranks = [node.attributes[RANK] for node in members if RANK in node.attributes]
        attributes = {key: text for key, text in first.attributes.items() if key not in (RANK, LATE)}
        return Node(op, name, inputs, {**attributes, **({RANK: ranks[0]} if ranks else {})}, None, first.origin)
