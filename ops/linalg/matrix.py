"""Products of matrices, single and in batches. MXNet's linalg has modules of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.math.products import bound_product, matmul, multiplies
from flowmx.ops.math.reduce import wide
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    family,
    merge,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import BatchParts, BatchWise, Precision


def _same(op: Operator, one: int, other: int, shapes: Sequence[ShapeOrNone]) -> None:
    if one != other and -1 not in (one, other):
        raise ShapeError(
            f"{op.name}: inputs have shapes {shapes[0]} and {shapes[1]}: the axes summed over have lengths "
            f"{one} and {other}, expected the same"
        )


def multiply(run: Run, a: Array, b: Array, out: Array) -> None:
    """The matrix product (in batches) of ``a`` and ``b``, into ``out`` of the same element count."""
    shape = (*a.shape[:-1], b.shape[-1])
    if out.dtype.itemsize == 2 and out.flags.c_contiguous and multiplies(run, a, b, out.reshape(shape)):
        return
    left, right = wide(a), wide(b)
    # Half precision is multiplied as float32 where there is no product of it: faster, and rounded once.
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

    Matrices multiply; two vectors give the shape (1,). With more axes the others of lhs come first in the
    output, then those of rhs. ``transpose_a`` sums over the first axis of lhs, ``transpose_b`` over the last
    of rhs.
    """

    input_docs = described(
        lhs="(..., k), any dtype; (k, ...) with transpose_a",
        rhs="(k, ...), the dtype of lhs; (..., k) with transpose_b",
    )
    output_doc = "The other axes of lhs, then those of rhs; (1,) for two vectors; the dtype of lhs"
    forward_stype: str | None = option(None, "The output's storage type, where it is to be another than usual.")

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
        (summed, left), (other, right) = _sides(lhs, self.transpose_a), _sides(rhs, not self.transpose_b)
        _same(self, summed, other, shapes)
        return shapes, [left + right or (1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        lhs, rhs = inputs
        out = outputs[0]
        a = _as_matrix(lhs, self.transpose_a)
        b = _as_matrix(rhs, not self.transpose_b)
        multiply(run, a.T if self.transpose_a else a, b.T if self.transpose_b else b, out)

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        return _bound(xp, (0, self.transpose_a), (1, self.transpose_b), given, made) if _are_matrices(given) else None

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        summed = _sides(inputs[0], self.transpose_a)[0]
        return 2 * summed * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        ways = {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}
        return [
            F.op("_backward_dot", heads[0], inputs[1], shape_of(inputs, 0), side="lhs", **ways),
            F.op("_backward_dot", heads[0], inputs[0], shape_of(inputs, 1), side="rhs", **ways),
        ]


def _are_matrices(given: Sequence[Form]) -> bool:
    return all(len(shape) == 2 for shape, _ in given)


def _bound(
    xp: Any, a: tuple[int, bool], b: tuple[int, bool], given: Sequence[Form], made: Sequence[Form]
) -> Bound | None:  # fmt: skip
    """The product of two inputs, given as their positions and whether they are transposed."""
    if len({dtype for _, dtype in (*given, *made)}) > 1:
        return None
    (at_a, turn_a), (at_b, turn_b) = a, b
    shape, dtype = made[0]
    product = bound_product(xp, (given[at_a][0], turn_a), (given[at_b][0], turn_b), shape, dtype)
    if product is None:
        return None

    def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        product(inputs[at_a], inputs[at_b], outputs[0])

    return forward


def _sides(shape: Shape, first: bool) -> tuple[int, Shape]:
    """The length that is summed over (the first or the last), and the other lengths."""
    return (shape[0], shape[1:]) if first else (shape[-1], shape[:-1])


def _as_matrix(x: Array, first: bool) -> Array:
    """An input with the axes that are not summed over made one."""
    summed, rest = _sides(x.shape, first)
    count = math.prod(rest)
    return x.reshape((summed, count) if first else (count, summed))


@operator("_backward_dot")
class BackwardDot(Product, hidden=True, batch_wise=BatchWise.OWN):
    """The gradient of dot: of the side named, from the head and the other side."""

    arguments = ("head", "other", "like")
    side: Literal["lhs", "rhs"] = required("Whose gradient.")

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        lhs = inputs[2 if self.side == "lhs" else 1]
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.transpose_a or len(lhs) < 2:
            return None
        return BatchParts((0, 2), (0,)) if self.side == "lhs" else BatchParts((0, 1), (), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[2]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, other, like = inputs
        mine_first = self.transpose_a if self.side == "lhs" else not self.transpose_b
        other_first = not self.transpose_b if self.side == "lhs" else self.transpose_a
        # As matrices: mine (rows, summed), other (columns, summed), product (rows, columns).
        matrix = _as_matrix(other, other_first)
        columns = matrix.T if other_first else matrix
        rows = math.prod(_sides(like.shape, mine_first)[1])
        shape = (rows, columns.shape[0])
        product = head.reshape(shape) if self.side == "lhs" else head.reshape(shape[::-1]).T
        if mine_first:
            multiply(run, columns.T, product.T, outputs[0])
        else:
            multiply(run, product, columns, outputs[0])

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        if not _are_matrices(given):
            return None
        head, other = 0, 1
        if self.side == "lhs":  # head · otherᵀ, or other · headᵀ
            pair = (head, False), (other, not self.transpose_b)
        else:  # otherᵀ · head, or headᵀ · other
            pair = (other, not self.transpose_a), (head, False)
        if self.transpose_a if self.side == "lhs" else self.transpose_b:
            (left, turn_left), (right, turn_right) = pair
            pair = (right, not turn_right), (left, not turn_left)
        return _bound(xp, *pair, given, made)

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        summed_first = self.transpose_a if self.side == "lhs" else not self.transpose_b
        summed = _sides(inputs[2], summed_first)[0]
        return 2 * summed * math.prod(inputs[0]), super().cost(inputs[:2], outputs)[1]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        ways = {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}
        pair = (heads[0], inputs[1]) if self.side == "lhs" else (inputs[1], heads[0])
        there = "rhs" if self.side == "lhs" else "lhs"
        return [
            F.dot(*pair, **ways),
            F.op("_backward_dot", inputs[0], heads[0], shape_of(inputs, 1), side=there, **ways),
            None,
        ]


def batch_shape(op: Operator, a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Shape:
    """The shape of the product of two batches of matrices.

    Raises:
        ShapeError: they do not fit each other.
    """
    batch = merge(a[:-2], b[:-2])
    if len(a) != len(b) or batch is False:
        raise ShapeError(f"{op.name}: inputs have shapes {a} and {b}, expected the same axes before the last two")
    rows, summed = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    other, columns = (b[-1], b[-2]) if transpose_b else (b[-2], b[-1])
    _same(op, summed, other, (a, b))
    return (*batch, rows, columns)


def at_least(op: Operator, name: str, shape: ShapeOrNone, ndim: int) -> None:
    """Refuse an input with too few axes.

    Raises:
        ShapeError: it has.
    """
    if shape is not None and len(shape) < ndim:
        raise ShapeError(f"{op.name}: {name} has shape {shape}, expected at least {ndim} axes")


def flipped(x: Array, flip: bool) -> Array:
    """Matrices, transposed or not."""
    return x.swapaxes(-1, -2) if flip else x


@operator("batch_dot")
class BatchDot(Product, precision=Precision.WIDEST, batch_wise=BatchWise.EACH):
    """The products of the matrices in two batches: (b, m, k) and (b, k, n) give (b, m, n)."""

    input_docs = described(
        lhs="(..., m, k), or (..., k, m) with transpose_a, any dtype",
        rhs="(..., k, n), or (..., n, k) with transpose_b, the dtype of lhs",
    )
    output_doc = "(..., m, n), the dtype of lhs"
    forward_stype: str | None = option(None, "Kept for MXNet's files.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            at_least(self, name, shape, 3)
        lhs, rhs = shapes
        if lhs is None or rhs is None or -1 in (*lhs[1:], *rhs[1:]):
            return shapes, [None]
        return shapes, [batch_shape(self, lhs, rhs, self.transpose_a, self.transpose_b)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a, b = flipped(inputs[0], self.transpose_a), flipped(inputs[1], self.transpose_b)
        multiply(run, a, b, outputs[0])

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        (one, _), (other, _) = given
        alike = one[:-2] == other[:-2]
        return _bound(xp, (0, self.transpose_a), (1, self.transpose_b), given, made) if alike else None

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        summed = inputs[0][-2 if self.transpose_a else -1]
        return 2 * summed * math.prod(outputs[0]), super().cost(inputs, outputs)[1]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return product_gradient(F.batch_dot, inputs[0], inputs[1], heads[0], self.transpose_a, self.transpose_b)


def product_gradient(product: Any, a: Any, b: Any, g: Any, ta: bool, tb: bool) -> list[Any]:
    """The gradients of ``product(a, b)``, by the same product."""
    left = (
        product(b, g, transpose_a=tb, transpose_b=True) if ta else product(g, b, transpose_a=False, transpose_b=not tb)
    )
    right = (
        product(g, a, transpose_a=True, transpose_b=ta) if tb else product(a, g, transpose_a=not ta, transpose_b=False)
    )
    return [left, right]
