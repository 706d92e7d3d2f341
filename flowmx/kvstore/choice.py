"""Choice of a store from the ``kvstore`` argument of Module and Trainer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from flowmx import settings
from flowmx.kvstore.base import KVStoreBase, create

_MAX_UPDATED = 1 << 24
"""If a parameter has more elements, a ``local`` store only sums gradients: its updates would keep the CPU busy."""


def select_store(kvstore: object, devices: int, names: Sequence[str]) -> KVStoreBase | None:
    """Return the store for training on some devices of this process; None if one device needs no store.

    Its keys are separate from those of any other Trainer or Module.

    Args:
        kvstore: a name, a store, or None, which sums several devices as ``"local"`` does.
        devices: the number of devices.
        names: the names of the parameters.

    Raises:
        TypeError: `kvstore` is something else.
        NotImplementedError, ValueError: no store has this name.
    """
    if isinstance(kvstore, KVStoreBase):
        return kvstore._claim(names, by_name=False)
    if kvstore is not None and not isinstance(kvstore, str):
        raise TypeError(f"kvstore is {kvstore!r}, expected a name such as 'device', a KVStore or None")
    store: KVStoreBase = create(kvstore or "local")
    if devices > 1 or is_distributed(store):
        return store._claim(names, by_name=True)
    return None


def is_distributed(store: KVStoreBase | None) -> TypeGuard[KVStoreBase]:
    """Return whether a store sums the gradients of several processes, or stores its values in other processes."""
    return store is not None and (store._is_remote or store.num_workers > 1)


def check_updates(call: str, store: KVStoreBase, on_kvstore: bool | None) -> None:
    """Check that the store can update the weights if the user wants that, and the workers otherwise.

    Raises:
        ValueError: the store cannot update weights, or only the store can.
    """
    if on_kvstore and not store.is_capable(KVStoreBase.OPTIMIZER):
        raise ValueError(
            f"{call}: update_on_kvstore is True, but the kvstore {store.type!r} cannot update weights: pass False"
        )
    if on_kvstore is False and not store._is_synchronous:
        raise ValueError(
            f"{call}: update_on_kvstore is False, but the workers of a kvstore {store.type!r} get no sums for "
            "updating weights: omit it, or use 'dist_sync'"
        )


def is_updated_by_store(store: KVStoreBase | None, kvstore: object, shapes: Iterable[tuple[int, ...]]) -> bool:
    """Return whether the store updates the weights by default.

    Args:
        store: the store.
        kvstore: the argument that selected it.
        shapes: the shapes of the weights.
    """
    if store is None or kvstore is None or not store.is_capable(KVStoreBase.OPTIMIZER):
        return False
    if not store._is_synchronous:
        return True
    if kvstore == "local" and max(map(math.prod, shapes), default=0) > _MAX_UPDATED:
        return False
    return settings.get().update_on_kvstore
