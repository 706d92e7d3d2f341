"""Memory by holder: training's arrays by role and by layer, and the devices' blocks."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from weakref import ref

import numpy as np

from flowmx import devices
from flowmx.observability.safety import steps

__all__ = ["Holders"]

_MOST = 12
"""Layers, and holders of a device, that are shown."""
_PART = re.compile(r"_(weight|bias|gamma|beta|running_mean|running_var|moving_mean|moving_var|alpha|parameters)$")


class Holders:
    """Tracks the owners of training arrays, from the first step after :meth:`follow`."""

    def __init__(self) -> None:
        self._owner: ref[Any] | None = None

    def follow(self) -> None:
        """Subscribe to the ends of training steps."""
        if self._stepped not in steps.observers:
            steps.observers.append(self._stepped)

    def leave(self) -> None:
        """Unsubscribe."""
        if self._stepped in steps.observers:
            steps.observers.remove(self._stepped)

    def _stepped(self, owner: object) -> None:
        if owner is not None and (self._owner is None or self._owner() is not owner):
            self._owner = ref(owner)

    def found(self) -> dict[str, Any]:
        """Bytes by role and by layer of what trains, what its plan says, and the largest holders of each device."""
        owner = self._owner() if self._owner is not None else None
        roles = {} if owner is None else owner._arrays_by_role()
        named = {} if owner is None else owner._arrays_by_name()
        layers: Counter[str] = Counter()
        for name, arrays in named.items():
            layers[_PART.sub("", name)] += _bytes(arrays)
        planned = 0 if owner is None else owner._planned_bytes()
        return {
            "roles": {role: nbytes for role, arrays in roles.items() if (nbytes := _bytes(arrays))},
            "planned": planned, "layers": layers.most_common(_MOST), "others": max(len(layers) - _MOST, 0),
            "devices": _by_device(),
        }  # fmt: skip


def _bytes(arrays: Any) -> int:
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _by_device() -> dict[str, list[tuple[str, int]]]:
    """The largest holders of devices whose pools know them: accelerators."""
    pools: dict[str, Any] = {repr(each): each.pool for each in devices.in_use() if hasattr(each, "pool")}
    return {name: pool.holders()[:_MOST] for name, pool in pools.items()}
