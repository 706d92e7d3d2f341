"""The methods of arrays that are operators: ``x.sum(axis=1)`` is ``mx.nd.sum(x, axis=1)``.

``methods.pyi``, which ``python -m flowmx.stubs`` writes, gives their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flowmx.ndarray import functions
from flowmx.ops import calling
from flowmx.ops.registry import lookup

METHODS = [
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax", "argmax_channel",
    "argmin", "argsort", "batch_dot", "broadcast_axes", "broadcast_axis", "broadcast_like", "cbrt", "ceil",
    "clip", "cos", "cosh", "degrees", "depth_to_space", "diag", "dot", "erf", "exp", "expand_dims", "expm1",
    "fix", "flatten", "flip", "floor", "log", "log10", "log1p", "log2", "log_softmax", "max", "mean", "min",
    "nanprod", "nansum", "norm", "one_hot", "ones_like", "pad", "pick", "prod", "radians", "rcbrt",
    "reciprocal", "relu", "repeat", "rint", "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin",
    "sinh", "size_array", "slice", "slice_axis", "slice_like", "softmax", "softmin", "sort",
    "space_to_depth", "split", "sqrt", "square", "squeeze", "sum", "swapaxes", "take", "tan", "tanh",
    "tile", "topk", "trunc", "zeros_like",
]  # fmt: skip


class Methods:
    """The operators that are also methods of an array, which is their first input."""

    def transpose(self, *axes: Any, **kwargs: Any) -> Any:
        """The axes in another order (reversed where none is given), as numbers or as one tuple."""
        if len(axes) == 1 and isinstance(axes[0], (tuple, list)):
            axes = tuple(axes[0])
        if axes and axes != (None,):
            kwargs["axes"] = axes
        return functions.op("transpose", self, **kwargs)

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
        """The parts along an axis, split at the indices given, or into as many equal parts as a number says."""
        return functions.op("_split_v2", self, axis=axis, squeeze_axis=squeeze_axis, **split_at(indices_or_sections))


def split_at(indices_or_sections: Any) -> dict[str, Any]:
    """The parameters of ``_split_v2`` for what NumPy calls ``indices_or_sections``."""
    if isinstance(indices_or_sections, int):
        return {"sections": indices_or_sections}
    return {"indices": (0, *indices_or_sections)}


def method_for(name: str) -> Callable[..., Any]:
    """The method of an operator."""
    cls = lookup(name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return functions.call(cls, (self, *args), kwargs)

    calling.dress(method, cls, name, "flowmx.ndarray", ("out",))
    made: Any = method
    first, *rest = made.__signature__.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__signature__ = made.__signature__.replace(parameters=[own, *rest])
    made.__doc__ = made.__doc__.replace(f"    {first.name}: input.\n", "", 1)
    made.__qualname__ = f"NDArray.{name}"
    return method


for _name in METHODS:
    setattr(Methods, _name, method_for(_name))
