"""The graph that passes receive and return, and its rewriter.

A pass is a pure function from :class:`Graph` to :class:`Graph`. Nodes are immutable, so a pass creates new ones.
:class:`Rewriter` visits the old graph in order and records the replacement of each entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from flowmx.devices import Context
from flowmx.graph.node import Entry, Node, topological, walk
from flowmx.ops.recurrent.rnn import RNN
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Operator, Shape

RANK = "__rank__"
"""Attribute of a node with ordered effects: the number of such nodes before it (see :func:`rank_effects`)."""


@dataclass(frozen=True)
class Graph:
    """A symbol that is being compiled.

    Attributes:
        outputs: the outputs that the user requested.
        gradients: for each differentiated variable, the entry of its gradient.
        shapes, dtypes: the shape and dtype of every entry.
        train: whether it is compiled for training mode.
        heads: the variables for the gradients of the outputs; empty without differentiation.
        groups: the device of each ``ctx_group``; nodes without a group are on the default device.
        default: the default device, or None if unspecified.
        notes: what the passes did and could not do, for :meth:`Plan.explain`.
        direct: the variables whose gradient may be written directly to the user's array.
    """

    outputs: tuple[Entry, ...]
    gradients: Mapping[Node, Entry]
    shapes: Mapping[Entry, Shape]
    dtypes: Mapping[Entry, DType]
    train: bool
    heads: tuple[Node, ...] = ()
    groups: Mapping[str, Context] = field(default_factory=dict)
    default: Context | None = None
    notes: tuple[str, ...] = ()
    direct: frozenset[Node] = frozenset()

    def results(self) -> list[Entry]:
        """Return every entry that must be computed: outputs and gradients."""
        return [*self.outputs, *self.gradients.values()]

    def nodes(self) -> list[Node]:
        """Return every node, inputs before users, the forward pass first."""
        return list(self._order)

    @cached_property
    def _nodes_and_count(self) -> tuple[list[Node], int, bool]:
        """The nodes, the number of them in the forward pass, and whether ranks change their order."""
        walked: dict[Node, None] = {}
        walk(self.outputs, walked)
        count = len(walked)
        walk(self.gradients.values(), walked)
        nodes = list(walked)
        order = _sort_by_rank(nodes)
        if order is None:
            return nodes, count, False
        return topological([*[Entry(node, 0) for node in order], *self.results()]), 0, True

    @cached_property
    def _order(self) -> list[Node]:
        """The nodes, cached because every pass reads them."""
        return self._nodes_and_count[0]

    def forward(self) -> list[Node]:
        """Return the operators that the outputs need, in order."""
        return list(self._forward)

    def backward(self) -> list[Node]:
        """Return the operators that only the gradients need, in order."""
        return list(self._backward)

    @cached_property
    def _forward(self) -> list[Node]:
        nodes, count, is_ranked = self._nodes_and_count
        return [node for node in (_in_order(self.outputs) if is_ranked else nodes[:count]) if node.op is not None]

    @cached_property
    def _backward(self) -> list[Node]:
        nodes, count, is_ranked = self._nodes_and_count
        before = set(self._forward) if is_ranked else ()
        rest = topological(self.gradients.values()) if is_ranked else nodes[count:]
        return [node for node in rest if node.op is not None and node not in before]

    def uses(self) -> Counter[Entry]:
        """Return the number of reads of each entry; an output or a gradient adds one."""
        return Counter(chain(self.results(), *[node.inputs for node in self._order]))

    def context(self, node: Node) -> Context | None:
        """Return the device of a node."""
        return self.groups.get(node.attributes.get("__ctx_group__", ""), self.default)

    def with_notes(self, *notes: str) -> Graph:
        """Return the same graph with more notes for :meth:`Plan.explain`."""
        return replace(self, notes=(*self.notes, *notes))


@dataclass(frozen=True)
class Options:
    """Options of the graph compiler.

    Attributes:
        device_type: the target device; passes use only operators with kernels there.
        in_place: let an operator overwrite an input that has no later reader.
        share: let values with disjoint lifetimes share memory.
        workspaces: the number of workspaces that a device's steps use in rotation if values do not share memory.
        channels_last: the dtypes with faster kernels for channels-last layout.
        product_dtypes: the dtypes with kernels for layers and for operators fused into them.
        varying: the names of variables that change in each run; values computed from them are not cached.
        workers: the number of operations that a device runs at a time; with several, branches may run concurrently.
        pack: cache filters in the kernels' layout, which takes memory and saves time.
        merge: compute common subexpressions once.
        mirror: recompute cheap values for the backward pass instead of keeping them.
        budget: the maximum size of internal values in bytes; values are recomputed until they fit (None: no limit).
        joint: both passes run as one operation, so no values are kept for a separate backward pass.
        slice: the number of samples in a slice of a prediction; -1: chosen by cost; 0: no slices.
        room: the bytes for internal values of a prediction on a device with separate memory (None: processor memory,
            where cost sets the limit).
        staged: copy slices to and from fixed buffers, so that the device can capture the steps in between.
    """

    device_type: str = "cpu"
    in_place: bool = True
    share: bool = True
    workspaces: int = 1
    channels_last: frozenset[DType] = frozenset()
    product_dtypes: frozenset[DType] = frozenset([FLOAT32])
    varying: tuple[str, ...] = ()
    workers: int = 1
    pack: bool = False
    merge: bool = True
    mirror: bool = False
    budget: int | None = None
    joint: bool = False
    slice: int = 0
    room: int | None = None
    staged: bool = False


class Rewriter:
    """Creates a graph from another one, node by node in order.

    For each node, a pass calls :meth:`keep`, or :meth:`make` and :meth:`replace`, or nothing to remove the node.
    ``keep`` returns the node itself if its inputs have not changed.

    Attributes:
        graph: the old graph.
        nodes: its nodes in order.
        shapes, dtypes: the shapes and dtypes of old and new entries.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.shapes: MutableMapping[Entry, Shape] = dict(graph.shapes)
        self.dtypes: MutableMapping[Entry, DType] = dict(graph.dtypes)
        self._replaced: dict[Entry, Entry] = {}
        self._counts: dict[Operator | None, int] = {}
        """The numbers of outputs."""
        self._notes: list[str] = []

    @cached_property
    def uses(self) -> Counter[Entry]:
        """The number of reads of each entry of the old graph."""
        return self.graph.uses()

    def new(self, entry: Entry) -> Entry:
        """Return the replacement of an old entry, or the entry itself."""
        return self._replaced.get(entry, entry)

    def is_replaced(self, entry: Entry) -> bool:
        """Return whether an old entry has a replacement."""
        return entry in self._replaced

    def keep(self, node: Node) -> Node:
        """Copy a node with replaced inputs; return the node itself if no input is replaced."""
        old, replacing = node.inputs, self._replaced.get
        inputs = tuple(map(replacing, old, old))
        return node if inputs == old else self._copy(node, inputs)

    def mark(self, node: Node, attributes: Mapping[str, str]) -> Node:
        """Copy a node with replaced inputs and additional attributes."""
        inputs = tuple([self.new(entry) for entry in node.inputs])
        return self._copy(node, inputs, {**node.attributes, **attributes})

    def _copy(self, node: Node, inputs: tuple[Entry, ...], attributes: Mapping[str, str] | None = None) -> Node:
        copy = node.with_inputs(inputs, attributes)
        replaced: Any = self._replaced
        shapes: Any = self.shapes
        dtypes: Any = self.dtypes
        count = self._counts.get(node.op)
        if count is None:
            count = self._counts[node.op] = node.outputs()
        for index in range(count):
            old, new = (node, index), tuple.__new__(Entry, (copy, index))  # the fastest constructor
            replaced[old], shapes[new], dtypes[new] = new, shapes[old], dtypes[old]
        return copy

    def make(self, op: Operator, inputs: Sequence[Entry], like: Node, name: str = "") -> Node:
        """Create a node with inputs of the new graph, and the attributes and origin of an old node."""
        spec = op.spec(tuple([self.shapes[e] for e in inputs]), tuple([self.dtypes[e] for e in inputs]))
        node = Node.derive(like, op, name or like.name, tuple(inputs))
        for index, shape in enumerate(spec.shapes):
            entry = Entry(node, index)
            self.shapes[entry], self.dtypes[entry] = shape, spec.dtypes[index]
        return node

    def replace(self, old: Entry, new: Entry) -> None:
        """Replace an old entry with a new one."""
        self._replaced[old] = new
        self.shapes[new], self.dtypes[new] = self.shapes[old], self.dtypes[old]

    def note(self, text: str) -> None:
        """Add a note about this pass."""
        self._notes.append(text)

    def result(self) -> Graph:
        """Return the new graph, or the old one if nothing changed."""
        if not self._replaced:
            return self.graph.with_notes(*self._notes) if self._notes else self.graph
        return replace(
            self.graph,
            outputs=tuple([self.new(entry) for entry in self.graph.outputs]),
            gradients={node: self.new(entry) for node, entry in self.graph.gradients.items()},
            shapes=self.shapes,
            dtypes=self.dtypes,
            notes=(*self.graph.notes, *self._notes),
        )


