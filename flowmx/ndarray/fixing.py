"""Set inputs of operators to 1, such as gamma of a BatchNorm with ``fix_gamma``.

MXNet does the same, so its checkpoints contain ones. A separate operation sets the inputs before the call, so that the
engine orders it like any other write. Inputs that were set to 1 before, and not written since, are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.ndarray import core

if TYPE_CHECKING:
    from flowmx.devices.device import Device

__all__ = ["set_to_ones"]

_LIGHT_BYTES = 1 << 16


def set_to_ones(arrays: Sequence[core.BaseArray]) -> None:
    """Enqueue an operation for each device that sets arrays to 1, except those that still hold ones."""
    stale = [each for each in arrays if each.strided_view is not None or each.storage.ones_at != each.storage.version]
    if not stale:
        return
    by_device: dict[Device, list[core.BaseArray]] = {}
    for each in stale:
        by_device.setdefault(each.storage.device, []).append(each)
    for device, group in by_device.items():
        storages = tuple(dict.fromkeys([each.storage for each in group]))
        before = [each.version for each in storages]
        reads = tuple([each.storage for each in group if each.strided_view is not None])
        nbytes = sum(math.prod(each.dims) * each.element_type.itemsize for each in group)
        core.push_on(device, _set, (group,), reads, storages, "fix_gamma", nbytes <= _LIGHT_BYTES, 0, 4)
        parts = {each.storage for each in group if each.strided_view is not None}
        for storage, version in zip(storages, before, strict=True):
            # If another thread wrote in between, the content is unknown.
            if storage not in parts and storage.version == version + 1:
                storage.ones_from, storage.ones_at = version, version + 1


def _set(arrays: Sequence[core.BaseArray]) -> None:
    for array in arrays:
        array.raw_for_writing()[...] = 1
