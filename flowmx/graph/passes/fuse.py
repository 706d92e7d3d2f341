"""Fusion: adjacent operators become one if a kernel computes them together.

A convolution or FullyConnected absorbs the bias, the addition and the activation after it, so that

    relu(Convolution(x) + bias + other)

is one step, which may overwrite ``other`` (for dtypes with kernels). BatchNorm absorbs a ReLU. The gradients of a
convolution's weight and bias, two sums over the gradient of its output, become one step. A sum of two layers is fused
into the later layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.reshape import Reshape
from flowmx.ops.compiled.fused_layers import (
    BatchNormRelu,
    ConvolutionWeightBias,
    Fused,
    FusedConvolution,
    FusedFullyConnected,
    WideConvolutionWeight,
    WideDeconvolutionWeight,
    WideFullyConnectedWeight,
)
from flowmx.ops.math.binary import PRODUCTS, SUMS
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.convolution import Convolution, ConvolutionWeight, DeconvolutionWeight
from flowmx.ops.nn.linear import BackwardBias, FullyConnected, FullyConnectedWeight
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Operator

FUSED: dict[type, type[Operator]] = {
    Convolution: FusedConvolution,
    FusedConvolution: FusedConvolution,
    FullyConnected: FusedFullyConnected,
    FusedFullyConnected: FusedFullyConnected,
}
"""For each layer, the operator of the layer with fused operators."""
_FLOAT32_OPERATORS: dict[type, type[Operator]] = {
    ConvolutionWeight: WideConvolutionWeight,
    DeconvolutionWeight: WideDeconvolutionWeight,
    FullyConnectedWeight: WideFullyConnectedWeight,
}
"""For the gradient of each layer's weight, the operator that computes it in float32."""
_ACTIVATIONS = Fused.parameters["activation"].choices
MAX_SWISH = 1 << 13
"""The maximum number of elements of a layer's output for a swish in the layer."""


Readers = dict[Entry, list[Node]]
"""The nodes that read an entry, in order."""


@dataclass
class _Group:
    """A layer and the operators to fuse into it.

    Attributes:
        layer: the convolution or product.
        members: the operators to fuse, in order.
        bias, addend: the entries that they add.
        activation, slope, top: the activation, as in :class:`flowmx.ops.compiled.fused_layers.Fused`.
    """

    layer: Node
    members: list[Node] = field(default_factory=list)
    bias: Entry | None = None
    addend: Entry | None = None
    activation: str = ""
    slope: float = 0.25
    top: float = 0.0


def fuse(graph: Graph, options: Options) -> Graph:
    """Compute the same outputs and gradients in fewer steps."""
    rewriter = Rewriter(graph)
    groups = _groups(rewriter, options.product_dtypes)
    fused = {node for group in groups.values() for node in (group.layer, *group.members)}
    relus = _relus(rewriter)
    biases = _biases(rewriter.nodes)
    widened = _casts_of_weights(rewriter, options.product_dtypes)
    if not (groups or relus or biases or widened):
        return graph
    second_order = _dependents(graph.heads, rewriter.nodes) if biases else set()
    removed: set[Node] = set()
    """Nodes that are fused into earlier nodes."""
    for node in rewriter.nodes:
        if node in groups:
            _replace_group(rewriter, groups[node], node)
        elif node.op is None or node in fused or node in removed:
            continue
        elif node in relus:
            _replace(rewriter, node, BatchNormRelu, [Entry(relus[node], 0)])
            removed.add(relus[node])
            rewriter.note(f"{relus[node].name} is fused into {node.name}")
        elif (
            type(node.op) is ConvolutionWeight
            and (bias := biases.get(node.inputs[0])) is not None
            and (node in second_order) == (bias in second_order)
        ):
            _replace(rewriter, node, ConvolutionWeightBias, [Entry(node, 0), Entry(bias, 0)])
            removed.add(bias)
            rewriter.note(f"{bias.name} is computed with {node.name}")
        elif node in widened:
            wide = rewriter.make(
                _FLOAT32_OPERATORS[type(node.op)].create(**non_defaults(node.op)), _new_inputs(rewriter, node), node
            )
            rewriter.replace(Entry(widened[node], 0), Entry(wide, 0))
            removed.add(widened[node])
            rewriter.note(f"{node.name} is computed in float32, to which it was cast")
        else:
            rewriter.keep(node)
    return rewriter.result()


