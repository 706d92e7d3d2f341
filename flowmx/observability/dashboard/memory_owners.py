"""Memory by owner: training arrays by role and layer, and blocks of devices. Also layers by precision."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from flowmx import devices
from flowmx.graph.reports import precision
from flowmx.observability.safety import step_counter

__all__ = ["MemoryOwners", "layers", "with_rest"]

_ROWS = 12
"""Maximum number of layers, and of owners per device, that are shown."""
_PART = re.compile(r"_(weight|bias|gamma|beta|running_mean|running_var|moving_mean|moving_var|alpha|parameters)$")


class MemoryOwners:
    """Tracks the owner of the training arrays, from the first step after :meth:`follow`."""

    def __init__(self) -> None:
        self._owner: ref[Any] | None = None

    def follow(self) -> None:
        """Subscribe to the ends of training steps."""
        if self._on_step not in step_counter.observers:
            step_counter.observers.append(self._on_step)

    def leave(self) -> None:
        """Unsubscribe."""
        if self._on_step in step_counter.observers:
            step_counter.observers.remove(self._on_step)

    def _on_step(self, owner: object) -> None:
        if owner is not None and (self._owner is None or self._owner() is not owner):
            self._owner = ref(owner)

    def snapshot(self) -> dict[str, Any]:
        """Return the sizes of training arrays by role and layer, with the planned sizes, and the owners by device."""
        owner = self._owner() if self._owner is not None else None
        roles = {} if owner is None else owner._arrays_by_role()
        arrays_by_name = {} if owner is None else owner._arrays_by_name()
        layers: Counter[str] = Counter()
        for name, arrays in arrays_by_name.items():
            layers[_PART.sub("", name)] += _bytes(arrays)
        planned_bytes = 0 if owner is None else owner._planned_bytes()
        by_role = [(role, nbytes) for role, arrays in roles.items() if (nbytes := _bytes(arrays))]
        if planned_bytes:
            by_role.append(("activations, by the plan", planned_bytes))
        return {
            "roles": with_rest(by_role, sum(devices.memory_in_use().values())) if owner is not None else [],
            "layers": with_rest(layers.most_common()),
            "devices": _by_device(),
        }


def layers() -> list[dict[str, object]]:
    """Return the layers of compiled graphs by precision: their number and the first names."""
    return [
        {"precision": kind, "count": len(names), "names": names[:_ROWS]} for kind, names in precision.in_use().items()
    ]


def with_rest(parts: Sequence[tuple[str, int]], total: int = 0, max_rows: int = _ROWS) -> list[tuple[str, int]]:
    """Return the largest parts of the memory in use, and a row "other" with the remaining bytes.

    Args:
        parts: names and bytes, the largest first.
        total: the total size in bytes. If the parts sum to more (devices do not count small arrays), their sum is used.
        max_rows: maximum number of rows before the row "other".

    Returns:
        names and bytes; an empty list if there are no bytes.
    """
    rows = list(parts[:max_rows])
    other_bytes = max(total, sum(nbytes for _, nbytes in parts)) - sum(nbytes for _, nbytes in rows)
    return [*rows, ("other", other_bytes)] if other_bytes else rows


def _bytes(arrays: Any) -> int:
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _by_device() -> dict[str, list[tuple[str, int]]]:
    """Return the largest owners of each device with a pool that records them (accelerators), and the rest."""
    pools: dict[str, Any] = {repr(device): device.pool for device in devices.in_use() if hasattr(device, "pool")}
    used = devices.memory_in_use()
    return {name: with_rest(pool.holders(), used.get(name, 0)) for name, pool in pools.items()}
