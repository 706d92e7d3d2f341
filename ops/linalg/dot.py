"""Matrix products, single and in batches: dot, batch_dot. MXNet's linalg is in separate modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.math.matmul import bound_product, matmul, try_device_product
from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
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
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise, Precision


def _expect_same_length(op: Operator, length: int, other_length: int, shapes: Sequence[ShapeOrNone]) -> None:
    if length != other_length and -1 not in (length, other_length):
        raise ShapeError(
            f"{op.name}: inputs have shapes {shapes[0]} and {shapes[1]}: the axes summed over have lengths "
            f"{length} and {other_length}, expected the same"
        )


def multiply(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute the matrix product (in batches) of ``a`` and ``b`` into ``out``, which has the same element count."""
    shape = (*a.shape[:-1], b.shape[-1])
    if out.dtype.itemsize == 2 and out.flags.c_contiguous and try_device_product(run, a, b, out.reshape(shape)):
        return
    left, right = widen(a), widen(b)
    # Without a 16-bit product, multiply as float32: faster, and rounded once.
    if left is a and right is b and out.flags.c_contiguous:
        matmul(run, left, right, out.reshape(shape))
    else:
        out[...] = run.xp.matmul(left, right).reshape(out.shape)


@family
class Product(Operator, heavy=True, multiplies=True):
    """Base of products of two inputs, either of them transposed or not."""

    arguments: ClassVar[tuple[str, ...]] = ("lhs", "rhs")
    transpose_a: bool = option(False, "Transpose lhs.")
    transpose_b: bool = option(False, "Transpose rhs.")


