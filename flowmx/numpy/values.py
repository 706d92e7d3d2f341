"""Values of a graph with NumPy's functions and arithmetic, in which gradients are written as they are for arrays.

A graph's shapes are known when its gradient is made, so that a value answers as an array does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.graph.gradient import Builder, Value
from flowmx.numpy import table
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.named import outputs_of
from flowmx.numpy.operator import NumPyCall
from flowmx.ops.registry.dtypes import DType

__all__ = ["Functions", "valued"]


def valued(value: Value) -> Any:
    """A value with NumPy's arithmetic."""
    return NumPyValue(value.entry, value.builder)


class NumPyValue(Value):
    """A value that answers and computes as an array of ``mx.np``."""

    __slots__ = ()
    __array_ufunc__ = None

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def _dtype(self) -> DType:
        return self.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def astype(self, dtype: Any) -> Any:
        """The content as another element type."""
        return valued(self.builder.op("Cast", self, dtype=dtype))

    def reshape(self, shape: Any) -> Any:
        """The value with another shape."""
        return call(self.builder, "reshape", (self, shape), {})

    def __getitem__(self, key: Any) -> Any:
        return call(self.builder, "getitem", (self, key), {})

    def __neg__(self) -> Any:
        return valued(super().__neg__())

    __hash__ = object.__hash__


def call(builder: Builder, function: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make the node of a call of NumPy's."""
    function = table.RENAMED.get(function, function)
    inputs: list[Value] = []

    def sorted_out(value: Any) -> Any:
        if isinstance(value, Value):
            inputs.append(value)
            return Slot(len(inputs) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)([sorted_out(each) for each in value])
        return np.dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    placed = [sorted_out(each) for each in args]
    named = {name: sorted_out(each) for name, each in kwargs.items()}
    op = NumPyCall.create(
        num_args=len(inputs), function=function, form=encode(placed, named),
        num_outputs=outputs_of(function, placed, named, len(inputs)),
    )  # fmt: skip
    made = builder.apply(op, inputs)
    return [valued(each) for each in made] if isinstance(made, list) else valued(made)


def _method(function: str, swapped: bool, quick: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if quick is not None and self.dtype.kind == "f":
            alike = other.dtype == self.dtype if isinstance(other, Value) else isinstance(other, (int, float))
            if alike:
                return valued(quick(self, other))
        return call(self.builder, function, (other, self) if swapped else (self, other), {})

    return method


for _name, _function, _is_quick in (
    ("add", "add", True), ("sub", "subtract", True), ("mul", "multiply", True), ("truediv", "true_divide", True),
    ("pow", "power", False), ("mod", "remainder", False), ("and", "bitwise_and", False), ("or", "bitwise_or", False),
    ("eq", "equal", False), ("ne", "not_equal", False), ("lt", "less", False), ("le", "less_equal", False),
    ("gt", "greater", False), ("ge", "greater_equal", False), ("floordiv", "floor_divide", False),
):  # fmt: skip
    setattr(
        NumPyValue, f"__{_name}__", _method(_function, False, getattr(Value, f"__{_name}__") if _is_quick else None)
    )
    if _function not in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        _other = getattr(Value, f"__r{_name}__") if _is_quick else None
        setattr(NumPyValue, f"__r{_name}__", _method(_function, True, _other))


class Functions:
    """NumPy's functions of the values of a graph: ``Functions(builder).sum(value)``."""

    def __init__(self, builder: Builder, module: str = "") -> None:
        self._builder, self._module = builder, module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("linalg", "fft"):
            return Functions(self._builder, f"{name}.")
        return lambda *args, **kwargs: call(self._builder, self._module + name, args, kwargs)
