"""Simulated devices: ``mx.sim(0)``, ``mx.sim(1)``, ... behave like GPUs on a machine that has none.

They have streams, tokens (see :mod:`devices.streams`), memory pools of a given size with out-of-memory errors, a
separate memory to which arrays are copied, and virtual time, which follows from the costs of operators and the
description of a device. NumPy does the arithmetic. Devices without numerics only count memory and time, for networks
that are too large for this machine. By default the devices are H100s that execute work when it is launched;
:func:`simulated` creates others for a ``with`` block.

Example:
    >>> from flowmx.devices.sim import simulated
    >>> with simulated("gtx980", count=2) as machine:
    ...     train([mx.sim(0), mx.sim(1)])
    ...     print(machine.statistics().timeline())
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flowmx.devices.context import Context
from flowmx.devices.sim.description import PRESETS, Description, preset
from flowmx.devices.sim.device import SimDevice
from flowmx.devices.sim.stream import SimStream
from flowmx.devices.sim.system import Statistics, System
from flowmx.engine.runtime import engine

__all__ = ["PRESETS", "Description", "SimDevice", "SimStream", "Statistics", "System", "make", "preset", "simulated"]

_default: System | None = None


def make(context: Context) -> SimDevice:
    """Create a device of the default simulated machine: an H100."""
    global _default
    _default = _default or System()
    device = _default.devices[context.device_id] = SimDevice(context, _default, PRESETS["h100"])
    return device


@contextlib.contextmanager
def simulated(
    device: str | Description = "h100", count: int = 1, *, streams: int | None = None, memory: int | None = None,
    seed: int | None = None, races: bool = True, numerics: bool = True, device_type: str = "sim",
    kernels: str = "cpu", graphs: bool = False,
) -> Iterator[System]:  # fmt: skip
    """A ``with`` block in which ``mx.sim(0)`` ... are the devices of a new simulated machine.

    Args:
        device: a preset (``h100``, ``a10``, ``gtx980``, ``gk104``) or a description.
        count: the number of devices.
        streams: the number of compute streams of each device (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
        memory: the memory of each device in bytes (default: from the description).
        seed: if set, work is deferred, and the order in which streams proceed is drawn with this seed.
        races: whether to check for races.
        numerics: whether to compute. Without numerics, memory is counted but not used, operators are not called, and
            every value that is read is 0; allocations, launches and virtual times are the same.
        device_type: with ``gpu`` they replace ``mx.gpu(0)`` ..., and ``mx.num_gpus()`` counts them.
        kernels: the device type whose kernels operators use and graphs are planned for.
        graphs: whether a bound graph (of an executor or a hybridized block) is one launch from its second run on, like
            a captured CUDA graph.

    Arrays on these devices must not be used after the block.
    """
    from flowmx import devices

    system = System(seed, races)
    description = preset(device) if isinstance(device, str) else device
    substitutes = {
        context: SimDevice(context, system, description, streams, memory, numerics, kernels, graphs)
        for context in (Context(device_type, index) for index in range(count))
    }
    system.devices = {context.device_id: simulated_device for context, simulated_device in substitutes.items()}
    with devices.replace_devices(substitutes):
        try:
            yield system
        finally:
            try:
                engine.wait_all(throw=False)
            finally:
                system.close()
