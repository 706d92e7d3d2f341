"""GPUs: ``mx.gpu(0)``, ``mx.gpu(1)``, ... on CuPy, which is imported when the first is used.

Each stream of a GPU is driven by an actor (``devices/streams.py``); what is CUDA's own about them is here.
"""

from __future__ import annotations

from flowmx.devices.context import Context
from flowmx.devices.cpu_device import CPUDevice
from flowmx.devices.cuda import driver, library
from flowmx.devices.cuda.device import CudaDevice
from flowmx.devices.cuda.staging import PinnedDevice
from flowmx.errors import DeviceError

__all__ = ["CudaDevice", "PinnedDevice", "make", "make_pinned"]


def make(context: Context) -> CudaDevice:
    """The GPU of a number.

    Raises:
        DeviceError: there is none of that number, no driver, or no CuPy; the message names it.
    """
    library.check(context.device_id, driver.gpus())
    cp = library.load()
    try:
        cp.cuda.runtime.getDeviceCount()
    except library.errors(cp) as error:
        raise DeviceError(f"{context}: CuPy can not start CUDA: {error}; {library.EXTRAS}") from error
    return CudaDevice(context, cp)


def make_pinned(context: Context) -> CPUDevice:
    """Host memory that GPUs copy from at full speed; plain memory where there is no GPU."""
    return PinnedDevice(context, library.load()) if library.usable() else CPUDevice(context)
