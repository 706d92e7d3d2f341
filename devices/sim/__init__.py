"""Simulated devices: ``mx.sim(0)``, ``mx.sim(1)``, ... behave like GPUs on a machine that has none.

They have streams, tokens, pools of memory of a given size and out-of-memory, copies of their own, and virtual time
from the costs of operators and the description of a device. NumPy does the arithmetic, or nobody does: devices without
numerics count memory and time alone, of networks that are too big for this machine. By default they are H100s that
carry work out when it is launched; :func:`simulated` makes others for a ``with`` block.

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
from flowmx.devices.sim.description import PRESETS, Description, named
from flowmx.devices.sim.device import SimDevice
from flowmx.devices.sim.stream import SimStream
from flowmx.devices.sim.system import Statistics, System
from flowmx.engine.runtime import engine

__all__ = ["PRESETS", "Description", "SimDevice", "SimStream", "Statistics", "System", "make", "named", "simulated"]

_default: System | None = None


def make(context: Context) -> SimDevice:
    """A device of the machine that is simulated where no other one is: an H100."""
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
    """A ``with`` block in which ``mx.sim(0)`` ... are the devices of a machine made for it.

    Args:
        device: a preset (``h100``, ``a10``, ``gtx980``, ``gk104``) or a description.
        count: how many devices.
        streams: how many streams of each compute (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
        memory: bytes of each, where they are not the description's.
        seed: defer work and draw the order in which streams go on from this seed.
        races: check for races.
        numerics: compute. Without, memory is counted but not touched, operators are not called, and every value that
            is asked for is 0; allocations, launches and virtual times are the same.
        device_type: ``gpu`` lets them stand for ``mx.gpu(0)`` ..., which ``mx.num_gpus()`` then counts.
        kernels: the device type whose kernels operators use, and graphs are planned for.
        graphs: from its second run on, let a bound graph (of an executor, or a hybridized block) be one launch, as a
            captured CUDA graph is.

    Arrays on these devices must not be used after the block.
    """
    from flowmx import devices

    system = System(seed, races)
    described = named(device) if isinstance(device, str) else device
    made = {
        context: SimDevice(context, system, described, streams, memory, numerics, kernels, graphs)
        for context in (Context(device_type, index) for index in range(count))
    }
    system.devices = {context.device_id: each for context, each in made.items()}
    with devices.standing_in(made):
        try:
            yield system
        finally:
            try:
                engine.wait_all(throw=False)
            finally:
                system.close()
