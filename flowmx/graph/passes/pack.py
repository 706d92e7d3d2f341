"""Weights in the order that kernels want, copied once and kept.

In prediction weights stay as they are for a long time, and a convolution of one image takes about as long as it takes
to bring its filters into order. A copy of each takes memory outside the plan; a scale is multiplied in on the way. The
parameters of recurrent layers are joined once, too.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused
from flowmx.ops.compiled.fused import Fused, FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed import KeptParameters, PackConvolution, PackFullyConnected
from flowmx.ops.quantization.fused import ConvolutionByFilters, ProductByPacked, ProductPart
from flowmx.ops.quantization.ranges import UINT8
from flowmx.ops.quantization.sums import (
    Int8,
    Int8Convolution,
    Int8FullyConnected,
    PackInt8Convolution,
    PackInt8FullyConnected,
    summing,
)
from flowmx.ops.registry.operators import Operator, packed_size
from flowmx.ops.second_names import RNNParamConcat

PACKED: dict[type, type[Operator]] = {
    FusedConvolution: PackConvolution,
    FusedFullyConnected: PackFullyConnected,
    Int8Convolution: PackInt8Convolution,
    Int8FullyConnected: PackInt8FullyConnected,
}
_OF_BYTES = (Int8, ConvolutionByFilters, ProductPart)


def pack_filters(graph: Graph, options: Options) -> Graph:
    """Let convolutions and products of a prediction read packed weights."""
    if graph.train or not options.pack:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        is_layer = type(node.op) in FUSED or isinstance(node.op, _OF_BYTES)
        if type(node.op) is RNNParamConcat and all(_stays(entry, options) for entry in node.inputs):
            joining = KeptParameters.create(**{name: getattr(node.op, name) for name in node.op.attributes()})
            made = rewriter.make(joining, [rewriter.new(entry) for entry in node.inputs], node)
            rewriter.replace(Entry(node, 0), Entry(made, 0))
        elif node.op is not None and not (is_layer and _pack(rewriter, node, options)):
            rewriter.keep(node)
    return rewriter.result()


def _stays(entry: Entry, options: Options) -> bool:
    """Tell whether an entry is the same from run to run."""
    node = entry.node
    return node.name not in options.varying if node.op is None else node.op.traits.once


def _pack(rewriter: Rewriter, node: Node, options: Options) -> bool:
    """Let a layer read a packed weight; False where it cannot, or is as fast without."""
    graph, op, data, weight = rewriter.graph, node.op, node.inputs[0], node.inputs[1]
    assert op is not None
    dtype, is_int8 = graph.dtypes[data], isinstance(op, _OF_BYTES)
    is_plain = dtype == graph.dtypes[weight] and dtype in options.multiplied
    if not _stays(weight, options) or not (is_int8 or is_plain):
        return False
    context = graph.context(node)
    kind = options.device_type if context is None else context.kernels
    shape = graph.shapes[data]
    layer = _packed(op, dtype == UINT8) if is_int8 else fused(node, packed=True, scaled=False)
    size = None if layer is None else packed_size(kind, layer, shape, dtype)
    if layer is None or size is None:
        return False
    # The scale of sums of bytes comes after them.
    scaled = not is_int8 and getattr(op, "scaled", False)
    named = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True))
    scale = [named.pop("scale")] if scaled else []
    given = {name: getattr(layer, name) for name in layer.attributes()}
    if is_int8:  # how a copy lies depends on the sums alone
        given = {name: value for name, value in given.items() if name not in Fused.parameters} | {"packed": True}
    packing = PACKED[type(layer)].create(**{**given, "scaled": scaled, "data_shape": shape, "size": size})
    label = f"{weight.node.name} packed"
    packed = Entry(rewriter.make(packing, [named["weight"], *scale], node, label), 0)
    reader = layer
    if isinstance(op, ProductPart):
        named["packed"], reader = packed, ProductByPacked.of(op)
    else:
        named["weight"] = packed
        if isinstance(op, ConvolutionByFilters):
            reader = ConvolutionByFilters.of(op.part, True)
    made = rewriter.make(reader, list(named.values()), node)
    for index in range(node.outputs()):
        rewriter.replace(Entry(node, index), Entry(made, index))
    rewriter.note(f"{weight.node.name} is packed for {node.name}")
    return True


def _packed(op: Operator, unsigned: bool) -> Operator | None:
    """The layer on bytes, for uint8 or int8 data, that reads a packed weight."""
    if isinstance(op, ConvolutionByFilters):
        return summing(op.part.layer, unsigned, True)
    if isinstance(op, ProductPart):
        if op.sums is None or op.channel_wise_quantize:
            return None
        return op.sums.of(unsigned, not op.layer.no_bias, True)
    return type(op).create(**{name: getattr(op, name) for name in op.attributes()}, packed=True)
