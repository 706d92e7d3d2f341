"""Devices: actors and memory (installed as ``flowmx.devices``).

:func:`get` finds the device of a context; devices are made at first use and live as long as the process.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from flowmx import engine as _engine
from flowmx.devices import pool, threads
from flowmx.devices.context import Context, cpu, cpu_pinned, current_context, gpu
from flowmx.devices.cpu_device import CPUDevice
from flowmx.devices.device import Device
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor
from flowmx.errors import DeviceError

__all__ = [
    "CPUDevice", "Context", "Device", "Generator", "cpu", "cpu_pinned", "current_context", "get", "gpu",
    "have_numerics", "in_use", "kernels_of", "memory_in_use", "num_gpus", "register_device_type", "standing_in",
]  # fmt: skip


def _simulated(context: Context) -> Device:
    from flowmx.devices.sim import make

    return make(context)


def _cuda(context: Context) -> Device:
    from flowmx.devices import cuda

    if _gpus():  # where some stand in, others are not mixed with them
        raise DeviceError(f"{context} was asked for, but there are only {_gpus()}, which stand in for GPUs")
    return cuda.make(context)


def _pinned(context: Context) -> Device:
    from flowmx.devices import cuda

    return cuda.make_pinned(context)


_types: dict[str, Callable[[Context], Device]] = {
    "cpu": CPUDevice,
    "cpu_pinned": _pinned,
    "cpu_shared": CPUDevice,
    "gpu": _cuda,
    "sim": _simulated,
}
_devices: dict[Context, Device] = {}
_standing_in: dict[Context, Device] = {}
_lock = threading.RLock()


def register_device_type(device_type: str, make: Callable[[Context], Device]) -> None:
    """Register the factory of a device type (the CUDA and simulated devices do so when they are imported)."""
    _types[device_type] = make


def get(context: Context) -> Device:
    """The device of a context.

    Raises:
        DeviceError: this machine has no such device.
    """
    device = _devices.get(context)
    if device is not None:
        return device
    with _lock:
        if context in _devices:
            return _devices[context]
        # A finaliser or a signal handler may have come in between: the first one made is the device.
        return _devices.setdefault(context, _types[context.device_type](context))


@contextlib.contextmanager
def standing_in(made: Mapping[Context, Device]) -> Iterator[None]:
    """A ``with`` block in which these devices are found in the place of others."""
    with _lock:
        before = {context: _devices.get(context) for context in made}
        others = dict(_standing_in)
        _devices.update(made)
        _standing_in.update(made)
    try:
        yield
    finally:
        with _lock:
            _standing_in.clear()
            _standing_in.update(others)
            for context, device in before.items():
                if device is None:
                    del _devices[context]
                else:
                    _devices[context] = device


def in_use() -> list[Device]:
    """The devices made so far, ordered by type and number."""
    return [_devices[context] for context in sorted(_devices, key=lambda each: (each.device_typeid, each.device_id))]


def memory_in_use() -> dict[str, int]:
    """Bytes of arrays by device: of each accelerator, and of ``cpu`` those in big blocks, which a pool counts."""
    found = {repr(each): each.pool.used for each in _devices.copy().values() if hasattr(each, "pool")}
    return {"cpu": pool.in_use(), **found}


def num_gpus() -> int:
    """The number of usable GPUs (``mx.gpu(0)`` and so on); simulated ones are counted where they stand in for GPUs."""
    return len(_gpus()) or _real_gpus()


def kernels_of(context: Context) -> str:
    """The device type whose kernels operators on a device use."""
    device = _standing_in.get(context)
    if device is not None and device.kernels:
        return device.kernels
    return "cpu" if context.device_type == "sim" else context.device_type


def have_numerics(contexts: Iterable[Context]) -> bool:
    """True where any of these devices computes values; simulated ones without numerics do not."""
    return any(get(context).has_numerics for context in contexts)


def _gpus() -> list[Context]:
    return [context for context in _standing_in if context.device_type == "gpu"]


def _real_gpus() -> int:
    from flowmx.devices.cuda import library

    return len(library.usable())


def _after_fork() -> None:
    """Replace the lock in the child of a fork, where no thread is left that could be making a device."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _actor_of(device: Any) -> Actor:
    """The actor that an engine ``device=`` argument means."""
    if isinstance(device, Actor):
        return device
    if device is None:
        device = current_context()
    if isinstance(device, Context):
        device = get(device)
    if isinstance(device, Device):
        return device.compute
    raise TypeError(f"device is {device!r}, expected a context such as mx.cpu(0)")


def _guard() -> AbstractContextManager[None]:
    """A context that silences NumPy's warnings."""
    # Floating-point warnings are NumPy's habit, not MXNet's: infinities and NaNs are values like others.
    return np.errstate(all="ignore")


_engine.engine.runner.guard = _guard
_engine.engine.runner.prepare = threads.apply_here
# NumPy keeps that state in a context variable: entering a prepared context costs a tenth of an errstate block.
_quiet = contextvars.Context()
_quiet.run(np.seterr, all="ignore")
_engine.engine.runner.inline = _quiet.run
_engine.install_devices(_actor_of)
