"""16-bit prediction in float32, if a processor or a kernel has no 16-bit arithmetic.

If each operator cast separately, every kernel would cast its inputs and outputs. This pass casts only at the borders of
a region of such operators; intermediate values have float32 precision, and all other passes for float32 apply to them.
Parameters are cast once. If the processor has 16-bit products, operators with such kernels stay as they are, unless all
their 16-bit inputs are already computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowmx.graph.graph import Graph, Options, Rewriter, multiplies
from flowmx.graph.node import Entry, Node
from flowmx.ops import kernels
from flowmx.ops.compiled.cast_parameters import CastParameter
from flowmx.ops.math.casting import Cast
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Operator
from flowmx.ops.second_names import RNNParamConcat


def widen(graph: Graph, options: Options) -> Graph:
    """Compute operators without 16-bit kernels in float32, in graphs without gradients."""
    entries_16bit = {entry for entry, dtype in graph.dtypes.items() if _is_half(dtype)}
    if graph.train or graph.heads or options.device_type != "cpu" or not entries_16bit or graph.groups:
        return graph
    if not any(node.op is not None and multiplies(node.op) for node in graph.nodes()):
        return graph
    return _Widening(graph, options).result()


def _is_half(dtype: DType) -> bool:
    return dtype.itemsize == 2 and is_floating(dtype)


class _Widening:
    """One pass over a graph."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self._rewriter = Rewriter(graph)
        self._options = options
        self._parameters = {node for node in _parameters(graph) if node.name not in options.varying}
        self._wide: dict[Entry, Entry] = {}
        """The float32 version of each 16-bit entry of the old graph."""
        self._narrow: dict[Entry, Entry] = {}
        """The 16-bit copy of each entry that was computed in float32."""
        for node in self._rewriter.nodes:
            if node.op is not None and not self._cast_parameter(node, node.op) and not self._widen(node, node.op):
                for entry in node.inputs:
                    self._as_half(entry)
                self._rewriter.keep(node)
        for entry in graph.results():
            self._as_half(entry)

    def result(self) -> Graph:
        return self._rewriter.result()

    def _widen(self, node: Node, op: Operator) -> bool:
        """Compute a node in float32; return False if it must stay as it is."""
        rewriter, dtypes = self._rewriter, self._rewriter.graph.dtypes
        outputs = [Entry(node, index) for index in range(node.outputs())]
        entries_16bit = [dtypes[entry] for entry in (*node.inputs, *outputs) if _is_half(dtypes[entry])]
        if not entries_16bit or self._stays_half(node, op, entries_16bit[0]):
            return False
        traits = op.traits
        if op.subgraphs or op.updates or traits.detached or traits.casts or traits.once or not node.inputs:
            return False
        shapes = tuple([rewriter.graph.shapes[entry] for entry in node.inputs])
        spec = op.spec(shapes, tuple([_widest(dtypes[entry]) for entry in node.inputs]))
        if [_widest(dtypes[entry]) for entry in outputs] != spec.dtypes:
            return False  # a parameter sets the dtype
        copy = rewriter.make(op, [self._as_wide(entry) for entry in node.inputs], node)
        for old, new in zip(outputs, (Entry(copy, index) for index in range(len(outputs))), strict=True):
            if _is_half(dtypes[old]):
                self._wide[old] = new
            else:
                rewriter.replace(old, new)
        return True

    def _stays_half(self, node: Node, op: Operator, dtype: DType) -> bool:
        """Return whether a node stays in 16 bits: it has a kernel, and some 16-bit input is not computed in float32."""
        if dtype not in self._options.product_dtypes or not kernels.computes(self._options.device_type, op, dtype):
            return False
        entries_16bit = [entry for entry in node.inputs if _is_half(self._rewriter.graph.dtypes[entry])]
        return op.traits.multiplies or not entries_16bit or not all(map(self._is_wide, entries_16bit))

    def _is_wide(self, entry: Entry) -> bool:
        """Return whether a 16-bit entry is computed in float32, and no reader has needed it in 16 bits so far."""
        return entry in self._wide and entry not in self._narrow and not isinstance(self._wide[entry].node.op, Cast)

    def _cast_parameter(self, node: Node, op: Operator) -> bool:
        """Cast a parameter once; return False for other nodes."""
        if not op.traits.casts or node.inputs[0].node not in self._parameters:
            return False
        dtype = self._rewriter.graph.dtypes[Entry(node, 0)]
        cast = self._rewriter.make(CastParameter.create(dtype=dtype), list(node.inputs), node)
        self._rewriter.replace(Entry(node, 0), Entry(cast, 0))
        return True

    def _as_wide(self, entry: Entry) -> Entry:
        rewriter = self._rewriter
        if not _is_half(rewriter.graph.dtypes[entry]):
            return rewriter.new(entry)
        if entry not in self._wide:
            kind = CastParameter if entry.node in self._parameters else Cast
            cast = rewriter.make(kind.create(dtype=FLOAT32), [rewriter.new(entry)], entry.node)
            self._wide[entry] = Entry(cast, 0)
        return self._wide[entry]

    def _as_half(self, entry: Entry) -> None:
        """Add a 16-bit copy of an entry that was computed in float32."""
        rewriter = self._rewriter
        dtype = rewriter.graph.dtypes[entry]
        is_computed = entry in self._wide and entry.node.op is not None and rewriter.new(entry) == entry
        if is_computed and entry not in self._narrow and not isinstance(self._wide[entry].node.op, Cast):
            cast = rewriter.make(Cast.create(dtype=dtype), [self._wide[entry]], entry.node)
            self._narrow[entry] = Entry(cast, 0)
            rewriter.replace(entry, Entry(cast, 0))


def _widest(dtype: DType) -> DType:
    return FLOAT32 if _is_half(dtype) else dtype


def _parameters(graph: Graph) -> set[Node]:
    """Return the variables that are read only as parameters, that is, as inputs other than an operator's ``data``.

    Views and concatenations of parameters count as the parameters.
    """
    parameters: set[Node] = set()
    others = {node for entry in graph.results() for node in _sources(entry)}
    for node in graph.nodes():
        if node.op is None or not _forwards_values(node.op):
            for index, entry in enumerate(node.inputs):
                is_data = node.op is None or index == 0 or node.op.arguments[:1] != ("data",)
                (others if is_data else parameters).update(_sources(entry))
    return {node for node in parameters - others if node.is_variable}


def _forwards_values(op: Operator) -> bool:
    """Return whether an operator only casts, reshapes or concatenates its inputs."""
    return op.traits.casts or op.traits.view or type(op) is RNNParamConcat


def _sources(entry: Entry) -> Iterator[Node]:
    """Iterate over the nodes whose values reach an entry through such operators."""
    op = entry.node.op
    if op is None or not _forwards_values(op):
        yield entry.node
        return
    for source in entry.node.inputs if type(op) is RNNParamConcat else entry.node.inputs[:1]:
        yield from _sources(source)
