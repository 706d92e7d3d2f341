"""Prediction on bytes: what follows from known ranges and from parameters alone is computed once.

A quantized layer reads the ends of its data's range, and its parameters in real numbers. Where ranges were measured
they are constants, so that filters are folded, scaled and rounded once, and again when a parameter has changed. What
remains is one step from bytes to bytes, for which there are kernels.
"""

from __future__ import annotations

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.quantizing.known import known_ends, ranges_of
from flowmx.ops.arrays.shape import Flatten
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.quantization.conversions import Dequantize, QuantizeV2
from flowmx.ops.quantization.fused import ConvolutionByFilters, ConvolutionPart, Part, WholeFilters
from flowmx.ops.quantization.layers import QuantizedFlatten, QuantizedPooling
from flowmx.ops.quantization.linear import BytesPooling, FromBytes, ToBytes
from flowmx.ops.quantization.ranges import STEPS, Quantized, largest
from flowmx.ops.quantization.recurrent import QuantizeAsymmetrically, QuantizeForStates
from flowmx.ops.registry.dtypes import FLOAT32, name_of
from flowmx.ops.registry.operators import Operator


def settle(graph: Graph, options: Options) -> Graph:
    """Let quantized layers take known ranges as numbers, and filters that were made for these."""
    if graph.train or not any(isinstance(node.op, (Part, Quantized)) for node in graph.nodes()):
        return graph
    return _Settling(graph).result()


class _Settling:
    """One walk over a graph."""

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph = graph
        self._known = known_ends(self._rewriter.nodes, graph.dtypes)
        self._wanted = set(graph.wanted())
        self._constants: dict[bytes, Entry] = {}
        for node in self._rewriter.nodes:
            if node.op is not None:
                self._visit(node)

    def result(self) -> Graph:
        """The new graph."""
        return self._rewriter.result()

    def _visit(self, node: Node) -> None:
        op = node.op
        layer = op if isinstance(op, Part) and op.quantized else None
        if type(op) is QuantizeAsymmetrically and op.min_calib_range is None:
            self._round_range(node)
            return
        if layer is None and self._simplified(node):
            pass
        elif layer is None or not (self._settled(node, layer) or self._by_filters(node, layer)):
            self._rewriter.keep(node)
        for index in range(1, node.outputs()):
            self._put_end(Entry(node, index))

    def _simplified(self, node: Node) -> bool:
        """Put an operator without ranges in the place of one whose ranges are known; False where there is none."""
        op, rewriter = node.op, self._rewriter
        ends = [Entry(node, index) for index in range(1, node.outputs())]
        if any(entry not in self._known or entry in self._wanted for entry in ends):
            return False
        made: Operator | None = None
        if isinstance(op, QuantizeV2) and op.calibrated is not None and self._graph.dtypes[node.inputs[0]] == FLOAT32:
            dtype = self._graph.dtypes[Entry(node, 0)]
            size = largest(op.calibrated)
            made = ToBytes.create(factor=float(STEPS[dtype] / size) if size else 0.0, made=name_of(dtype))
        elif isinstance(op, Dequantize):
            given = ranges_of(node.inputs[1:], self._known)[0]
            if given is not None:
                made = FromBytes.create(factor=float(op.unit(self._graph.dtypes[node.inputs[0]], largest(given))))
        elif isinstance(op, QuantizedPooling):
            made = BytesPooling.create(**{name: getattr(op, name) for name in op.attributes()})
        elif isinstance(op, QuantizedFlatten):
            made = Flatten.create()
        if made is None:
            return False
        step = rewriter.make(made, [rewriter.new(node.inputs[0])], node)
        rewriter.replace(Entry(node, 0), Entry(step, 0))
        return True

    def _round_range(self, node: Node) -> None:
        """Let a range that is found at each call be one of few, and have room for states."""
        rewriter = self._rewriter
        made = rewriter.make(QuantizeForStates.create(), [rewriter.new(node.inputs[0])], node)
        for index in range(node.outputs()):
            rewriter.replace(Entry(node, index), Entry(made, index))

    def _put_end(self, entry: Entry) -> None:
        """Let a constant stand for the end of a range that is known."""
        if entry not in self._known or entry in self._wanted:
            return
        value = np.full((1,), self._known[entry], np.float32)
        key = value.tobytes()
        if key not in self._constants:
            made = self._rewriter.make(Constant(value), [], entry.node, f"{entry.node.name} range")
            self._constants[key] = Entry(made, 0)
        self._rewriter.replace(entry, self._constants[key])

    def _by_filters(self, node: Node, op: Part) -> bool:
        """Let a convolution whose range is found at each call read filters that are kept; False where it is none."""
        if not isinstance(op, ConvolutionPart) or op.calibrated is not None:
            return False
        rewriter = self._rewriter
        named = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True))
        read = [named[name] for name in op.parameters_read()]
        if not all(map(_stays, read)):
            return False
        filters = rewriter.make(WholeFilters.of(op), read, node, f"{node.name} filters")
        named |= {name: Entry(filters, index) for index, name in enumerate(WholeFilters.output_names)}
        made = ConvolutionByFilters.of(op)
        layer = rewriter.make(made, [named[name] for name in made.inputs()], node)
        for index in range(node.outputs()):
            rewriter.replace(Entry(node, index), Entry(layer, index))
        rewriter.note(f"{node.name} reads filters that are kept")
        return True

    def _settled(self, node: Node, op: Part) -> bool:
        """Put the operators of a settled layer in the place of a node; False where it has to stay."""
        rewriter = self._rewriter
        if any(Entry(node, index) in self._wanted for index in range(1, node.outputs())):
            return False
        named = dict(zip(op.inputs(), node.inputs, strict=True))
        data, addend = node.inputs[0], named.get("sum")
        kinds = [self._graph.dtypes[each] for each in (data, addend or data, Entry(node, 0))]
        read = [named[name] for name in op.parameters_read()]
        ends = [named[name] for name in op.ranges_of_data()]
        made = op.settled(kinds, ranges_of(ends, self._known)) if all(map(_stays, read)) else None
        if made is None:
            return False
        filters = rewriter.make(made.filters, list(map(rewriter.new, read)), node, f"{node.name} filters")
        weight, bias, scale = (Entry(filters, index) for index in range(3))
        inputs = [rewriter.new(data), weight, bias, scale, *([] if addend is None else [rewriter.new(addend)])]
        layer = rewriter.make(made.kind.create(**made.given), inputs, node)
        for each in made.after:
            layer = rewriter.make(each, [Entry(layer, 0)], node)
        rewriter.replace(Entry(node, 0), Entry(layer, 0))
        rewriter.note(f"{node.name} works on bytes, with filters that are kept")
        return True


def _stays(entry: Entry) -> bool:
    """True for what is the same from run to run."""
    return entry.node.op is None or entry.node.op.traits.once
