"""Max pooling whose gradient is wanted notes where the maxima were, so that it need not look for them again.

A note takes a byte for each element of the output, and is a value of the plan like any other.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.pooling import BackwardNotedPooling, NotedPooling
from flowmx.ops.nn.common import bound
from flowmx.ops.nn.pooling import BackwardPooling, Pooling
from flowmx.ops.registry.operators import kernel_for


def note_maxima(graph: Graph, options: Options) -> Graph:
    """Let each max pooling with a gradient hand it a note, where kernels do so."""
    if kernel_for(options.device_type, NotedPooling.name) is None:
        return graph
    noted = {node.inputs[2].node for node in graph.nodes() if _is_max(node, BackwardPooling)}
    if not noted:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if node.op is None:
            continue
        inputs = [rewriter.new(entry) for entry in node.inputs]
        if node in noted and _is_max(node, Pooling):
            made = rewriter.make(NotedPooling.create(**bound(node.op)), inputs, node)
        elif _is_max(node, BackwardPooling) and _is_max(node.inputs[2].node, Pooling):
            note = Entry(inputs[2].node, 1)
            made = rewriter.make(BackwardNotedPooling.create(**bound(node.op)), [*inputs, note], node)
        else:
            rewriter.keep(node)
            continue
        rewriter.replace(Entry(node, 0), Entry(made, 0))
    return rewriter.result()


def _is_max(node: Node, kind: type[Pooling]) -> bool:
    op = node.op
    if type(op) is not kind:
        return False
    return op.pool_type == "max" and bool(op.kernel) and not op.global_pool and not op.channels_last