def rank_effects(graph: Graph) -> Graph:
    """Number the nodes that draw random numbers or run user code, so that passes keep their order.

    Random draws depend on that order, which must not depend on passes: some passes join nodes only for some dtypes.
    """
    ordered = [node for node in graph.nodes() if _has_order(node)]
    if len(ordered) < 2:
        return graph
    rewriter = Rewriter(graph)
    ranks = {node: str(rank) for rank, node in enumerate(ordered)}
    for node in rewriter.nodes:
        if node in ranks:
            rewriter.mark(node, {RANK: ranks[node]})
        else:
            rewriter.keep(node)
    return rewriter.result()


def _in_order(entries: Sequence[Entry]) -> list[Node]:
    """Return every node that the entries depend on, inputs before users, ranked nodes in rank order."""
    nodes = topological(entries)
    order = _sort_by_rank(nodes)
    return nodes if order is None else topological([*[Entry(node, 0) for node in order], *entries])


def _sort_by_rank(nodes: Sequence[Node]) -> list[Node] | None:
    """Return the ranked nodes in rank order, or None if they already are in that order."""
    ranks = {node: int(node.attributes[RANK]) for node in nodes if RANK in node.attributes}
    order = sorted(ranks, key=ranks.__getitem__)
    return None if order == list(ranks) else order


