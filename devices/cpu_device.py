"""The CPU as a device: ``mx.cpu(0)``, ``mx.cpu(1)``, ... are separate actors over the same memory."""

from __future__ import annotations

import os

import numpy as np

from flowmx import settings
from flowmx.devices import cpu_pool, threads
from flowmx.devices.arrays import Array
from flowmx.devices.context import Context
from flowmx.devices.device import Device
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor
from flowmx.engine.workers import ThreadActor


class CopyActor(ThreadActor):
    """The actor for copies to one device, separate from the compute actor, so that copies and operators overlap."""

    def __init__(self, name: str) -> None:
        super().__init__(name, slots=1)


class CPUDevice(Device):
    """A CPU device: runs ``FLOWMX_CPU_WORKER_NTHREADS`` operations at a time, each with several kernel threads.

    Operations with a priority above 0 may use ``FLOWMX_CPU_PRIORITY_NTHREADS`` more threads.
    """

    xp = np
    kernels = "cpu"
    has_native_runs = True

    def __init__(self, context: Context) -> None:
        config = settings.get()
        self.context = context
        threads.apply(config)
        self.compute = ThreadActor(
            repr(context), slots=config.cpu_worker_nthreads, urgent_slots=config.cpu_priority_nthreads
        )
        self.generator = Generator(repr(context))
        self._copies = CopyActor(f"copy to {context}")

    allocate = staticmethod(cpu_pool.allocate)

    def empty_cache(self) -> None:
        cpu_pool.clear()

    def copy_actor(self, source: Device) -> Actor:
        return source.copy_actor_out() if source.is_asynchronous else self._copies

    def copy(self, source: Array, target: Array) -> None:
        np.copyto(target, source, casting="unsafe")

    def to_host(self, array: Array) -> Array:
        return array

    def memory_info(self) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
