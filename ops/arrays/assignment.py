"""Operators that replace elements of an array: a slice, rows, or the positions in index arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.indexing import as_integers, nd_rows, nd_shape, positions
from flowmx.ops.arrays.linear import Inferred, InferredTypes, parameters_of
from flowmx.ops.arrays.slicing import Slice, Slices
from flowmx.ops.nn.common import expect_rank, expect_shape
from flowmx.ops.registry.dtypes import DType, element
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    merge,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors

_BEGIN = "First index on each axis; None for the start."
_END = "The index after the last on each axis; None for the end."
_STEP = "The step on each axis; None for 1, negative for backwards."


@family
class _SliceOperator(Operator, in_place=((0, 0),)):
    begin: tuple[int | None, ...] = required(_BEGIN)
    end: tuple[int | None, ...] = required(_END)
    step: tuple[int | None, ...] = option((), _STEP)

    def slice(self) -> Slice:
        """Return the ``slice`` operator with the same parameters."""
        op = Slice.create(begin=self.begin, end=self.end, step=self.step)
        assert isinstance(op, Slice)
        return op

    def part(self, x: Array) -> Array:
        """Return a view of the elements to replace."""
        key: Slices = self.slice().key(x.shape)
        return x[key]


@operator("_slice_assign", "_crop_assign")
class SliceAssign(_SliceOperator):
    """``lhs`` with a slice of it replaced by ``rhs``."""

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="any shape, any dtype",
        rhs="the shape of the slice, the dtype of lhs",
    )
    output_doc = "The shape and dtype of lhs"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        part = self.slice().infer_shape([lhs])[1][0]
        return [lhs, expect_shape(self, "rhs", rhs, part)], [lhs]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
        self.part(outputs[0])[...] = inputs[1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_slice_assign_scalar", heads[0], **parameters_of(self)), F.slice(heads[0], **parameters_of(self))]


@family
class _Scalar(Operator):
    scalar: float = option(0.0, "The number.")


@operator("_slice_assign_scalar", "_crop_assign_scalar")
class SliceAssignScalar(_SliceOperator, _Scalar):
    """``data`` with a slice of it replaced by a number."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape and dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self.slice().infer_shape(shapes)
        return shapes, list(shapes)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
        self.part(outputs[0])[...] = element(self.scalar, outputs[0].dtype)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_slice_assign_scalar", heads[0], **parameters_of(self) | {"scalar": 0.0})]


