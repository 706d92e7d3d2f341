"""Prediction: a BatchNorm after a concatenation reads the parts.

In a DenseNet each layer reads all outputs before it: a concatenation of the previous concatenation and one new array,
which only a BatchNorm and the next concatenation read. The BatchNorm can read all parts itself and write its output
once; then nothing reads the concatenations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowmx.graph.graph import Graph, Options, Rewriter, is_run_invariant
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.joining import Concat
from flowmx.ops.compiled.fused_layers import BatchNormRelu, ScaleAndShift
from flowmx.ops.compiled.joined_normalization import JoinedNormalization
from flowmx.ops.nn.normalization.batch_norm import BatchNorm, BatchStatistics
from flowmx.ops.registry.dtypes import FLOAT32

MAX_PARTS = 256
"""The maximum number of parts of a concatenation."""
CHANNELS = 16
"""The channels of a part are a multiple of this, as the loop needs."""


def join_normalization(graph: Graph, options: Options) -> Graph:
    """Make each BatchNorm read the parts of a concatenation that nothing else reads."""
    if graph.train or options.device_type != "cpu" or graph.groups or FLOAT32 not in options.channels_last:
        return graph
    joins = _concatenations(graph)
    if not joins:
        return graph
    rewriter = Rewriter(graph)
    for node in rewriter.nodes:
        if node.op is None or node in joins:
            continue
        if node.inputs and node.inputs[0].node in joins:
            _replace(rewriter, node, _parts(node.inputs[0], joins))
        else:
            rewriter.keep(node)
    return rewriter.result()


def _concatenations(graph: Graph) -> dict[Node, Sequence[Entry]]:
    """Return the concatenations that only normalizations and other such concatenations read, with their inputs."""
    results, uses = set(graph.results()), graph.uses()
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes():
        for entry in node.inputs:
            readers.setdefault(entry.node, []).append(node)
    joins: dict[Node, Sequence[Entry]] = {}
    for node in reversed([node for node in graph.nodes() if _is_concatenation(graph, node)]):
        users = readers.get(node, [])
        is_joined = all(user in joins or _is_normalization(graph, uses, user, node) for user in users)
        if users and is_joined and Entry(node, 0) not in results:
            joins[node] = node.inputs
    too_long = [node for node in joins if len(_parts(Entry(node, 0), joins)) > MAX_PARTS]
    return {} if too_long else joins


def _is_concatenation(graph: Graph, node: Node) -> bool:
    if type(node.op) is not Concat or node.op.dim not in (1, -3) or len(graph.shapes[node.inputs[0]]) != 4:
        return False
    return _is_float(graph, node) and all(graph.shapes[entry][1] % CHANNELS == 0 for entry in node.inputs)


def _is_float(graph: Graph, node: Node) -> bool:
    return all(graph.dtypes[entry] == FLOAT32 for entry in (*node.inputs, Entry(node, 0)))


def _is_normalization(graph: Graph, uses: Counter[Entry], node: Node, source: Node) -> bool:
    """Return whether a node is a BatchNorm of a concatenation with fixed parameters and statistics."""
    op = node.op
    if type(op) not in (BatchNorm, BatchNormRelu):
        return False
    assert isinstance(op, BatchStatistics)
    others = any(uses.get(Entry(node, index)) for index in range(1, node.outputs()))
    is_data = node.inputs[0] == Entry(source, 0) and all(entry.node is not source for entry in node.inputs[1:])
    is_fixed = all(is_run_invariant(entry.node) for entry in node.inputs[1:])
    return is_data and is_fixed and not others and op.axis in (1, -3) and _is_float(graph, node)


def _parts(entry: Entry, joins: dict[Node, Sequence[Entry]]) -> list[Entry]:
    """Return the parts of a concatenation, with those of the concatenations among them."""
    if entry.node not in joins:
        return [entry]
    return [part for each in joins[entry.node] for part in _parts(each, joins)]


def _replace(rewriter: Rewriter, node: Node, parts: Sequence[Entry]) -> None:
    """Replace a normalization by one of the parts."""
    op = node.op
    assert isinstance(op, BatchStatistics)
    parameters = ScaleAndShift.create(eps=op.eps, fix_gamma=op.fix_gamma)
    numbers = rewriter.make(parameters, list(map(rewriter.new, node.inputs[1:])), node)
    joined = JoinedNormalization.create(num_args=len(parts), relu=type(op) is BatchNormRelu)
    new = rewriter.make(joined, [*map(rewriter.new, parts), Entry(numbers, 0), Entry(numbers, 1)], node)
    rewriter.replace(Entry(node, 0), Entry(new, 0))
    rewriter.note(f"{node.name} reads the {len(parts)} parts of {node.inputs[0].node.name}")
