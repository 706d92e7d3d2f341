"""Fusion: neighbouring operators become one where a kernel does them in one go.

What is fused: into a convolution or FullyConnected the bias, the addition and the activation after it, so that of

    relu(Convolution(x) + bias + other)

nothing remains but one step, which may write over ``other`` (in the element types for which there are kernels); a
ReLU into BatchNorm; and the two sums over a convolution's head that are its weight's and its bias's gradient. Of two
layers that are added, the later one adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.ops.arrays.shape import Reshape
from flowmx.ops.compiled.fused import (
    BatchNormRelu,
    ConvolutionWeightBias,
    Fused,
    FusedConvolution,
    FusedFullyConnected,
    WideConvolutionWeight,
    WideDeconvolutionWeight,
    WideFullyConnectedWeight,
)
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.common import bound
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
"""For each layer that others go into, the operator that the whole becomes."""
_WIDE: dict[type, type[Operator]] = {
    ConvolutionWeight: WideConvolutionWeight,
    DeconvolutionWeight: WideDeconvolutionWeight,
    FullyConnectedWeight: WideFullyConnectedWeight,
}
"""For the gradient of each layer's weight the operator that gives it in float32."""
_THEN = Fused.parameters["then"].choices


@dataclass
class _Group:
    """A layer and what goes into it.

    Attributes:
        layer: the convolution or product.
        members: what goes into it, in order.
        bias, addend: what these add.
        then, slope, top: the activation, as :class:`flowmx.ops.compiled.fused.Fused` has it.
    """

    layer: Node
    members: list[Node] = field(default_factory=list)
    bias: Entry | None = None
    addend: Entry | None = None
    then: str = ""
    slope: float = 0.25
    top: float = 0.0


def fuse(graph: Graph, options: Options) -> Graph:
    """The same outputs and gradients, by fewer steps."""
    rewriter = Rewriter(graph)
    groups = _groups(rewriter, options.multiplied)
    fused = {node for group in groups.values() for node in (group.layer, *group.members)}
    relus = _relus(rewriter)
    biases = _biases(rewriter.nodes)
    widened = _widened(rewriter, options.multiplied)
    if not (groups or relus or biases or widened):
        return graph
    late = _behind(graph.heads, rewriter.nodes) if biases else set()
    gone: set[Node] = set()
    """Nodes that went into one before them."""
    for node in rewriter.nodes:
        if node in groups:
            _put_group(rewriter, groups[node], node)
        elif node.op is None or node in fused or node in gone:
            continue
        elif node in relus:
            _put(rewriter, node, BatchNormRelu, [Entry(relus[node], 0)])
            gone.add(relus[node])
            rewriter.note(f"{relus[node].name} went into {node.name}")
        elif (
            type(node.op) is ConvolutionWeight
            and (bias := biases.get(node.inputs[0])) is not None
            and (node in late) == (bias in late)
        ):
            _put(rewriter, node, ConvolutionWeightBias, [Entry(node, 0), Entry(bias, 0)])
            gone.add(bias)
            rewriter.note(f"{bias.name} is computed with {node.name}")
        elif node in widened:
            made = rewriter.make(_WIDE[type(node.op)].create(**bound(node.op)), _renewed(rewriter, node), node)
            rewriter.replace(Entry(widened[node], 0), Entry(made, 0))
            gone.add(widened[node])
            rewriter.note(f"{node.name} is computed in float32, to which it was cast")
        else:
            rewriter.keep(node)
    return rewriter.result()


def _biases(nodes: Iterable[Node]) -> dict[Entry, Node]:
    """For each gradient of a convolution's output that its filters' gradient reads, the sum that is its bias's."""
    if not any(type(node.op) is ConvolutionWeight for node in nodes):
        return {}
    return {node.inputs[0]: node for node in nodes if isinstance(node.op, BackwardBias) and node.op.axis == 1}


def _behind(heads: Sequence[Node], nodes: Iterable[Node]) -> set[Node]:
    """The nodes that depend on the outputs' gradients, which a forward pass has only for gradients of gradients."""
    found = set(heads)
    for node in nodes:
        if any(each.node in found for each in node.inputs):
            found.add(node)
    return found


def fused(layer: Node, **changes: Any) -> Operator:
    """The operator of a layer and of what goes into it.

    Args:
        layer: a node of one of the operators in ``FUSED``.
        **changes: the parameters that are not those of the layer.
    """
    assert layer.op is not None
    return FUSED[type(layer.op)].create(**{**bound(layer.op), **changes})


# -- layers and what follows them -----------------------------------------------------------------------


def _groups(rewriter: Rewriter, dtypes: Collection[DType]) -> dict[Node, _Group]:
    """Groups of nodes to fuse, by the last node of each; later layers choose first."""
    layers = [node for node in reversed(rewriter.nodes) if type(node.op) in FUSED]
    readers = {entry: node for node in rewriter.nodes for entry in node.inputs} if layers else {}
    taken: set[Node] = set()
    found = {}
    for node in layers:
        if rewriter.dtypes[Entry(node, 0)] in dtypes:
            group = _grown(rewriter, node, readers, taken)
            taken.update(group.members)
            if group.members:
                found[group.members[-1]] = group
    return found


