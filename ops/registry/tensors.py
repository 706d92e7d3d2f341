"""The types of arrays, of tensors in gradients, and of the functions that compute with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar, cast

import numpy as np

from flowmx.devices.arrays import Array as Array
from flowmx.devices.arrays import DType

Result = TypeVar("Result", covariant=True)


class Function(Protocol[Result]):
    """A function of an array namespace, or a module of such functions (``xp.linalg``, ``F.contrib``)."""

    def __call__(self, *args: object, **kwargs: object) -> Result: ...

    def __getattr__(self, name: str, /) -> Function[Result]: ...


class Namespace(Protocol[Result]):
    """Functions by name: NumPy, CuPy, or the operators of arrays or symbols."""

    def __getattr__(self, name: str, /) -> Function[Result]: ...


class Tensor(Protocol):
    """A value that gradients compute with: an array, or a value of a graph under construction.

    A function with several outputs returns the list of them, which unpacks like a tensor.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> DType | type[np.generic]: ...

    @property
    def stype(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def element_type(self) -> DType: ...

    def reshape(self, *shape: object) -> Tensor: ...

    def astype(self, dtype: object, /) -> Tensor: ...

    def __getitem__(self, key: object, /) -> Tensor: ...

    def __iter__(self) -> Iterator[Tensor]: ...

    def __neg__(self) -> Tensor: ...

    def __add__(self, other: object, /) -> Tensor: ...

    def __radd__(self, other: object, /) -> Tensor: ...

    def __sub__(self, other: object, /) -> Tensor: ...

    def __rsub__(self, other: object, /) -> Tensor: ...

    def __mul__(self, other: object, /) -> Tensor: ...

    def __rmul__(self, other: object, /) -> Tensor: ...

    def __truediv__(self, other: object, /) -> Tensor: ...

    def __rtruediv__(self, other: object, /) -> Tensor: ...

    def __mod__(self, other: object, /) -> Tensor: ...

    def __pow__(self, other: object, /) -> Tensor: ...

    def __rpow__(self, other: object, /) -> Tensor: ...

    def __lt__(self, other: object, /) -> Tensor: ...

    def __le__(self, other: object, /) -> Tensor: ...

    def __gt__(self, other: object, /) -> Tensor: ...

    def __ge__(self, other: object, /) -> Tensor: ...

    def __eq__(self, other: object, /) -> Tensor: ...  # type: ignore[override]

    def __ne__(self, other: object, /) -> Tensor: ...  # type: ignore[override]


def as_list(result: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of a function, of which there may be several, as a list."""
    return list(result) if isinstance(result, (list, tuple)) else [cast("Tensor", result)]


Tensors: TypeAlias = Sequence[Tensor]
Gradients: TypeAlias = Sequence[Tensor | None]
"""One gradient for each input except auxiliary states, or None."""
GradientFunction: TypeAlias = "Callable[[Functions, Tensors, Tensors, Tensors], Gradients]"
"""A function like :meth:`Operator.gradient`: of the functions, the inputs, the outputs and the heads."""
UfuncCall: TypeAlias = tuple[Callable[..., object], Array | np.generic | None]
"""A function called as ``ufunc(*inputs, out=out)``; with a number, as ``ufunc(input, number, out=out)``."""
ArrayNamespace: TypeAlias = Namespace[Array]
"""NumPy, or CuPy."""
Functions: TypeAlias = Namespace[Tensor]
"""Every operator as a function (``F.dot(a, b)``), of arrays or of values of a graph."""
