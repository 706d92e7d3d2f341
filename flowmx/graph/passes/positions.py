"""Prediction: compute only the positions that later layers read, in convolutions before strides and averages.

A 1x1 convolution with strides reads some positions of its data and skips the rest. The convolution that computes the
data takes over the strides and computes only these. In ResNet (v1) this omits three quarters of two layers in each of
three stages.

A mean of windows and a 1x1 convolution are both linear, along different axes, so they commute. If the mean comes
first, the convolution computes one position for each window, as in the transitions of DenseNet.
"""

from __future__ import annotations

from typing import Any

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.slicing import Slice
from flowmx.ops.compiled.fused_layers import FusedConvolution
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Shape

_CONVOLUTIONS = (Convolution, FusedConvolution)


def move_strides(graph: Graph, options: Options) -> Graph:
    """Move the strides of 1x1 convolutions into the convolutions that compute their data."""
    if graph.train or graph.gradients:
        return graph
    rewriter = Rewriter(graph)
    strides, steps = _moved_strides(rewriter)
    for node in rewriter.nodes:
        if node in strides:
            _set_stride(rewriter, node, strides[node], steps.get(node, ()))
        elif node.op is not None:
            rewriter.keep(node)
    return rewriter.result()


def pool_first(graph: Graph, options: Options) -> Graph:
    """Compute a mean of windows before a 1x1 convolution instead of after it."""
    if graph.train or graph.gradients:
        return graph
    rewriter = Rewriter(graph)
    pools = {node: node.inputs[0].node for node in rewriter.nodes if _commutes(rewriter, node)}
    layers = set(pools.values())
    for node in rewriter.nodes:
        if node in pools:
            _exchange(rewriter, node, pools[node])
        elif node.op is not None and node not in layers:
            rewriter.keep(node)
    return rewriter.result()


# -- strides ------------------------------------------------------------------------------------------------


def _moved_strides(rewriter: Rewriter) -> tuple[dict[Node, Shape], dict[Node, Shape]]:
    """Return the new strides of convolutions, and the steps between the positions that each still computes."""
    readers: dict[Entry, list[tuple[Node, int]]] = {}
    for node in rewriter.nodes:
        for position, entry in enumerate(node.inputs):
            readers.setdefault(entry, []).append((node, position))
    results = set(rewriter.graph.results())
    strides: dict[Node, Shape] = {}
    steps: dict[Node, Shape] = {}
    for node in reversed(rewriter.nodes):
        entry = Entry(node, 0)
        if type(node.op) not in _CONVOLUTIONS or entry in results:
            continue
        wanted = {_read_strides(reader, position, strides) for reader, position in readers.get(entry, ())}
        step = wanted.pop() if len(wanted) == 1 else None
        if step is not None and max(step) > 1:
            steps[node] = step
            op: Any = node.op
            own = strides.get(node, op.geometry.stride)
            strides[node] = tuple([each * other for each, other in zip(own, step, strict=True)])
            strides.update({reader: (1,) * len(step) for reader, _ in readers[entry]})
    return strides, steps


def _read_strides(reader: Node, position: int, strides: dict[Node, Shape]) -> Shape | None:
    """Return the strides with which a node reads single positions of an input; None if it reads others, too."""
    op: Any = reader.op
    if position != 0 or type(op) not in _CONVOLUTIONS or not _is_pointwise(op):
        return None
    stride: Shape = strides.get(reader, op.geometry.stride)
    return stride


def _is_pointwise(op: Any) -> bool:
    """Return whether a convolution computes each position from one position."""
    return bool(max(op.kernel) == 1 and max(op.geometry.pad) == 0)


def _set_stride(rewriter: Rewriter, node: Node, stride: Shape, step: Shape) -> None:
    """Replace a convolution with one with other strides; it adds the positions of its addend that remain."""
    op: Any = node.op
    inputs = [rewriter.new(entry) for entry in node.inputs]
    changed = type(op).create(**{**non_defaults(op), "stride": stride})
    size, shape = changed.output_shape(rewriter.shapes[inputs[0]])[2:], rewriter.shapes[Entry(node, 0)]
    if getattr(op, "has_addend", False) and rewriter.shapes[inputs[-1]][2:] != size:
        part = Slice.create(begin=(None,) * len(shape), end=(None,) * len(shape), step=(None, None, *step))
        inputs[-1] = Entry(rewriter.make(part, [inputs[-1]], node, f"{node.name} addend"), 0)
    new = Entry(rewriter.make(changed, inputs, node), 0)
    rewriter.replace(Entry(node, 0), new)
    rewriter.shapes[new] = (*shape[:2], *size)
    if size != shape[2:]:
        rewriter.note(f"{node.name} computes {size} of {shape[2:]} positions, which are all that is read")


# -- means --------------------------------------------------------------------------------------------------


def _commutes(rewriter: Rewriter, node: Node) -> bool:
    """Return whether a node is a mean of complete windows of a 1x1 convolution's output, which only it reads."""
    op: Any = node.op
    if type(op) is not Pooling or op.pool_type != "avg":
        return False
    source = node.inputs[0]
    layer: Any = source.node.op
    if type(layer) not in _CONVOLUTIONS or rewriter.uses[source] != 1 or not is_floating(rewriter.dtypes[source]):
        return False
    is_linear = not getattr(layer, "activation", "") and not getattr(layer, "has_addend", False)
    size, out = rewriter.shapes[source][2:], rewriter.shapes[Entry(node, 0)][2:]
    is_complete = op.global_pool or (
        max(op.pad, default=0) == 0
        and all(
            (count - 1) * stride + kernel <= length
            for length, kernel, stride, count in zip(size, op.kernel, op.stride or (1,) * len(size), out, strict=True)
        )
    )
    is_first = op.layout in (None, "NCW", "NCHW", "NCDHW")
    is_near = rewriter.graph.context(source.node) is rewriter.graph.context(node)
    is_alone = _is_pointwise(layer) and max(layer.geometry.stride) == 1
    return bool(is_linear and is_complete and is_first and is_near and is_alone and out != size)


def _exchange(rewriter: Rewriter, pool: Node, layer: Node) -> None:
    """Replace a mean of a convolution's output with the convolution of the mean."""
    assert pool.op is not None
    assert layer.op is not None
    data, *rest = [rewriter.new(entry) for entry in layer.inputs]
    mean = Entry(rewriter.make(pool.op, [data], pool), 0)
    rewriter.replace(Entry(pool, 0), Entry(rewriter.make(layer.op, [mean, *rest], layer), 0))
    rewriter.note(f"{pool.name} comes before {layer.name}, with which it commutes")
