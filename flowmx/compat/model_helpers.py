"""Helpers of ``mxnet.model`` that packages import: KVStores and parameter updates on several devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import kvstore as kvs
from flowmx import settings
from flowmx.kvstore import KVStoreBase
from flowmx.ndarray import NDArray

__all__ = [
    "_create_kvstore", "_create_sparse_kvstore", "_initialize_kvstore", "_multiple_callbacks", "_update_params",
    "_update_params_on_kvstore",
]  # fmt: skip

_LARGE = 16 * 1024 * 1024
"""Number of elements of a parameter above which a local store only sums gradients and does not update weights."""

Arrays = Sequence[Sequence[Any]]


def _create_kvstore(
    kvstore: object, num_device: int, arg_params: Mapping[str, NDArray]
) -> tuple[KVStoreBase | None, bool]:
    """Return the store of a name, or None if one device needs none; and whether it updates weights.

    Raises:
        TypeError: ``kvstore`` is neither a name, a store nor None.
    """
    if kvstore is not None and not isinstance(kvstore, (str, KVStoreBase)):
        raise TypeError(f"kvstore is {kvstore!r}, expected a name, a store or None")
    on_kvstore = settings.get().update_on_kvstore
    store: Any = kvstore
    if isinstance(kvstore, str):
        store = None if num_device == 1 and "dist" not in kvstore else kvs.create(kvstore)
        if store is not None and kvstore == "local":
            on_kvstore = on_kvstore and bool(max(np.prod(array.shape) for array in arg_params.values()) <= _LARGE)
    return store, bool(store is not None and on_kvstore and store.is_capable(KVStoreBase.OPTIMIZER))


def _create_sparse_kvstore(kvstore: object) -> tuple[KVStoreBase, bool]:
    """Return the store of a name, which updates weights.

    Raises:
        TypeError: ``kvstore`` is neither a name nor a store.
    """
    if not isinstance(kvstore, (str, KVStoreBase)):
        raise TypeError(f"kvstore is {kvstore!r}, expected a name or a store")
    return (kvs.create(kvstore) if isinstance(kvstore, str) else kvstore), True


def _initialize_kvstore(
    kvstore: Any, param_arrays: Arrays, arg_params: Mapping[str, NDArray], param_names: Sequence[str],
    update_on_kvstore: bool,
) -> None:  # fmt: skip
    """Initialize the parameters of a store; if it updates them, broadcast them to the devices."""
    for name, arrays in zip(param_names, param_arrays, strict=False):
        if update_on_kvstore:
            kvstore.broadcast(name, arg_params[name], out=arrays)
        else:
            kvstore.init(name, arg_params[name])


def _update_params_on_kvstore(
    param_arrays: Arrays, grad_arrays: Arrays, kvstore: Any, param_names: Sequence[str]
) -> None:
    """Push gradients and pull the updated weights."""
    for index, (weights, grads) in enumerate(zip(param_arrays, grad_arrays, strict=False)):
        if grads[0] is not None:
            kvstore.pushpull(param_names[index], list(grads), out=list(weights), priority=-index)


_update_params_on_kvstore_nccl = _update_params_on_kvstore


def _update_params(
    param_arrays: Arrays, grad_arrays: Arrays, updater: Callable[..., None], num_device: int, kvstore: Any = None,
    param_names: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Update the weights on every device, with gradients summed by the store if there is one."""
    for index, (weights, grads) in enumerate(zip(param_arrays, grad_arrays, strict=False)):
        if grads[0] is None:
            continue
        if kvstore is not None:
            kvstore.pushpull(index if param_names is None else param_names[index], list(grads), priority=-index)
        for device, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
            updater(index * num_device + device, grad, weight)


def _multiple_callbacks(callbacks: Any, *args: Any, **kwargs: Any) -> None:
    """Call a function, or the functions of a list, if any."""
    for callback in callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []:
        callback(*args, **kwargs)
