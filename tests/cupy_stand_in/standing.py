"""GPUs of flowmx on the stand-in for CuPy."""

import contextlib
from types import SimpleNamespace

from flowmx import devices
from flowmx.devices import Context
from flowmx.devices.cuda import CudaDevice
from flowmx.engine.runtime import engine
from tests.cupy_stand_in.machine import Machine
from tests.cupy_stand_in.queued import make


@contextlib.contextmanager
def standing(count=2, memory=1 << 28, seed=None, streams=None):
    """A ``with`` block in which ``mx.gpu(0)`` ... are of a machine that stands for CUDA's.

    Args:
        count: how many.
        memory: bytes of each.
        seed: do work late, in an order drawn from it.
        streams: how many of each compute.
    """
    machine = Machine(count, memory, seed)
    cp = make(machine)
    made = {context: CudaDevice(context, cp, streams) for context in (Context("gpu", index) for index in range(count))}
    for device in made.values():
        device.kernels = "plain"  # kernels of CUDA's are not stood for here
    with devices.standing_in(made):
        try:
            yield SimpleNamespace(machine=machine, cp=cp, devices=list(made.values()))
        finally:
            engine.wait_all(throw=False)
            for device in made.values():
                device.close()
