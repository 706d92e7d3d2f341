"""Shapes of sparse arrays, which never equal the shape of a dense array.

Caches of calls on arrays use shapes as keys. The shape of a sparse array is a separate tuple type, so it never matches
an entry of dense arrays. Calls on dense arrays therefore need no check for sparse ones.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SparseShape(tuple[int, ...]):
    """The length of each axis of a sparse array."""

    __slots__ = ()
    stype: ClassVar[str] = ""
    """The storage type, as named by MXNet."""

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
    """The shape of an array that stores some of its rows."""

    __slots__ = ()
    stype = "row_sparse"


def stype_of(shape: tuple[int, ...]) -> str:
    """Return the storage type of an array of a shape."""
    return shape.stype if isinstance(shape, SparseShape) else "default"
