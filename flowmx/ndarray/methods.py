"""The methods of arrays that are operators: ``x.sum(axis=1)`` is ``mx.nd.sum(x, axis=1)``.

``methods.pyi``, which ``python -m flowmx.tools.stubs`` writes, gives type checkers and editors all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.ndarray import functions
from flowmx.ops.arrays.reshaping import split_at
from flowmx.ops.registry import calling
from flowmx.ops.registry.calling import METHODS
from flowmx.ops.registry.operators import lookup

if TYPE_CHECKING:
    from flowmx.ndarray.array import NDArray


class Methods:
    """The operators that are also methods of an array, which is their first input."""

    def transpose(self, *axes: int | Sequence[int] | None, **kwargs: Any) -> NDArray:
        """The axes in another order (reversed where none is given), as numbers or as one tuple."""
        if len(axes) == 1 and isinstance(axes[0], (tuple, list)):
            axes = tuple(axes[0])
        if axes and axes != (None,):
            kwargs["axes"] = axes
        return functions.op("transpose", self, **kwargs)

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """A new axis of length 1; with ``inplace`` the result shares this array's memory."""
        return self._seen("expand_dims", inplace, axis=axis)

    def flatten(self, inplace: bool = False) -> NDArray:
        """All axes but the first made one; with ``inplace`` the result shares this array's memory."""
        return self._seen("Flatten", inplace)

    def squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False) -> NDArray:
        """Without axes of length 1 (all, or those given); with ``inplace`` it shares this array's memory."""
        return self._seen("squeeze", inplace, axis=axis)

    def _seen(self: Any, name: str, inplace: bool, **parameters: Any) -> Any:
        """An operator that gives the same elements another shape."""
        if not inplace:
            return functions.op(name, self, **parameters)
        return self.reshape(lookup(name).create(**parameters).spec((self._shape,), (self._dtype,)).shapes[0])

    def split_v2(self, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False) -> Any:
        """The parts along an axis, split at the indices given, or into as many equal parts as a number says."""
        return functions.op("_split_v2", self, axis=axis, squeeze_axis=squeeze_axis, **split_at(indices_or_sections))


def method_for(name: str) -> Callable[..., Any]:
    """The method of an operator."""
    cls = lookup(name)
    calls = functions._Calls(cls)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return calls((self, *args), kwargs)

    calling.dress_method(method, cls, name, "flowmx.ndarray", "NDArray", ("out",))
    return method


for _name in METHODS:
    setattr(Methods, _name, method_for(_name))
