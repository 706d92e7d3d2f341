"""Values of a graph with NumPy's functions and arithmetic, so that gradient rules work on arrays and on graphs.

The shapes of a graph are known when its gradient is built, so a value has ``shape`` and ``dtype`` like an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.graph.gradient import Builder, Value
from flowmx.numpy import table
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.mxnet_names import count_outputs
from flowmx.numpy.operator import NumPyCall
from flowmx.ops.registry.dtypes import DType

__all__ = ["Functions", "as_np_value"]


def as_np_value(value: Value) -> Any:
    """Return a value with NumPy's arithmetic."""
    return NumPyValue(value.entry, value.builder)


class NumPyValue(Value):
    """A value of a graph with the interface of an array of ``mx.np``."""

    __slots__ = ()
    __array_ufunc__ = None

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    @property
    def element_type(self) -> DType:
        return self.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def astype(self, dtype: object) -> Any:
        """Cast the elements to a different dtype."""
        return as_np_value(self.builder.op("Cast", self, dtype=dtype))

    def reshape(self, shape: object) -> Any:
        """Change the shape."""
        return call(self.builder, "reshape", (self, shape), {})

    def __getitem__(self, key: object) -> Any:
        return call(self.builder, "getitem", (self, key), {})

    def __neg__(self) -> Any:
        return as_np_value(super().__neg__())

    __hash__ = object.__hash__


def call(builder: Builder, function: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Add the node of a NumPy call to the graph."""
    function = table.ALIASES.get(function, function)
    inputs: list[Value] = []

    def to_slots(value: object) -> Any:
        if isinstance(value, Value):
            inputs.append(value)
            return Slot(len(inputs) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)([to_slots(item) for item in value])
        return np.dtype(value) if isinstance(value, type) and issubclass(value, np.generic) else value

    positional = [to_slots(arg) for arg in args]
    keywords = {name: to_slots(value) for name, value in kwargs.items()}
    op = NumPyCall.create(
        num_args=len(inputs), function=function, form=encode(positional, keywords),
        num_outputs=count_outputs(function, positional, keywords, len(inputs)),
    )  # fmt: skip
    results = builder.apply(op, inputs)
    return [as_np_value(result) for result in results] if isinstance(results, list) else as_np_value(results)


def _method(function: str, swapped: bool, direct: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if direct is not None and self.dtype.kind == "f":
            has_same_dtype = other.dtype == self.dtype if isinstance(other, Value) else isinstance(other, (int, float))
            if has_same_dtype:
                return as_np_value(direct(self, other))
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
    """NumPy's functions on the values of a graph: ``Functions(builder).sum(value)``."""

    def __init__(self, builder: Builder, module: str = "") -> None:
        self._builder, self._module = builder, module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("linalg", "fft"):
            return Functions(self._builder, f"{name}.")
        return lambda *args, **kwargs: call(self._builder, self._module + name, args, kwargs)
