"""Attention as one operator: softmax(scale · Q Kᵀ + bias) V, for each head of each example.

A pass puts it in the place of its products where a device has a kernel for the whole. What all pairs of positions give
is never kept: the gradient computes it again, from the logarithm of each row's sum (Dao, "FlashAttention-2", 2023).
So that nothing is copied, queries, keys and values may lie interleaved, and with the heads behind the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.math.reduce import wide
from flowmx.ops.nn.common import bound, computing_dtype
from flowmx.ops.nn.linear import multiply
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option
from flowmx.ops.registry.traits import BatchParts, BatchWise

INPUTS: dict[Shape, tuple[str, ...]] = {
    (1, 1, 1): ("queries", "keys", "values"),
    (1, 2): ("queries", "keys_values"),
    (3,): ("queries_keys_values",),
}
"""The inputs, by how many of queries, keys and values lie in each."""
_FACING = {"NTC": (0, 2, 1, 3), "TNC": (1, 2, 0, 3)}


@family
class _Attention(Operator, hidden=True, heavy=True, skips=True):
    """The base of attention and its gradient.

    Inputs are (batch, length, heads, parts, size), or (length, batch, ...) of ``layout`` TNC. A bias is (batch or 1,
    heads or 1, query length, key length).
    """

    arguments: ClassVar[tuple[str, ...]] = ("queries", "keys", "values", "bias")
    layout: Literal["NTC", "TNC"] = option("NTC", "The order of the batch (N), the length (T) and the channels (C).")
    parts: Shape = option((1, 1, 1), "The numbers of queries, keys and values in each input.")
    scale: float = option(1.0, "Factor of the products.")
    biased: bool = option(False, "There is a bias.")

    def __post_init__(self) -> None:
        if self.parts not in INPUTS:
            raise ParameterError(f"{self.name}: parts are {self.parts}, expected one of {', '.join(map(str, INPUTS))}")

    def given(self) -> tuple[str, ...]:
        """The names of queries, keys and values, as they lie together, and of the bias."""
        return (*INPUTS[self.parts], *(["bias"] if self.biased else []))

    def facing(self, array: Array) -> Array:
        """An array (batch, length, heads, size), seen as (batch, heads, length, size)."""
        return array.transpose(_FACING[self.layout])

    def views(self, arrays: Sequence[Array]) -> list[Array]:
        """Queries, keys and values in arrays that lie as the inputs do, each (batch, heads, length, size)."""
        return [
            self.facing(array[:, :, :, which])
            for array, parts in zip(arrays, self.parts, strict=False)
            for which in range(parts)
        ]

    def seen(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes of these views.

        Raises:
            ShapeError: they do not fit each other.
        """
        if any(len(shape) != 5 or shape[3] != parts for shape, parts in zip(shapes, self.parts, strict=False)):
            raise ShapeError(
                f"{self.name}: the inputs have shapes {shapes}, expected 5 axes, {self.parts} on the fourth"
            )
        order = (*_FACING[self.layout][:3], 4)
        q, k, v = found = [
            tuple([shape[axis] for axis in order])
            for shape, parts in zip(shapes, self.parts, strict=False)
            for _ in range(parts)
        ]
        if q[:2] != k[:2] or k[:3] != v[:3] or q[3] != k[3]:
            raise ShapeError(f"{self.name}: queries {q}, keys {k} and values {v} do not fit each other")
        return found

    def scores(self, run: Run, inputs: Sequence[Array]) -> Array:
        """The scaled products of queries and keys, with the bias: the input of softmax."""
        queries, keys, _ = self.views(inputs)
        made = wide(_product(run, queries * queries.dtype.type(self.scale), keys.swapaxes(-1, -2)))
        return made + wide(inputs[-1]) if self.biased else made

    def pairs(self, shapes: Sequence[Shape]) -> int:
        """Floating-point operations of one of the products."""
        (batch, heads, length, size), keys, _ = self.seen(shapes)
        return 2 * batch * heads * length * keys[2] * size


def _product(run: Run, a: Array, b: Array) -> Array:
    made = run.xp.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    multiply(run, a, b, made)
    return made


