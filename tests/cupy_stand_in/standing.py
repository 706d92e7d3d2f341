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
    """A ``with`` block in which ``mx.gpu(0)`` ... are devices of the stand-in machine.

    Args:
        count: how many.
        memory: bytes of each.
        seed: do work late, in an order drawn from it.
        streams: how many of each compute.
    """
    machine = Machine(count, memory, seed)
    cp = make(machine)
    by_context = {
        context: CudaDevice(context, cp, streams) for context in (Context("gpu", index) for index in range(count))
    }
    for device in by_context.values():
        device.kernels = "plain"  # the stand-in runs no CUDA kernels
    with devices.replace_devices(by_context):
        try:
            yield SimpleNamespace(machine=machine, cp=cp, devices=list(by_context.values()))
        finally:
            engine.wait_all(throw=False)
            for device in by_context.values():
                device.close()
