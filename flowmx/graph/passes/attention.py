"""Attention as one operator, for devices that have a fused attention kernel.

:class:`~flowmx.ops.compiled.fused_attention.FusedAttention` replaces the two products, the softmax and the operators
between them; ``attention_forms`` recognizes how they may be written. The pass runs before differentiation, so the
backward pass also uses the kernel.
"""

from __future__ import annotations

from collections.abc import Collection

from flowmx.graph.graph import Graph, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.attention_forms import Attention, Search
from flowmx.ops.arrays.permuting import Transpose
from flowmx.ops.arrays.reshape import Reshape
from flowmx.ops.compiled.fused_attention import FusedAttention
from flowmx.ops.math.amp_cast import AmpCast
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Shape


def fuse_attention(graph: Graph, variables: Collection[Node]) -> Graph:
    """Fuse each attention into one operator, if a device has a kernel for it.

    Args:
        graph: the outputs, before differentiation.
        variables: the variables that will be differentiated.
    """
    contexts = {graph.default, *graph.groups.values()}
    if not any(context is not None and kernel_for(context.kernels, FusedAttention.name) for context in contexts):
        return graph
    rewriter = Rewriter(graph)
    search = Search(rewriter, variables)
    for node in rewriter.nodes:
        attention = search.find_ending_at(node)
        if attention is not None:
            _replace(rewriter, node, attention, differentiable=bool(variables))
        elif node.op is not None:
            rewriter.keep(node)
    return rewriter.result()


def _replace(rewriter: Rewriter, node: Node, attention: Attention, differentiable: bool) -> None:
    """Replace an attention that ends at a node with the operator."""
    parts = tuple([shape[3] for shape in attention.shapes])
    op = FusedAttention.create(
        layout=attention.layout, parts=parts, scale=attention.scale, biased=attention.bias is not None,
        differentiable=differentiable,
    )  # fmt: skip
    inputs = [
        _reshape(rewriter, rewriter.new(entry), shape, node)
        for entry, shape in zip(attention.inputs, attention.shapes, strict=True)
    ]
    batch, heads = (attention.shapes[0][axis] for axis in (0 if attention.layout == "NTC" else 1, 2))
    if attention.bias is not None:
        count, *rest = (1, 1, *rewriter.shapes[attention.bias])[-3:]
        whole = (batch, heads) if count > 1 else (1, 1)
        inputs.append(_reshape(rewriter, rewriter.new(attention.bias), (*whole, *rest), node))
    out = Entry(rewriter.make(op, inputs, node), 0)
    if attention.layout == "NTC" and heads > 1:  # if the next operator transposes it back, a later pass drops both
        out = Entry(rewriter.make(Transpose.create(axes=(0, 2, 1, 3)), [out], node), 0)
    out, dtype = _reshape(rewriter, out, rewriter.shapes[Entry(node, 0)], node), rewriter.dtypes[Entry(node, 0)]
    if rewriter.dtypes[out] != dtype:
        out = Entry(rewriter.make(AmpCast.create(dtype=name_of(dtype)), [out], node), 0)
    rewriter.replace(Entry(node, 0), out)
    rewriter.note(f"{node.name} is fused with its softmax and the first product into one attention operator")


def _reshape(rewriter: Rewriter, entry: Entry, shape: Shape, like: Node) -> Entry:
    """Return an entry in a different shape, through a reshape if necessary."""
    if rewriter.shapes[entry] == shape:
        return entry
    return Entry(rewriter.make(Reshape.create(shape=shape), [entry], like), 0)
