"""int8 prediction: fold known ranges and constant parameters of quantized layers.

A quantized layer reads the range of its data, and its floating-point parameters. Ranges from calibration are constants.
So filters are folded, scaled and rounded once, and again when a parameter has changed. The layer becomes one step from
int8 to int8, which has kernels.
"""

from __future__ import annotations

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, is_run_invariant
from flowmx.graph.node import Entry, Node
from flowmx.graph.quantizing.known_ranges import known_bounds, ranges_of
from flowmx.ops.arrays.reshape import Flatten
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.quantization.conversions import Dequantize, QuantizeV2
from flowmx.ops.quantization.prepared_filters import ConvolutionByFilters, RangeFreeFilters
from flowmx.ops.quantization.quantized_layers import QuantizedFlatten, QuantizedPooling
from flowmx.ops.quantization.quantized_rnn import QuantizeAsymmetrically, QuantizeForStates
from flowmx.ops.quantization.ranges import STEPS, Quantized, largest
from flowmx.ops.quantization.subgraph_layers import SubgraphConvolution, SubgraphLayer
from flowmx.ops.quantization.zero_point import BytesPooling, FromBytes, ToBytes
from flowmx.ops.registry.dtypes import FLOAT32, name_of
from flowmx.ops.registry.operators import Operator


def fold_int8(graph: Graph, options: Options) -> Graph:
    """Replace known ranges of quantized layers with constants, and fold the filters accordingly."""
    if graph.train or not any(isinstance(node.op, (SubgraphLayer, Quantized)) for node in graph.nodes()):
        return graph
    return _Folding(graph).result()


class _Folding:
    """The folding of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph = graph
        self._ranges = known_bounds(self._rewriter.nodes, graph.dtypes)
        self._results = set(graph.results())
        self._constants: dict[bytes, Entry] = {}
        for node in self._rewriter.nodes:
            if node.op is not None:
                self._visit(node)

    def result(self) -> Graph:
        """Return the new graph."""
        return self._rewriter.result()

    def _visit(self, node: Node) -> None:
        op = node.op
        layer = op if isinstance(op, SubgraphLayer) and op.quantized else None
        if type(op) is QuantizeAsymmetrically and op.min_calib_range is None:
            self._round_range(node)
            return
        if layer is None and self._simplify(node):
            pass
        elif layer is None or not (self._fold(node, layer) or self._keep_filters(node, layer)):
            self._rewriter.keep(node)
        for index in range(1, node.outputs()):
            self._replace_bound(Entry(node, index))

    def _simplify(self, node: Node) -> bool:
        """Replace an operator whose ranges are known with an operator without ranges; return False if impossible."""
        op, rewriter = node.op, self._rewriter
        bounds = [Entry(node, index) for index in range(1, node.outputs())]
        if any(entry not in self._ranges or entry in self._results for entry in bounds):
            return False
        new_op: Operator | None = None
        if isinstance(op, QuantizeV2) and op.calibrated is not None and self._graph.dtypes[node.inputs[0]] == FLOAT32:
            dtype = self._graph.dtypes[Entry(node, 0)]
            size = largest(op.calibrated)
            new_op = ToBytes.create(factor=float(STEPS[dtype] / size) if size else 0.0, out_dtype=name_of(dtype))
        elif isinstance(op, Dequantize):
            input_range = ranges_of(node.inputs[1:], self._ranges)[0]
            if input_range is not None:
                new_op = FromBytes.create(
                    factor=float(op.unit(self._graph.dtypes[node.inputs[0]], largest(input_range)))
                )
        elif isinstance(op, QuantizedPooling):
            new_op = BytesPooling.create(**{name: getattr(op, name) for name in op.attributes()})
        elif isinstance(op, QuantizedFlatten):
            new_op = Flatten.create()
        if new_op is None:
            return False
        step = rewriter.make(new_op, [rewriter.new(node.inputs[0])], node)
        rewriter.replace(Entry(node, 0), Entry(step, 0))
        return True

    def _round_range(self, node: Node) -> None:
        """Quantize with a range that is rounded up to one of a few values, so that few primitives are created."""
        rewriter = self._rewriter
        quantize = rewriter.make(QuantizeForStates.create(), [rewriter.new(node.inputs[0])], node)
        for index in range(node.outputs()):
            rewriter.replace(Entry(node, index), Entry(quantize, index))

    def _replace_bound(self, entry: Entry) -> None:
        """Replace the minimum or maximum of a known range with a constant."""
        if entry not in self._ranges or entry in self._results:
            return
        value = np.full((1,), self._ranges[entry], np.float32)
        key = value.tobytes()
        if key not in self._constants:
            constant = self._rewriter.make(Constant(value), [], entry.node, f"{entry.node.name} range")
            self._constants[key] = Entry(constant, 0)
        self._rewriter.replace(entry, self._constants[key])

    def _keep_filters(self, node: Node, op: SubgraphLayer) -> bool:
        """Precompute the filters of a convolution whose range is computed at run time; return False if it cannot."""
        if not isinstance(op, SubgraphConvolution) or op.calibrated is not None:
            return False
        rewriter = self._rewriter
        inputs = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True))
        parameters = [inputs[name] for name in op.parameters_read()]
        if not all(is_run_invariant(entry.node) for entry in parameters):
            return False
        filters = rewriter.make(RangeFreeFilters.of(op), parameters, node, f"{node.name} filters")
        inputs |= {name: Entry(filters, index) for index, name in enumerate(RangeFreeFilters.output_names)}
        by_filters = ConvolutionByFilters.of(op)
        layer = rewriter.make(by_filters, [inputs[name] for name in by_filters.inputs()], node)
        for index in range(node.outputs()):
            rewriter.replace(Entry(node, index), Entry(layer, index))
        rewriter.note(f"{node.name} reads precomputed filters")
        return True

    def _fold(self, node: Node, op: SubgraphLayer) -> bool:
        """Replace a layer with its folded operators; return False if that is impossible."""
        rewriter = self._rewriter
        if any(Entry(node, index) in self._results for index in range(1, node.outputs())):
            return False
        inputs_by_name = dict(zip(op.inputs(), node.inputs, strict=True))
        data, addend = node.inputs[0], inputs_by_name.get("sum")
        kinds = [self._graph.dtypes[entry] for entry in (data, addend or data, Entry(node, 0))]
        parameters = [inputs_by_name[name] for name in op.parameters_read()]
        ends = [inputs_by_name[name] for name in op.ranges_of_data()]
        is_fixed = all(is_run_invariant(entry.node) for entry in parameters)
        folded = op.fused_form(kinds, ranges_of(ends, self._ranges)) if is_fixed else None
        if folded is None:
            return False
        filters = rewriter.make(folded.filters, list(map(rewriter.new, parameters)), node, f"{node.name} filters")
        weight, bias, scale = (Entry(filters, index) for index in range(3))
        inputs = [rewriter.new(data), weight, bias, scale, *([] if addend is None else [rewriter.new(addend)])]
        layer = rewriter.make(folded.kind.create(**folded.parameters), inputs, node)
        for after in folded.after:
            layer = rewriter.make(after, [Entry(layer, 0)], node)
        rewriter.replace(Entry(node, 0), Entry(layer, 0))
        rewriter.note(f"{node.name} computes in int8, with precomputed filters")
        return True
