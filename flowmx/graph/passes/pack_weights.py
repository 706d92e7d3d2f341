"""Copy weights once into the layout that kernels read, and keep the copies.

In prediction weights rarely change, and a convolution of one image takes about as long as converting its filters. Each
copy takes memory outside the plan; a scale is multiplied in while copying. The parameters of recurrent layers are
concatenated or packed once, too.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter, is_run_invariant
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import FUSED, fused_operator
from flowmx.ops import kernels
from flowmx.ops.compiled.fused_layers import Fused, FusedConvolution, FusedFullyConnected
from flowmx.ops.compiled.packed_rnn import PackedRNN, PackRNN, ParameterVector
from flowmx.ops.compiled.packed_weights import PackConvolution, PackFullyConnected
from flowmx.ops.quantization.int8_layers import (
    Int8,
    Int8Convolution,
    Int8FullyConnected,
    PackInt8Convolution,
    PackInt8FullyConnected,
    sum_operator,
)
from flowmx.ops.quantization.prepared_filters import ConvolutionByFilters, ProductByPacked
from flowmx.ops.quantization.quantized_rnn import PackedQuantizedRNN, PackQuantizedRNN, QuantizedRNN
from flowmx.ops.quantization.ranges import UINT8
from flowmx.ops.quantization.subgraph_layers import SubgraphProduct
from flowmx.ops.recurrent.rnn import RNN
from flowmx.ops.registry.kernels import packed_size
from flowmx.ops.registry.operators import Operator
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
"""For recurrent layers, the operator that reads packed parameters and the one that packs them."""
_INT8 = (Int8, ConvolutionByFilters, SubgraphProduct)


def pack_filters(graph: Graph, options: Options) -> Graph:
    """Make layers of a prediction read packed weights; without that option, only if rounding them is slow."""
    if graph.train or not (options.pack or any(type(node.op) is QuantizedRNN for node in graph.nodes())):
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if not options.pack and node.op is not None and type(node.op) is not QuantizedRNN:
            rewriter.keep(node)
            continue
        is_layer = type(node.op) in FUSED or isinstance(node.op, _INT8)
        if type(node.op) is RNNParamConcat and (parts := _fixed_parts(rewriter, Entry(node, 0), options)):
            vector = rewriter.make(ParameterVector.create(num_args=len(parts)), parts, node)
            rewriter.replace(Entry(node, 0), Entry(vector, 0))
        elif type(node.op) in _RECURRENT:
            if not _pack_recurrent(rewriter, node, options):
                rewriter.keep(node)
        elif node.op is not None and not (is_layer and _pack(rewriter, node, options)):
            rewriter.keep(node)
    return rewriter.result()


def _is_fixed(entry: Entry, options: Options) -> bool:
    """Return whether an entry is the same from run to run."""
    node = entry.node
    return is_run_invariant(node) and not (node.op is None and node.name in options.varying)


def _pack(rewriter: Rewriter, node: Node, options: Options) -> bool:
    """Make a layer read a packed weight; return False if it cannot, or is as fast without."""
    graph, op, data, weight = rewriter.graph, node.op, node.inputs[0], node.inputs[1]
    assert op is not None
    dtype, is_int8 = graph.dtypes[data], isinstance(op, _INT8)
    is_plain = dtype == graph.dtypes[weight] and dtype in options.product_dtypes
    if not _is_fixed(weight, options) or not (is_int8 or is_plain):
        return False
    context = graph.context(node)
    kind = options.device_type if context is None else context.kernels
    shape = graph.shapes[data]
    layer = _packed_operator(op, dtype == UINT8) if is_int8 else fused_operator(node, packed=True, scaled=False)
    layer = layer if layer is None else kernels.fastest_form(kind, layer, shape, dtype)
    size = None if layer is None else packed_size(kind, layer, shape, dtype)
    if layer is None or size is None:
        return False
    # Sums of int8 products are scaled afterwards.
    scaled = not is_int8 and getattr(op, "scaled", False)
    inputs = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True))
    scale = [inputs.pop("scale")] if scaled else []
    parameters = {name: getattr(layer, name) for name in layer.attributes()}
    if is_int8:  # the layout depends only on the sums
        parameters = {name: value for name, value in parameters.items() if name not in Fused.parameters} | {
            "packed": True
        }
    packing = PACKED[type(layer)].create(**{**parameters, "scaled": scaled, "data_shape": shape, "size": size})
    label = f"{weight.node.name} packed"
    packed = Entry(rewriter.make(packing, [inputs["weight"], *scale], node, label), 0)
    reader = layer
    if isinstance(op, SubgraphProduct):
        inputs["packed"], reader = packed, ProductByPacked.of(op)
    else:
        inputs["weight"] = packed
        if isinstance(op, ConvolutionByFilters):
            reader = ConvolutionByFilters.of(op.part, True)
    new = rewriter.make(reader, list(inputs.values()), node)
    for index in range(node.outputs()):
        rewriter.replace(Entry(node, index), Entry(new, index))
    side = getattr(layer, "winograd", 0)
    algorithm = f" by Winograd's algorithm, with tiles of {side}x{side} outputs" if side else ""
    rewriter.note(f"{weight.node.name} is packed for {node.name}{algorithm}")
    return True


def _fixed_parts(rewriter: Rewriter, vector: Entry, options: Options) -> list[Entry]:
    """Return the arrays that a parameter vector is concatenated from, or an empty list if one may change."""
    joins = type(vector.node.op) is RNNParamConcat
    parts = [_source(entry) for entry in vector.node.inputs] if joins else [vector]
    return list(map(rewriter.new, parts)) if all(_is_fixed(entry, options) for entry in parts) else []


def _source(entry: Entry) -> Entry:
    """Return the entry that one is a view of."""
    while entry.node.op is not None and entry.node.op.traits.view:
        entry = entry.node.inputs[0]
    return entry


def _pack_recurrent(rewriter: Rewriter, node: Node, options: Options) -> bool:
    """Make recurrent layers read packed parameters; return False if they cannot, or are as fast without."""
    graph, op, (data, vector, *_) = rewriter.graph, node.op, node.inputs
    assert op is not None
    context = graph.context(node)
    kind = options.device_type if context is None else context.kernels
    parts = _fixed_parts(rewriter, vector, options)
    is_used = range(op.visible_outputs(), len(op.outputs()))  # by a gradient
    if not parts or any(rewriter.uses.get(Entry(node, index)) for index in is_used):
        return False
    reading, packing = _RECURRENT[type(op)]
    parameters = {name: getattr(op, name) for name in op.attributes()}
    layer, shape = reading.create(**parameters), graph.shapes[data]
    size = packed_size(kind, layer, shape, graph.dtypes[data])
    if size is None:
        return False
    copying = packing.create(**parameters, num_args=len(parts), data_shape=shape, size=size)
    copy = rewriter.make(copying, parts, node, f"{node.name} packed")
    inputs = dict(zip(op.inputs(), map(rewriter.new, node.inputs), strict=True)) | {"parameters": Entry(copy, 0)}
    new = rewriter.make(layer, list(inputs.values()), node)
    for index in range(op.visible_outputs()):
        rewriter.replace(Entry(node, index), Entry(new, index))
    rewriter.note(f"the parameters of {node.name} are packed")
    return True


def _packed_operator(op: Operator, unsigned: bool) -> Operator | None:
    """Return the int8 layer, for uint8 or int8 data, that reads a packed weight."""
    if isinstance(op, ConvolutionByFilters):
        return sum_operator(op.part.layer, unsigned, True)
    if isinstance(op, SubgraphProduct):
        if op.int32_layer is None or op.channel_wise_quantize:
            return None
        return op.int32_layer.create(unsigned, not op.layer.no_bias, True)
    return type(op).create(**{name: getattr(op, name) for name in op.attributes()}, packed=True)
