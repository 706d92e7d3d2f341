"""MXNet's linalg: products with general and with triangular matrices, in batches, and triangular systems.

Only one triangle of the array of a triangular matrix is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import MXNetError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.arrays.shape_arithmetic import axis_of
from flowmx.ops.linalg.dot import Product, batch_shape, expect_min_rank, multiply, product_gradient, transpose_if
from flowmx.ops.math.reduce import widen
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
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import Precision


class MatrixError(MXNetError, np.linalg.LinAlgError):
    """A matrix has no inverse or factorization."""


def square_shape(op: Operator, shape: ShapeOrNone, name: str = "A") -> ShapeOrNone:
    """Return the shape of an input of square matrices, with -1 for unknown lengths.

    Raises:
        ShapeError: the matrices are not square.
    """
    expect_min_rank(op, name, shape, 2)
    if shape is None:
        return None
    if shape[-1] != shape[-2] and -1 not in shape[-2:]:
        raise ShapeError(f"{op.name}: {name} has shape {shape}, expected square matrices")
    side = max(shape[-2:])
    return (*shape[:-2], side, side)


def triangle(xp: ArrayNamespace, a: Array, lower: bool) -> Array:
    """Return the lower or upper triangles of matrices, with zeros elsewhere."""
    part: Array = xp.tril(a) if lower else xp.triu(a)
    return part


# -- general products --------------------------------------------------------------------------------------


_ALPHA = "Factor of the product."
_AXIS = "The axis of the matrices' rows; the columns are on the last axis."


class _Gemm(Product):
    arguments: ClassVar[tuple[str, ...]] = ("A", "B")
    alpha: float
    axis: int

    def rows_last(self, shape: Shape, name: str) -> Shape:
        """Return a shape with the axis of the rows moved before the last axis."""
        expect_min_rank(self, name, shape, 2)
        axis = axis_of(self, self.axis, len(shape))
        if axis == len(shape) - 1:
            raise ShapeError(f"{self.name}: axis is {self.axis}, the last axis, which is that of the columns")
        return (*shape[:axis], *shape[axis + 1 : -1], shape[axis], shape[-1])

    def product_shape(self, a: ShapeOrNone, b: ShapeOrNone) -> ShapeOrNone:
        """Return the shape of the product of A and B."""
        if a is None or b is None:
            return None
        pair = (self.rows_last(a, "A"), self.rows_last(b, "B"))
        *batch, rows, columns = batch_shape(self, *pair, self.transpose_a, self.transpose_b)
        axis = axis_of(self, self.axis, len(a))
        return (*batch[:axis], rows, *batch[axis:], columns)

    def matrices(self, run: Run, x: Array, transpose: bool = False) -> Array:
        """Return a view of an array with matrices on the last two axes, transposed if ``transpose``."""
        return transpose_if(x if self.axis == -2 else run.xp.moveaxis(x, self.axis, -2), transpose)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a, b = (self.matrices(run, inputs[index], (self.transpose_a, self.transpose_b)[index]) for index in range(2))
        out = self.matrices(run, outputs[0])
        multiply(run, a, b, out)
        if self.alpha != 1:
            out[...] *= self.alpha

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        length = inputs[0][self.axis if self.transpose_a else -1]
        return 2 * length * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        def product(left: object, right: object, **flags: bool) -> Any:
            return F.op("_linalg_gemm2", left, right, alpha=self.alpha, axis=self.axis, **flags)

        return product_gradient(product, inputs[0], inputs[1], heads[0], self.transpose_a, self.transpose_b)


@operator("_linalg_gemm2", "linalg_gemm2")
class Gemm2(_Gemm, precision=Precision.FLOAT32):
    """alpha op(A) op(B) for matrices, or batches of them; op transposes or not."""

    input_docs = describe(
        A="(..., m, k), or (..., k, m) with transpose_a, float",
        B="(..., k, n), or (..., n, k) with transpose_b, the dtype of A",
    )
    output_doc = "(..., m, n), the dtype of A"
    alpha: float = option(1.0, _ALPHA)
    axis: int = option(-2, _AXIS)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.product_shape(*shapes)]


@operator("_linalg_gemm", "linalg_gemm")
class Gemm(_Gemm, precision=Precision.FLOAT32):
    """alpha op(A) op(B) + beta C for matrices, or batches of them; op transposes or not."""

    arguments = ("A", "B", "C")
    input_docs = describe(
        A="(..., m, k), or (..., k, m) with transpose_a, float",
        B="(..., k, n), or (..., n, k) with transpose_b, the dtype of A",
        C="(..., m, n), the dtype of A",
    )
    output_doc = "(..., m, n), the dtype of A"
    alpha: float = option(1.0, _ALPHA)
    beta: float = option(1.0, "Factor of C.")
    axis: int = option(-2, _AXIS)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a, b, c = shapes
        shape = self.product_shape(a, b)
        merged = merge(shape, c)
        if merged is False:
            raise ShapeError(f"{self.name}: C has shape {c}, expected {shape}")
        return [a, b, merged], [merged]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        outputs[0][...] += self.beta * inputs[2]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [*super().gradient(F, inputs, outputs, heads), heads[0] * self.beta]


@operator("_linalg_syrk", "linalg_syrk")
class Syrk(Operator, heavy=True, precision=Precision.FLOAT32):
    """alpha A Aᵀ, or alpha Aᵀ A with ``transpose``, for matrices, or batches of them."""

    arguments = ("A",)
    input_docs = describe(A="(..., m, k), float")
    output_doc = "(..., m, m), or (..., k, k) with transpose, the dtype of A"
    transpose: bool = option(False, "Compute Aᵀ A.")
    alpha: float = option(1.0, _ALPHA)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = shapes[0]
        expect_min_rank(self, "A", a, 2)
        if a is None:
            return shapes, [None]
        side = a[-1 if self.transpose else -2]
        return shapes, [(*a[:-2], side, side)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a = transpose_if(widen(inputs[0]), self.transpose)
        outputs[0][...] = self.alpha * run.xp.matmul(a, a.swapaxes(-1, -2))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        symmetric_head = heads[0] + F.SwapAxis(heads[0], dim1=-1, dim2=-2)
        pair = (inputs[0], symmetric_head) if self.transpose else (symmetric_head, inputs[0])
        return [F.op("_linalg_gemm2", *pair, alpha=self.alpha)]


# -- triangular matrices -----------------------------------------------------------------------------------


@family
class _Triangular(Operator, heavy=True):
    arguments = ("A", "B")
    input_docs = describe(
        A="(..., m, m), or (..., n, n) with rightside, float; one triangle of it is read",
        B="(..., m, n), the dtype of A",
    )
    output_doc = "The shape and dtype of B"
    transpose: bool = option(False, "Use the transpose of A.")
    rightside: bool = option(False, "A stands on the right of B.")
    lower: bool = option(True, "A is the lower triangle, not the upper one.")
    alpha: float = option(1.0, "Factor of the result.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a, b = square_shape(self, shapes[0]), shapes[1]
        expect_min_rank(self, "B", b, 2)
        if a is None or b is None:
            return [a, b], [b]
        side = b[-1] if self.rightside else b[-2]
        expected = (*b[:-2], side, side)
        merged = merge(a, expected)
        if merged is False:
            raise ShapeError(f"{self.name}: A has shape {a}, expected {expected} for B of shape {b}")
        return [merged, b], [b]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return inputs[0][-1] * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def from_left(self, run: Run, a: Array, b: Array, compute: Callable[[Array, Array], Array]) -> Array:
        """Return ``compute(op(A), B)``; with A on the right, the same for the transposed matrices."""
        # The transpose of B op(A) is op(A)ᵀ Bᵀ.
        a = transpose_if(triangle(run.xp, widen(a), self.lower), self.transpose != self.rightside)
        return transpose_if(compute(a, transpose_if(widen(b) * self.alpha, self.rightside)), self.rightside)

    def gradient_of_b(self, F: Functions, inputs: Tensors, head: Tensor) -> Tensor:
        """Return the gradient of B: the same operator with A transposed."""
        flags = {"transpose": not self.transpose, "rightside": self.rightside, "lower": self.lower}
        return F.op(self.name, inputs[0], head, alpha=self.alpha, **flags)

    def gradient_of_a(self, F: Functions, first: Tensor, second: Tensor, alpha: float) -> Tensor:
        """Return the gradient of A: the triangle of alpha · first · secondᵀ."""
        left = self.rightside == self.transpose
        flags = {"transpose_a": self.transpose == left, "transpose_b": self.transpose != left}
        product = F.op("_linalg_gemm2", *((first, second) if left else (second, first)), alpha=alpha, **flags)
        return F.op("_linalg_triangle", product, lower=self.lower)


@operator("_linalg_trmm", "linalg_trmm")
class Trmm(_Triangular, precision=Precision.FLOAT32):
    """alpha op(A) B, or alpha B op(A) with ``rightside``, for triangular A; in batches; op transposes or not."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.from_left(run, inputs[0], inputs[1], run.xp.matmul)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [self.gradient_of_a(F, heads[0], inputs[1], self.alpha), self.gradient_of_b(F, inputs, heads[0])]


