"""A region of a graph as one operator, which runs it for one part of the batch after the other.

What it computes for a part has the part's size, and a plan of its own; what it reads and gives lies whole. Results that
are sums over the batch are added up, part by part, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from flowmx.graph.graph import RANK, Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning.order import LATE
from flowmx.ops.compiled.fused import FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed import OrderConvolution, Pack
from flowmx.ops.compiled.sliced import Sliced, Staged, Summed
from flowmx.ops.math.products import SMALL
from flowmx.ops.nn.common import bound
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape, packed_size
from flowmx.ops.registry.traits import BatchParts


def is_ordered(graph: Graph, node: Node) -> bool:
    """Tell whether a layer brings its weight into the order of its kernel in each run."""
    is_layer = FUSED.get(type(node.op)) is FusedConvolution and not getattr(node.op, "packed", False)
    return is_layer and graph.dtypes[node.inputs[0]] == graph.dtypes[node.inputs[1]]


class Region:
    """A region that becomes an operator.

    Args:
        rewriter: of the graph.
        members: its operators, in order, with what of them goes along with the batch.
        units: the number of equal parts that the batch can be cut into.
        length: units in a slice.
        laid: the entries that lie channels-last.
        ahead: layers (see :func:`is_ordered`) whose weights are brought into order once, before all slices.
    """

    def __init__(
        self, rewriter: Rewriter, members: Mapping[Node, BatchParts], units: int, length: int, laid: Collection[Entry],
        ahead: Collection[Node] = (),
    ) -> None:  # fmt: skip
        self._ahead = ahead
        self._rewriter, self._members, self._laid = rewriter, members, laid
        self._units, self._length = units, length
        self._graph = rewriter.graph
        forward = set(self._graph.forward()) if self._graph.gradients else set()
        self._forward = forward if any(node in forward for node in members) else members.keys()
        self._shapes: dict[Entry, Shape] = {}
        self._dtypes: dict[Entry, DType] = {}
        self._inside: dict[Entry, Entry] = {}
        self._variables: dict[tuple[Entry, bool], Entry] = {}
        self._channels_last: set[Entry] = set()
        self._packs: list[Node] = []
        self._staged: dict[Entry, Entry] | None = None
        """The copies of slices of variables, where they are staged."""

    def put(
        self, strided: Collection[Node], options: Options, change: Callable[[Graph], Graph] | None = None,
        rough: bool = False,
    ) -> list[Node]:  # fmt: skip
        """Make the operator's node, with what comes before it in the order; the region as it is where it cannot be.

        Args:
            strided: the variables whose arrays do not lie densely in C order.
            options: how.
            change: a pass over the graph of a slice, whose steps are then ordered anew.
            rough: as for :func:`flowmx.graph.plan.make_plan`.
        """
        if options.staged and not self._graph.gradients:
            self._staged = {}
        outputs = self._outputs()
        given = {entry.node for entry in outputs}
        steps = [self._step(node, options, node in given) for node in self._members]
        if None in steps:
            return [self._rewriter.keep(node) for node in self._members]
        inner = [step for step in steps if step is not None]
        results = [self._result(entry) for entry in outputs]
        if self._staged is not None:
            results = [
                self._copied(entry, made, entry.index in self._members[entry.node].outputs)
                for entry, made in zip(outputs, results, strict=True)
            ]
            inner = [*[each.node for each in self._staged.values()], *inner, *[each.node for each in results]]
        early = [made for entry, made in zip(outputs, results, strict=True) if entry.node in self._forward]
        late: dict[Node, Entry] = {}
        for entry, made in zip(outputs, results, strict=True):
            if entry.node not in self._forward:
                late[self._variable_like(entry)] = made
        graph = Graph(
            tuple(early), late, self._shapes, self._dtypes, self._graph.train, groups=self._graph.groups,
            default=self._graph.default, straight=frozenset(late),
        )  # fmt: skip
        if change is not None:
            graph = change(graph)
        loose = [made.node for (entry, _), made in self._variables.items() if entry.node in strided]
        plan = make_plan(
            graph, graph.wanted(), loose, replace(options, workers=1, slice=0, budget=None),
            None if change is not None else (inner, []), self._channels_last, rough,
        )  # fmt: skip
        outputs.sort(key=lambda entry: entry.node not in self._forward)
        node = self._node(plan, outputs)
        for index, entry in enumerate(outputs):
            self._rewriter.replace(entry, Entry(node, index))
        return [*self._packs, node]

    def _step(self, node: Node, options: Options, given: bool) -> Node | None:
        """The operator of a slice, which is not late if what it computes is given; None where there is none."""
        parts, op = self._members[node], node.op
        inputs = [self._read(entry, at in parts.inputs) for at, entry in enumerate(node.inputs)]
        if getattr(op, "packed", False):
            pack = self._repacked(node, self._shapes[inputs[0]], options)
            if pack is None:
                return None
            self._packs.append(pack)
            inputs[1] = self._variable(Entry(pack, 0), False)
        elif node in self._ahead:
            op, inputs = self._ordered(node, inputs, options)
        elif FUSED.get(type(op)) is FusedFullyConnected and self._is_large(node):
            op = fused(node, whole=True)
        attributes = {key: text for key, text in node.attributes.items() if not (given and key == LATE)}
        made = Node(op, node.name, tuple(inputs), attributes, node.given, node.origin)
        for index in range(node.outputs()):
            self._note(Entry(node, index), Entry(made, index), index in parts.outputs)
            self._inside[Entry(node, index)] = Entry(made, index)
        return made

    def _is_large(self, node: Node) -> bool:
        """Tell whether a product of the whole batch has a kernel that one of fewer rows may not have."""
        shapes = self._rewriter.shapes
        return prod(shapes[Entry(node, 0)]) * shapes[node.inputs[1]][-1] >= SMALL

    def _ordered(self, node: Node, inputs: list[Entry], options: Options) -> tuple[Operator | None, list[Entry]]:
        """A layer that reads its weight in the order of its kernel, and what it reads; as it is where there is none."""
        # The scale stays with the layer: in the weight it would round other numbers than it does for the whole batch.
        layer, data = fused(node, packed=True), self._shapes[inputs[0]]
        context = self._graph.context(node)
        kind = options.device_type if context is None else context.kernels
        dtype = self._rewriter.dtypes[node.inputs[0]]
        size = packed_size(kind, layer, data, dtype) if dtype in options.multiplied else None
        if size is None or node.op is None:
            return node.op, inputs
        op = OrderConvolution.create(**{**bound(layer), "scaled": False, "data_shape": data, "size": size})
        made = self._rewriter.make(op, [self._rewriter.new(node.inputs[1])], node, f"{node.name} weight in order")
        self._packs.append(made)
        return layer, [inputs[0], self._variable(Entry(made, 0), False), *inputs[2:]]

    def _read(self, entry: Entry, along: bool) -> Entry:
        """The entry that stands for one of the graph in a slice."""
        return self._inside[entry] if entry in self._inside else self._variable(entry, along)

    def _variable(self, entry: Entry, along: bool) -> Entry:
        made = self._variables.get((entry, along))
        if made is None:
            made = Entry(Node(None, entry.node.output_name(entry.index), attributes=entry.node.attributes), 0)
            self._variables[entry, along] = made
            self._note(entry, made, along)
            if along and self._staged is not None:
                self._staged[made] = self._copied(entry, made, along)
        return self._staged[made] if along and self._staged is not None else made

    def _copied(self, entry: Entry, made: Entry, along: bool) -> Entry:
        """A copy of what stands for an entry in a slice, to be staged."""
        copy = Entry(
            Node(Staged(), f"slice of {entry.node.name}", (made,), made.node.attributes, None, entry.node.origin), 0
        )
        self._note(entry, copy, along)
        return copy

    def _variable_like(self, entry: Entry) -> Node:
        """A variable of which a result that only gradients need is the gradient."""
        made = Node(None, entry.node.output_name(entry.index))
        self._note(entry, Entry(made, 0), entry.index in self._members[entry.node].outputs)
        return made

    def _note(self, entry: Entry, made: Entry, along: bool) -> None:
        """Note the form of what stands for an entry in a slice."""
        shape = self._rewriter.shapes[entry]
        self._shapes[made] = (self._rows(entry), *shape[1:]) if along else shape
        self._dtypes[made] = self._rewriter.dtypes[entry]
        if entry in self._laid:
            self._channels_last.add(made)

    def _rows(self, entry: Entry) -> int:
        """The rows of an entry that are a slice's."""
        return self._rewriter.shapes[entry][0] // self._units * self._length

    def _repacked(self, node: Node, data: Shape, options: Options) -> Node | None:
        """The node that packs a layer's weight for a slice of its data; None where the kernel has no such layout."""
        source = node.inputs[1].node
        assert isinstance(source.op, Pack) and node.op is not None
        context = self._graph.context(node)
        kind = options.device_type if context is None else context.kernels
        size = packed_size(kind, node.op, data, self._rewriter.dtypes[node.inputs[0]])
        if size is None:
            return None
        given = {name: getattr(source.op, name) for name in source.op.parameters}
        op = type(source.op).create(**{**given, "data_shape": data, "size": size})
        return self._rewriter.make(op, [self._rewriter.new(entry) for entry in source.inputs], source)

    def _outputs(self) -> list[Entry]:
        """The entries that are read outside of the region."""
        read = dict.fromkeys(entry for entry in self._graph.wanted() if entry.node in self._members)
        for node in self._rewriter.nodes:
            if node not in self._members:
                read.update(dict.fromkeys(entry for entry in node.inputs if entry.node in self._members))
        return list(read)

    def _result(self, entry: Entry) -> Entry:
        """The result of a slice for an entry that is read outside: a sum is added to that of the slices before it."""
        made = self._inside[entry]
        if entry.index not in self._members[entry.node].sums:
            return made
        summed = Entry(Node(Summed(), entry.node.name, (made,), made.node.attributes, None, entry.node.origin), 0)
        self._shapes[summed], self._dtypes[summed] = self._shapes[made], self._dtypes[made]
        return summed

    def _node(self, plan: Plan, outputs: Sequence[Entry]) -> Node:
        """The operator's node."""
        units, length, members = self._units, self._length, self._members
        first, *_, last = [*members, *members]
        shapes, dtypes = self._rewriter.shapes, self._rewriter.dtypes
        rows = [self._rows(entry) if along else 0 for entry, along in self._variables]
        firsts = [*rows, *[self._rows(e) if e.index in members[e.node].outputs else 0 for e in outputs]]
        begins = [min(at, units - length) for at in range(0, units, length)]
        op = Sliced.of(
            plan=plan,
            variables=tuple(self._variables.values()),
            rows=tuple(firsts),
            starts=tuple([tuple([begin * each // length for each in firsts]) for begin in begins]),
            forms=tuple([(shapes[entry], dtypes[entry]) for entry in outputs]),
            batch=(units, length),
            laid=tuple([entry in self._laid for entry in outputs]),
            staged=self._staged is not None,
        )
        name = first.name if len(members) == 1 else f"{first.name} to {last.name}"
        self._rewriter.note(f"{name}: {len(plan.steps())} steps run in {op.told()}")
        inputs = tuple([self._rewriter.new(entry) for entry, _ in self._variables])
        ranks = [node.attributes[RANK] for node in members if RANK in node.attributes]
        attributes = {key: text for key, text in first.attributes.items() if key not in (RANK, LATE)}
        return Node(op, name, inputs, {**attributes, **({RANK: ranks[0]} if ranks else {})}, None, first.origin)
