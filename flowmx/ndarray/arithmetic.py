"""Python's arithmetic on arrays: the class body maps each method to MXNet's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.ndarray.core import BaseArray, allocate, invoke
from flowmx.ndarray.fast_calls import FastCall
from flowmx.ops.registry.operators import lookup

if TYPE_CHECKING:
    from flowmx.ndarray.array import NDArray

_scalar_types = (float, int, bool, np.generic)
_MAX_NUMBERS = 1024


def _bind_number(name: str, number: Any) -> FastCall:
    return FastCall(lookup(name).create(scalar=float(number)))


class Numbers:
    """A cache of one operator bound to numbers (``x + 2``), since loops repeat the same numbers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.bound: dict[object, FastCall] = {}
        self._zeros: dict[str, FastCall] = {}

    def bind(self, number: Any) -> FastCall:
        """Bind the operator to a number that is not in the cache yet, and return it."""
        if number == 0:  # 0.0 and -0.0 are equal as keys
            sign = str(float(number))
            return self._zeros.get(sign) or self._zeros.setdefault(sign, _bind_number(self._name, number))
        operator = _bind_number(self._name, number)
        make_room(self.bound, _MAX_NUMBERS)
        self.bound[number] = operator
        return operator


def _binary(array_name: str, scalar_name: str, swapped: bool = False) -> Callable[[Any, Any], NDArray]:
    """Return the method for a Python operator; its right operand is an array (broadcast) or a number."""
    both = FastCall(lookup(array_name).create())
    numbers = Numbers(scalar_name)
    bound = numbers.bound

    def method(self: BaseArray, other: Any) -> Any:
        if isinstance(other, BaseArray):
            return both(other, self) if swapped else both(self, other)
        if isinstance(other, _scalar_types):
            return (bound.get(other) or numbers.bind(other))(self)
        if isinstance(other, np.ndarray):
            data = np.array(other, self.element_type, order="C")
            operand = allocate(self.storage.device, data.shape, self.element_type, data)
            return both(operand, self) if swapped else both(self, operand)
        return NotImplemented

    return method


def as_mask(result: Any) -> Any:
    """Mark an array of the numbers 0 and 1 as a mask, so that indexing by it warns; return the array."""
    if isinstance(result, BaseArray):
        storage = result.storage
        storage.mask_at = storage.version
    return result


def _comparison(array_name: str, scalar_name: str) -> Callable[[Any, Any], NDArray]:
    """Return the method of a comparison, as :func:`_binary`."""
    compute = _binary(array_name, scalar_name)
    return lambda self, other: as_mask(compute(self, other))


def _product(array_name: str, scalar_name: str) -> Callable[[Any, Any], NDArray]:
    """Return the method of the product, as :func:`_binary`; the product of two masks is a mask."""
    multiply = _binary(array_name, scalar_name)

    def method(self: BaseArray, other: Any) -> Any:
        if self.storage.mask_at == -1:  # the usual case, checked first
            return multiply(self, other)
        gives_mask = is_mask(self) and isinstance(other, BaseArray) and is_mask(other)
        return as_mask(multiply(self, other)) if gives_mask else multiply(self, other)

    return method


def is_mask(array: BaseArray) -> bool:
    """Return whether an array is a mask of numbers: the result of a comparison, or made of bools."""
    storage = array.storage
    return storage.mask_at == storage.version


def _in_place(array_name: str, scalar_name: str) -> Callable[[Any, Any], NDArray]:
    """Return the method of an in-place operator, which writes into the array's memory."""
    both = FastCall(lookup(array_name).create())
    numbers = Numbers(scalar_name)
    bound = numbers.bound

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, BaseArray):
            if other.dims != self.dims or other.element_type != self.element_type:
                other = cast("NDArray", other).astype(self.element_type, copy=False).broadcast_to(self.dims)
            return both(self, other, self)
        if isinstance(other, _scalar_types):
            return (bound.get(other) or numbers.bind(other))(self, None, self)
        return NotImplemented

    return method


_plain_calls: dict[str, FastCall] = {}
"""Operators without parameters, by name."""


class Arithmetic(BaseArray):
    """Arrays with arithmetic; comparisons return 1 and 0 in the array's dtype."""

    __add__ = _binary("broadcast_add", "_plus_scalar")
    __sub__ = _binary("broadcast_sub", "_minus_scalar")
    __mul__ = _product("broadcast_mul", "_mul_scalar")
    __truediv__ = __div__ = _binary("broadcast_div", "_div_scalar")
    __mod__ = _binary("broadcast_mod", "_mod_scalar")
    __pow__ = _binary("broadcast_power", "_power_scalar")

    __radd__ = _binary("broadcast_add", "_plus_scalar", swapped=True)
    __rsub__ = _binary("broadcast_sub", "_rminus_scalar", swapped=True)
    __rmul__ = _binary("broadcast_mul", "_mul_scalar", swapped=True)
    __rtruediv__ = __rdiv__ = _binary("broadcast_div", "_rdiv_scalar", swapped=True)
    __rmod__ = _binary("broadcast_mod", "_rmod_scalar", swapped=True)
    __rpow__ = _binary("broadcast_power", "_rpower_scalar", swapped=True)

    __iadd__ = _in_place("broadcast_add", "_plus_scalar")
    __isub__ = _in_place("broadcast_sub", "_minus_scalar")
    __imul__ = _in_place("broadcast_mul", "_mul_scalar")
    __itruediv__ = __idiv__ = _in_place("broadcast_div", "_div_scalar")
    __imod__ = _in_place("broadcast_mod", "_mod_scalar")
    __ipow__ = _in_place("broadcast_power", "_power_scalar")

    if TYPE_CHECKING:  # type checkers would assume the methods of object, which return a bool

        def __eq__(self, other: Any) -> NDArray: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> NDArray: ...  # type: ignore[override]
    else:
        __eq__ = _comparison("broadcast_equal", "_equal_scalar")
        __ne__ = _comparison("broadcast_not_equal", "_not_equal_scalar")
    __gt__ = _comparison("broadcast_greater", "_greater_scalar")
    __ge__ = _comparison("broadcast_greater_equal", "_greater_equal_scalar")
    __lt__ = _comparison("broadcast_lesser", "_lesser_scalar")
    __le__ = _comparison("broadcast_lesser_equal", "_lesser_equal_scalar")
    __hash__ = object.__hash__

    def __neg__(self) -> Self:
        return self._call("negative")

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._call("abs")

    def __invert__(self) -> Self:
        return cast("Self", as_mask(self._call("logical_not")))

    def __matmul__(self, other: NDArray) -> Self:
        if not isinstance(other, BaseArray):
            raise TypeError(f"{type(self).__name__} @ {type(other).__name__}: expected an NDArray on the right side")
        return self._call("dot" if len(self.dims) <= 2 else "batch_dot", other)

    def _call(self, name: str, *others: BaseArray, **parameters: Any) -> Self:
        if not parameters:
            plain = _plain_calls.get(name) or _plain_calls.setdefault(name, FastCall(lookup(name).create()))
            return cast("Self", plain(self, *others))
        return cast("Self", invoke(lookup(name).create(**parameters), [self, *others], depth=3))
