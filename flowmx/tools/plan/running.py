"""Running a program on simulated devices that stand for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx import engine
from flowmx.devices.sim import Description, simulated
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.engine import origin
from flowmx.engine.runtime import engine as running
from flowmx.tools.plan.recorder import Enough, Recorder
from flowmx.tools.plan.report import Plan
from flowmx.tools.plan.summary import summed_up


def run(
    function: Callable[[], Any], device: str | Description = "h100", *, steps: int | None = None,
    memory: int | str | None = None, count: int | None = None, graphs: bool = False,
) -> Plan:  # fmt: skip
    """Measure a training function on simulated devices ``mx.gpu(0)``, ``mx.gpu(1)``, ...

    It runs as it is, each operation launched at its push, on simulated devices that compute nothing: what it asks for
    is 0. Memory beyond the devices' is given all the same, and shown in the plan.

    Args:
        function: what to run; a coroutine that it returns is run to its end.
        device: a preset with a number, such as ``"h100x8"``, or a description.
        steps: end the program after so many steps (default: it ends by itself).
        memory: bytes of each device, as a number or such as ``"40GB"`` (default: the description's).
        count: how many devices (default: the preset's number, or 1).
        graphs: from its second run on, let a bound graph be one launch, as a captured CUDA graph is.

    Returns:
        The plan.

    Raises:
        ValueError: there is no such preset, or a number is out of range.
        Exception: what the function raises.

    Example:
        >>> mx.plan.run(train, "a10x2", steps=3).fits
        True
    """
    described, number = fleet(device) if isinstance(device, str) else (device, 1)
    number = number if count is None else count
    if number < 1 or (steps is not None and steps < 1):
        raise ValueError(f"plan: {number} devices and {steps} steps were asked for, expected at least 1 of each")
    size = memory_of(memory) if isinstance(memory, str) else memory
    machine = simulated(
        described, number, memory=size, races=False, numerics=False, device_type="gpu", kernels="gpu",
        graphs=graphs,
    )  # fmt: skip
    with engine.using(engine_type="NaiveEngine"), machine as system, Recorder(system, steps) as watch:
        origin.names_layers += 1
        try:
            engine.run(function())
        except Enough:
            pass
        finally:
            origin.names_layers -= 1
        running.wait_all(throw=False)
        return summed_up(watch, described)
