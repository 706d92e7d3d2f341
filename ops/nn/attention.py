"""Attention on projections that are interleaved in one array, as in GluonNLP's transformers.

Self-attention: queries, keys and values (length, batch, heads · 3 · size), with query, key and value of each head
side by side. Between encoder and decoder: queries (length, batch, heads · size), and keys and values
(length, batch, heads · 2 · size). Attention has the shape (batch · heads, query length, key length).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.arrays.shape_arithmetic import length_product
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import expect_rank, expect_shape
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import Precision


@family
class _Interleaved(Operator, heavy=True):
    heads: int = required("Number of heads.", low=1)

    def size(self, name: str, shape: Shape, parts: int) -> int:
        """Return the length of one head's vectors.

        Raises:
            ShapeError: the length of the last axis is not a multiple.
        """
        expect_rank(self, name, shape, 3, 3)
        if shape[2] == -1:
            return -1
        if not shape[2] or shape[2] % (self.heads * parts):
            raise ShapeError(
                f"{self.name}: {name} has shape {shape}, expected a multiple of heads · {parts} = "
                f"{self.heads * parts}, and not 0, on the last axis"
            )
        return shape[2] // (self.heads * parts)

    def part(self, x: Array, parts: int, index: int) -> Array:
        """Return one of the interleaved arrays, as (batch, heads, length, size)."""
        length, batch, width = x.shape
        pieces = widen(x).reshape(length, batch, self.heads, parts, width // (self.heads * parts))
        return pieces[:, :, :, index].transpose(1, 2, 0, 3)

    # Without shapes, which symbols do not have: (batch · heads, length, size).

    def select(self, F: Functions, x: Tensor, parts: int, index: int) -> Tensor:
        """Return one of the interleaved arrays."""
        split = F.Reshape(x, shape=(0, 0, self.heads, parts, -1))
        part = F.slice_axis(split, axis=3, begin=index, end=index + 1)
        return F.Reshape(F.transpose(part, axes=(1, 2, 0, 3, 4)), shape=(-3, 0, -1))

    def interleave(self, F: Functions, pieces: Tensors) -> Tensor:
        """Join all parts into one interleaved array."""
        split = F.Reshape(F.stack(*pieces, axis=2), shape=(-4, -1, self.heads, 0, 0, 0))
        return F.Reshape(F.transpose(split, axes=(2, 0, 1, 3, 4)), shape=(0, 0, -1))


class _Scores(_Interleaved):
    """The products of queries and keys, divided by the root of the vectors' length."""

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        size = inputs[0][2] // (self.heads * (3 if len(inputs) == 1 else 1))
        return 2 * math.prod(outputs[0]) * size, super().cost(inputs, outputs)[1]

    def scores(self, run: Run, queries: Array, keys: Array, out: Array) -> None:
        scaled_queries = queries * (1 / math.sqrt(queries.shape[-1]))
        out[...] = run.xp.matmul(scaled_queries, keys.swapaxes(-1, -2)).reshape(out.shape)

    def input_gradients(self, F: Functions, queries: Tensor, keys: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of queries and keys."""
        return (
            F.op("_contrib_div_sqrt_dim", F.batch_dot(head, keys)),
            F.op("_contrib_div_sqrt_dim", F.batch_dot(head, queries, transpose_a=True)),
        )


class _Weighted(_Interleaved):
    """The sums of values, weighted by attention."""

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        size = outputs[0][2] // self.heads
        return 2 * math.prod(inputs[1]) * size, super().cost(inputs, outputs)[1]

    def weighted_shape(self, values: Shape, attention: ShapeOrNone, parts: int) -> tuple[ShapeOrNone, ShapeOrNone]:
        """Return the completed shape of the attention, and the shape of the output."""
        size = self.size(self.inputs()[0], values, parts)
        expected = (length_product(values[1], self.heads), -1 if parts == 2 else values[0], values[0])
        attention = expect_shape(self, "attention", attention, expected)
        assert attention is not None
        return attention, (attention[1], values[1], length_product(self.heads, size))

    def weighted_sum(self, run: Run, attention: Array, values: Array, out: Array) -> None:
        sums = run.xp.matmul(widen(attention).reshape(*values.shape[:2], -1, values.shape[2]), values)
        out[...] = sums.transpose(2, 0, 1, 3).reshape(out.shape)

    def input_gradients(self, F: Functions, attention: Tensor, values: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of attention and values."""
        head = self.select(F, head, 1, 0)
        return F.batch_dot(head, values, transpose_b=True), F.batch_dot(attention, head, transpose_a=True)


@operator("_contrib_interleaved_matmul_selfatt_qk")
class SelfAttentionScores(_Scores, precision=Precision.WIDEST):
    """Products of queries and keys of self-attention, divided by √size: (batch · heads, length, length)."""

    arguments = ("queries_keys_values",)
    input_docs = describe(
        queries_keys_values=(
            "(length, batch, heads·3·size), float; for each head its queries, keys and values, interleaved"
        ),
    )
    output_doc = "(batch·heads, length, length), the dtype of queries_keys_values"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        self.size(self.arguments[0], data, 3)
        return shapes, [(length_product(data[1], self.heads), data[0], data[0])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        queries, keys = (self.part(inputs[0], 3, index) for index in (0, 1))
        self.scores(run, queries, keys, outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        queries, keys = (self.select(F, inputs[0], 3, index) for index in (0, 1))
        queries_gradient, keys_gradient = self.input_gradients(F, queries, keys, heads[0])
        return [self.interleave(F, [queries_gradient, keys_gradient, F.zeros_like(keys_gradient)])]


@operator("_contrib_interleaved_matmul_selfatt_valatt")
class SelfAttentionSums(_Weighted, precision=Precision.WIDEST):
    """Sums of the values of self-attention, weighted by attention: (length, batch, heads · size)."""

    arguments = ("queries_keys_values", "attention")
    input_docs = describe(
        queries_keys_values=(
            "(length, batch, heads·3·size), float; for each head its queries, keys and values, interleaved"
        ),
        attention="(batch·heads, length, length), the dtype of queries_keys_values",
    )
    output_doc = "(length, batch, heads·size), the dtype of queries_keys_values"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, attention = shapes
        if data is None:
            return shapes, [None]
        attention, out = self.weighted_shape(data, attention, 3)
        return [data, attention], [out]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.weighted_sum(run, inputs[1], self.part(inputs[0], 3, 2), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        attention_gradient, values_gradient = self.input_gradients(
            F, inputs[1], self.select(F, inputs[0], 3, 2), heads[0]
        )
        zero = F.zeros_like(values_gradient)
        return [self.interleave(F, [zero, zero, values_gradient]), attention_gradient]


@operator("_contrib_interleaved_matmul_encdec_qk")
class EncoderDecoderScores(_Scores, precision=Precision.WIDEST):
    """Products of a decoder's queries and an encoder's keys, divided by √size."""

    arguments = ("queries", "keys_values")
    input_docs = describe(
        queries="(query length, batch, heads·size), float",
        keys_values=(
            "(length, batch, heads·2·size), the dtype of queries; for each head its keys and values, interleaved"
        ),
    )
    output_doc = "(batch·heads, query length, length), the dtype of queries"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        queries, pairs = shapes
        if queries is None or pairs is None:
            return shapes, [None]
        size = self.size("queries", queries, 1)
        self.size("keys_values", pairs, 2)
        pairs = expect_shape(self, "keys_values", pairs, (-1, queries[1], length_product(queries[2], 2)))
        assert pairs is not None and size
        return [queries, pairs], [(length_product(queries[1], self.heads), queries[0], pairs[0])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.scores(run, self.part(inputs[0], 1, 0), self.part(inputs[1], 2, 0), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        pair = self.select(F, inputs[0], 1, 0), self.select(F, inputs[1], 2, 0)
        queries_gradient, keys_gradient = self.input_gradients(F, *pair, heads[0])
        return [
            self.interleave(F, [queries_gradient]),
            self.interleave(F, [keys_gradient, F.zeros_like(keys_gradient)]),
        ]


@operator("_contrib_interleaved_matmul_encdec_valatt")
class EncoderDecoderSums(_Weighted, precision=Precision.WIDEST):
    """Sums of an encoder's values, weighted by a decoder's attention: (query length, batch, heads · size)."""

    arguments = ("keys_values", "attention")
    input_docs = describe(
        keys_values="(length, batch, heads·2·size), float; for each head its keys and values, interleaved",
        attention="(batch·heads, query length, length), the dtype of keys_values",
    )
    output_doc = "(query length, batch, heads·size), the dtype of keys_values"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        pairs, attention = shapes
        if pairs is None:
            return shapes, [None]
        attention, out = self.weighted_shape(pairs, attention, 2)
        return [pairs, attention], [out]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.weighted_sum(run, inputs[1], self.part(inputs[0], 2, 1), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        attention_gradient, values_gradient = self.input_gradients(
            F, inputs[1], self.select(F, inputs[0], 2, 1), heads[0]
        )
        return [self.interleave(F, [F.zeros_like(values_gradient), values_gradient]), attention_gradient]