def _biases(nodes: Iterable[Node]) -> dict[Entry, Node]:
    """Return the sums for bias gradients, by the output gradient that they read."""
    if not any(type(node.op) is ConvolutionWeight for node in nodes):
        return {}
    return {node.inputs[0]: node for node in nodes if isinstance(node.op, BackwardBias) and node.op.axis == 1}


def _dependents(heads: Sequence[Node], nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes that depend on the outputs' gradients; in a forward pass, only higher derivatives do."""
    dependents = set(heads)
    for node in nodes:
        if any(entry.node in dependents for entry in node.inputs):
            dependents.add(node)
    return dependents


def fused_operator(layer: Node, **changes: object) -> Operator:
    """Return the operator of a layer with fused operators.

    Args:
        layer: a node whose operator is in ``FUSED``.
        **changes: the additional parameters.
    """
    assert layer.op is not None
    return FUSED[type(layer.op)].create(**{**non_defaults(layer.op), **changes})


# -- layers and their users -----------------------------------------------------------------------------


def _groups(rewriter: Rewriter, dtypes: Collection[DType]) -> dict[Node, _Group]:
    """Return groups of nodes to fuse, by their last node; later layers choose first."""
    layers = [node for node in reversed(rewriter.nodes) if type(node.op) in FUSED]
    readers: Readers = defaultdict(list)
    for node in rewriter.nodes if layers else ():
        for entry in dict.fromkeys(node.inputs):
            readers[entry].append(node)
    members: set[Node] = set()
    groups = {}
    for node in layers:
        if rewriter.dtypes[Entry(node, 0)] in dtypes:
            group = _group_of(rewriter, node, readers, members)
            members.update(group.members)
            if group.members:
                groups[group.members[-1]] = group
    return groups


def _group_of(rewriter: Rewriter, layer: Node, readers: Readers, members: set[Node]) -> _Group:
    """Return a layer with all operators that can be fused into it."""
    group = _Group(layer, activation=getattr(layer.op, "activation", ""))
    end = Entry(layer, 0)
    while rewriter.uses.get(end) == 1 and readers[end] and not group.activation:
        user = readers[end][0]
        is_near = rewriter.graph.context(user) is rewriter.graph.context(layer)
        if (
            not is_near
            or user in members
            or not (_fuse_addend(rewriter, group, user, end) or _fuse_activation(group, user))
        ):
            break
        group.members.append(user)
        end = Entry(user, 0)
    if not group.activation and (swish := _swish_of(rewriter, end, readers)) and not members.intersection(swish):
        group.members += swish
        group.activation = "swish"
    return group


def _swish_of(rewriter: Rewriter, x: Entry, readers: Readers) -> list[Node]:
    """Return the sigmoid and the product that compute ``x * sigmoid(x)`` for few numbers.

    The list is empty for more numbers, which a loop computes faster, and if others read the values.
    """
    users, graph = readers[x], rewriter.graph
    gates = [user for user in users if activation_of(user) == "sigmoid"]
    if len(users) != 2 or len(gates) != 1 or rewriter.uses.get(x) != 2 or prod(rewriter.shapes[x]) > MAX_SWISH:
        return []
    gate = Entry(gates[0], 0)
    product = users[users[0] is gates[0]]
    is_swish = isinstance(product.op, PRODUCTS) and set(product.inputs) == {x, gate} and rewriter.uses[gate] == 1
    is_near = graph.context(x.node) is graph.context(gate.node) is graph.context(product)
    return [gates[0], product] if is_swish and is_near else []


def _fuse_activation(group: _Group, user: Node) -> bool:
    """Return whether a node is an activation that the layer's kernel can apply; if so, record it in the group."""
    kind = activation_of(user)
    if not kind or kind not in _ACTIVATIONS:
        return False
    group.activation, group.slope = kind, getattr(user.op, "slope", group.slope)
    group.top = getattr(user.op, "a_max", group.top)
    return True


def _fuse_addend(rewriter: Rewriter, group: _Group, user: Node, end: Entry) -> bool:
    """Return whether a node adds an entry that the layer's kernel can add; if so, record it in the group."""
    if not isinstance(user.op, SUMS) or group.addend is not None:
        return False
    other = user.inputs[1] if user.inputs[0] == end else user.inputs[0]
    shape = rewriter.shapes[end]
    if rewriter.dtypes[other] != rewriter.dtypes[end] or rewriter.shapes[Entry(user, 0)] != shape:
        return False
    if rewriter.shapes[other] == shape:
        group.addend = other
        return True
    op: Any = group.layer.op
    axis = op.bias_axis() % len(shape)
    vector = (*(1,) * axis, shape[axis], *(1,) * (len(shape) - axis - 1))
    padded = (*(1,) * (len(shape) - len(rewriter.shapes[other])), *rewriter.shapes[other])
    if padded != vector or not op.no_bias or group.bias is not None:
        return False
    group.bias = other
    return True


def _replace_group(rewriter: Rewriter, group: _Group, last: Node) -> None:
    """Replace a layer and its group with one node, at the position of the last."""
    layer, entries = group.layer, [rewriter.new(entry) for entry in group.layer.inputs]
    changes: dict[str, object] = {}
    if group.bias is not None:
        entries.insert(2, _as_vector(rewriter, rewriter.new(group.bias), last))
        changes["no_bias"] = False
    if group.addend is not None:
        entries.append(rewriter.new(group.addend))
        changes["has_addend"] = True
    if group.activation:
        changes["activation"] = group.activation
    if group.activation == "leaky":
        changes["slope"] = group.slope
    if group.activation == "clip":
        changes["top"] = group.top
    layer_ = rewriter.make(fused_operator(layer, **changes), entries, layer)
    rewriter.replace(Entry(last, 0), Entry(layer_, 0))
    for member in group.members:
        rewriter.note(f"{member.name} is fused into {layer.name}")


def _as_vector(rewriter: Rewriter, entry: Entry, like: Node) -> Entry:
    """Return an entry as a vector, through a reshape if it has more axes."""
    shape = rewriter.shapes[entry]
    if len(shape) == 1:
        return entry
    return Entry(rewriter.make(Reshape.create(shape=(prod(shape),)), [entry], like), 0)


# -- other fusions ------------------------------------------------------------------------------------


def _relus(rewriter: Rewriter) -> dict[Node, Node]:
    """Return each BatchNorm that a ReLU can be fused into, with the ReLU."""
    matches = {}
    for node in rewriter.nodes:
        if not node.inputs or type(node.inputs[0].node.op) is not BatchNorm:
            continue
        source = node.inputs[0]
        if source.index == 0 and activation_of(node) == "relu" and rewriter.uses[source] == 1:
            matches[source.node] = node
    return matches


def _casts_of_weights(rewriter: Rewriter, dtypes: Collection[DType]) -> dict[Node, Node]:
    """Return gradients of 16-bit weights that are only cast to float32, with the casts."""
    matches = {}
    for node in rewriter.nodes:
        if node.op is not None and node.op.traits.casts and rewriter.dtypes[Entry(node, 0)] == FLOAT32:
            source = node.inputs[0]
            is_half = rewriter.dtypes[source] in dtypes and rewriter.dtypes[source] != FLOAT32
            if is_half and type(source.node.op) in _FLOAT32_OPERATORS and rewriter.uses[source] == 1:
                matches[source.node] = node
    return matches


def _new_inputs(rewriter: Rewriter, node: Node) -> list[Entry]:
    return [rewriter.new(entry) for entry in node.inputs]


def _replace(rewriter: Rewriter, node: Node, kind: type[Operator], entries: list[Entry]) -> None:
    """Replace a node with a node of another operator, with the same parameters and inputs.

    The first outputs of the new node also replace ``entries``.
    """
    assert node.op is not None
    op = kind.create(**non_defaults(node.op))
    new = rewriter.make(op, [rewriter.new(entry) for entry in node.inputs], node)
    for index in range(node.outputs()):
        rewriter.replace(Entry(node, index), Entry(new, index))
    for index, entry in enumerate(entries):
        rewriter.replace(entry, Entry(new, index))


def activation_of(node: Node) -> str:
    """Return the name of a node's activation; empty if the node is not an activation."""
    op: Any = node.op
    if type(op) in (Activation, LeakyReLU):
        return str(op.act_type)
    if type(op) is Clip and op.a_min == 0:
        return "clip"
    return "" if op is None else str(op.traits.activation)
