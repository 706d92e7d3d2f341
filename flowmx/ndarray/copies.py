"""Copies between arrays, also of different devices and dtypes, as operations of the engine."""

from __future__ import annotations

import math

from flowmx import devices
from flowmx.engine import capture
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation
from flowmx.ndarray import recording
from flowmx.ndarray.core import BaseArray

__all__ = ["copy_into"]


def copy_into(source: BaseArray, target: BaseArray, priority: int = 0) -> None:
    """Enqueue a copy that converts the dtype and is not recorded; the target's copy actor copies between devices."""
    notes = recording.state.get().notes
    if notes is not None:
        notes.refuse()
    source_device, target_device = source.storage.device, target.storage.device
    actor = target_device.compute if source_device is target_device else target_device.copy_actor(source_device)
    reads = (source.storage, target.storage) if target.strided_view is not None else (source.storage,)
    light = math.prod(source.dims) * source.element_type.itemsize < 1 << 16
    op = Operation(_copy, (target_device, source, target), reads, (target.storage,), actor, "copy", capture(), 0, light)
    if priority:
        op.priority = priority
    engine.enqueue(op)


def _copy(device: devices.Device, source: BaseArray, target: BaseArray) -> None:
    source_device = source.storage.device
    if source_device.is_asynchronous and not device.is_asynchronous:
        source_device.copy_out(source.raw(), target.raw_for_writing())
    else:
        device.copy(source.raw(), target.raw_for_writing())
