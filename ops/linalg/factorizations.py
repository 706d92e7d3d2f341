"""MXNet's linalg: factorizations, inverses and determinants, in batches.

The gradients follow Seeger et al., Auto-Differentiating Linear Algebra (arXiv 1710.08717).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.linalg.cofactors import cofactors, cofactors_derivative
from flowmx.ops.linalg.diagonals import scalar_batch_shape
from flowmx.ops.linalg.dot import expect_min_rank, transpose_if
from flowmx.ops.linalg.gemm import MatrixError, solve_triangular, square_shape
from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import Precision


@contextmanager
def _linalg_errors(op: Operator, expected: str) -> Iterator[None]:
    try:
        yield
    except np.linalg.LinAlgError:
        raise MatrixError(f"{op.name}: A holds a matrix that is not {expected}") from None


def _transpose(F: Functions, x: Tensor) -> Tensor:
    return F.SwapAxis(x, dim1=-1, dim2=-2)


class _SquareOperator(Operator, heavy=True):
    arguments: ClassVar[tuple[str, ...]] = ("A",)
    input_docs = describe(A="(..., n, n), float")
    output_doc = "The shape and dtype of A"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        return [a], [a]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        moved = super().cost(inputs, outputs)[1]
        return moved * inputs[0][-2], moved


@operator("_linalg_potrf", "linalg_potrf")
class Potrf(_SquareOperator, precision=Precision.FLOAT32):
    """The Cholesky factor of symmetric positive definite matrices: L with A = L Lᵀ, or U = Lᵀ if ``lower`` is False.

    Only the triangle of A on the side of the factor is read; the gradient assumes symmetric changes.
    """

    lower: bool = option(True, "The factor is a lower triangle, not an upper one.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with _linalg_errors(self, "positive definite"):
            factor = run.xp.linalg.cholesky(transpose_if(widen(inputs[0]), not self.lower))
        outputs[0][...] = transpose_if(factor, not self.lower)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        factor, head = (x if self.lower else _transpose(F, x) for x in (outputs[0], heads[0]))
        inner = F.op("_linalg_mirror", F.op("_linalg_trmm", factor, head, transpose=True))
        left = F.op("_linalg_trsm", factor, inner, transpose=True)
        return [F.op("_linalg_trsm", factor, left, rightside=True, alpha=0.5)]


@operator("_linalg_potri", "linalg_potri")
class Potri(_SquareOperator, precision=Precision.FLOAT32):
    """The inverse of a matrix from its Cholesky factor A: (A Aᵀ)⁻¹, or (Aᵀ A)⁻¹ of an upper one."""

    lower: bool = option(True, "A is the lower triangle, not the upper one.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, a = run.xp, transpose_if(widen(inputs[0]), not self.lower)
        identity = xp.broadcast_to(xp.eye(a.shape[-1], dtype=a.dtype), a.shape)
        inverse = solve_triangular(xp, self, xp.tril(a), identity, upper=False)
        outputs[0][...] = xp.matmul(inverse.swapaxes(-1, -2), inverse)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        product = F.op("_linalg_gemm2", outputs[0], heads[0] + _transpose(F, heads[0]))
        factor = inputs[0] if self.lower else _transpose(F, inputs[0])
        gradient = F.op(
            "_linalg_triangle", F.op("_linalg_trsm", factor, product, transpose=True, rightside=True, alpha=-1.0)
        )
        return [gradient if self.lower else _transpose(F, gradient)]


@operator("_linalg_gelqf", "linalg_gelqf")
class Gelqf(_SquareOperator, precision=Precision.FLOAT32):
    """The LQ factorization A = L Q of matrices (m, n) of full rank, m ≤ n: Q (m, n) with Q Qᵀ = 1, L lower triangle."""

    input_docs = describe(A="(..., m, n) with m ≤ n, float")
    output_doc = "Q (..., m, n) and L (..., m, m), the dtype of A"
    output_names = ("output0", "output1")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = shapes[0]
        expect_min_rank(self, "A", a, 2)
        if a is None:
            return shapes, [None, None]
        if -1 not in a[-2:] and a[-2] > a[-1]:
            raise ShapeError(f"{self.name}: A has shape {a}, expected no more rows than columns")
        return shapes, [a, (*a[:-1], a[-2])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        q, r = run.xp.linalg.qr(widen(inputs[0]).swapaxes(-1, -2))
        outputs[0][...] = q.swapaxes(-1, -2)
        outputs[1][...] = r.swapaxes(-1, -2)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        (q, factor), (q_head, factor_head) = outputs[:2], heads
        inner = F.op("_linalg_trmm", factor, factor_head, transpose=True)
        inner = inner - F.op("_linalg_gemm2", q_head, q, transpose_b=True)
        product = q_head + F.op("_linalg_gemm2", F.op("_linalg_mirror", inner), q)
        return [F.op("_linalg_trsm", factor, product, transpose=True)]


@operator("_linalg_syevd")
class Syevd(_SquareOperator, precision=Precision.FLOAT32):
    """The eigenvalues λ (…, n), ascending, and eigenvectors of symmetric matrices: A = Uᵀ diag(λ) U.

    The outputs are U, with an eigenvector in each row whose largest element is positive, and λ. Only the lower
    triangle of A is read; the gradient assumes symmetric changes and distinct eigenvalues.
    """

    output_doc = "U (..., n, n) and λ (..., n), the dtype of A"
    output_names = ("output0", "output1")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        return [a], [a, None if a is None else a[:-1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        with _linalg_errors(self, "finite"):
            values, columns = xp.linalg.eigh(widen(inputs[0]))
        rows = columns.swapaxes(-1, -2)
        largest = xp.take_along_axis(rows, xp.abs(rows).argmax(-1)[..., None], -1)
        outputs[0][...] = xp.where(largest < 0, -rows, rows)
        outputs[1][...] = values

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        (u, values), (u_head, values_head) = outputs[:2], heads
        rotations = F.op("_linalg_gemm2", u_head, u, transpose_b=True)
        inner = (rotations - _transpose(F, rotations)) * F.op("_linalg_gaps", values)
        inner = inner + F.op("_linalg_makediag", values_head)
        return [F.op("_linalg_gemm2", F.op("_linalg_gemm2", u, inner, transpose_a=True), u)]


# -- inverses and determinants -----------------------------------------------------------------------------


@operator("_linalg_inverse", "linalg_inverse")
class Inverse(_SquareOperator, precision=Precision.FLOAT32):
    """The inverses of square matrices."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with _linalg_errors(self, "invertible"):
            outputs[0][...] = run.xp.linalg.inv(widen(inputs[0]))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        right = F.op("_linalg_gemm2", heads[0], outputs[0], transpose_b=True)
        return [F.op("_linalg_gemm2", outputs[0], right, transpose_a=True, alpha=-1.0)]


