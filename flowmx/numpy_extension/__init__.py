"""``mx.npx``: neural-network functions on arrays of ``mx.np``, saving and loading, and the switches of NumPy semantics.

The functions are operators of the registry, listed in :data:`TABLE`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as _numpy

from flowmx import ndarray as _classic
from flowmx.context import gpu_memory_info
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.engine import waitall
from flowmx.ndarray.core import BaseArray
from flowmx.ndarray.functions import function_for as _function_for
from flowmx.numpy import calls as _calls
from flowmx.numpy import conversion as _conversion
from flowmx.numpy.operator import resolve_codes as _resolve_codes
from flowmx.numpy.shaping import reshape as _reshape
from flowmx.ops.registry.operators import lookup as _lookup
from flowmx.util import (
    is_np_array,
    is_np_default_dtype,
    is_np_shape,
    np_array,
    np_default_dtype,
    np_shape,
    reset_np,
    set_np,
    use_np,
    use_np_array,
    use_np_default_dtype,
    use_np_shape,
)

if TYPE_CHECKING:
    from flowmx.numpy import ndarray
    from flowmx.numpy_extension import image, random

__all__ = [
    "Context", "constraint_check", "cpu", "cpu_pinned", "current_context", "gpu", "gpu_memory_info", "is_np_array",
    "is_np_default_dtype", "is_np_shape", "load", "nonzero", "np_array", "np_default_dtype", "np_shape", "num_gpus",
    "random", "reset_np", "reshape", "save", "set_np", "use_np", "use_np_array", "use_np_default_dtype", "use_np_shape",
    "waitall",
]  # fmt: skip

TABLE = {
    "activation": "Activation", "arange_like": "_contrib_arange_like", "batch_dot": "batch_dot",
    "batch_flatten": "Flatten", "batch_norm": "BatchNorm", "cast": "Cast", "convolution": "Convolution",
    "ctc_loss": "CTCLoss", "deconvolution": "Deconvolution", "dropout": "Dropout", "embedding": "Embedding",
    "erf": "erf", "erfinv": "erfinv", "fully_connected": "FullyConnected", "gamma": "gamma", "gammaln": "gammaln",
    "gather_nd": "gather_nd", "gelu_tanh": "gelu_tanh", "group_norm": "GroupNorm", "layer_norm": "LayerNorm",
    "leaky_relu": "LeakyReLU", "log_softmax": "log_softmax", "multibox_detection": "_contrib_MultiBoxDetection",
    "multibox_prior": "_contrib_MultiBoxPrior", "multibox_target": "_contrib_MultiBoxTarget", "one_hot": "one_hot",
    "pick": "pick", "pooling": "Pooling", "relu": "relu", "reshape_like": "reshape_like", "rms_norm": "RMSNorm",
    "rnn": "RNN", "roi_pooling": "ROIPooling", "sequence_mask": "SequenceMask", "shape_array": "shape_array",
    "sigmoid": "sigmoid", "silu": "silu", "slice": "slice", "smooth_l1": "smooth_l1", "softmax": "softmax",
    "topk": "topk",
}  # fmt: skip
"""The operator of the registry for each function."""


def _function(name: str) -> Callable[..., Any]:
    # The results of an operator have the class of its first input, so they need no conversion.
    operator = TABLE[name]
    function: Any = _function_for(operator)
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"The operator ``{operator}`` on arrays of ``mx.np``.\n\n{_lookup(operator).__doc__ or ''}"
    return cast("Callable[..., Any]", function)


def nonzero(a: BaseArray) -> ndarray:
    """Return the positions of the nonzero elements: a row for each element, a column for each axis."""
    positions: ndarray = _calls.call_waiting("argwhere", (a,), {})
    return positions


def reshape(a: BaseArray, newshape: Any, reverse: bool = False, order: str = "C") -> ndarray:
    """Change the shape of an array by the codes of ``npx``.

    Args:
        a: the array.
        newshape: lengths, or codes: -1 infers one length, -2 keeps an axis, -3 removes an axis of length 1, -4 keeps
            the remaining axes, -5 merges two axes, -6 splits an axis into the two lengths that follow.
        reverse: match the codes from the right.
        order: only ``"C"``.

    Raises:
        ValueError: the codes do not fit the shape of the array.
    """
    if order != "C":
        raise NotImplementedError("reshape: arrays are stored in C order only, so order must be 'C'")
    codes = [int(newshape)] if isinstance(newshape, (int, _numpy.integer)) else list(newshape)
    result: ndarray = _reshape(a, _resolve_codes(codes, a.shape, reverse))
    return result


def constraint_check(input: BaseArray, msg: str = "Constraint violated.") -> ndarray:
    """Return a 0-d array that is true if all elements are true.

    Raises:
        ValueError: an element is false. Reading the result, or a value computed from it, raises the error.
    """
    checked: ndarray = _conversion.to_np_nested(_classic.op.op("_npx_constraint_check", input, msg=msg))
    return checked


def save(file: Any, arr: Any) -> None:
    """Write an array, or a list or dict of arrays, to a file in MXNet's format.

    Raises:
        TypeError: any other value.
    """
    _classic.save(file, arr)


def load(file: str | os.PathLike[str]) -> list[ndarray] | dict[str, ndarray]:
    """Read a file of :func:`save` as a list or dict of arrays of ``mx.np``."""
    arrays: list[ndarray] | dict[str, ndarray] = _conversion.to_np_nested(_classic.load(file))
    return arrays


def __getattr__(name: str) -> Callable[..., ndarray]:
    if name in ("random", "image"):
        value: Any = importlib.import_module(f"flowmx.numpy_extension.{name}")
    elif name in TABLE:
        value = _function(name)
    else:
        from flowmx.suggestions import did_you_mean

        names = [*TABLE, *__all__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, names)}")
    globals()[name] = value
    return cast("Callable[..., ndarray]", value)


__all__ += [*TABLE, "image"]


def __dir__() -> list[str]:
    return sorted(__all__)