@operator("dot")
class Dot(Product, precision=Precision.WIDEST, batch_wise=BatchWise.FIRST):
    """The sum of products over the last axis of lhs and the first axis of rhs.

    For matrices this is the matrix product; for two vectors the shape is (1,). With more axes, the output has the other
    axes of lhs, then those of rhs. ``transpose_a`` sums over the first axis of lhs, ``transpose_b`` over the last axis
    of rhs.
    """

    input_docs = describe(
        lhs="(..., k), any dtype; (k, ...) with transpose_a",
        rhs="(k, ...), the dtype of lhs; (..., k) with transpose_b",
    )
    output_doc = "The other axes of lhs, then those of rhs; (1,) for two vectors; the dtype of lhs"
    forward_stype: str | None = option(None, "The output's storage type; None for the default.")

    def __post_init__(self) -> None:
        if self.forward_stype not in (None, "default"):
            self.with_traits(sparse=True)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.transpose_a or len(inputs[0]) < 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        if lhs is None or rhs is None:
            return shapes, [None]
        for name, shape in zip(self.arguments, shapes, strict=True):
            if not shape:
                raise ShapeError(f"{self.name}: {name} has shape (), expected at least 1 axis")
        (length, left), (other_length, right) = _sides(lhs, self.transpose_a), _sides(rhs, not self.transpose_b)
        _expect_same_length(self, length, other_length, shapes)
        return shapes, [left + right or (1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        lhs, rhs = inputs
        out = outputs[0]
        a = _as_matrix(lhs, self.transpose_a)
        b = _as_matrix(rhs, not self.transpose_b)
        multiply(run, a.T if self.transpose_a else a, b.T if self.transpose_b else b, out)

    def bound(self, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]) -> Bound | None:
        return (
            _bind_product(xp, (0, self.transpose_a), (1, self.transpose_b), input_forms, output_forms)
            if _are_matrices(input_forms)
            else None
        )

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        length = _sides(inputs[0], self.transpose_a)[0]
        return 2 * length * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        flags = {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}
        return [
            F.op("_backward_dot", heads[0], inputs[1], shape_of(inputs, 0), side="lhs", **flags),
            F.op("_backward_dot", heads[0], inputs[0], shape_of(inputs, 1), side="rhs", **flags),
        ]


def _are_matrices(forms: Sequence[Form]) -> bool:
    return all(len(shape) == 2 for shape, _ in forms)


def _bind_product(
    xp: ArrayNamespace, a: tuple[int, bool], b: tuple[int, bool], input_forms: Sequence[Form],
    output_forms: Sequence[Form],
) -> Bound | None:  # fmt: skip
    """Return the product of two inputs, each a position and whether to transpose it; None if there is no fast one."""
    if len({dtype for _, dtype in (*input_forms, *output_forms)}) > 1:
        return None
    (at_a, transpose_a), (at_b, transpose_b) = a, b
    shape, dtype = output_forms[0]
    product = bound_product(xp, (input_forms[at_a][0], transpose_a), (input_forms[at_b][0], transpose_b), shape, dtype)
    if product is None:
        return None

    def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        product(inputs[at_a], inputs[at_b], outputs[0])

    return forward


def _sides(shape: Shape, sums_first: bool) -> tuple[int, Shape]:
    """Return the length of the summed axis (the first or the last), and the other lengths."""
    return (shape[0], shape[1:]) if sums_first else (shape[-1], shape[:-1])


def _as_matrix(x: Array, sums_first: bool) -> Array:
    """Return an input as a matrix: the summed axis, and the other axes merged."""
    length, others = _sides(x.shape, sums_first)
    count = math.prod(others)
    return x.reshape((length, count) if sums_first else (count, length))


@operator("_backward_dot")
class BackwardDot(Product, hidden=True, batch_wise=BatchWise.OWN):
    """The gradient of dot for one side, from the head and the other side."""

    arguments = ("head", "other", "like")
    side: Literal["lhs", "rhs"] = required("The input to differentiate by.")

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        lhs = inputs[2 if self.side == "lhs" else 1]
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.transpose_a or len(lhs) < 2:
            return None
        return BatchParts((0, 2), (0,)) if self.side == "lhs" else BatchParts((0, 1), (), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[2]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, other, like = inputs
        summed_first = self.transpose_a if self.side == "lhs" else not self.transpose_b
        other_first = not self.transpose_b if self.side == "lhs" else self.transpose_a
        # As matrices: this side (rows, summed), the other side (columns, summed), product (rows, columns).
        matrix = _as_matrix(other, other_first)
        columns = matrix.T if other_first else matrix
        rows = math.prod(_sides(like.shape, summed_first)[1])
        shape = (rows, columns.shape[0])
        product = head.reshape(shape) if self.side == "lhs" else head.reshape(shape[::-1]).T
        if summed_first:
            multiply(run, columns.T, product.T, outputs[0])
        else:
            multiply(run, product, columns, outputs[0])

    def bound(self, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]) -> Bound | None:
        if not _are_matrices(input_forms):
            return None
        head, other = 0, 1
        if self.side == "lhs":  # head · otherᵀ, or other · headᵀ
            pair = (head, False), (other, not self.transpose_b)
        else:  # otherᵀ · head, or headᵀ · other
            pair = (other, not self.transpose_a), (head, False)
        if self.transpose_a if self.side == "lhs" else self.transpose_b:
            (left, transpose_left), (right, transpose_right) = pair
            pair = (right, not transpose_right), (left, not transpose_left)
        return _bind_product(xp, *pair, input_forms, output_forms)

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        summed_first = self.transpose_a if self.side == "lhs" else not self.transpose_b
        length = _sides(inputs[2], summed_first)[0]
        return 2 * length * math.prod(inputs[0]), super().cost(inputs[:2], outputs)[1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        flags = {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}
        pair = (heads[0], inputs[1]) if self.side == "lhs" else (inputs[1], heads[0])
        other_side = "rhs" if self.side == "lhs" else "lhs"
        return [
            F.dot(*pair, **flags),
            F.op("_backward_dot", inputs[0], heads[0], shape_of(inputs, 1), side=other_side, **flags),
            None,
        ]


def batch_shape(op: Operator, a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Shape:
    """Return the shape of the product of two batches of matrices.

    Raises:
        ShapeError: the shapes do not match.
    """
    batch = merge(a[:-2], b[:-2])
    if len(a) != len(b) or batch is False:
        raise ShapeError(f"{op.name}: inputs have shapes {a} and {b}, expected the same axes before the last two")
    rows, length = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    other_length, columns = (b[-1], b[-2]) if transpose_b else (b[-2], b[-1])
    _expect_same_length(op, length, other_length, (a, b))
    return (*batch, rows, columns)


def expect_min_rank(op: Operator, name: str, shape: ShapeOrNone, ndim: int) -> None:
    """Check the number of axes of an input.

    Raises:
        ShapeError: there are fewer than ``ndim``.
    """
    if shape is not None and len(shape) < ndim:
        raise ShapeError(f"{op.name}: {name} has shape {shape}, expected at least {ndim} axes")


def transpose_if(x: Array, flip: bool) -> Array:
    """Return matrices, transposed if ``flip``."""
    return x.swapaxes(-1, -2) if flip else x


@operator("batch_dot")
class BatchDot(Product, precision=Precision.WIDEST, batch_wise=BatchWise.EACH):
    """The products of the matrices in two batches: (b, m, k) and (b, k, n) give (b, m, n)."""

    input_docs = describe(
        lhs="(..., m, k), or (..., k, m) with transpose_a, any dtype",
        rhs="(..., k, n), or (..., n, k) with transpose_b, the dtype of lhs",
    )
    output_doc = "(..., m, n), the dtype of lhs"
    forward_stype: str | None = option(None, "Ignored; exists for MXNet's symbol files.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            expect_min_rank(self, name, shape, 3)
        lhs, rhs = shapes
        if lhs is None or rhs is None or -1 in (*lhs[1:], *rhs[1:]):
            return shapes, [None]
        return shapes, [batch_shape(self, lhs, rhs, self.transpose_a, self.transpose_b)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a, b = transpose_if(inputs[0], self.transpose_a), transpose_if(inputs[1], self.transpose_b)
        multiply(run, a, b, outputs[0])

    def bound(self, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]) -> Bound | None:
        (left, _), (right, _) = input_forms
        same_batch = left[:-2] == right[:-2]
        return (
            _bind_product(xp, (0, self.transpose_a), (1, self.transpose_b), input_forms, output_forms)
            if same_batch
            else None
        )

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        length = inputs[0][-2 if self.transpose_a else -1]
        return 2 * length * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return product_gradient(F.batch_dot, inputs[0], inputs[1], heads[0], self.transpose_a, self.transpose_b)


def product_gradient(
    product: Callable[..., Tensor | None], a: Tensor, b: Tensor, g: Tensor, transpose_a: bool, transpose_b: bool
) -> list[Tensor | None]:
    """Return the gradients of ``product(a, b)``, computed with the same product."""
    left = (
        product(b, g, transpose_a=transpose_b, transpose_b=True)
        if transpose_a
        else product(g, b, transpose_a=False, transpose_b=not transpose_b)
    )
    right = (
        product(g, a, transpose_a=True, transpose_b=transpose_a)
        if transpose_b
        else product(a, g, transpose_a=not transpose_a, transpose_b=False)
    )
    return [left, right]
