"""Prediction: fold a BatchNorm into the layer before it.

With moving statistics, BatchNorm multiplies each channel by one number and adds another. A convolution or product can
do both: it scales its filters while it copies them into the layout of its kernel, and adds a bias. The numbers are
computed once, and again when a parameter or a statistic has changed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowmx.graph.graph import Graph, Options, Rewriter, is_run_invariant
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused_operator
from flowmx.ops.compiled.fused_layers import ScaleAndShift
from flowmx.ops.nn.normalization.batch_norm import BatchNorm, BatchStatistics
from flowmx.ops.nn.normalization.batch_norm_variants import BatchNormWithReLU, SyncBatchNorm
from flowmx.ops.registry.dtypes import DType, name_of

NORMALIZATIONS: dict[type, str] = {BatchNorm: "", SyncBatchNorm: "", BatchNormWithReLU: "relu"}
"""The normalizations that can be folded into a layer, and the activation of each."""


def fold_normalization(graph: Graph, options: Options) -> Graph:
    """Scale and shift in the convolution or product, instead of normalizing after it."""
    if graph.train:
        return graph
    rewriter = Rewriter(graph)
    folded = {}
    for node in rewriter.nodes:
        if type(node.op) in NORMALIZATIONS:
            reason = _why_not(rewriter, node, options.product_dtypes)
            if reason:
                rewriter.note(f"{node.name} stays: {reason}")
            else:
                folded[node] = node.inputs[0].node
    layers = set(folded.values())
    for node in rewriter.nodes:
        if node in folded:
            _fold(rewriter, folded[node], node)
        elif node.op is not None and node not in layers:
            rewriter.keep(node)
    return rewriter.result()


def _why_not(rewriter: Rewriter, norm: Node, dtypes: Collection[DType]) -> str:
    """Return the reason why a normalization cannot be folded into the layer before it; empty if it can."""
    op, source, graph = norm.op, norm.inputs[0], rewriter.graph
    layer: Any = source.node
    assert isinstance(op, BatchStatistics)
    rank = len(graph.shapes[source])
    if type(layer.op) not in FUSED:
        return "the operator before it is neither a convolution nor a product"
    if rewriter.uses[source] > 1:
        return f"{layer.name} is used elsewhere too"
    if op.axis % rank != layer.op.bias_axis() % rank:
        return f"its axis {op.axis} is not that of the channels of {layer.name}"
    if any(rewriter.uses.get(Entry(norm, index)) for index in range(1, norm.outputs())):
        return "its statistics are used elsewhere too"
    if any(graph.dtypes[entry] not in dtypes for entry in (source, *norm.inputs)):
        return f"it is not in {' or '.join(sorted(map(name_of, dtypes)))}"
    if graph.context(layer) is not graph.context(norm):
        return f"{layer.name} is on another device"
    parameters = (*norm.inputs[1:], *layer.inputs[2:])
    return "" if all(is_run_invariant(entry.node) for entry in parameters) else "one of its parameters is computed"


def _fold(rewriter: Rewriter, layer: Node, norm: Node) -> None:
    """Replace a normalization with its layer, scaled and shifted."""
    op = norm.op
    assert isinstance(op, BatchStatistics)
    data, weight, *bias = map(rewriter.new, layer.inputs)
    parameters: dict[str, object] = {"eps": op.eps, "fix_gamma": op.fix_gamma, "biased": bool(bias)}
    scale_and_shift = ScaleAndShift.create(**parameters)
    numbers = rewriter.make(scale_and_shift, [*map(rewriter.new, norm.inputs[1:]), *bias], norm)
    folded = fused_operator(layer, no_bias=False, scaled=True, activation=NORMALIZATIONS[type(op)])
    fused = rewriter.make(folded, [data, weight, Entry(numbers, 1), Entry(numbers, 0)], layer)
    rewriter.replace(Entry(norm, 0), Entry(fused, 0))
    rewriter.note(f"{norm.name} is folded into {layer.name}")
