"""Devices: actors and memory (installed as ``flowmx.devices``).

:func:`get` returns the device of a context; devices are created when first used and exist until the process ends.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import numpy as np

from flowmx import engine as _engine
from flowmx import forks
from flowmx.devices import cpu_pool, threads
from flowmx.devices.context import Context, add_device_type, cpu, cpu_pinned, current_context, gpu
from flowmx.devices.cpu_device import CPUDevice
from flowmx.devices.device import Device
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor
from flowmx.errors import ArgumentKindError, DeviceError
from flowmx.late_binding import late

__all__ = [
    "CPUDevice", "Context", "Device", "Generator", "cpu", "cpu_pinned", "current_context", "get", "gpu",
    "have_numerics", "in_use", "kernels_of", "memory_in_use", "num_gpus", "register_device_type", "replace_devices",
]  # fmt: skip


def _make_simulated(context: Context) -> Device:
    device: Device = late("devices.sim").make(context)
    return device


def _make_cuda(context: Context) -> Device:
    if _gpus():  # simulated and real GPUs are not mixed
        raise DeviceError(f"{context} does not exist: only {_gpus()} are simulated")
    device: Device = late("devices.cuda").make(context)
    return device


def _make_pinned(context: Context) -> Device:
    device: Device = late("devices.cuda").make_pinned(context)
    return device


_factories: dict[str, Callable[[Context], Device]] = {
    "cpu": CPUDevice,
    "cpu_pinned": _make_pinned,
    "cpu_shared": CPUDevice,
    "gpu": _make_cuda,
    "sim": _make_simulated,
}
_devices: dict[Context, Device] = {}
_substitutes: dict[Context, Device] = {}
_lock = forks.lock()


_BUILT_IN = frozenset(_factories)


def register_device_type(device_type: str, make: Callable[[Context], Device]) -> None:
    """Register a device type from outside flowmx: ``mx.Context(device_type, number)`` then names such devices.

    Args:
        device_type: the name, an identifier. Another registration of the same name replaces the factory, for devices
            that were not used yet.
        make: called with a context at its first use; returns the device, such as an instance of a subclass of
            :class:`Device`. Its operators use the kernels of the device type ``Device.kernels``, or else the
            reference implementations.

    Raises:
        ValueError: the name is not an identifier, or names a built-in device type.
        TypeError: ``make`` cannot be called.

    Example:
        >>> class Npu(flowmx.devices.CPUDevice): ...
        >>> flowmx.devices.register_device_type("npu", Npu)
        >>> mx.nd.ones((2, 2), ctx=mx.Context("npu", 0)).context
        npu(0)
    """
    if not str(device_type).isidentifier() or device_type in _BUILT_IN:
        raise ArgumentKindError(
            f"register_device_type: device_type is {device_type!r}, expected an identifier other than "
            f"{', '.join(sorted(_BUILT_IN))}"
        )
    if not callable(make):
        raise ArgumentKindError(
            f"register_device_type: make is {type(make).__name__}, expected a function that takes a context and "
            "returns a device, such as a subclass of flowmx.devices.Device"
        )
    _factories[device_type] = make
    add_device_type(device_type)


def get(context: Context) -> Device:
    """Return the device of a context.

    Raises:
        DeviceError: this machine has no such device.
    """
    device = _devices.get(context)
    if device is not None:
        return device
    with _lock:
        if context in _devices:
            return _devices[context]
        # A finalizer or a signal handler may have created it meanwhile: the first one is used.
        return _devices.setdefault(context, _factories[context.device_type](context))


@contextlib.contextmanager
def replace_devices(substitutes: Mapping[Context, Device]) -> Iterator[None]:
    """Use other devices for these contexts inside a ``with`` block."""
    with _lock:
        former = {context: _devices.get(context) for context in substitutes}
        outer_substitutes = dict(_substitutes)
        _devices.update(substitutes)
        _substitutes.update(substitutes)
    try:
        yield
    finally:
        with _lock:
            _substitutes.clear()
            _substitutes.update(outer_substitutes)
            for context, device in former.items():
                if device is None:
                    del _devices[context]
                else:
                    _devices[context] = device


def in_use() -> list[Device]:
    """Return the devices created so far, ordered by type and number."""
    return [
        _devices[context]
        for context in sorted(_devices, key=lambda context: (context.device_typeid, context.device_id))
    ]


def memory_in_use() -> dict[str, int]:
    """Return the size of arrays in bytes, by device; for ``cpu`` only those in large blocks, which a pool counts."""
    by_device = {repr(device): device.pool.used for device in _devices.copy().values() if hasattr(device, "pool")}
    return {"cpu": cpu_pool.bytes_in_use(), **by_device}


def num_gpus() -> int:
    """Return the number of usable GPUs (``mx.gpu(0)`` and so on), or of simulated ones that replace GPUs."""
    return len(_gpus()) or _real_gpus()


def kernels_of(context: Context) -> str:
    """Return the device type whose kernels operators on a device use."""
    device = _substitutes.get(context)
    if device is not None and device.kernels:
        return device.kernels
    if context.device_type not in _BUILT_IN:
        return get(context).kernels or context.device_type
    return "cpu" if context.device_type == "sim" else context.device_type


def have_numerics(contexts: Iterable[Context]) -> bool:
    """Return whether any of these devices computes values; simulated ones without numerics do not."""
    return any(get(context).has_numerics for context in contexts)


def _gpus() -> list[Context]:
    return [context for context in _substitutes if context.device_type == "gpu"]


def _real_gpus() -> int:
    from flowmx.devices.cuda import library

    return len(library.usable_gpus())


def _actor_of(device: object) -> Actor:
    """Return the actor of an engine's ``device=`` argument."""
    if isinstance(device, Actor):
        return device
    if device is None:
        device = current_context()
    if isinstance(device, Context):
        device = get(device)
    if isinstance(device, Device):
        return device.compute
    raise TypeError(f"device is {device!r}, expected a context such as mx.cpu(0)")


def _silence_numpy() -> AbstractContextManager[None]:
    """Return a context manager that silences NumPy's warnings: MXNet does not warn of infinities and NaNs."""
    return np.errstate(all="ignore")


_engine.engine.runner.guard = _silence_numpy
_engine.engine.runner.prepare = threads.apply_here
# NumPy stores that state in a context variable; entering a prepared context is 10x faster than an errstate block.
_quiet = contextvars.Context()
_quiet.run(np.seterr, all="ignore")
_engine.engine.runner.inline = _quiet.run
_engine.install_devices(_actor_of)
