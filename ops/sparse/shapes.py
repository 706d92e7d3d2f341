"""Shapes of sparse arrays, which are equal to no dense array's.

Whatever is remembered of calls on arrays is remembered by their shapes. A sparse array's shape is a tuple of its own
kind: nothing that was learned of dense arrays is ever found for it, so that calls on dense arrays need not ask whether
one is sparse.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SparseShape(tuple[int, ...]):
    """The length of each axis of a sparse array."""

    __slots__ = ()
    stype: ClassVar[str] = ""
    """The storage type, by MXNet's name."""

    def __eq__(self, other: object) -> bool:
        return other.__class__ is self.__class__ and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.stype, tuple.__hash__(self)))

    def __reduce__(self) -> Any:
        return self.__class__, (tuple(self),)


class CsrShape(SparseShape):
    """The shape of a matrix in compressed sparse rows."""

    __slots__ = ()
    stype = "csr"


class RowSparseShape(SparseShape):
    """The shape of an array of which some rows are stored."""

    __slots__ = ()
    stype = "row_sparse"


def stype_of(shape: tuple[int, ...]) -> str:
    """The storage type of an array with a shape."""
    return shape.stype if isinstance(shape, SparseShape) else "default"