@operator("_linalg_inverse_or_zero")
class InverseOrZero(Inverse, hidden=True):
    """The inverses of square matrices; zeros for singular ones."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, a = run.xp, widen(inputs[0])
        regular = xp.linalg.slogdet(a)[0][..., None, None] != 0
        identity = xp.eye(a.shape[-1], dtype=a.dtype)
        outputs[0][...] = xp.where(regular, xp.linalg.inv(xp.where(regular, a, identity)), 0)


def _scale_matrices(F: Functions, numbers: Tensor, a: Tensor, matrices: Tensor) -> Tensor:
    """Return matrices multiplied by a number each, in the shape of ``a``."""
    factors = F.expand_dims(F.expand_dims(numbers, axis=-1), axis=-1)
    return F.reshape_like(F.broadcast_mul(factors, matrices), a)


@operator("_linalg_cofactors")
class Cofactors(_SquareOperator, hidden=True, precision=Precision.FLOAT32):
    """The cofactors of square matrices: the derivative of the determinant, also for singular matrices."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = cofactors(run.xp, widen(inputs[0]))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_linalg_cofactors_along", inputs[0], heads[0])]


@operator("_linalg_cofactors_along")
class CofactorsDerivative(_SquareOperator, hidden=True, precision=Precision.FLOAT32):
    """The derivative of the cofactors for a change of the matrices; also their gradient."""

    arguments = ("A", "change")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        return [a, a], [a]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = cofactors_derivative(run.xp, widen(inputs[0]), widen(inputs[1]))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError


class _Determinant(_SquareOperator):
    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        return [a], [None if a is None else scalar_batch_shape(a)] * len(self.outputs())

    def json_output_count(self) -> int:
        # MXNet has two more outputs: the factors and the order of their rows.
        return len(self.outputs()) + 2


@operator("_linalg_det", "linalg_det")
class Det(_Determinant, precision=Precision.FLOAT32):
    """The determinants of square matrices; (1,) for a single one."""

    output_doc = "(...), or (1,) for a single matrix, the dtype of A"
    output_names = ("output0",)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.linalg.det(widen(inputs[0])).reshape(outputs[0].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [_scale_matrices(F, heads[0], inputs[0], F.op("_linalg_cofactors", inputs[0]))]


@operator("_linalg_slogdet", "linalg_slogdet")
class SlogDet(_Determinant, precision=Precision.FLOAT32):
    """Signs and logarithms of the absolute values of the determinants of square matrices; (1,) for a single one.

    The sign has no gradient; the logarithm has none where the determinant is 0.
    """

    output_doc = "Signs and logarithms, (...), or (1,) for a single matrix, the dtype of A"
    output_names = ("output0", "output1")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for result, out in zip(run.xp.linalg.slogdet(widen(inputs[0])), outputs, strict=True):
            out[...] = result.reshape(out.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        inverse = F.op("_linalg_inverse_or_zero", inputs[0])
        return [_scale_matrices(F, heads[1], inputs[0], _transpose(F, inverse))]
