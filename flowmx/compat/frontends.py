"""Private helpers of both ``mxnet.ndarray`` and ``mxnet.symbol``: numbers of dtypes and storage types, CachedOp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import cached_op
from flowmx.devices import Context
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

__all__ = [
    "_DTYPE_MX_TO_NP", "_DTYPE_NP_TO_MX", "_GRAD_REQ_MAP", "_STORAGE_TYPE_ID_TO_STR", "_STORAGE_TYPE_STR_TO_ID",
    "CachedOp",
]  # fmt: skip

_STORAGE_TYPE_UNDEFINED, _STORAGE_TYPE_DEFAULT, _STORAGE_TYPE_ROW_SPARSE, _STORAGE_TYPE_CSR = -1, 0, 1, 2
_STORAGE_TYPE_STR_TO_ID = {"undefined": -1, "default": 0, "row_sparse": 1, "csr": 2}
_STORAGE_TYPE_ID_TO_STR = {number: name for name, number in _STORAGE_TYPE_STR_TO_ID.items()}
_DTYPE_NP_TO_MX: dict[object, int] = {
    None: -1, np.float32: 0, np.float64: 1, np.float16: 2, np.uint8: 3, np.int32: 4, np.int8: 5, np.int64: 6,
    np.bool_: 7,
}  # fmt: skip
_DTYPE_MX_TO_NP = {number: kind for kind, number in _DTYPE_NP_TO_MX.items()}
_GRAD_REQ_MAP = {"null": 0, "write": 1, "add": 3}


class CachedOp:
    """A symbol as a function of arrays.

    Args:
        sym: the symbol; its inputs, in the order of ``list_inputs``, are the function's arguments.
        flags: pairs of a name and a value; only ``static_alloc`` and ``static_shape`` are used.

    Example:
        >>> double = mx.nd.CachedOp(mx.sym.Variable("x") * 2)
        >>> double(mx.nd.ones(3))
    """

    def __init__(self, sym: Symbol, flags: Sequence[tuple[str, Any]] = ()) -> None:
        options = {name: str(value) in ("True", "1", "true") for name, value in flags}
        self._op = cached_op.CachedOp(sym, options.get("static_alloc", False), options.get("static_shape", False))

    def __call__(self, *args: NDArray, out: Any = None, default_ctx: Context | None = None) -> Any:
        """Compute the outputs; ``out`` is an array, or a list of arrays, to write them into."""
        del default_ctx  # for symbols without inputs
        result = self._op(*args)
        if out is None:
            return result
        outputs = [result] if isinstance(result, NDArray) else result
        for source, target in zip(outputs, [out] if isinstance(out, NDArray) else out, strict=True):
            target[:] = source
        return out
