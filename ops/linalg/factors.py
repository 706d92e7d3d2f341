"""MXNet's linalg: factorizations, inverses and determinants, in batches.

The gradients are those of Seeger et al., Auto-Differentiating Linear Algebra (arXiv 1710.08717).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.linalg.matrix import at_least, flipped
from flowmx.ops.linalg.parts import batch_of
from flowmx.ops.linalg.products import MatrixError, solve_triangular, square
from flowmx.ops.math.reduce import wide
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, described, operator, option
from flowmx.ops.registry.traits import Precision


@contextmanager
def _named(op: Operator, expected: str) -> Iterator[None]:
    try:
        yield
    except np.linalg.LinAlgError:
        raise MatrixError(f"{op.name}: A holds a matrix that is not {expected}") from None


def _turned(F: Any, x: Any) -> Any:
    return F.SwapAxis(x, dim1=-1, dim2=-2)


class _OfSquare(Operator, heavy=True):
    arguments = ("A",)
    input_docs = described(A="(..., n, n), float")
    output_doc = "The shape and dtype of A"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square(self, shapes[0])
        return [a], [a]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        moved = super().cost(inputs, outputs)[1]
        return moved * inputs[0][-2], moved


@operator("_linalg_potrf", "linalg_potrf")
class Potrf(_OfSquare, precision=Precision.FLOAT32):
    """The Cholesky factor of symmetric positive definite matrices: L with A = L Lᵀ, or U = Lᵀ where not ``lower``.

    Only the triangles of A on the factor's side are looked at; the gradient is that of symmetric changes.
    """

    lower: bool = option(True, "The factor is a lower triangle, not an upper one.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with _named(self, "positive definite"):
            factor = run.xp.linalg.cholesky(flipped(wide(inputs[0]), not self.lower))
        outputs[0][...] = flipped(factor, not self.lower)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        factor, head = (each if self.lower else _turned(F, each) for each in (outputs[0], heads[0]))
        inner = F.op("_linalg_mirror", F.op("_linalg_trmm", factor, head, transpose=True))
        left = F.op("_linalg_trsm", factor, inner, transpose=True)
        return [F.op("_linalg_trsm", factor, left, rightside=True, alpha=0.5)]


@operator("_linalg_potri", "linalg_potri")
class Potri(_OfSquare, precision=Precision.FLOAT32):
    """The inverse of a matrix from its Cholesky factor A: (A Aᵀ)⁻¹, or (Aᵀ A)⁻¹ of an upper one."""

    lower: bool = option(True, "A is the lower triangle, not the upper one.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, a = run.xp, flipped(wide(inputs[0]), not self.lower)
        one = xp.broadcast_to(xp.eye(a.shape[-1], dtype=a.dtype), a.shape)
        inverse = solve_triangular(xp, self, xp.tril(a), one, upper=False)
        outputs[0][...] = xp.matmul(inverse.swapaxes(-1, -2), inverse)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        product = F.op("_linalg_gemm2", outputs[0], heads[0] + _turned(F, heads[0]))
        factor = inputs[0] if self.lower else _turned(F, inputs[0])
        whole = F.op(
            "_linalg_triangle", F.op("_linalg_trsm", factor, product, transpose=True, rightside=True, alpha=-1.0)
        )
        return [whole if self.lower else _turned(F, whole)]


@operator("_linalg_gelqf", "linalg_gelqf")
class Gelqf(_OfSquare, precision=Precision.FLOAT32):
    """The LQ factorization A = L Q of matrices (m, n) of full rank, m ≤ n: Q (m, n) with Q Qᵀ = 1, L lower triangle."""

    input_docs = described(A="(..., m, n) with m ≤ n, float")
    output_doc = "Q (..., m, n) and L (..., m, m), the dtype of A"
    output_names = ("output0", "output1")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = shapes[0]
        at_least(self, "A", a, 2)
        if a is None:
            return shapes, [None, None]
        if -1 not in a[-2:] and a[-2] > a[-1]:
            raise ShapeError(f"{self.name}: A has shape {a}, expected no more rows than columns")
        return shapes, [a, (*a[:-1], a[-2])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        q, r = run.xp.linalg.qr(wide(inputs[0]).swapaxes(-1, -2))
        outputs[0][...] = q.swapaxes(-1, -2)
        outputs[1][...] = r.swapaxes(-1, -2)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        (q, factor), (of_q, of_factor) = outputs[:2], heads
        inner = F.op("_linalg_trmm", factor, of_factor, transpose=True)
        inner = inner - F.op("_linalg_gemm2", of_q, q, transpose_b=True)
        turned = of_q + F.op("_linalg_gemm2", F.op("_linalg_mirror", inner), q)
        return [F.op("_linalg_trsm", factor, turned, transpose=True)]


@operator("_linalg_syevd")
class Syevd(_OfSquare, precision=Precision.FLOAT32):
    """The eigenvalues λ (…, n), ascending, and eigenvectors of symmetric matrices: A = Uᵀ diag(λ) U.

    The outputs are U, with an eigenvector in each row whose largest element is positive, and λ. Only the lower
    triangles of A are looked at; the gradient is that of symmetric changes, for eigenvalues that differ.
    """

    output_doc = "U (..., n, n) and λ (..., n), the dtype of A"
    output_names = ("output0", "output1")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square(self, shapes[0])
        return [a], [a, None if a is None else a[:-1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp = run.xp
        with _named(self, "finite"):
            values, columns = xp.linalg.eigh(wide(inputs[0]))
        rows = columns.swapaxes(-1, -2)
        largest = xp.take_along_axis(rows, xp.abs(rows).argmax(-1)[..., None], -1)
        outputs[0][...] = xp.where(largest < 0, -rows, rows)
        outputs[1][...] = values

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        (u, values), (of_u, of_values) = outputs[:2], heads
        turns = F.op("_linalg_gemm2", of_u, u, transpose_b=True)
        inner = (turns - _turned(F, turns)) * F.op("_linalg_gaps", values)
        inner = inner + F.op("_linalg_makediag", of_values)
        return [F.op("_linalg_gemm2", F.op("_linalg_gemm2", u, inner, transpose_a=True), u)]


# -- inverses and determinants -----------------------------------------------------------------------------


@operator("_linalg_inverse", "linalg_inverse")
class Inverse(_OfSquare, precision=Precision.FLOAT32):
    """The inverses of square matrices."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with _named(self, "invertible"):
            outputs[0][...] = run.xp.linalg.inv(wide(inputs[0]))

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        right = F.op("_linalg_gemm2", heads[0], outputs[0], transpose_b=True)
        return [F.op("_linalg_gemm2", outputs[0], right, transpose_a=True, alpha=-1.0)]


