"""The graph that passes take and return, and the tool to rewrite it.

A pass is a pure function from :class:`Graph` to :class:`Graph`: nodes never change, so it makes new ones in the
place of those that it replaces. :class:`Rewriter` walks the old graph in order and remembers what stands for what.
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
from flowmx.ops.recurrent.operator import RNN
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Operator, Shape

RANK = "__rank__"
"""The attribute of a step with an effect that says after how many others it comes (see :func:`ranked`)."""


@dataclass(frozen=True)
class Graph:
    """A symbol that is being compiled.

    Attributes:
        outputs: what the user asked for.
        gradients: for each differentiated variable, the entry of its gradient.
        shapes, dtypes: of every entry.
        train: True where it is compiled for training mode.
        heads: the variables that stand for the gradients of the outputs; empty where nothing is differentiated.
        groups: the device of each ``ctx_group``; what is in no group is on the default device.
        default: the default device; None where the graph does not say.
        notes: what the passes did, and what they could not do, in words.
        straight: the variables whose gradient may be written straight to the user's array.
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
    straight: frozenset[Node] = frozenset()

    def wanted(self) -> list[Entry]:
        """Every entry that must be computed: outputs and gradients."""
        return [*self.outputs, *self.gradients.values()]

    def nodes(self) -> list[Node]:
        """Every node, inputs before users: those of the forward pass first."""
        return list(self._order)

    @cached_property
    def _walked(self) -> tuple[list[Node], int, bool]:
        """The nodes, how many of them come before those that only gradients need, and whether ranks change that."""
        walked: dict[Node, None] = {}
        walk(self.outputs, walked)
        count = len(walked)
        walk(self.gradients.values(), walked)
        found = list(walked)
        order = _by_rank(found)
        if order is None:
            return found, count, False
        return topological([*[Entry(node, 0) for node in order], *self.wanted()]), 0, True

    @cached_property
    def _order(self) -> list[Node]:
        """The nodes: every pass asks for them, and they never change."""
        return self._walked[0]

    def forward(self) -> list[Node]:
        """The operators that the outputs need, in order."""
        return list(self._forward)

    def backward(self) -> list[Node]:
        """The operators that only the gradients need, in order."""
        return list(self._backward)

    @cached_property
    def _forward(self) -> list[Node]:
        found, count, is_ranked = self._walked
        return [node for node in (_in_order(self.outputs) if is_ranked else found[:count]) if node.op is not None]

    @cached_property
    def _backward(self) -> list[Node]:
        found, count, is_ranked = self._walked
        before = set(self._forward) if is_ranked else ()
        rest = topological(self.gradients.values()) if is_ranked else found[count:]
        return [node for node in rest if node.op is not None and node not in before]

    def uses(self) -> Counter[Entry]:
        """Number of reads of each entry; an output or a gradient counts as one more."""
        return Counter(chain(self.wanted(), *[node.inputs for node in self._order]))

    def context(self, node: Node) -> Context | None:
        """The device that a node is on."""
        return self.groups.get(node.attributes.get("__ctx_group__", ""), self.default)

    def with_notes(self, *notes: str) -> Graph:
        """The same graph with more notes for :meth:`Plan.explain`."""
        return replace(self, notes=(*self.notes, *notes))