class _Indexed(Operator, in_place=((0, 0),)):
    """Base of operators with an index array of any dtype; the other inputs have the same dtype."""

    index = 1
    """The position of the index array."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        position = self.index
        completed, outputs = super().infer_type([*dtypes[:position], *dtypes[position + 1 :]])
        return [*completed[:position], dtypes[position], *completed[position:]], outputs


@operator("_scatter_set_nd")
class ScatterSetND(_Indexed):
    """``lhs`` with the elements at the coordinates ``indices`` (m, ...) replaced by those of ``rhs``."""

    arguments = ("lhs", "rhs", "indices")
    input_docs = describe(
        lhs="`shape`, any dtype",
        rhs="(*indices.shape[1:], *shape[m:]), the dtype of lhs",
        indices="(m, ...), int or float; coordinates along the first m axes",
    )
    output_doc = "The shape and dtype of lhs"
    index = 2
    shape: Shape = required("The shape of lhs.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs, indices = shapes
        lhs = expect_shape(self, "lhs", lhs, self.shape)
        if indices is not None and indices[:1] != (-1,):
            rhs = expect_shape(self, "rhs", rhs, nd_shape(self, self.shape, indices))
        return [lhs, rhs, indices], [lhs]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (lhs, rhs, indices), out = inputs, outputs[0]
        m = indices.shape[0]
        rows = run.xp.array(lhs).reshape(math.prod(lhs.shape[:m]), *lhs.shape[m:])
        rows[nd_rows(run.xp, self, lhs.shape, indices)] = rhs
        out[...] = rows.reshape(out.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        indices = inputs[2]
        rhs_grad = F.gather_nd(heads[0], indices)
        lhs_grad = F.op("_scatter_set_nd", heads[0], F.zeros_like(rhs_grad), indices, shape=self.shape)
        return [lhs_grad, rhs_grad, None]


@operator("_contrib_index_copy")
class IndexCopy(_Indexed):
    """``old_tensor`` with the rows in ``index_vector`` replaced by the rows of ``new_tensor``."""

    arguments = ("old_tensor", "index_vector", "new_tensor")
    input_docs = describe(
        old_tensor="(n, ...), any dtype",
        index_vector="(k,), int or float; row indices",
        new_tensor="(k, ...), the dtype of old_tensor",
    )
    output_doc = "The shape and dtype of old_tensor"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        old, index, new = shapes
        expect_rank(self, "old_tensor", old, 1)
        expect_rank(self, "index_vector", index, 1, 1)
        if old is not None:
            new = expect_shape(self, "new_tensor", new, (*(index or (-1,)), *old[1:]))
        if new is not None:
            index = expect_shape(self, "index_vector", index, new[:1])
        return [old, index, new], [old]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        old, index, new = inputs
        run.xp.copyto(outputs[0], old)
        outputs[0][positions(run.xp, index, len(old), "raise", self.name)] = new

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        old_grad, new_grad = F.op("_contrib_backward_index_copy", heads[0], inputs[1])
        return [old_grad, None, new_grad]


@operator("_contrib_backward_index_copy")
class BackwardIndexCopy(_Indexed, hidden=True, in_place=()):
    """The head with zeros in the rows of an index vector, and those rows of the head."""

    arguments = ("head", "index_vector")
    output_names = ("old_tensor", "new_tensor")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        head, index = shapes
        return shapes, [head, None if head is None or index is None else (*index, *head[1:])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, index = inputs[0], positions(run.xp, inputs[1], len(inputs[0]), "raise", self.name)
        outputs[1][...] = head[index]
        run.xp.copyto(outputs[0], head)
        outputs[0][index] = 0

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_index_copy", heads[0], inputs[1], heads[1]), None]


@operator("fill_element_0index")
class FillElement(_Indexed):
    """A matrix with one element of each row replaced: ``lhs[i, rhs[i]] = mhs[i]`` (MXNet's legacy form)."""

    arguments = ("lhs", "mhs", "rhs")
    input_docs = describe(
        lhs="(n, m), any dtype",
        mhs="(n,), the dtype of lhs",
        rhs="(n,), int or float; column indices",
    )
    output_doc = "The shape and dtype of lhs"
    index = 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, mhs, rhs = shapes
        expect_rank(self, "lhs", lhs, 2, 2)
        rows = None if lhs is None else lhs[:1]
        return [lhs, expect_shape(self, "mhs", mhs, rows), expect_shape(self, "rhs", rhs, rows)], [lhs]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (lhs, mhs, rhs) = run.xp, inputs
        xp.copyto(outputs[0], lhs)
        outputs[0][xp.arange(len(lhs)), positions(xp, rhs, lhs.shape[1], "raise", self.name)] = mhs

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        mhs_grad = F.pick(heads[0], inputs[2], axis=1)
        return [F.op("fill_element_0index", heads[0], F.zeros_like(mhs_grad), inputs[2]), mhs_grad, None]


@operator("_onehot_encode")
class OnehotEncode(_Indexed, in_place=((1, 0),), no_gradient=True, shapes_only=("rhs",)):
    """One-hot rows of the indices ``lhs`` (n,), in the shape (n, depth) of ``rhs`` (MXNet's legacy form)."""

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="(n,), int or float; column indices",
        rhs="(n, depth), any dtype; only its shape and dtype are used",
    )
    output_doc = "The shape and dtype of rhs"
    index = 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        expect_rank(self, "rhs", rhs, 2, 2)
        indices = lhs if rhs is None else merge(lhs, rhs[:1])
        if indices is False:
            raise ShapeError(
                f"{self.name}: lhs has shape {lhs}, expected {rhs and rhs[:1]}, one index for each row of rhs"
            )
        return [indices, rhs], [rhs]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = as_integers(inputs[0])[:, None] == run.xp.arange(outputs[0].shape[1])