@operator("_linalg_inverse_or_zero")
class InverseOrZero(Inverse, hidden=True):
    """The inverses of square matrices, and zeros for those that have none."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, a = run.xp, wide(inputs[0])
        regular = xp.linalg.slogdet(a)[0][..., None, None] != 0
        one = xp.eye(a.shape[-1], dtype=a.dtype)
        outputs[0][...] = xp.where(regular, xp.linalg.inv(xp.where(regular, a, one)), 0)


def _spread(F: Any, numbers: Any, a: Any) -> Any:
    """A number for each matrix, times the transpose of its inverse (zeros where it has none)."""
    inverse = F.op("_linalg_inverse_or_zero", a)
    return F.broadcast_mul(F.expand_dims(F.expand_dims(numbers, axis=-1), axis=-1), _turned(F, inverse))


class _Determinant(_OfSquare):
    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square(self, shapes[0])
        return [a], [None if a is None else batch_of(a)] * len(self.outputs())

    def counted_outputs(self) -> int:
        # MXNet keeps the factors and the order of their rows.
        return len(self.outputs()) + 2


@operator("_linalg_det", "linalg_det")
class Det(_Determinant, precision=Precision.FLOAT32):
    """The determinants of square matrices; (1,) for a single one. The gradient is 0 where the determinant is."""

    output_doc = "(...), or (1,) for a single matrix, the dtype of A"
    output_names = ("output0",)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.linalg.det(wide(inputs[0])).reshape(outputs[0].shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.reshape_like(_spread(F, heads[0] * outputs[0], inputs[0]), inputs[0])]


@operator("_linalg_slogdet", "linalg_slogdet")
class SlogDet(_Determinant, precision=Precision.FLOAT32):
    """Signs and logarithms of the absolute values of the determinants of square matrices; (1,) for a single one.

    No gradient comes through the sign, and none where the determinant is 0.
    """

    output_doc = "Signs and logarithms, (...), or (1,) for a single matrix, the dtype of A"
    output_names = ("output0", "output1")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for made, out in zip(run.xp.linalg.slogdet(wide(inputs[0])), outputs, strict=True):
            out[...] = made.reshape(out.shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.reshape_like(_spread(F, heads[1], inputs[0]), inputs[0])]
