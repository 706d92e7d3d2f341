"""Weights in the order that kernels want, copied once and kept.

In prediction weights stay as they are for a long time, and a convolution of one image takes about as long as it takes
to bring its filters into order. A copy of each takes memory outside the plan; a scale is multiplied in on the way. The
parameters of recurrent layers are joined or packed once, too.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused
from flowmx.ops.compiled.fused import Fused, FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed import PackConvolution, PackFullyConnected
from flowmx.ops.compiled.recurrent import KeptParameters, PackedRNN, PackRNN
from flowmx.ops.quantization.fused import ConvolutionByFilters, ProductByPacked, ProductPart
from flowmx.ops.quantization.ranges import UINT8
from flowmx.ops.quantization.recurrent import PackedQuantizedRNN, PackQuantizedRNN, QuantizedRNN
from flowmx.ops.quantization.sums import (
    Int8,
    Int8Convolution,
    Int8FullyConnected,
    PackInt8Convolution,
    PackInt8FullyConnected,
    summing,
)
from flowmx.ops.recurrent.operator import RNN
from flowmx.ops.registry.operators import Operator, packed_size
from flowmx.ops.second_names import RNNParamConcat

PACKED: dict[type, type[Operator]] = {
    FusedConvolution: PackConvolution,
    FusedFullyConnected: PackFullyConnected,
    Int8Convolution: PackInt8Convolution,
    Int8FullyConnected: PackInt8FullyConnected,
}
_RECURRENT: dict[type, tuple[type[Operator], type[Operator]]] = {
    RNN: (PackedRNN, PackRNN),
    QuantizedRNN: (PackedQuantizedRNN, PackQuantizedRNN),
}
"""For recurrent layers what reads packed parameters, and what makes them."""
_OF_BYTES = (Int8, ConvolutionByFilters, ProductPart)


def pack_filters(graph: Graph, options: Options) -> Graph:
    """Let layers of a prediction read packed weights; without that option, where rounding them takes long, alone."""
    if graph.train or not (options.pack or any(type(node.op) is QuantizedRNN for node in graph.nodes())):
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if not options.pack and node.op is not None and type(node.op) is not QuantizedRNN:
            rewriter.keep(node)
            continue
        is_layer = type(node.op) in FUSED or isinstance(node.op, _OF_BYTES)
        if type(node.op) is RNNParamConcat and (parts := _parameters(rewriter, Entry(node, 0), options)):
            made = rewriter.make(KeptParameters.create(num_args=len(parts)), parts, node)
            rewriter.replace(Entry(node, 0), Entry(made, 0))
        elif type(node.op) in _RECURRENT:
            if not _pack_recurrent(rewriter, node, options):
                rewriter.keep(node)
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


def _parameters(rewriter: Rewriter, vector: Entry, options: Options) -> list[Entry]:
    """The arrays that a vector of parameters is joined of, all that stay the same; none where one does not."""
    joins = type(vector.node.op) is RNNParamConcat
    found = [_source(entry) for entry in vector.node.inputs] if joins else [vector]
    return list(map(rewriter.new, found)) if all(_stays(entry, options) for entry in found) else []


def _source(entry: Entry) -> Entry:
    """The entry of which one is only a view."""
    while entry.node.op is not None and entry.node.op.traits.view:
        entry = entry.node.inputs[0]
    return entry


def _pack_recurrent(rewriter: Rewriter, node: Node, options: Options) -> bool:
    """Let recurrent layers read packed parameters; False where they cannot, or are as fast without."""
    graph, op, (data, vector, *_) = rewriter.graph, node.op, node.inputs
    assert op is not None
    context = graph.context(node)
    kind = options.device_type if context is None else context.kernels
    parts = _parameters(rewriter, vector, options)
    is_kept = range(op.visible_outputs(), len(op.outputs()))  # for a gradient
    if not parts or any(rewriter.uses.get(Entry(node, index)) for index in is_kept):
        return False
    reading, packing = _RECURRENT[type(op)]
    given = {name: getattr(op, name) for name in op.attributes()}
    layer, shape = reading.create(**given), graph.shapes[data]
    size = packed_size(kind, layer, shape, graph.dtypes[data])
    if size is None:
        return False
    copying = packing.create(**given, num_args=len(parts), data_shape=shape, size=size)
    copy = rewriter.make(copying, parts, node, f"{node.name} packed")
    named = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True)) | {"parameters": Entry(copy, 0)}
    made = rewriter.make(layer, list(named.values()), node)
    for index in range(op.visible_outputs()):
        rewriter.replace(Entry(node, index), Entry(made, index))
    rewriter.note(f"the parameters of {node.name} are packed")
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
