"""Weights in the order that kernels want, copied once and kept.

In prediction weights stay as they are for a long time, and a convolution of one image takes about as long as it takes
to bring its filters into order. A copy of each takes memory outside the plan; a scale is multiplied in on the way. The
parameters of recurrent layers are joined once, too.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused
from flowmx.ops.compiled.fused import FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed import KeptParameters, PackConvolution, PackFullyConnected
from flowmx.ops.registry.operators import Operator, packed_size
from flowmx.ops.second_names import RNNParamConcat

PACKED: dict[type, type[Operator]] = {FusedConvolution: PackConvolution, FusedFullyConnected: PackFullyConnected}


def pack_filters(graph: Graph, options: Options) -> Graph:
    """Let convolutions and products of a prediction read packed weights."""
    if graph.train or not options.pack:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if type(node.op) is RNNParamConcat and all(map(_stays, node.inputs)):
            joining = KeptParameters.create(**{name: getattr(node.op, name) for name in node.op.attributes()})
            made = rewriter.make(joining, [rewriter.new(entry) for entry in node.inputs], node)
            rewriter.replace(Entry(node, 0), Entry(made, 0))
        elif node.op is not None and not (type(node.op) in FUSED and _pack(rewriter, node, options)):
            rewriter.keep(node)
    return rewriter.result()


def _stays(entry: Entry) -> bool:
    """Tell whether an entry is the same from run to run."""
    return entry.node.op is None or entry.node.op.traits.once


def _pack(rewriter: Rewriter, node: Node, options: Options) -> bool:
    """Let a layer read a packed weight; False where it cannot, or is as fast without."""
    graph, data, weight = rewriter.graph, node.inputs[0], node.inputs[1]
    dtype = graph.dtypes[data]
    if not _stays(weight) or dtype != graph.dtypes[weight] or dtype not in options.multiplied:
        return False
    context = graph.context(node)
    kind = options.device_type if context is None else context.kernels
    shape = graph.shapes[data]
    layer = fused(node, packed=True, scaled=False)
    size = packed_size(kind, layer, shape, dtype)
    if size is None:
        return False
    scaled = getattr(node.op, "scaled", False)
    named = dict(zip(node.op.inputs() if node.op is not None else (), map(rewriter.new, node.inputs), strict=True))
    scale = [named.pop("scale")] if scaled else []
    packing = PACKED[type(layer)].create(
        **{name: getattr(layer, name) for name in layer.attributes()}, scaled=scaled, data_shape=shape, size=size
    )
    label = f"{weight.node.name} packed"
    named["weight"] = Entry(rewriter.make(packing, [named["weight"], *scale], node, label), 0)
    rewriter.replace(Entry(node, 0), Entry(rewriter.make(layer, list(named.values()), node), 0))
    rewriter.note(f"{weight.node.name} is packed for {node.name}")
    return True
