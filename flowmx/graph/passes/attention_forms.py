"""The forms of attention that :mod:`flowmx.graph.passes.attention` recognizes.

    batch_dot(softmax(scale * batch_dot(queries, keys, transpose_b=True) + bias), values)

and the same for interleaved projections (``_contrib_interleaved_matmul_*``). The scale may be on either side of the
first product. The bias, such as a mask, must have no gradient. Casts of mixed precision in between are removed, since
kernels compute in float32, and so is a Dropout that drops nothing. If values were cast to float32 because weights are
float32, their original is used. If queries, keys and values were copied to put heads before the length, the originals
are read.

Attention is not recognized if other operators read the weights, or if the weights are dropped, masked by a length or
use a temperature.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from flowmx.graph.graph import Rewriter, written_variables
from flowmx.graph.node import Entry, Node, topological
from flowmx.ops import kernels
from flowmx.ops.arrays.permuting import Permuting
from flowmx.ops.linalg.dot import BatchDot
from flowmx.ops.math.amp_cast import AmpCast
from flowmx.ops.math.binary import SUMS
from flowmx.ops.nn.activation import Softmax
from flowmx.ops.nn.attention import EncoderDecoderScores, EncoderDecoderSums, SelfAttentionScores, SelfAttentionSums
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Operator, Shape

_INTERLEAVED: dict[type, tuple[type, Shape]] = {
    SelfAttentionSums: (SelfAttentionScores, (3,)),
    EncoderDecoderSums: (EncoderDecoderScores, (1, 2)),
}
"""For each product with values: the product of queries and keys, and how many of the three each input interleaves."""
_GRID = 8
"""The alignment, in elements, that kernels need for the rows of a bias."""


class Attention(NamedTuple):
    """An attention.

    Attributes:
        inputs: the old entries of queries, keys and values.
        shapes: their shapes for the kernel: (batch, length, heads, parts, size), in the order of the layout.
        layout: NTC or TNC.
        scale: the factor of the scores.
        bias: the entry that is added to the scores, if any.
    """

    inputs: list[Entry]
    shapes: list[Shape]
    layout: str
    scale: float
    bias: Entry | None = None


class Search:
    """Recognizes attention that a device has a kernel for.

    Args:
        rewriter: the rewriter of the graph.
        variables: the variables that will be differentiated.
    """

    def __init__(self, rewriter: Rewriter, variables: Collection[Node]) -> None:
        self._rewriter = rewriter
        self._graph = rewriter.graph
        self._variables = set(variables)
        self._changing = written_variables(rewriter.nodes, rewriter.graph.train)

    def find_ending_at(self, node: Node) -> Attention | None:
        """Return the attention that ends at a node, or None."""
        if _product_of(node.op) is None:
            return None
        weights, values = node.inputs if isinstance(node.op, BatchDot) else node.inputs[::-1]
        values = self._skip_cast(values)
        softmax, factor = self._source(weights, node)
        if factor != 1 or not self._is_softmax(softmax, node):
            return None
        for scores, bias in self._sums(self._source(softmax.node.inputs[0], node)[0], node):
            product, scale = self._source(scores, node, scaled=True)
            attention = self._operands(node, product, values, scale) if self._is_part(product, node) else None
            if (
                attention is not None
                and self._has_kernel(node, attention, bias is None)
                and (bias is None or self._fits(bias, product))
            ):
                return attention._replace(bias=bias)
        return None

    # -- from weights back to the first product -------------------------------------------------------------

    def _is_part(self, entry: Entry, end: Node) -> bool:
        """Return whether only the attention uses a value, and on its device."""
        node = entry.node
        is_here = self._graph.context(node) is self._graph.context(end)
        return node.op is not None and entry.index == 0 and self._rewriter.uses[entry] == 1 and is_here

    def _source(self, entry: Entry, end: Node, scaled: bool = False) -> tuple[Entry, float]:
        """Skip operators that leave an entry unchanged, or scale it; return the source and the product of scales."""
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
        """Return whether the kernel can ignore an operator: a cast between floating types, or an inactive Dropout."""
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
        """Iterate over readings of the softmax input: as scores, or as the sum of scores and a bias."""
        yield entry, None
        if self._is_part(entry, end) and isinstance(entry.node.op, SUMS):
            one, other = entry.node.inputs
            for scores, bias in ((one, other), (other, one)):
                if self._rewriter.shapes[scores] == self._rewriter.shapes[entry]:
                    yield scores, bias

    def _skip_cast(self, values: Entry) -> Entry:
        """Return values without a cast by which mixed precision widened them to the dtype of the weights."""
        inner, dtypes = values.node.inputs[0] if isinstance(values.node.op, AmpCast) else values, self._rewriter.dtypes
        return inner if is_floating(dtypes[inner]) and dtypes[inner].itemsize < dtypes[values].itemsize else values

    # -- queries, keys and values --------------------------------------------------------------------------

    def _operands(self, end: Node, product: Entry, values: Entry, scale: float) -> Attention | None:
        """Return the attention, if its first product matches the last."""
        first: Any = product.node.op
        last: Any = end.op
        first_type, parts = _product_of(last) or (None, ())
        if type(product.node.op) is not first_type:
            return None
        inputs = list(product.node.inputs)
        if parts:
            is_same = inputs[-1] == values and first.heads == last.heads
            return self._interleaved_attention(inputs, parts, first.heads, scale) if is_same else None
        if first.transpose_a or not first.transpose_b:
            return None
        unscaled = [self._remove_scale(entry, end) for entry in inputs]
        return self._separate([*[entry for entry, _ in unscaled], values], scale * unscaled[0][1] * unscaled[1][1])

    def _remove_scale(self, entry: Entry, end: Node) -> tuple[Entry, float]:
        """Return queries or keys without their scale, and the scale."""
        factor = 1.0
        while self._is_part(entry, end) and entry.node.op is not None:
            scale = entry.node.op.multiplier(self._rewriter.shapes[entry])
            if scale is None:
                break
            factor *= scale
            entry = entry.node.inputs[0]
        return entry, factor

    def _interleaved_attention(self, inputs: list[Entry], parts: Shape, heads: int, scale: float) -> Attention:
        """Return the attention of projections (length, batch, heads · parts · size), scaled by 1/√size."""
        shapes = [self._rewriter.shapes[entry] for entry in inputs]
        sizes = [width // (heads * count) for (_, _, width), count in zip(shapes, parts, strict=True)]
        views = [(*s[:2], heads, count, size) for s, count, size in zip(shapes, parts, sizes, strict=True)]
        return Attention(inputs, views, "TNC", scale / math.sqrt(max(1, sizes[0])))

    def _separate(self, inputs: list[Entry], scale: float) -> Attention:
        """Return the attention of arrays (batch · heads, length, size), or of the arrays they were copied from."""
        shapes = self._rewriter.shapes
        sources = [source for entry in inputs if (source := self._with_heads(entry)) is not None]
        if len(sources) == 3 and len({(shapes[source][0], shapes[source][2]) for source in sources}) == 1:
            views = [(*shapes[source][:3], 1, shapes[source][3]) for source in sources]
            return Attention(sources, views, "NTC", scale)
        return Attention(inputs, [(*shapes[entry][:2], 1, 1, shapes[entry][2]) for entry in inputs], "NTC", scale)

    def _with_heads(self, entry: Entry) -> Entry | None:
        """Return the array (batch, length, heads, size) that (batch · heads, length, size) was copied from."""
        shapes, op = self._rewriter.shapes, entry.node.op
        if op is None or not op.traits.view:
            return None
        inner = entry.node.inputs[0]
        permuting, shape = inner.node.op, shapes[inner]
        if not isinstance(permuting, Permuting):
            return None
        is_split = len(shape) == 4 and (shape[0] * shape[1], *shape[2:]) == shapes[entry]
        return inner.node.inputs[0] if is_split and permuting.order(4) == (0, 2, 1, 3) else None

    # -- what kernels support ------------------------------------------------------------------------------

    def _has_kernel(self, end: Node, attention: Attention, is_plain: bool) -> bool:
        """Return whether the device has an attention kernel for this form, dtype and head size."""
        context = self._graph.context(end)
        dtypes = {self._rewriter.dtypes[entry] for entry in attention.inputs}
        sizes = {shape[4] for shape in attention.shapes}
        lengths = [shape[1 if attention.layout == "NTC" else 0] for shape in attention.shapes]
        predicts = is_plain and not self._variables and not self._graph.train
        return (
            context is not None
            and len(dtypes) == len(sizes) == 1
            and attention.scale > 0
            and not any(0 in shape for shape in attention.shapes)
            and not any(entry.node in self._changing for entry in attention.inputs)
            and kernels.computes_attention(
                context.kernels, dtypes.pop(), sizes.pop(), lengths[0] * lengths[-1], predicts
            )
        )

    def _fits(self, bias: Entry, scores: Entry) -> bool:
        """Return whether the kernel can add a bias: one for all heads and samples or one for each, without gradient."""
        shape, whole = self._rewriter.shapes[bias], self._rewriter.shapes[scores]
        return (
            shape[-2:] == whole[1:]
            and shape[:-2] in ((), (1,), whole[:1])
            and not whole[2] % _GRID
            and self._rewriter.dtypes[bias] == self._rewriter.dtypes[scores]
            and bias.node not in self._changing
            and not self._has_gradient(bias)
        )

    def _has_gradient(self, bias: Entry) -> bool:
        """Return whether a gradient would flow into a bias."""
        learning = set(self._variables)
        for node in topological([bias]):
            if node.op is not None and not node.op.traits.no_gradient and any(e.node in learning for e in node.inputs):
                learning.add(node)
        return bias.node in learning


def _product_of(op: Operator | None) -> tuple[type, Shape] | None:
    """Return for a product with values the type of the first product, and how many of the three each input holds."""
    if isinstance(op, BatchDot):
        return None if op.transpose_a or op.transpose_b else (BatchDot, ())
    return _INTERLEAVED.get(type(op))
