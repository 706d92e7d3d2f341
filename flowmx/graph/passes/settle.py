"""Prediction on bytes: what follows from known ranges and from parameters alone is computed once.

A quantized layer reads the ends of its data's range, and its parameters in real numbers. Where ranges were measured
they are constants, so that filters are folded, scaled and rounded once, and again when a parameter has changed. What
remains is one step from bytes to bytes, for which there are kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.quantization.fused import ConvolutionByFilters, ConvolutionPart, Part, WholeFilters
from flowmx.ops.quantization.ranges import Quantized, Range


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
        self._known: dict[Entry, np.float32] = {}
        """The ends of ranges that are known, by entries of the old graph."""
        self._constants: dict[bytes, Entry] = {}
        for node in self._rewriter.nodes:
            if node.op is not None:
                self._visit(node)

    def result(self) -> Graph:
        """The new graph."""
        return self._rewriter.result()

    def _visit(self, node: Node) -> None:
        op = node.op
        if isinstance(op, Part) and op.quantized:
            if not self._settled(node, op) and not self._by_filters(node, op):
                self._rewriter.keep(node)
                self._put_range(node, op.calibrated)
            return
        self._rewriter.keep(node)
        if isinstance(op, Quantized):
            first = op.ranges_from()
            kinds = [self._graph.dtypes[entry] for entry in (*node.inputs[:first], Entry(node, 0))]
            self._put_range(node, op.known_range(kinds, self._ranges(node.inputs[first:])))

    def _ranges(self, entries: Sequence[Entry]) -> list[Range | None]:
        """The ranges in pairs of entries, where they are known."""
        found: list[Range | None] = []
        for low, high in zip(entries[::2], entries[1::2], strict=True):
            both = self._known.get(low), self._known.get(high)
            found.append(None if both[0] is None or both[1] is None else (both[0], both[1]))
        return found

    def _put_range(self, node: Node, ends: Range | None) -> None:
        """Let constants stand for the last two outputs of a node, where its range is known."""
        if ends is None or node.outputs() < 3:
            return
        for index, end in enumerate(ends, 1):
            entry, value = Entry(node, index), np.full((1,), end, np.float32)
            if entry in self._graph.wanted():
                continue
            self._known[entry] = np.float32(end)
            key = value.tobytes()
            if key not in self._constants:
                self._constants[key] = Entry(self._rewriter.make(Constant(value), [], node, f"{node.name} range"), 0)
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
        rewriter, graph = self._rewriter, self._graph
        named = dict(zip(op.inputs(), node.inputs, strict=True))
        data, addend = node.inputs[0], named.get("sum")
        kinds = [graph.dtypes[each] for each in (data, addend or data, Entry(node, 0))]
        first = len(op.reals())
        ranges = self._ranges([*node.inputs[first : first + 2], *node.inputs[first + 2 :][-2 * (addend is not None) :]])
        read = [named[name] for name in op.parameters_read()]
        if not all(map(_stays, read)):
            return False
        made = op.settled(kinds, ranges)
        if made is None:
            return False
        label = f"{node.name} filters"
        filters = rewriter.make(made.filters, [rewriter.new(entry) for entry in read], node, label)
        weight, bias, scale = (Entry(filters, index) for index in range(3))
        inputs = [rewriter.new(data), weight, bias, scale, *([] if addend is None else [rewriter.new(addend)])]
        layer = rewriter.make(made.kind.create(**made.given), inputs, node)
        for each in made.after:
            layer = rewriter.make(each, [Entry(layer, 0)], node)
        rewriter.replace(Entry(node, 0), Entry(layer, 0))
        self._put_range(node, made.ends)
        rewriter.note(f"{node.name} works on bytes, with filters that are kept")
        return True


def _stays(entry: Entry) -> bool:
    """True for what is the same from run to run."""
    return entry.node.op is None or entry.node.op.traits.once