def _has_order(node: Node) -> bool:
    """Return whether a node must run in program order."""
    return node.op is not None and (node.op.traits.uses_random or node.op.traits.detached)


def _orders(node: Node) -> tuple[str, ...]:
    """Return the kinds of a node's effects that must happen in program order."""
    if node.op is None or not _has_order(node):
        return ()
    kinds = {"random": node.op.traits.uses_random, "user code": node.op.traits.detached}
    return tuple([kind for kind, applies in kinds.items() if applies])


def is_pure(op: Operator, train: bool = True) -> bool:
    """Return whether an operator has no side effects, so that it may run twice, elsewhere or not at all.

    Args:
        op: the operator.
        train: whether in training mode, in which auxiliary states are written and Dropout draws.
    """
    if op.draws(train) or op.updates or op.traits.detached or op.subgraphs:
        return False
    return not (train and op.writes_inputs())


def is_run_invariant(node: Node) -> bool:
    """Return whether a node's value is reused from run to run: a variable, or computed once."""
    return node.op is None or node.op.traits.once


def multiplies(op: Operator) -> bool:
    """Return whether matrix products dominate an operator's work, as in dense, convolution and recurrent layers."""
    return op.traits.multiplies or isinstance(op, RNN)


def written_variables(nodes: Iterable[Node], train: bool = True) -> set[Node]:
    """Return the variables that nodes write; readers see different values before and after."""
    variables: set[Node] = set()
    positions: dict[Operator, tuple[int, ...]] = {}
    for node in nodes:
        op = node.op
        if op is None:
            continue
        if op not in positions:
            # The states of a loop are updates, too.
            positions[op] = op.updated_inputs(train) if train or not op.subgraphs else ()
        if positions[op]:
            variables.update(node.inputs[position].node for position in positions[op])
    return variables


def fixed_variables(nodes: Iterable[Node]) -> set[Node]:
    """Return the variables that nodes treat as 1 and set to 1 in training."""
    sources = {node.inputs[index].node for node in nodes if node.op is not None for index in node.op.fixed_inputs()}
    return {node for node in sources if node.is_variable}


def predecessors(nodes: Sequence[Node]) -> list[list[int]]:
    """Return for each node the positions of the nodes that must run before it, in any order.

    These are the nodes that compute its inputs. A node that draws random numbers, runs user code or writes a variable
    also follows the previous one of that kind, because the effects are observable.

    Args:
        nodes: operators in one valid order.
    """
    positions = {node: position for position, node in enumerate(nodes)}
    before: list[list[int]] = []
    last: dict[object, int] = {}
    readers: dict[Node, list[int]] = {}
    states = {node for node in written_variables(nodes) if node.is_variable}
    for position, node in enumerate(nodes):
        assert node.op is not None
        needs = {positions[source] for source, _ in node.inputs if source in positions}
        if states:
            for source, _ in node.inputs:
                if source in states:
                    if source in last:
                        needs.add(last[source])
                    readers.setdefault(source, []).append(position)
            for variable in {node.inputs[i].node for i in node.op.updated_inputs(train=True)}:
                needs.update(readers.pop(variable, []))
                last[variable] = position
        for kind in _orders(node):
            if kind in last:
                needs.add(last[kind])
            last[kind] = position
        needs.discard(position)
        before.append(sorted(needs))
    return before
