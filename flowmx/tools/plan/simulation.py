"""Runs a program on simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx import engine
from flowmx.devices.sim import Description, simulated
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.engine import origin
from flowmx.engine.runtime import engine as running
from flowmx.tools.plan.recorder import Recorder, StopProgram
from flowmx.tools.plan.report import Plan
from flowmx.tools.plan.summary import summarize


def run(
    function: Callable[[], Any], device: str | Description = "h100", *, steps: int | None = None,
    memory: int | str | None = None, count: int | None = None, graphs: bool = False,
) -> Plan:  # fmt: skip
    """Measure a training function on simulated devices ``mx.gpu(0)``, ``mx.gpu(1)``, ...

    The function runs unchanged, and launches operations when they are pushed. The devices compute nothing: values that
    the function reads are 0. Allocations beyond a device's memory succeed, and the plan shows them.

    Args:
        function: the function to run; if it returns a coroutine, that is run to completion.
        device: a preset with a count, such as ``"h100x8"``, or a description.
        steps: maximum number of steps (default: no limit).
        memory: bytes per device, as a number or a text such as ``"40GB"`` (default: the description's).
        count: number of devices (default: the preset's count, or 1).
        graphs: whether a bound graph is one launch from its second run on, like a captured CUDA graph.

    Returns:
        The plan.

    Raises:
        ValueError: the preset is unknown, or a number is out of range.
        Exception: the function raised.

    Example:
        >>> mx.plan.run(train, "a10x2", steps=3).fits
        True
    """
    description, number = fleet(device) if isinstance(device, str) else (device, 1)
    number = number if count is None else count
    if number < 1 or (steps is not None and steps < 1):
        raise ValueError(f"plan: count is {number} and steps {steps}, expected at least 1")
    size = memory_of(memory) if isinstance(memory, str) else memory
    machine = simulated(
        description, number, memory=size, races=False, numerics=False, device_type="gpu", kernels="gpu",
        graphs=graphs,
    )  # fmt: skip
    with engine.using(engine_type="NaiveEngine"), machine as system, Recorder(system, steps) as recorder:
        origin.layer_name_users += 1
        try:
            engine.run(function())
        except StopProgram:
            pass
        finally:
            origin.layer_name_users -= 1
        running.wait_all(throw=False)
        return summarize(recorder, description)
