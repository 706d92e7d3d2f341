"""The methods of symbols that are operators: ``x.sum(axis=1)`` is ``mx.sym.sum(x, axis=1)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flowmx.errors import NotImplementedForSymbol
from flowmx.ops.arrays.reshaping import split_at
from flowmx.ops.registry import calling
from flowmx.ops.registry.operators import lookup


class Methods:
    """The operators that are also methods of a symbol, which is their first input.

    All take ``name`` and ``attr``, as the functions do.
    """

    __slots__ = ()

    def _call(self, called: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Compose the operator of that name, this symbol the first input."""
        raise NotImplementedError

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """The same elements with another shape, given as numbers or as one tuple, with MXNet's special codes."""
        if shape:
            kwargs["shape"] = _numbers(shape)
        return self._call("reshape", (), kwargs)

    def transpose(self, *axes: Any, **kwargs: Any) -> Any:
        """The axes in another order (reversed where none is given), as numbers or as one tuple."""
        if axes and axes != (None,):
            kwargs["axes"] = _numbers(axes)
        return self._call("transpose", (), kwargs)

    def broadcast_to(self, *shape: Any, **kwargs: Any) -> Any:
        """Axes of length 1 repeated until the shape is ``shape``; a 0 in it keeps the axis."""
        if shape:
            kwargs["shape"] = _numbers(shape)
        return self._call("broadcast_to", (), kwargs)

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        """The content as another element type."""
        return self._call("cast", (), {"dtype": dtype, **kwargs})

    def expand_dims(self, axis: int, inplace: bool = False, **kwargs: Any) -> Any:
        """A new axis of length 1. ``inplace`` is kept for MXNet's scripts: what shares memory is planned."""
        return self._call("expand_dims", (), {"axis": axis, **kwargs})

    def flatten(self, inplace: bool = False, **kwargs: Any) -> Any:
        """All axes but the first made one."""
        return self._call("flatten", (), kwargs)

    def squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False, **kwargs: Any) -> Any:
        """Without axes of length 1 (all, or those given)."""
        return self._call("squeeze", (), {"axis": axis, **kwargs})

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False, **kwargs: Any) -> Any:
        """The parts along an axis, split at the indices given, or into as many equal parts as a number says."""
        where = split_at(indices_or_sections)
        return self._call("_split_v2", (), {"axis": axis, "squeeze_axis": squeeze_axis, **where, **kwargs})


def _numbers(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _method_for(name: str) -> Callable[..., Any]:
    def method(self: Methods, *args: Any, **kwargs: Any) -> Any:
        return self._call(name, args, kwargs)

    calling.dress_method(method, lookup(name), name, "flowmx.symbol", "Symbol", ("name", "attr"))
    return method


def _refusal_for(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedForSymbol(f"Symbol.{name}: the symbol {self!r} has no content: bind it, or call eval first")

    method.__name__, method.__qualname__ = name, f"Symbol.{name}"
    method.__doc__ = "A method of arrays; symbols have no content before they are bound."
    return method


for _name in calling.METHODS:
    setattr(Methods, _name, _method_for(_name))
for _name in ("as_in_context", "asnumpy", "asscalar", "backward", "copy", "detach", "wait_to_read"):
    setattr(Methods, _name, _refusal_for(_name))
