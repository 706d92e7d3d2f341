"""Attention as one operator: softmax(scale · Q Kᵀ + bias) V, for each head of each sample.

A pass replaces the products of attention with it if the device has such a kernel. The scores of all pairs of positions
are not stored: the gradient recomputes them from the logarithm of each row's sum (Dao, "FlashAttention-2", 2023). To
avoid copies, queries, keys and values may be interleaved in one input, with the heads after the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import computing_dtype, non_defaults
from flowmx.ops.nn.linear import multiply
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors, as_list
from flowmx.ops.registry.traits import BatchParts, BatchWise

INPUTS: dict[Shape, tuple[str, ...]] = {
    (1, 1, 1): ("queries", "keys", "values"),
    (1, 2): ("queries", "keys_values"),
    (3,): ("queries_keys_values",),
}
"""The inputs, by how many of queries, keys and values each of them holds."""
_HEADS_FIRST = {"NTC": (0, 2, 1, 3), "TNC": (1, 2, 0, 3)}


@family
class _Attention(Operator, hidden=True, heavy=True, skips=True):
    """Base of attention and its gradient.

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

    def input_names(self) -> tuple[str, ...]:
        """Return the names of the inputs: queries, keys and values, alone or interleaved, and the bias."""
        return (*INPUTS[self.parts], *(["bias"] if self.biased else []))

    def heads_first(self, array: Array) -> Array:
        """Return a view (batch, heads, length, size) of an array (batch, length, heads, size)."""
        return array.transpose(_HEADS_FIRST[self.layout])

    def views(self, arrays: Sequence[Array]) -> list[Array]:
        """Return views (batch, heads, length, size) of queries, keys and values in arrays laid out like the inputs."""
        return [
            self.heads_first(array[:, :, :, index])
            for array, parts in zip(arrays, self.parts, strict=False)
            for index in range(parts)
        ]

    def view_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the views of queries, keys and values.

        Raises:
            ShapeError: the shapes do not match.
        """
        if any(len(shape) != 5 or shape[3] != parts for shape, parts in zip(shapes, self.parts, strict=False)):
            raise ShapeError(
                f"{self.name}: the inputs have shapes {shapes}, expected 5 axes, of lengths {self.parts} on the fourth"
            )
        order = (*_HEADS_FIRST[self.layout][:3], 4)
        q, k, v = views = [
            tuple([shape[axis] for axis in order])
            for shape, parts in zip(shapes, self.parts, strict=False)
            for _ in range(parts)
        ]
        if q[:2] != k[:2] or k[:3] != v[:3] or q[3] != k[3]:
            raise ShapeError(f"{self.name}: queries {q}, keys {k} and values {v} do not match")
        return views

    def scores(self, run: Run, inputs: Sequence[Array]) -> Array:
        """Return the input of softmax: the scaled products of queries and keys, plus the bias."""
        queries, keys, _ = self.views(inputs)
        products = widen(_product(run, queries * queries.dtype.type(self.scale), keys.swapaxes(-1, -2)))
        return products + widen(inputs[-1]) if self.biased else products

    def product_flops(self, shapes: Sequence[Shape]) -> int:
        """Return the number of floating-point operations of one matrix product."""
        (batch, heads, length, size), keys, _ = self.view_shapes(shapes)
        return 2 * batch * heads * length * keys[2] * size


def _product(run: Run, a: Array, b: Array) -> Array:
    out: Array = run.xp.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
    multiply(run, a, b, out)
    return out


@operator("_fused_attention")
class FusedAttention(_Attention, batch_wise=BatchWise.OWN):
    """Attention: values, weighted by the softmax of the products of queries and keys.

    The output is (batch, length, heads, size), with its axes in the order of ``layout``. ``differentiable`` adds a
    hidden output: the logarithm of Σ eˣ over the products x of each query, (batch, heads, length, 1) in float32.
    """

    outputs_visible = 1
    differentiable: bool = option(False, "Return the statistics that the gradient needs.")

    def inputs(self) -> tuple[str, ...]:
        return self.input_names()

    def outputs(self) -> tuple[str, ...]:
        return ("output", "stats") if self.differentiable else ("output",)

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.layout != "NTC":
            return None
        batch_inputs = [index for index, shape in enumerate(inputs) if shape[0] == outputs[0][0]]
        return BatchParts(tuple(batch_inputs), tuple(range(len(outputs))))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        complete = [shape for shape in shapes if shape is not None and -1 not in shape]
        if len(complete) < len(shapes):
            return shapes, [None] * len(self.outputs())
        queries, keys, values = self.view_shapes(complete)
        if self.biased:
            self._check_bias(complete[-1], (*queries[:3], keys[2]))
        outputs: list[ShapeOrNone] = [(*complete[0][:3], values[3]), (*queries[:3], 1)]
        return shapes, outputs[: len(self.outputs())]

    def _check_bias(self, shape: Shape, full: Shape) -> None:
        fits = len(shape) == 4 and shape[2:] == full[2:] and all(s in (1, w) for s, w in zip(shape, full, strict=True))
        if not fits:
            raise ShapeError(f"{self.name}: bias has shape {shape}, expected {full}, or 1 on an axis to broadcast")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed, (out, *more) = super().infer_type(dtypes)
        return completed, [out, *[None if out is None else computing_dtype(out)] * len(more)]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * self.product_flops(inputs), super().cost(inputs, outputs)[1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, values = run.xp, self.views(inputs)[2]
        scores = self.scores(run, inputs)
        top = scores.max(axis=-1, keepdims=True)
        weights = xp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        self.heads_first(outputs[0])[...] = _product(run, (weights / total).astype(values.dtype, copy=False), values)
        if self.differentiable:
            xp.add(top, xp.log(total), out=outputs[1])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if not self.differentiable:
            raise NotImplementedError(f"{self.name} has no gradient; set differentiable=True")
        parameters = {name: value for name, value in non_defaults(self).items() if name != "differentiable"}
        gradients = F.op("_backward_fused_attention", heads[0], outputs[0], outputs[1], *inputs, **parameters)
        return [*as_list(gradients), *([None] if self.biased else [])]


@operator("_backward_fused_attention")
class BackwardFusedAttention(_Attention, batch_wise=BatchWise.OWN):
    """The gradients of queries, keys and values, in the layout of the inputs; the bias has no gradient."""

    arguments = ("head", "output", "stats", *_Attention.arguments)

    def inputs(self) -> tuple[str, ...]:
        return ("head", "output", "stats", *self.input_names())

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"{name}_grad" for name in INPUTS[self.parts]])

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.layout != "NTC":
            return None
        batch_inputs = [index for index, shape in enumerate(inputs) if shape[0] == outputs[0][0]]
        return BatchParts(tuple(batch_inputs), tuple(range(len(outputs))))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[3 : 3 + len(self.parts)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]] * len(self.parts)

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 5 * self.product_flops(inputs[3:]), super().cost(inputs, outputs)[1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        queries, keys, values = self.views(inputs[3:])
        head, out = map(self.heads_first, inputs[:2])
        weights = run.xp.exp(self.scores(run, inputs[3:]) - inputs[2])
        row_sums = (widen(head) * widen(out)).sum(axis=-1, keepdims=True)
        scores_gradient = weights * (widen(_product(run, head, values.swapaxes(-1, -2))) - row_sums) * self.scale
        scores_gradient, weights = (factor.astype(head.dtype, copy=False) for factor in (scores_gradient, weights))
        gradients = (
            _product(run, scores_gradient, keys),
            _product(run, scores_gradient.swapaxes(-1, -2), queries),
            _product(run, weights.swapaxes(-1, -2), head),
        )
        for view, gradient in zip(self.views(outputs), gradients, strict=True):
            view[...] = gradient
