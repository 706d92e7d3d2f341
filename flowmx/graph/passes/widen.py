"""Prediction in 16 bits where a processor, or a kernel, has no arithmetic for them: in float32.

Operator by operator, each kernel would cast what it reads and what it makes. Here only what comes into a region of such
operators and goes out of it is cast; the values between have more digits, and all that other passes do for float32 is
done for them too. Parameters are cast once. Where the processor multiplies numbers of 16 bits, operators whose kernels
take them stay as they are, except between those that do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowmx.graph.graph import Graph, Options, Rewriter, multiplies
from flowmx.graph.node import Entry, Node
from flowmx.ops import kernels
from flowmx.ops.compiled.widened import Widened
from flowmx.ops.math.casting import Cast
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Operator
from flowmx.ops.second_names import RNNParamConcat


def widen(graph: Graph, options: Options) -> Graph:
    """Compute in float32 what has no kernel in 16 bits, where nothing is differentiated."""
    halves = {entry for entry, dtype in graph.dtypes.items() if _is_half(dtype)}
    if graph.train or graph.heads or options.device_type != "cpu" or not halves or graph.groups:
        return graph
    if not any(node.op is not None and multiplies(node.op) for node in graph.nodes()):
        return graph
    return _Widening(graph, options).result()


def _is_half(dtype: DType) -> bool:
    return dtype.itemsize == 2 and is_floating(dtype)


class _Widening:
    """One walk over a graph."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self._rewriter = Rewriter(graph)
        self._options = options
        self._parameters = {each for each in _parameters(graph) if each.name not in options.varying}
        self._wide: dict[Entry, Entry] = {}
        """For each entry of 16 bits of the old graph the same in float32."""
        self._narrow: dict[Entry, Entry] = {}
        """For each of them that was computed in float32 a copy in 16 bits."""
        for node in self._rewriter.nodes:
            if node.op is not None and not self._cast_once(node, node.op) and not self._widened(node, node.op):
                for entry in node.inputs:
                    self._as_half(entry)
                self._rewriter.keep(node)
        for entry in graph.wanted():
            self._as_half(entry)

    def result(self) -> Graph:
        return self._rewriter.result()

    def _widened(self, node: Node, op: Operator) -> bool:
        """Compute a node in float32; False where it must stay as it is."""
        rewriter, dtypes = self._rewriter, self._rewriter.graph.dtypes
        made = [Entry(node, index) for index in range(node.outputs())]
        halves = [dtypes[entry] for entry in (*node.inputs, *made) if _is_half(dtypes[entry])]
        if not halves or self._stays(node, op, halves[0]):
            return False
        traits = op.traits
        if op.subgraphs or op.updates or traits.detached or traits.casts or traits.once or not node.inputs:
            return False
        shapes = tuple([rewriter.graph.shapes[entry] for entry in node.inputs])
        spec = op.spec(shapes, tuple([_widest(dtypes[entry]) for entry in node.inputs]))
        if [_widest(dtypes[entry]) for entry in made] != spec.dtypes:
            return False  # a parameter says what it makes
        copy = rewriter.make(op, [self._as_wide(entry) for entry in node.inputs], node)
        for old, new in zip(made, (Entry(copy, index) for index in range(len(made))), strict=True):
            if _is_half(dtypes[old]):
                self._wide[old] = new
            else:
                rewriter.replace(old, new)
        return True

    def _stays(self, node: Node, op: Operator, dtype: DType) -> bool:
        """Tell whether a node is computed in 16 bits: its kernel does so, and not all that it reads is float32 now."""
        if dtype not in self._options.multiplied or not kernels.computes(self._options.device_type, op, dtype):
            return False
        halves = [entry for entry in node.inputs if _is_half(self._rewriter.graph.dtypes[entry])]
        return op.traits.multiplies or not halves or not all(map(self._is_wide, halves))

    def _is_wide(self, entry: Entry) -> bool:
        """Tell whether an entry of 16 bits is computed in float32, and was in 16 bits for no reader so far."""
        return entry in self._wide and entry not in self._narrow and not isinstance(self._wide[entry].node.op, Cast)

    def _cast_once(self, node: Node, op: Operator) -> bool:
        """Cast a parameter once and for all; False for other nodes."""
        if not op.traits.casts or node.inputs[0].node not in self._parameters:
            return False
        dtype = self._rewriter.graph.dtypes[Entry(node, 0)]
        made = self._rewriter.make(Widened.create(dtype=dtype), list(node.inputs), node)
        self._rewriter.replace(Entry(node, 0), Entry(made, 0))
        return True

    def _as_wide(self, entry: Entry) -> Entry:
        rewriter = self._rewriter
        if not _is_half(rewriter.graph.dtypes[entry]):
            return rewriter.new(entry)
        if entry not in self._wide:
            kind = Widened if entry.node in self._parameters else Cast
            made = rewriter.make(kind.create(dtype=FLOAT32), [rewriter.new(entry)], entry.node)
            self._wide[entry] = Entry(made, 0)
        return self._wide[entry]

    def _as_half(self, entry: Entry) -> None:
        """Let an entry that was computed in float32 be there in 16 bits, too."""
        rewriter = self._rewriter
        dtype = rewriter.graph.dtypes[entry]
        is_made = entry in self._wide and entry.node.op is not None and rewriter.new(entry) == entry
        if is_made and entry not in self._narrow and not isinstance(self._wide[entry].node.op, Cast):
            made = rewriter.make(Cast.create(dtype=dtype), [self._wide[entry]], entry.node)
            self._narrow[entry] = Entry(made, 0)
            rewriter.replace(entry, Entry(made, 0))


def _widest(dtype: DType) -> DType:
    return FLOAT32 if _is_half(dtype) else dtype


def _parameters(graph: Graph) -> set[Node]:
    """The variables that are read as parameters alone, as any type: after the data of operators that have some.

    Views of them, and the vector that a recurrent layer's are joined to, are read as they are.
    """
    found: set[Node] = set()
    others = {node for entry in graph.wanted() for node in _sources(entry)}
    for node in graph.nodes():
        if node.op is None or not _passes_on(node.op):
            for at, entry in enumerate(node.inputs):
                is_data = node.op is None or at == 0 or node.op.arguments[:1] != ("data",)
                (others if is_data else found).update(_sources(entry))
    return {node for node in found - others if node.is_variable}


def _passes_on(op: Operator) -> bool:
    """Tell whether an operator only hands on what it reads: in another type or shape, or joined to a vector."""
    return op.traits.casts or op.traits.view or type(op) is RNNParamConcat


def _sources(entry: Entry) -> Iterator[Node]:
    """Iterate over the nodes whose values come through such operators to an entry."""
    op = entry.node.op
    if op is None or not _passes_on(op):
        yield entry.node
        return
    for each in entry.node.inputs if type(op) is RNNParamConcat else entry.node.inputs[:1]:
        yield from _sources(each)
