"""Padding of arrays: pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, shape_of
from flowmx.ops.arrays.scatter import add_rows
from flowmx.ops.registry.dtypes import element
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, option, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Passing


@linear("Pad", "pad")
class Pad(Linear, moves=True, passing=Passing.ALIKE, input_named=True, batch_wise=BatchWise.FIRST):
    """The input padded with a constant, the edge elements, or a reflection."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data plus `pad_width`, axis by axis, the dtype of data"
    mode: Literal["constant", "edge", "reflect"] = required("The values to pad with.")
    pad_width: Shape = required("The numbers of elements before and after, axis by axis.", low=0)
    constant_value: float = option(0.0, "The constant.")

    def _pairs(self, ndim: int) -> list[tuple[int, int]]:
        if len(self.pad_width) != 2 * ndim:
            raise ShapeError(f"{self.name}: pad_width is {self.pad_width}, expected {2 * ndim} numbers for {ndim} axes")
        return list(zip(self.pad_width[::2], self.pad_width[1::2], strict=True))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) * (len(self.pad_width) // 2)]
        pairs = self._pairs(len(shape))
        for axis, (pair, length) in enumerate(zip(pairs, shape, strict=True)):
            if self.mode == "edge" and length == 0 and any(pair):
                raise ShapeError(f"{self.name}: pad_width is {pair} on axis {axis}, which has no elements to repeat")
            if self.mode == "reflect" and length != -1 and max(pair) >= max(1, length):
                raise ShapeError(
                    f"{self.name}: pad_width is {pair} on axis {axis}, expected less than its length {length} "
                    "to reflect"
                )
        return shapes, [tuple(-1 if n == -1 else n + sum(pair) for n, pair in zip(shape, pairs, strict=True))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        pairs = self._pairs(x.ndim)
        if self.mode == "constant":
            out[...] = element(self.constant_value, out.dtype)
            out[self._interior(x.shape)] = x
        else:
            out[...] = run.xp.pad(x, pairs, mode=self.mode)

    def _interior(self, shape: Shape) -> tuple[slice, ...]:
        return tuple(slice(low, low + n) for (low, _), n in zip(self._pairs(len(shape)), shape, strict=True))

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        if self.mode == "constant":
            out[...] = head[self._interior(out.shape)]
            return
        for axis, (pair, length) in enumerate(zip(self._pairs(out.ndim), out.shape, strict=True)):
            if pair == (0, 0):
                continue
            # origin: the source of each padded position; sum the gradients of each source.
            origin = np.pad(np.arange(length), pair, mode=self.mode)
            total = run.xp.zeros((length, *head.shape[:axis], *head.shape[axis + 1 :]), head.dtype)
            add_rows(run.xp, total, run.xp.asarray(origin), run.xp.moveaxis(head, axis, 0))
            head = run.xp.moveaxis(total, 0, axis)
        out[...] = head

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # Only the linear part has a transpose; the constant has no gradient.
        like = shape_of(inputs, 0)
        return [F.op("_backward_Pad", heads[0], like, mode=self.mode, pad_width=self.pad_width)]
