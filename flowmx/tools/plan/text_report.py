"""Formats a plan as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowmx.tools.plan.report import DevicePlan, Plan


_BOUNDS = {
    "arithmetic": "arithmetic",
    "bandwidth": "the bandwidth of the device's memory",
    "latency": "kernel latency: there are many small kernels",
    "copies in": "copies from the host",
    "copies out": "copies to the host",
    "copies of peers": "copies between devices",
    "launches": "launches by the host",
}
_BAR = 20


def render(plan: Plan) -> str:
    """Return the report."""
    return "\n".join(
        [*_time(plan), *_layers(plan), *(line for device in plan.devices for line in _device(device)), *_verdict(plan)]
    )


def _time(plan: Plan) -> Iterator[str]:
    yield f"plan for {len(plan.devices)} x {plan.device} (simulated, not measured)"
    if plan.seconds is None:
        yield "  no steps: the program neither updated weights nor ran a backward pass"
        return
    mean = f"the mean of {plan.steps - 1}" if plan.steps > 1 else "the only one"
    yield f"  a step takes {_seconds(plan.seconds)} ({mean}; steps are {plan.counted_by})"
    yield f"  bound by {_BOUNDS.get(plan.bound_by, 'nothing')}"
    shares = sorted(plan.shares.items(), key=lambda row: -row[1])
    yield "  time by kind: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares if share >= 0.005)
    yield f"  {plan.launches:.0f} launches per step; the slowest operators:"
    for name, seconds in plan.operators:
        yield f"    {_seconds(seconds):>10}  {name}"


def _layers(plan: Plan) -> Iterator[str]:
    if plan.layers:
        counts = ", ".join(f"{count} in {kind}" for kind, count in plan.layers.items())
        yield f"  layers of compiled graphs by precision: {counts}"
    if plan.slices:
        yield "  in slices of the batch, because the whole batch does not fit:"
        yield from (f"    {line}" for line in plan.slices)


def _device(device: DevicePlan) -> Iterator[str]:
    part = device.peak / device.memory
    filled = "#" * min(_BAR, round(_BAR * part))
    yield f"{device.name}: {_size(device.peak)} of {_size(device.memory)} at the peak [{filled:{_BAR}}] {part:.0%}"
    for role, nbytes in device.roles.items():
        yield f"    {_size(nbytes):>10}  {role}"
    if device.holders:
        yield "  the largest allocations:"
    for holder, nbytes in device.holders:
        yield f"    {_size(nbytes):>10}  {holder}"
    if device.utilization:
        streams = ", ".join(
            f"{name.removeprefix(device.name + ' ')} {part:.0%}" for name, part in device.utilization.items()
        )
        yield f"  busy in a step: {streams}"


def _verdict(plan: Plan) -> Iterator[str]:
    for device in plan.devices:
        if device.exceeded is not None:
            yield f"out of memory: {device.name} needs {_size(device.peak)} and has {_size(device.memory)}"
    if not plan.fits:
        yield "  use a smaller batch, or recompute values instead of storing them (FLOWMX_BACKWARD_DO_MIRROR=1)"
    if plan.growth is not None:
        times = f"{plan.growth:.2f}" if plan.growth < 10 else f"{plan.growth:.0f}"
        yield f"about {times} times this batch would fit (if all except weights, gradients and states scales with it)"


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _size(nbytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes / 1024:.1f} KiB"