@operator("_linalg_trsm", "linalg_trsm")
class Trsm(_Triangular, precision=Precision.FLOAT32):
    """The solution X of op(A) X = alpha B, or X op(A) = alpha B with ``rightside``, for triangular A; in batches."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        upper = self.lower == (self.transpose != self.rightside)

        def solve(a: Array, b: Array) -> Array:
            return solve_triangular(run.xp, self, a, b, upper)

        outputs[0][...] = self.from_left(run, inputs[0], inputs[1], solve)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        b_gradient = self.gradient_of_b(F, inputs, heads[0])
        # The output includes alpha.
        return [self.gradient_of_a(F, b_gradient, outputs[0], -1 / self.alpha if self.alpha else 0.0), b_gradient]


def solve_triangular(xp: ArrayNamespace, op: Operator, a: Array, b: Array, upper: bool) -> Array:
    """Return the solution X of A X = B for triangular A.

    Raises:
        MatrixError: A has a 0 on its diagonal.
    """
    if not xp.all(xp.diagonal(a, 0, -2, -1)):
        raise MatrixError(f"{op.name}: A has a 0 on its diagonal, expected an invertible matrix")
    if upper:
        # The LU factorization of an upper triangle is trivial, so only the back substitution remains.
        solution: Array = xp.linalg.solve(a, b)
        return solution
    # Reversing the rows and columns of a lower triangle gives an upper one.
    return solve_triangular(xp, op, a[..., ::-1, ::-1], b[..., ::-1, :], True)[..., ::-1, :]
