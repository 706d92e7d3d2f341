"""The methods of symbols that are operators: ``x.sum(axis=1)`` is ``mx.sym.sum(x, axis=1)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from flowmx.errors import NotImplementedForSymbol
from flowmx.ops.arrays.shape_arithmetic import split_at
from flowmx.ops.registry import calling
from flowmx.ops.registry.operators import lookup

if TYPE_CHECKING:
    from flowmx.symbol.symbol import Symbol


class Methods:
    """The operators that are also methods of a symbol, which becomes their first input.

    All take ``name`` and ``attr``, like the functions.
    """

    __slots__ = ()

    def _call(self, operator_name: str, args: Sequence[object], kwargs: dict[str, Any]) -> Symbol:
        """Compose the operator with that name, with this symbol as the first input."""
        raise NotImplementedError

    def reshape(self, *shape: object, **kwargs: object) -> Symbol:
        """Reshape to ``shape``, passed as numbers or as one tuple, with MXNet's special codes."""
        if shape:
            kwargs["shape"] = _numbers(shape)
        return self._call("reshape", (), kwargs)

    def transpose(self, *axes: object, **kwargs: object) -> Symbol:
        """Permute the axes (default: reverse them), passed as numbers or as one tuple."""
        if axes and axes != (None,):
            kwargs["axes"] = _numbers(axes)
        return self._call("transpose", (), kwargs)

    def broadcast_to(self, *shape: Any, **kwargs: Any) -> Symbol:
        """Repeat axes of length 1 to obtain ``shape``; a 0 in it keeps the axis."""
        if shape:
            kwargs["shape"] = _numbers(shape)
        return self._call("broadcast_to", (), kwargs)

    def astype(self, dtype: object, **kwargs: object) -> Symbol:
        """Convert to a different dtype."""
        return self._call("cast", (), {"dtype": dtype, **kwargs})

    def expand_dims(self, axis: int, inplace: bool = False, **kwargs: object) -> Symbol:
        """Insert an axis of length 1. ``inplace`` is ignored, for MXNet's scripts: memory sharing is planned."""
        return self._call("expand_dims", (), {"axis": axis, **kwargs})

    def flatten(self, inplace: bool = False, **kwargs: object) -> Symbol:
        """Flatten all axes except the first into one."""
        return self._call("flatten", (), kwargs)

    def squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False, **kwargs: object) -> Symbol:
        """Remove axes of length 1 (default: all)."""
        return self._call("squeeze", (), {"axis": axis, **kwargs})

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False, **kwargs: object) -> Symbol:
        """Split along an axis at the given indices, or into a number of equal parts."""
        places = split_at(indices_or_sections)
        return self._call("_split_v2", (), {"axis": axis, "squeeze_axis": squeeze_axis, **places, **kwargs})


def _numbers(values: tuple[object, ...]) -> tuple[Any, ...]:
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else values


def _method_for(name: str) -> Callable[..., Any]:
    def method(self: Methods, *args: object, **kwargs: object) -> Any:
        return self._call(name, args, kwargs)

    calling.set_method_signature(method, lookup(name), name, "flowmx.symbol", "Symbol", ("name", "attr"))
    return method


def _refusal_for(name: str) -> Callable[..., Any]:
    def method(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedForSymbol(f"Symbol.{name}: the symbol {self!r} has no content: bind it, or call eval first")

    method.__name__, method.__qualname__ = name, f"Symbol.{name}"
    method.__doc__ = "Raise an error: a method of arrays; symbols have no content before they are bound."
    return method


for _name in calling.METHODS:
    setattr(Methods, _name, _method_for(_name))
for _name in ("as_in_context", "asnumpy", "asscalar", "backward", "copy", "detach", "wait_to_read"):
    setattr(Methods, _name, _refusal_for(_name))
