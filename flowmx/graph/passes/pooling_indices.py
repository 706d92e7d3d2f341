"""Record the positions of maxima in max pooling that is differentiated, so that its gradient need not search again.

The indices take a byte for each element of the output, and are a value of the plan.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.pooling_indices import BackwardPoolingWithIndices, PoolingWithIndices
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.pooling import BackwardPooling, Pooling
from flowmx.ops.registry.kernels import kernel_for


def record_pooling_indices(graph: Graph, options: Options) -> Graph:
    """Make each max pooling with a gradient pass indices to it, if kernels support that."""
    if kernel_for(options.device_type, PoolingWithIndices.name) is None:
        return graph
    recorded = {node.inputs[2].node for node in graph.nodes() if _is_max(node, BackwardPooling)}
    if not recorded:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if node.op is None:
            continue
        inputs = [rewriter.new(entry) for entry in node.inputs]
        if node in recorded and _is_max(node, Pooling):
            new = rewriter.make(PoolingWithIndices.create(**non_defaults(node.op)), inputs, node)
        elif _is_max(node, BackwardPooling) and _is_max(node.inputs[2].node, Pooling):
            indices = Entry(inputs[2].node, 1)
            new = rewriter.make(BackwardPoolingWithIndices.create(**non_defaults(node.op)), [*inputs, indices], node)
        else:
            rewriter.keep(node)
            continue
        rewriter.replace(Entry(node, 0), Entry(new, 0))
    return rewriter.result()


def _is_max(node: Node, kind: type[Pooling]) -> bool:
    op = node.op
    if type(op) is not kind:
        return False
    return op.pool_type == "max" and bool(op.kernel) and not op.global_pool and not op.channels_last
