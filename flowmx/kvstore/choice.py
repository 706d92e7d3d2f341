"""Choice of a store from the ``kvstore`` argument of Module and Trainer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

from flowmx import settings
from flowmx.kvstore.base import KVStoreBase, create

_BIG = 1 << 24
"""Elements of a parameter from which a ``local`` store only sums: its updates would keep the CPU busy."""


def chosen(given: Any, devices: int) -> KVStoreBase | None:
    """The store for training on so many devices of this process; None where one device needs none.

    Args:
        given: a name, a store, or None, with which several devices are summed as by ``"local"``.
        devices: how many there are.

    Raises:
        TypeError: it is something else.
        NotImplementedError, ValueError: there is no store of this name.
    """
    if isinstance(given, KVStoreBase):
        return given
    if given is not None and not isinstance(given, str):
        raise TypeError(f"kvstore is {given!r}, expected a name such as 'device', a KVStore or None")
    store: KVStoreBase = create(given or "local")
    if devices > 1 or is_elsewhere(store):
        return store
    return None


def is_elsewhere(store: KVStoreBase | None) -> TypeGuard[KVStoreBase]:
    """Tell whether a store sums gradients of other processes, or keeps its values in them."""
    return store is not None and (store._is_remote or store.num_workers > 1)


def check_updates(call: str, store: KVStoreBase, on_kvstore: bool | None) -> None:
    """Check that the weights can be updated in the place that the user names.

    Raises:
        ValueError: the store can not do it, or nobody else can.
    """
    if on_kvstore and not store.is_capable(KVStoreBase.OPTIMIZER):
        raise ValueError(
            f"{call}: update_on_kvstore is True, but the kvstore {store.type!r} can not update weights: pass False"
        )
    if on_kvstore is False and not store._is_synchronous:
        raise ValueError(
            f"{call}: update_on_kvstore is False, but the workers of a kvstore {store.type!r} see no sums to update "
            "weights by: leave it out, or use 'dist_sync'"
        )


def updates(store: KVStoreBase | None, given: Any, shapes: Iterable[tuple[int, ...]]) -> bool:
    """Decide whether the store updates the weights, where the user does not say.

    Args:
        store: the store.
        given: the argument that it was chosen by.
        shapes: those of the weights.
    """
    if store is None or given is None or not store.is_capable(KVStoreBase.OPTIMIZER):
        return False
    if not store._is_synchronous:
        return True
    if given == "local" and max(map(math.prod, shapes), default=0) > _BIG:
        return False
    return settings.get().update_on_kvstore
