"""Fusion: neighbouring operators become one where a kernel does them in one go.

What is fused: a ReLU into the convolution, product or normalisation before it, and the two sums over a
convolution's head that are its weight's and its bias's gradient.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry import Operator, lookup

THEN_RELU = {
    "Convolution": "_relu_Convolution",
    "FullyConnected": "_relu_FullyConnected",
    "BatchNorm": "_relu_BatchNorm",
}


def fuse(graph: Graph, options: Options) -> Graph:
    """The same outputs and gradients, by fewer steps."""
    rewriter = Rewriter(graph)
    relus = _relus(rewriter)
    biases = {
        node.inputs[0]: node
        for node in rewriter.nodes
        if _name(node) == "_backward_bias" and getattr(node.op, "axis", None) == 1
    }
    gone = set(relus.values())
    for node in rewriter.nodes:
        if node.op is None or node in gone or rewriter.new(Entry(node, 0)) != Entry(node, 0):
            continue
        if node in relus:
            _put(rewriter, node, THEN_RELU[_name(node)], [Entry(relus[node], 0)])
            rewriter.note(f"{relus[node].name} went into {node.name}")
        elif _name(node) == "_backward_Convolution_weight" and node.inputs[0] in biases:
            bias = biases[node.inputs[0]]
            _put(rewriter, node, f"{_name(node)}_bias", [Entry(node, 0), Entry(bias, 0)])
        else:
            rewriter.keep(node)
    return rewriter.result()


def _relus(rewriter: Rewriter) -> dict[Node, Node]:
    """Each operator that a ReLU goes into, and that ReLU."""
    found = {}
    for node in rewriter.nodes:
        if _name(node) == "Activation" and getattr(node.op, "act_type", "") == "relu":
            source = node.inputs[0]
            if source.index == 0 and _name(source.node) in THEN_RELU and rewriter.uses[source] == 1:
                found[source.node] = node
    return found


def _put(rewriter: Rewriter, node: Node, name: str, stands_for: list[Entry]) -> None:
    """Replace a node by one of the operator of that name, with its parameters and inputs.

    Its first outputs replace the entries that it stands for, besides the outputs of the node.
    """
    made = rewriter.make(_fused(node, name), [rewriter.new(entry) for entry in node.inputs], node)
    for index in range(node.outputs()):
        rewriter.replace(Entry(node, index), Entry(made, index))
    for index, entry in enumerate(stands_for):
        rewriter.replace(entry, Entry(made, index))


def _name(node: Node) -> str:
    return "" if node.op is None else node.op.name


def _fused(node: Node, name: str) -> Operator:
    """An operator with the parameters of a node's operator."""
    op = node.op
    assert op is not None
    return lookup(name).create(**{each: getattr(op, each) for each in op.attributes()})