@dataclass(frozen=True)
class Options:
    """Options of the graph compiler.

    Attributes:
        device_type: what it will run on; a pass makes only what has kernels there.
        in_place: let an operator write over an input that is done with.
        share: let values that never live at the same time share memory.
        workspaces: where nothing shares memory, how many places steps of a device work in, by turns.
        channels_last: the element types of values that may lie channels-last, where kernels are faster then.
        multiplied: the element types for which there are kernels of layers and of what is fused into them.
        varying: the names of variables that are others in each run: nothing that follows from them is kept.
        workers: how many operations a device runs at a time: branches may then run at the same time.
        pack: keep copies of filters in the order that kernels want, which takes memory and saves time.
        merge: compute once what several nodes would.
        mirror: compute cheap values again for the backward pass, rather than keep them.
        budget: the most bytes that internal values may take: as much as needed is computed again (None: any).
        joint: both passes run as one operation, so that nothing need be left for a backward pass of its own.
        slice: how many examples of a batch are a slice, where regions of a prediction run in slices: as many as is
            worth it (-1), or none at all (0).
        room: the bytes that the internal values of a prediction may take on a device with memory of its own (None: the
            processor's memory, of which no more is taken than is worth it).
        staged: slices are copied to and from where they always lie, so that the device can capture what is between.
    """

    device_type: str = "cpu"
    in_place: bool = True
    share: bool = True
    workspaces: int = 1
    channels_last: frozenset[DType] = frozenset()
    multiplied: frozenset[DType] = frozenset([FLOAT32])
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
    """Makes a graph from another one, node by node in order.

    For each node of ``nodes`` a pass calls :meth:`keep`, or :meth:`make` and :meth:`replace`, or nothing where the
    node goes away. ``keep`` gives the very same node where nothing before it has changed.

    Attributes:
        graph: the old graph.
        nodes: its nodes in order.
        shapes, dtypes: of old and new entries.
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
        """The entry that replaces an old one (itself, if nothing does)."""
        return self._replaced.get(entry, entry)

    def is_replaced(self, entry: Entry) -> bool:
        """Tell whether something else has replaced an old entry."""
        return entry in self._replaced

    def keep(self, node: Node) -> Node:
        """Copy a node with replaced inputs (the node itself, if none is)."""
        given, replacing = node.inputs, self._replaced.get
        inputs = tuple(map(replacing, given, given))
        return node if inputs == given else self._copy(node, inputs)

    def mark(self, node: Node, attributes: Mapping[str, str]) -> Node:
        """Copy a node with replaced inputs and more attributes."""
        inputs = tuple([self.new(entry) for entry in node.inputs])
        return self._copy(node, inputs, {**node.attributes, **attributes})

    def _copy(self, node: Node, inputs: tuple[Entry, ...], attributes: Mapping[str, str] | None = None) -> Node:
        made = node.over(inputs, attributes)
        replaced: Any = self._replaced
        shapes: Any = self.shapes
        dtypes: Any = self.dtypes
        count = self._counts.get(node.op)
        if count is None:
            count = self._counts[node.op] = node.outputs()
        for index in range(count):
            old, new = (node, index), tuple.__new__(Entry, (made, index))  # the fastest way to make one
            replaced[old], shapes[new], dtypes[new] = new, shapes[old], dtypes[old]
        return made

    def make(self, op: Operator, inputs: Sequence[Entry], like: Node, name: str = "") -> Node:
        """A new node of new entries, with the attributes and the origin of an old one."""
        spec = op.spec(tuple([self.shapes[e] for e in inputs]), tuple([self.dtypes[e] for e in inputs]))
        made = Node.beside(like, op, name or like.name, tuple(inputs))
        for index, shape in enumerate(spec.shapes):
            entry = Entry(made, index)
            self.shapes[entry], self.dtypes[entry] = shape, spec.dtypes[index]
        return made

    def replace(self, old: Entry, new: Entry) -> None:
        """Replace an old entry by a new one."""
        self._replaced[old] = new
        self.shapes[new], self.dtypes[new] = self.shapes[old], self.dtypes[old]

    def note(self, text: str) -> None:
        """Add a note on this pass."""
        self._notes.append(text)

    def result(self) -> Graph:
        """The new graph; the old one where nothing has changed."""
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


def ranked(graph: Graph) -> Graph:
    """Number the steps that draw random numbers or run user code, so that passes keep their order.

    What is drawn depends on that order, and must not depend on the passes, which join steps where a dtype allows it.
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
    """Every node that entries depend on, inputs before users, those with a rank in the order of their ranks."""
    found = topological(entries)
    order = _by_rank(found)
    return found if order is None else topological([*[Entry(node, 0) for node in order], *entries])


def _by_rank(nodes: Sequence[Node]) -> list[Node] | None:
    """Those of some nodes that have a rank, in the order of their ranks; None where they are in it already."""
    ranks = {node: int(node.attributes[RANK]) for node in nodes if RANK in node.attributes}
    order = sorted(ranks, key=ranks.__getitem__)
    return None if order == list(ranks) else order


def _has_order(node: Node) -> bool:
    """Tell whether a step must come in the order of the program."""
    return node.op is not None and (node.op.traits.uses_random or node.op.traits.detached)


def _orders(node: Node) -> tuple[str, ...]:
    """The kinds of effects of a step that must come in the order of the program."""
    if node.op is None or not _has_order(node):
        return ()
    kinds = {"random": node.op.traits.uses_random, "user code": node.op.traits.detached}
    return tuple([kind for kind, is_one in kinds.items() if is_one])


def is_pure(op: Operator, train: bool = True) -> bool:
    """Tell whether an operator has no effect but its outputs, so that it may be run twice, elsewhere or not at all.

    Args:
        op: the operator.
        train: in training mode, in which auxiliary states are written and Dropout draws.
    """
    if op.draws(train) or op.updates or op.traits.detached or op.subgraphs:
        return False
    return not (train and op.writes_more())


def multiplies(op: Operator) -> bool:
    """Tell whether products of matrices are the most of an operator's work: a layer's, or a recurrent layer's."""
    return op.traits.multiplies or isinstance(op, RNN)


def written(nodes: Iterable[Node], train: bool = True) -> set[Node]:
    """The variables that nodes write: what reads one of them gives something else before and after."""
    found: set[Node] = set()
    moved: dict[Operator, tuple[int, ...]] = {}
    for node in nodes:
        op = node.op
        if op is None:
            continue
        if op not in moved:
            # A loop's updates are states, too.
            moved[op] = op.moved_inputs(train) if train or not op.subgraphs else ()
        if moved[op]:
            found.update(node.inputs[position].node for position in moved[op])
    return found


def predecessors(nodes: Sequence[Node]) -> list[list[int]]:
    """For each step the positions of the steps that must run before it, however they are ordered.

    These are the steps that compute its inputs; and, of steps that draw random numbers, run user code or write a
    variable, the one before: what they do shows in what comes after.

    Args:
        nodes: operators in one legal order.
    """
    at = {node: position for position, node in enumerate(nodes)}
    before: list[list[int]] = []
    last: dict[object, int] = {}
    readers: dict[Node, list[int]] = {}
    states = {node for node in written(nodes) if node.is_variable}
    for position, node in enumerate(nodes):
        assert node.op is not None
        needs = {at[source] for source, _ in node.inputs if source in at}
        if states:
            for source, _ in node.inputs:
                if source in states:
                    if source in last:
                        needs.add(last[source])
                    readers.setdefault(source, []).append(position)
            for variable in {node.inputs[i].node for i in node.op.moved_inputs(train=True)}:
                needs.update(readers.pop(variable, []))
                last[variable] = position
        for kind in _orders(node):
            if kind in last:
                needs.add(last[kind])
            last[kind] = position
        needs.discard(position)
        before.append(sorted(needs))
    return before
