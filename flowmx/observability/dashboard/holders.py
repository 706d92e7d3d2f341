"""Memory by holder, training's arrays by role and by layer, and the devices' blocks; layers by precision."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from flowmx import devices
from flowmx.graph.reports import precision
from flowmx.observability.safety import steps

__all__ = ["Holders", "added_up", "layers"]

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
        by_role = [(role, nbytes) for role, arrays in roles.items() if (nbytes := _bytes(arrays))]
        if planned:
            by_role.append(("activations, by the plan", planned))
        return {
            "roles": added_up(by_role, sum(devices.memory_in_use().values())) if owner is not None else [],
            "layers": added_up(layers.most_common()),
            "devices": _by_device(),
        }


def layers() -> list[dict[str, Any]]:
    """The layers of compiled graphs by the precision in which they multiply: how many, and the first names."""
    return [
        {"precision": kind, "count": len(names), "names": names[:_MOST]} for kind, names in precision.in_use().items()
    ]


def added_up(parts: Sequence[tuple[str, int]], total: int = 0, most: int = _MOST) -> list[tuple[str, int]]:
    """Parts of a memory with what they lack of the whole, so that all rows together are the whole. Pure.

    Args:
        parts: names and bytes, the largest first where some are to be left out.
        total: bytes of the whole. Where the parts are more (small arrays are in none of the devices' numbers) they are
            the whole.
        most: parts that are shown; the rest goes into the row "other".

    Returns:
        names and bytes; nothing where there is nothing.
    """
    shown = list(parts[:most])
    rest = max(total, sum(nbytes for _, nbytes in parts)) - sum(nbytes for _, nbytes in shown)
    return [*shown, ("other", rest)] if rest else shown


def _bytes(arrays: Any) -> int:
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _by_device() -> dict[str, list[tuple[str, int]]]:
    """The largest holders of devices whose pools know them, accelerators, and what others hold of each."""
    pools: dict[str, Any] = {repr(each): each.pool for each in devices.in_use() if hasattr(each, "pool")}
    used = devices.memory_in_use()
    return {name: added_up(pool.holders(), used.get(name, 0)) for name, pool in pools.items()}
