"""Sorting: sort, argsort, topk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flowmx.errors import ShapeError
from flowmx.ops.arrays.indexing import as_integers
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.arrays.shape_arithmetic import axis_of, length_product
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, family, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


def order_of(xp: ArrayNamespace, x: Array, axis: int, ascending: bool) -> Array:
    """Return the positions that sort an axis; the sort is stable."""
    if ascending:
        return xp.argsort(x, axis=axis, kind="stable")
    backwards = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")
    result: Array = x.shape[axis] - 1 - xp.flip(backwards, axis)
    return result


@linear("_take_along")
class TakeAlong(Linear, hidden=True):
    """The elements along an axis at the positions in an index array of equal rank."""

    arguments = ("data", "index")
    axis: int | None = option(None, "The axis; None for the flattened array.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, axis = (inputs[0].reshape(-1), 0) if self.axis is None else (inputs[0], self.axis)
        outputs[0][...] = run.xp.take_along_axis(x, as_integers(inputs[1]), axis)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        shape, axis = ((out.size,), 0) if self.axis is None else (out.shape, self.axis)
        gradient = run.xp.zeros(shape, out.dtype)
        run.xp.put_along_axis(gradient, as_integers(others[0]), head, axis)
        out[...] = gradient.reshape(out.shape)


@family
class _Ordering(Operator, heavy=True):
    axis: int | None = option(-1, "The axis; None for the flattened array.")

    def output_shape(self, data: ShapeOrNone) -> ShapeOrNone:
        """Return the shape of the output: that of the data, flat if axis is None."""
        if data is None:
            return (-1,) if self.axis is None else None
        if self.axis is None:
            return (length_product(*data),)
        axis_of(self, self.axis, len(data))
        return data

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis is None or self.axis % len(inputs[0]) == 0

    def flatten(self, x: Array) -> tuple[Array, int]:
        """Return the input, flattened if axis is None, and the axis to sort."""
        return (x.reshape(-1), 0) if self.axis is None else (x, self.axis)


@operator("sort")
class Sort(_Ordering, precision=Precision.GIVEN, batch_wise=BatchWise.FIRST):
    """The elements sorted along an axis."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data, or flat if axis is None; the dtype of data"
    output_names = ("output0",)
    json_outputs = 2
    is_ascend: bool = option(True, "From the smallest to the largest.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.output_shape(shapes[0])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, axis = self.flatten(inputs[0])
        ordered = run.xp.sort(x, axis=axis)
        outputs[0][...] = ordered if self.is_ascend else run.xp.flip(ordered, axis)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x = inputs[0]
        index = F.argsort(x, axis=self.axis, is_ascend=self.is_ascend, dtype="int64")
        return [F.op("_backward__take_along", heads[0], index, x, axis=self.axis)]


@operator("argsort")
class ArgSort(_Ordering, no_gradient=True, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """The positions that sort the elements along an axis."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data, or flat if axis is None; dtype `dtype`"
    is_ascend: bool = option(True, "From the smallest to the largest.")
    dtype: DType = option(FLOAT32, "The output's dtype.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.output_shape(shapes[0])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, axis = self.flatten(inputs[0])
        outputs[0][...] = order_of(run.xp, x, axis, self.is_ascend)


@operator("topk")
class TopK(_Ordering, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """The k largest (or smallest) elements along an axis, in order: values, positions, or a mask."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = (
        "The shape of data with k elements along the axis (a mask: the whole shape); values and masks in the dtype "
        "of data, indices in dtype `dtype`"
    )
    k: int = option(1, "The number of elements; below 1 for all.")
    ret_typ: Literal["indices", "value", "mask", "both"] = option("indices", "The result.")
    is_ascend: bool = option(False, "Return the smallest elements instead of the largest.")
    dtype: DType = option(FLOAT32, "The dtype of positions.")

    def outputs(self) -> tuple[str, ...]:
        names = {"both": ("output0", "output1"), "value": ("output0",)}
        return names.get(self.ret_typ, ("output",))

    def json_output_count(self) -> int:
        return 2 if self.ret_typ in ("value", "both") else 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        shape = self.output_shape(data)
        if self.ret_typ == "mask" or data is None or shape is None:
            return shapes, [data] * len(self.outputs())
        axis = axis_of(self, 0 if self.axis is None else self.axis, len(shape))
        length = shape[axis]
        if length != -1 and self.k > length:
            raise ShapeError(f"{self.name}: k is {self.k}, expected at most {length} for the shape {data}")
        count = self.k if self.k > 0 else length
        return shapes, [(*shape[:axis], count, *shape[axis + 1 :])] * len(self.outputs())

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        values = [] if self.ret_typ == "indices" else [dtypes[0]]
        return dtypes, values + ([self.dtype] if self.ret_typ in ("indices", "both") else [])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        x, axis = self.flatten(inputs[0])
        count = self.k if self.k > 0 else x.shape[axis]
        key: tuple[Any, ...] = (*((slice(None),) * (axis % x.ndim)), slice(0, count))
        index = order_of(xp, x, axis, self.is_ascend)[key]
        if self.ret_typ == "mask":
            mask = xp.zeros(x.shape, outputs[0].dtype)
            xp.put_along_axis(mask, index, xp.ones((), mask.dtype), axis)
            outputs[0][...] = mask.reshape(outputs[0].shape)
            return
        if self.ret_typ != "indices":
            outputs[0][...] = xp.take_along_axis(x, index, axis)
        if self.ret_typ != "value":
            outputs[-1][...] = index

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if self.ret_typ in ("indices", "mask"):
            return [F.zeros_like(shape_of(inputs, 0))]
        x = inputs[0]
        index = F.topk(x, axis=self.axis, k=self.k, is_ascend=self.is_ascend, dtype="int64")
        return [F.op("_backward__take_along", heads[0], index, x, axis=self.axis)]
