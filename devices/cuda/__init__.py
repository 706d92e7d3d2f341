"""GPUs: ``mx.gpu(0)``, ``mx.gpu(1)``, ... with CuPy, which is imported when the first one is used.

Actors drive the streams of a GPU (``devices/streams.py``); this package has the parts that are specific to CUDA.
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
    """Create the device of a GPU.

    Raises:
        DeviceError: there is no such GPU, no driver, or no CuPy; the message says which.
    """
    library.check(context.device_id, driver.gpus())
    cp = library.load()
    try:
        cp.cuda.runtime.getDeviceCount()
    except library.errors(cp) as error:
        raise DeviceError(f"{context}: CuPy cannot start CUDA: {error}; {library.EXTRAS}") from error
    return CudaDevice(context, cp)


def make_pinned(context: Context) -> CPUDevice:
    """Create the device of host memory from which GPUs copy at full speed; plain memory without a GPU."""
    return PinnedDevice(context, library.load()) if library.usable_gpus() else CPUDevice(context)
