"""Attention as one operator, for devices with a kernel for the whole of it.

:class:`~flowmx.ops.compiled.fused_attention.FusedAttention` takes the place of the two products, the softmax and what
stands between them; ``attention_forms`` says how they may be written. It runs before differentiation, so that the
backward pass is the kernel's too.
"""

from __future__ import annotations

from collections.abc import Collection

from flowmx.graph.graph import Graph, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.attention_forms import Attention, Search
from flowmx.ops.arrays.permuting import Transpose
from flowmx.ops.arrays.shape import Reshape
from flowmx.ops.compiled.fused_attention import FusedAttention
from flowmx.ops.optimizers.mixed_precision import AmpCast
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import Shape, kernel_for


def fuse_attention(graph: Graph, wanted: Collection[Node]) -> Graph:
    """The same outputs by fewer operators.

    Args:
        graph: the outputs, before anything is differentiated.
        wanted: the variables that they will be differentiated by.
    """
    contexts = {graph.default, *graph.groups.values()}
    if not any(context is not None and kernel_for(context.kernels, FusedAttention.name) for context in contexts):
        return graph
    rewriter = Rewriter(graph)
    search = Search(rewriter, wanted)
    for node in rewriter.nodes:
        found = search.at(node)
        if found is not None:
            _put(rewriter, node, found, differentiable=bool(wanted))
        elif node.op is not None:
            rewriter.keep(node)
    return rewriter.result()


def _put(rewriter: Rewriter, node: Node, found: Attention, differentiable: bool) -> None:
    """Put the operator in the place of an attention that ends at a node."""
    parts = tuple([shape[3] for shape in found.shapes])
    op = FusedAttention.create(
        layout=found.layout, parts=parts, scale=found.scale, biased=found.bias is not None,
        differentiable=differentiable,
    )  # fmt: skip
    given = [
        _seen(rewriter, rewriter.new(entry), shape, node)
        for entry, shape in zip(found.inputs, found.shapes, strict=True)
    ]
    batch, heads = (found.shapes[0][axis] for axis in (0 if found.layout == "NTC" else 1, 2))
    if found.bias is not None:
        count, *rest = (1, 1, *rewriter.shapes[found.bias])[-3:]
        whole = (batch, heads) if count > 1 else (1, 1)
        given.append(_seen(rewriter, rewriter.new(found.bias), (*whole, *rest), node))
    out = Entry(rewriter.make(op, given, node), 0)
    if found.layout == "NTC" and heads > 1:  # where the next operator turns this back, a later pass drops both
        out = Entry(rewriter.make(Transpose.create(axes=(0, 2, 1, 3)), [out], node), 0)
    out, wanted = _seen(rewriter, out, rewriter.shapes[Entry(node, 0)], node), rewriter.dtypes[Entry(node, 0)]
    if rewriter.dtypes[out] != wanted:
        out = Entry(rewriter.make(AmpCast.create(dtype=name_of(wanted)), [out], node), 0)
    rewriter.replace(Entry(node, 0), out)
    rewriter.note(f"{node.name} is one operator with its softmax and the product before it")


def _seen(rewriter: Rewriter, entry: Entry, shape: Shape, like: Node) -> Entry:
    """An entry, by a node that only looks at it otherwise where it has another shape."""
    if rewriter.shapes[entry] == shape:
        return entry
    return Entry(rewriter.make(Reshape.create(shape=shape), [entry], like), 0)
