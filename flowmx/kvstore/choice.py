"""What Module and Trainer make of their ``kvstore`` argument."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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
    if devices > 1 or store.num_workers > 1:
        return store
    return None


def updates(store: KVStoreBase | None, given: Any, shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether the store is to update the weights, where nobody says.

    Args:
        store: the store.
        given: the argument that it was chosen by.
        shapes: those of the weights.
    """
    if store is None or given is None or not store.is_capable(KVStoreBase.OPTIMIZER):
        return False
    if given == "local" and max(map(math.prod, shapes), default=0) > _BIG:
        return False
    return settings.get().update_on_kvstore
