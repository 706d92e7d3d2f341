"""Rules for native runs of bound graphs, backward passes and updates: which steps are recorded, and when.

The first runs compute the steps one by one, so that kernels are compiled. Then the steps are recorded once, and again
after better code was compiled, or after a setting has changed.
"""

from __future__ import annotations

from flowmx import forks, settings
from flowmx.devices import Device
from flowmx.ops.kernels.llvm import compiler, native_run
from flowmx.ops.kernels.onednn.kernel import threads_here
from flowmx.ops.linalg.dot import BatchDot, Dot
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Operator

PLAIN_RUNS = 7
"""The number of runs before the first recording, which takes about as long as it saves in ten runs."""
_PRODUCTS = (Dot, BatchDot)
"""Operators without a kernel whose forward is one product."""
PLAIN, RECORD, NATIVE = range(3)
"""Actions in a run: compute steps one by one, record them, or make the recorded calls."""


def computes_natively(device_type: str, op: Operator | type[Operator]) -> bool:
    """Return whether an operator's computation reads and writes arrays only in native calls."""
    return reason_to_run_separately(device_type, op) is None


def reason_to_run_separately(device_type: str, op: Operator | type[Operator]) -> str | None:
    """Return why an operator is never part of a native run; None if it may be."""
    kernel = kernel_for(device_type, op.name)
    if kernel is None:
        kind = op if isinstance(op, type) else type(op)
        return None if kind in _PRODUCTS else "it has no kernel, so the array library computes it"
    return None if kernel.only_native else "its kernel also works on arrays in Python"


def can_run_natively(device: Device) -> bool:
    """Return whether the steps of a device may become native runs."""
    return device.has_native_runs and settings.get().native_runs and native_run.knows_objects()


class Schedule:
    """A schedule of the recordings of steps that run repeatedly.

    Args:
        patience: the number of runs before the first recording, as a multiple of :data:`PLAIN_RUNS`.
    """

    def __init__(self, patience: int = 1) -> None:
        self._patience = patience
        self._form: tuple[object, ...] = ()
        self._loads = 0
        self._runs = 0
        self._next_recording = 1

    def next_action(self) -> int:
        """Return what to do in the next run."""
        self._runs += 1
        config = settings.get()
        if not config.native_runs:
            return PLAIN
        form = threads_here(), config, forks.generation()
        is_outdated = self._loads != compiler.load_count() and self._runs > self._next_recording
        if form == self._form and not is_outdated:
            return NATIVE
        if self._runs <= self._patience * PLAIN_RUNS or not native_run.is_ready():
            return PLAIN
        # Better code may have been compiled since the last recording; look for it less and less often.
        self._next_recording = 2 * self._runs
        self._loads = compiler.load_count()
        self._form = ()
        return RECORD

    def record_later(self) -> None:
        """Record again in a later run: a step could not be recorded this time."""
        self._loads = -1

    def complete(self) -> None:
        """Declare the recording complete; without this, the next run records again."""
        self._form = threads_here(), settings.get(), forks.generation()