@operator("_fused_attention")
class FusedAttention(_Attention, batch_wise=BatchWise.OWN):
    """Attention: values, weighted by softmax of the products of queries and keys.

    The output is (batch, length, heads, size), or its axes in the order of ``layout``. ``differentiable`` keeps a
    second, hidden one: the logarithm of Σ eˣ over the products x of each query, (batch, heads, length, 1) in float32.
    """

    outputs_visible = 1
    differentiable: bool = option(False, "Keep what the gradient needs.")

    def inputs(self) -> tuple[str, ...]:
        return self.given()

    def outputs(self) -> tuple[str, ...]:
        return ("output", "stats") if self.differentiable else ("output",)

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.layout != "NTC":
            return None
        along = [at for at, shape in enumerate(inputs) if shape[0] == outputs[0][0]]
        return BatchParts(tuple(along), tuple(range(len(outputs))))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        known = [shape for shape in shapes if shape is not None and -1 not in shape]
        if len(known) < len(shapes):
            return shapes, [None] * len(self.outputs())
        queries, keys, values = self.seen(known)
        if self.biased:
            self._check_bias(known[-1], (*queries[:3], keys[2]))
        made: list[ShapeOrNone] = [(*known[0][:3], values[3]), (*queries[:3], 1)]
        return shapes, made[: len(self.outputs())]

    def _check_bias(self, shape: Shape, whole: Shape) -> None:
        fits = (
            len(shape) == 4 and shape[2:] == whole[2:] and all(s in (1, w) for s, w in zip(shape, whole, strict=True))
        )
        if not fits:
            raise ShapeError(
                f"{self.name}: bias has shape {shape}, expected {whole}, with 1 where it is the same for all"
            )

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        completed, (out, *more) = super().infer_type(dtypes)
        return completed, [out, *[None if out is None else computing_dtype(out)] * len(more)]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * self.pairs(inputs), super().cost(inputs, outputs)[1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, values = run.xp, self.views(inputs)[2]
        scores = self.scores(run, inputs)
        top = scores.max(axis=-1, keepdims=True)
        weights = xp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        self.facing(outputs[0])[...] = _product(run, (weights / total).astype(values.dtype, copy=False), values)
        if self.differentiable:
            xp.add(top, xp.log(total), out=outputs[1])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        if not self.differentiable:
            raise NotImplementedError(f"{self.name} has no gradient unless it is made differentiable")
        shared = {name: value for name, value in bound(self).items() if name != "differentiable"}
        made = F.op("_backward_fused_attention", heads[0], outputs[0], outputs[1], *inputs, **shared)
        return [*(made if isinstance(made, (list, tuple)) else [made]), *([None] if self.biased else [])]


@operator("_backward_fused_attention")
class BackwardFusedAttention(_Attention, batch_wise=BatchWise.OWN):
    """Gradients of the inputs of attention, the bias left out, each as its input lies."""

    arguments = ("head", "output", "stats", *_Attention.arguments)

    def inputs(self) -> tuple[str, ...]:
        return ("head", "output", "stats", *self.given())

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"{name}_grad" for name in INPUTS[self.parts]])

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.layout != "NTC":
            return None
        along = [at for at, shape in enumerate(inputs) if shape[0] == outputs[0][0]]
        return BatchParts(tuple(along), tuple(range(len(outputs))))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[3 : 3 + len(self.parts)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[0]] * len(self.parts)

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 5 * self.pairs(inputs[3:]), super().cost(inputs, outputs)[1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        queries, keys, values = self.views(inputs[3:])
        head, out = map(self.facing, inputs[:2])
        weights = run.xp.exp(self.scores(run, inputs[3:]) - inputs[2])
        along = (wide(head) * wide(out)).sum(axis=-1, keepdims=True)
        of_scores = weights * (wide(_product(run, head, values.swapaxes(-1, -2))) - along) * self.scale
        of_scores, weights = (each.astype(head.dtype, copy=False) for each in (of_scores, weights))
        made = (
            _product(run, of_scores, keys),
            _product(run, of_scores.swapaxes(-1, -2), queries),
            _product(run, weights.swapaxes(-1, -2), head),
        )
        for view, each in zip(self.views(outputs), made, strict=True):
            view[...] = each
