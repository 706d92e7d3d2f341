"""``mx.context``: devices by name, the current device, and the free memory of GPUs."""

from __future__ import annotations

from flowmx import devices
from flowmx.devices import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from flowmx.devices.context import sim

__all__ = ["Context", "cpu", "cpu_pinned", "current_context", "gpu", "gpu_memory_info", "num_gpus", "sim"]


def gpu_memory_info(device_id: int = 0) -> tuple[int, int]:
    """Return the free and the total memory of a GPU in bytes.

    Args:
        device_id: the index of the GPU.

    Raises:
        DeviceError: the GPU does not exist.
    """
    return devices.get(gpu(device_id)).memory_info()
