"""``mx.npx``: neural-network functions on arrays of ``mx.np``, files, and NumPy's semantics.

The functions are the registry's operators; :data:`TABLE` says which.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as _numpy

from flowmx import ndarray as _classic
from flowmx.context import gpu_memory_info
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.engine import waitall
from flowmx.ndarray.core import BaseArray
from flowmx.ndarray.functions import function_for as _function_for
from flowmx.numpy import calls as _calls
from flowmx.numpy import conversion as _conversion
from flowmx.numpy.operator import reshaped as _reshaped
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
    "gather_nd": "gather_nd", "group_norm": "GroupNorm", "layer_norm": "LayerNorm", "leaky_relu": "LeakyReLU",
    "log_softmax": "log_softmax", "multibox_detection": "_contrib_MultiBoxDetection",
    "multibox_prior": "_contrib_MultiBoxPrior", "multibox_target": "_contrib_MultiBoxTarget", "one_hot": "one_hot",
    "pick": "pick", "pooling": "Pooling", "relu": "relu", "reshape_like": "reshape_like", "rnn": "RNN",
    "roi_pooling": "ROIPooling", "sequence_mask": "SequenceMask", "shape_array": "shape_array", "sigmoid": "sigmoid",
    "slice": "slice", "smooth_l1": "smooth_l1", "softmax": "softmax", "topk": "topk",
}  # fmt: skip
"""From a function to the operator of the registry that it is."""


def _function(name: str) -> Callable[..., Any]:
    # An operator's results are of the class of its first input, so that nothing need be done to them here.
    operator = TABLE[name]
    function: Any = _function_for(operator)
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"The operator ``{operator}`` on arrays of ``mx.np``.\n\n{_lookup(operator).__doc__ or ''}"
    made: Callable[..., Any] = function
    return made


def nonzero(a: BaseArray) -> Any:
    """The positions of the elements that are not zero: a row for each, a column for each axis."""
    return _calls.call_waiting("argwhere", (a,), {})


def reshape(a: BaseArray, newshape: Any, reverse: bool = False, order: str = "C") -> Any:
    """The same content with another shape, by the codes of ``npx``.

    Args:
        a: the array.
        newshape: lengths, or codes: -1 infers one length, -2 keeps an axis, -3 leaves out one of length 1, -4 keeps all
            axes that remain, -5 merges two axes, -6 splits one into the two lengths that follow.
        reverse: match the codes from the right.
        order: only ``"C"``.

    Raises:
        ValueError: the codes do not fit the array's shape.
    """
    if order != "C":
        raise NotImplementedError("reshape: arrays are kept in C order alone, so order must be 'C'")
    codes = [int(newshape)] if isinstance(newshape, (int, _numpy.integer)) else list(newshape)
    return _reshape(a, _reshaped(codes, a.shape, reverse))


def constraint_check(input: BaseArray, msg: str = "Constraint violated.") -> Any:
    """An array without axes that is true, where all elements are.

    Raises:
        ValueError: one is not; whoever reads the result, or what is computed with it, is told.
    """
    return _conversion.dressed(_classic.op.op("_npx_constraint_check", input, msg=msg))


def save(file: Any, arr: Any) -> None:
    """Write an array, or a list or dict of them, to a file of MXNet's format.

    Raises:
        TypeError: it is something else.
    """
    _classic.save(file, arr)


def load(file: Any) -> Any:
    """Read what :func:`save` wrote: a list or dict of arrays of ``mx.np``."""
    return _conversion.dressed(_classic.load(file))


def __getattr__(name: str) -> Any:
    if name in ("random", "image"):
        found: Any = importlib.import_module(f"flowmx.numpy_extension.{name}")
    elif name in TABLE:
        found = _function(name)
    else:
        from flowmx.suggestions import did_you_mean

        known = [*TABLE, *__all__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, known)}")
    globals()[name] = found
    return found


__all__ += [*TABLE, "image"]


def __dir__() -> list[str]:
    return sorted(__all__)
