"""MXNet's linalg: extract diagonals and triangles of matrices, and make matrices of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.linalg.dot import expect_min_rank
from flowmx.ops.linalg.gemm import square_shape, triangle
from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, family, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision


@operator("_linalg_sumlogdiag", "linalg_sumlogdiag")
class SumLogDiag(Operator, precision=Precision.FLOAT32):
    """The sum of the logarithms of the diagonal, for each matrix of a batch; (1,) for a single one."""

    arguments = ("A",)
    input_docs = describe(A="(..., n, n), float")
    output_doc = "(...), or (1,) for a single matrix, the dtype of A"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        return [a], [None if a is None else a[:-2] or (1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        logs = run.xp.log(run.xp.diagonal(widen(inputs[0]), 0, -2, -1))
        outputs[0][...] = logs.sum(-1).reshape(outputs[0].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        a = inputs[0]
        shares = F.broadcast_div(F.expand_dims(heads[0], axis=-1), F.op("_linalg_extractdiag", a))
        return [F.reshape_like(F.op("_linalg_makediag", shares), a)]


class _Packed(Operator):
    """Base of operators that pack elements of square matrices (…, n, n) into vectors (…, m), or unpack them."""

    arguments = ("A",)
    reverse = ""
    """The name of the inverse operator, which is also the gradient."""
    offset: int

    def positions(self, side: int) -> tuple[Array, Array]:
        """Return the rows and columns of the elements, in packed order."""
        raise NotImplementedError

    def packed_size(self, side: int) -> int:
        """Return the number of packed elements of a matrix."""
        raise NotImplementedError

    def side(self, size: int) -> int:
        """Return the side of the matrix with this number of packed elements."""
        raise NotImplementedError

    def extract(self, x: Array, out: Array) -> None:
        rows, columns = self.positions(x.shape[-1])
        out[...] = x[..., rows, columns].reshape(out.shape)

    def make(self, x: Array, out: Array) -> None:
        rows, columns = self.positions(out.shape[-1])
        out[...] = 0
        out[..., rows, columns] = x

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op(self.reverse, heads[0], **{name: getattr(self, name) for name in self.parameters})]


class _Extract(_Packed):
    input_docs = describe(A="(..., n, n), float")
    output_doc = "(..., m), the dtype of A"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = square_shape(self, shapes[0])
        if a is None or a[-1] == -1:
            return [a], [None if a is None else (*a[:-2], -1)]
        if abs(self.offset) >= a[-1]:
            raise ShapeError(f"{self.name}: A has shape {a}, expected sides longer than the offset {self.offset}")
        return [a], [(*a[:-2], self.packed_size(a[-1]))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.extract(inputs[0], outputs[0])


class _Make(_Packed):
    input_docs = describe(A="(..., m), float")
    output_doc = "(..., n, n), the dtype of A"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a = shapes[0]
        expect_min_rank(self, "A", a, 1)
        if a is None:
            return shapes, [None]
        side = -1 if a[-1] == -1 else self.side(a[-1])
        if side != -1 and self.packed_size(side) != a[-1]:
            raise ShapeError(
                f"{self.name}: A has shape {a}, expected n·(n+1)/2 elements on the last axis, for a triangle"
            )
        return shapes, [(*a[:-1], side, side)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.make(inputs[0], outputs[0])


@family
class _DiagonalPacking(_Packed):
    offset: int = option(0, "The diagonal: 0 the main one, above it from 1, below it from -1.")

    def positions(self, side: int) -> tuple[Array, Array]:
        steps = np.arange(side - abs(self.offset))
        return steps + max(0, -self.offset), steps + max(0, self.offset)

    def packed_size(self, side: int) -> int:
        return side - abs(self.offset)

    def side(self, size: int) -> int:
        return size + abs(self.offset)


@operator("_linalg_extractdiag", "linalg_extractdiag")
class ExtractDiag(_DiagonalPacking, _Extract, precision=Precision.FLOAT32):
    """A diagonal of each square matrix: (…, n, n) gives (…, n - |offset|)."""

    reverse = "_linalg_makediag"


@operator("_linalg_makediag", "linalg_makediag")
class MakeDiag(_DiagonalPacking, _Make, precision=Precision.FLOAT32):
    """Square matrices with the given diagonals, and zeros elsewhere: (…, m) gives (…, n, n), n = m + |offset|."""

    reverse = "_linalg_extractdiag"


@family
class _TrianglePacking(_Packed):
    offset: int = option(0, "The diagonal where the triangle begins: above the main one from 1, below it from -1.")
    lower: bool = option(True, "With offset 0: the lower triangle, not the upper one.")

    def positions(self, side: int) -> tuple[Array, Array]:
        rows, columns = np.tril_indices(side - abs(self.offset))
        rows = rows + abs(self.offset)
        # The elements of an upper triangle are in the order of the lower triangle of the transpose.
        upper = self.offset > 0 or (self.offset == 0 and not self.lower)
        return (columns, rows) if upper else (rows, columns)

    def packed_size(self, side: int) -> int:
        rows = side - abs(self.offset)
        return rows * (rows + 1) // 2

    def side(self, size: int) -> int:
        return (math.isqrt(8 * size + 1) - 1) // 2 + abs(self.offset)


@operator("_linalg_extracttrian", "linalg_extracttrian")
class ExtractTrian(_TrianglePacking, _Extract, precision=Precision.FLOAT32):
    """A triangle of each square matrix, packed: (…, n, n) gives (…, k·(k+1)/2), k = n - |offset|.

    A lower triangle comes row by row, an upper one column by column. From offset 1 it is the upper one, from
    -1 the lower one.
    """

    reverse = "_linalg_maketrian"


@operator("_linalg_maketrian", "linalg_maketrian")
class MakeTrian(_TrianglePacking, _Make, precision=Precision.FLOAT32):
    """Square matrices with the given packed triangles, and zeros elsewhere: the reverse of extracttrian."""

    reverse = "_linalg_extracttrian"


# -- parts of gradients ------------------------------------------------------------------------------------


@operator("_linalg_triangle")
class Triangle(Operator, hidden=True):
    """The lower or upper triangles of matrices; zeros elsewhere."""

    lower: bool = option(True, "Keep the lower triangle, not the upper one.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = triangle(run.xp, inputs[0], self.lower)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_linalg_triangle", heads[0], lower=self.lower)]


@operator("_linalg_mirror")
class Mirror(Operator, hidden=True):
    """The symmetric matrices with the lower triangles of the input."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, xp = inputs[0], run.xp
        outputs[0][...] = xp.tril(x) + xp.tril(x, -1).swapaxes(-1, -2)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # An element below the diagonal is copied to both sides; the diagonal is copied once.
        g = heads[0]
        mirrored = F.op("_linalg_triangle", g + F.SwapAxis(g, dim1=-1, dim2=-2))
        return [mirrored - F.op("_linalg_makediag", F.op("_linalg_extractdiag", g))]


@operator("_linalg_gaps")
class Gaps(Operator, hidden=True):
    """1/(2(λᵢ - λⱼ)) for all pairs of eigenvalues; 0 for equal ones.

    Shapes: data (…, n), ascending, output (…, n, n).
    """

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        return shapes, [None if shape is None else (*shape, shape[-1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, values = run.xp, widen(inputs[0])
        gaps = values[..., :, None] - values[..., None, :]
        outputs[0][...] = xp.where(gaps == 0, 0, 0.5 / xp.where(gaps == 0, 1, gaps))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        shares = heads[0] * F.square(outputs[0]) * 2.0
        return [F.sum(shares, axis=-2) - F.sum(shares, axis=-1)]


def scalar_batch_shape(shape: Shape) -> Shape:
    """Return the shape of one number for each matrix; (1,) for a single matrix."""
    return shape[:-2] or (1,)
