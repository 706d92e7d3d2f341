"""The forms in which attention is written: what :mod:`flowmx.graph.passes.attention` looks for.

    batch_dot(softmax(scale * batch_dot(queries, keys, transpose_b=True) + bias), values)

and the same of interleaved projections (``_contrib_interleaved_matmul_*``). The scale may stand on either side of the
first product; the bias is a mask, say, which nothing is learned by. What mixed precision casts in between goes too,
since kernels compute in float32, and so does a Dropout that drops nothing; values that it cast to float32, for weights
that are, are taken as they were. Where queries, keys and values were copied so that heads come before the length, they
are read where they lay.

Weights that something else reads, or that are dropped, cut off at a length or softened by a temperature, are none of
these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from flowmx.graph.graph import Rewriter, written
from flowmx.graph.node import Entry, Node, topological
from flowmx.ops import kernels
from flowmx.ops.arrays.permuting import Permuting
from flowmx.ops.linalg.matrix import BatchDot
from flowmx.ops.math.binary import SUMS
from flowmx.ops.nn.activation import Softmax
from flowmx.ops.nn.attention import EncoderDecoderScores, EncoderDecoderSums, SelfAttentionScores, SelfAttentionSums
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.optimizers.mixed_precision import AmpCast
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Operator, Shape

_INTERLEAVED: dict[type, tuple[type, Shape]] = {
    SelfAttentionSums: (SelfAttentionScores, (3,)),
    EncoderDecoderSums: (EncoderDecoderScores, (1, 2)),
}
"""For each product with values: that of queries and keys, and how many of the three lie in each input."""
_GRID = 8
"""Rows of a bias are a multiple of so many elements, or kernels can not read them."""


class Attention(NamedTuple):
    """An attention.

    Attributes:
        inputs: the old entries of queries, keys and values.
        shapes: those to see them by: (batch, length, heads, parts, size), or as the layout says.
        layout: NTC or TNC.
        scale: what products are multiplied by.
        bias: what is added to them, if anything.
    """

    inputs: list[Entry]
    shapes: list[Shape]
    layout: str
    scale: float
    bias: Entry | None = None


class Search:
    """Recognises attentions that a device has a kernel for.

    Args:
        rewriter: of the graph.
        wanted: the variables that it will be differentiated by.
    """

    def __init__(self, rewriter: Rewriter, wanted: Collection[Node]) -> None:
        self._rewriter = rewriter
        self._graph = rewriter.graph
        self._wanted = set(wanted)
        self._changing = written(rewriter.nodes, rewriter.graph.train)

    def at(self, node: Node) -> Attention | None:
        """The attention that ends at a node."""
        if _products(node.op) is None:
            return None
        weights, values = node.inputs if isinstance(node.op, BatchDot) else node.inputs[::-1]
        values = self._as_it_was(values)
        softmax, factor = self._behind(weights, node)
        if factor != 1 or not self._is_softmax(softmax, node):
            return None
        for scores, bias in self._sums(self._behind(softmax.node.inputs[0], node)[0], node):
            product, scale = self._behind(scores, node, scaled=True)
            found = self._operands(node, product, values, scale) if self._is_part(product, node) else None
            if found is not None and self._has_kernel(node, found) and (bias is None or self._fits(bias, product)):
                return found._replace(bias=bias)
        return None

    # -- the way back from weights to the first product -----------------------------------------------------

    def _is_part(self, entry: Entry, end: Node) -> bool:
        """Tell whether a value is used by the attention alone, and on its device."""
        node = entry.node
        is_here = self._graph.context(node) is self._graph.context(end)
        return node.op is not None and entry.index == 0 and self._rewriter.uses[entry] == 1 and is_here

    def _behind(self, entry: Entry, end: Node, scaled: bool = False) -> tuple[Entry, float]:
        """Skip operators that leave an entry unchanged, or scale it; returns the source and the product of scales."""
        factor = 1.0
        while self._is_part(entry, end):
            node, op = entry.node, entry.node.op
            assert op is not None
            scale = op.multiplier(self._rewriter.shapes[entry]) if scaled else None
            if scale is not None:
                factor *= scale
            elif not self._changes_nothing(entry):
                break
            entry = node.inputs[0]
        return entry, factor

    def _changes_nothing(self, entry: Entry) -> bool:
        """Tell whether the kernel can ignore an operator: a cast between floating types, or an inactive Dropout."""
        op = entry.node.op
        assert op is not None
        if isinstance(op, Dropout):
            return not op.draws(self._graph.train)
        return op.traits.casts and all(is_floating(self._rewriter.dtypes[e]) for e in (entry, entry.node.inputs[0]))

    def _is_softmax(self, entry: Entry, end: Node) -> bool:
        op: Any = entry.node.op
        if not self._is_part(entry, end) or type(op) is not Softmax:
            return False
        return op.axis in (-1, 2) and op.temperature in (None, 1) and not op.use_length

    def _sums(self, entry: Entry, end: Node) -> Iterator[tuple[Entry, Entry | None]]:
        """Ways to see what softmax is taken of: as scores, or as scores and what is added to them."""
        yield entry, None
        if self._is_part(entry, end) and isinstance(entry.node.op, SUMS):
            one, other = entry.node.inputs
            for scores, bias in ((one, other), (other, one)):
                if self._rewriter.shapes[scores] == self._rewriter.shapes[entry]:
                    yield scores, bias

    def _as_it_was(self, values: Entry) -> Entry:
        """Values without a cast by which mixed precision made them as wide as weights."""
        inner, dtypes = values.node.inputs[0] if isinstance(values.node.op, AmpCast) else values, self._rewriter.dtypes
        return inner if is_floating(dtypes[inner]) and dtypes[inner].itemsize < dtypes[values].itemsize else values

    # -- queries, keys and values --------------------------------------------------------------------------

    def _operands(self, end: Node, product: Entry, values: Entry, scale: float) -> Attention | None:
        """The attention, if its first product is one that belongs to the last."""
        first: Any = product.node.op
        last: Any = end.op
        wanted, parts = _products(last) or (None, ())
        if type(product.node.op) is not wanted:
            return None
        inputs = list(product.node.inputs)
        if parts:
            is_same = inputs[-1] == values and first.heads == last.heads
            return self._interleaved(inputs, parts, first.heads, scale) if is_same else None
        if first.transpose_a or not first.transpose_b:
            return None
        unscaled = [self._unscaled(entry, end) for entry in inputs]
        return self._apart([*[entry for entry, _ in unscaled], values], scale * unscaled[0][1] * unscaled[1][1])

    def _unscaled(self, entry: Entry, end: Node) -> tuple[Entry, float]:
        """Queries or keys, and what they are multiplied by."""
        factor = 1.0
        while self._is_part(entry, end) and entry.node.op is not None:
            scale = entry.node.op.multiplier(self._rewriter.shapes[entry])
            if scale is None:
                break
            factor *= scale
            entry = entry.node.inputs[0]
        return entry, factor

    def _interleaved(self, inputs: list[Entry], parts: Shape, heads: int, scale: float) -> Attention:
        """Of projections (length, batch, heads · parts · size); their product is divided by √size."""
        shapes = [self._rewriter.shapes[entry] for entry in inputs]
        sizes = [width // (heads * count) for (_, _, width), count in zip(shapes, parts, strict=True)]
        seen = [(*s[:2], heads, count, size) for s, count, size in zip(shapes, parts, sizes, strict=True)]
        return Attention(inputs, seen, "TNC", scale / math.sqrt(max(1, sizes[0])))

    def _apart(self, inputs: list[Entry], scale: float) -> Attention:
        """Of arrays (batch · heads, length, size), or of what they were copied from."""
        shapes = self._rewriter.shapes
        sources = [source for entry in inputs if (source := self._with_heads(entry)) is not None]
        if len(sources) == 3 and len({(shapes[each][0], shapes[each][2]) for each in sources}) == 1:
            seen = [(*shapes[each][:3], 1, shapes[each][3]) for each in sources]
            return Attention(sources, seen, "NTC", scale)
        return Attention(inputs, [(*shapes[each][:2], 1, 1, shapes[each][2]) for each in inputs], "NTC", scale)

    def _with_heads(self, entry: Entry) -> Entry | None:
        """The array (batch, length, heads, size) that one (batch · heads, length, size) was copied from."""
        shapes, op = self._rewriter.shapes, entry.node.op
        if op is None or not op.traits.view:
            return None
        inner = entry.node.inputs[0]
        permuting, shape = inner.node.op, shapes[inner]
        if not isinstance(permuting, Permuting):
            return None
        is_split = len(shape) == 4 and (shape[0] * shape[1], *shape[2:]) == shapes[entry]
        return inner.node.inputs[0] if is_split and permuting.order(4) == (0, 2, 1, 3) else None

    # -- whether a kernel can ------------------------------------------------------------------------------

    def _has_kernel(self, end: Node, found: Attention) -> bool:
        """Tell whether the device has an attention kernel for this form, dtype and head size."""
        context = self._graph.context(end)
        dtypes = {self._rewriter.dtypes[entry] for entry in found.inputs}
        sizes = {shape[4] for shape in found.shapes}
        lengths = [shape[1 if found.layout == "NTC" else 0] for shape in found.shapes]
        return (
            context is not None
            and len(dtypes) == len(sizes) == 1
            and found.scale > 0
            and not any(0 in shape for shape in found.shapes)
            and not any(entry.node in self._changing for entry in found.inputs)
            and kernels.computes_attention(context.kernels, dtypes.pop(), sizes.pop(), lengths[0] * lengths[-1])
        )

    def _fits(self, bias: Entry, scores: Entry) -> bool:
        """Tell whether the kernel can add a bias: one for all heads and examples or one for each, without gradient."""
        shape, whole = self._rewriter.shapes[bias], self._rewriter.shapes[scores]
        return (
            shape[-2:] == whole[1:]
            and shape[:-2] in ((), (1,), whole[:1])
            and not whole[2] % _GRID
            and self._rewriter.dtypes[bias] == self._rewriter.dtypes[scores]
            and bias.node not in self._changing
            and not self._learns(bias)
        )

    def _learns(self, bias: Entry) -> bool:
        """Tell whether a gradient would flow into a bias."""
        learning = set(self._wanted)
        for node in topological([bias]):
            if node.op is not None and not node.op.traits.no_gradient and any(e.node in learning for e in node.inputs):
                learning.add(node)
        return bias.node in learning


def _products(op: Operator | None) -> tuple[type, Shape] | None:
    """Of a product with values: that of queries and keys, and how many of the three lie in each of its inputs."""
    if isinstance(op, BatchDot):
        return None if op.transpose_a or op.transpose_b else (BatchDot, ())
    return _INTERLEAVED.get(type(op))