def _grown(rewriter: Rewriter, layer: Node, readers: dict[Entry, Node], taken: set[Node]) -> _Group:
    """A layer with all that goes into it."""
    group = _Group(layer, then=getattr(layer.op, "then", ""))
    end = Entry(layer, 0)
    while rewriter.uses.get(end) == 1 and end in readers and not group.then:
        user = readers[end]
        near = rewriter.graph.context(user) is rewriter.graph.context(layer)
        if not near or user in taken or not (_adds(rewriter, group, user, end) or _acts(group, user)):
            break
        group.members.append(user)
        end = Entry(user, 0)
    return group


def _acts(group: _Group, user: Node) -> bool:
    """Tell whether a node is an activation that the layer's kernel can apply; if so, note it in the group."""
    kind = activation_of(user)
    if not kind or kind not in _THEN:
        return False
    group.then, group.slope = kind, getattr(user.op, "slope", group.slope)
    group.top = getattr(user.op, "a_max", group.top)
    return True


def _adds(rewriter: Rewriter, group: _Group, user: Node, end: Entry) -> bool:
    """Tell whether a node adds something that the layer's kernel can add; if so, note it in the group."""
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
    given = (*(1,) * (len(shape) - len(rewriter.shapes[other])), *rewriter.shapes[other])
    if given != vector or not op.no_bias or group.bias is not None:
        return False
    group.bias = other
    return True


def _put_group(rewriter: Rewriter, group: _Group, last: Node) -> None:
    """Put a layer and what goes into it in the place of the last of them."""
    layer, entries = group.layer, [rewriter.new(entry) for entry in group.layer.inputs]
    changes: dict[str, Any] = {}
    if group.bias is not None:
        entries.insert(2, _as_vector(rewriter, rewriter.new(group.bias), last))
        changes["no_bias"] = False
    if group.addend is not None:
        entries.append(rewriter.new(group.addend))
        changes["added"] = True
    if group.then:
        changes["then"] = group.then
    if group.then == "leaky":
        changes["slope"] = group.slope
    if group.then == "clip":
        changes["top"] = group.top
    made = rewriter.make(fused(layer, **changes), entries, layer)
    rewriter.replace(Entry(last, 0), Entry(made, 0))
    for member in group.members:
        rewriter.note(f"{member.name} went into {layer.name}")


def _as_vector(rewriter: Rewriter, entry: Entry, like: Node) -> Entry:
    """An entry with one axis, by a node that only looks at it otherwise where it has more."""
    shape = rewriter.shapes[entry]
    if len(shape) == 1:
        return entry
    return Entry(rewriter.make(Reshape.create(shape=(prod(shape),)), [entry], like), 0)


# -- what goes into others --------------------------------------------------------------------------------


def _relus(rewriter: Rewriter) -> dict[Node, Node]:
    """Each BatchNorm that a ReLU goes into, and that ReLU."""
    found = {}
    for node in rewriter.nodes:
        if not node.inputs or type(node.inputs[0].node.op) is not BatchNorm:
            continue
        source = node.inputs[0]
        if source.index == 0 and activation_of(node) == "relu" and rewriter.uses[source] == 1:
            found[source.node] = node
    return found


def _widened(rewriter: Rewriter, dtypes: Collection[DType]) -> dict[Node, Node]:
    """Gradients of weights in 16 bits that are only cast to float32, and those casts."""
    found = {}
    for node in rewriter.nodes:
        if node.op is not None and node.op.traits.casts and rewriter.dtypes[Entry(node, 0)] == FLOAT32:
            source = node.inputs[0]
            is_half = rewriter.dtypes[source] in dtypes and rewriter.dtypes[source] != FLOAT32
            if is_half and type(source.node.op) in _WIDE and rewriter.uses[source] == 1:
                found[source.node] = node
    return found


def _renewed(rewriter: Rewriter, node: Node) -> list[Entry]:
    return [rewriter.new(entry) for entry in node.inputs]


def _put(rewriter: Rewriter, node: Node, kind: type[Operator], stands_for: list[Entry]) -> None:
    """Replace a node by one of another operator, with its parameters and inputs.

    Its first outputs replace the entries that it stands for, besides the outputs of the node.
    """
    assert node.op is not None
    op = kind.create(**bound(node.op))
    made = rewriter.make(op, [rewriter.new(entry) for entry in node.inputs], node)
    for index in range(node.outputs()):
        rewriter.replace(Entry(node, index), Entry(made, index))
    for index, entry in enumerate(stands_for):
        rewriter.replace(entry, Entry(made, index))


def activation_of(node: Node) -> str:
    """Which activation a node is; empty where it is none."""
    op: Any = node.op
    if type(op) in (Activation, LeakyReLU):
        return str(op.act_type)
    if type(op) is Clip and op.a_min == 0:
        return "clip"
    return "" if op is None else str(op.traits.activation)
