"""Computes a plan from the recorded marks: the mean step and its bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowmx.devices.sim import Description, SimDevice
from flowmx.tools.plan.recorder import Mark, Recorder
from flowmx.tools.plan.report import DevicePlan, Plan

_MAX_ROWS = 6


def summarize(recorder: Recorder, device: Description) -> Plan:
    """Return the plan of a program that has run.

    Args:
        recorder: its recorder.
        device: the description of the devices.
    """
    counted_by, marks = recorder.marks()
    step = _step(marks)
    spent = {kind: seconds for kind, seconds in step.path.items() if seconds > 0}
    shares = {kind: seconds / sum(spent.values()) for kind, seconds in spent.items()}
    return Plan(
        device=device.name,
        devices=[_device(simulated, step, recorder) for simulated in recorder.ledgers],
        steps=len(marks) - 1,
        counted_by=counted_by,
        seconds=step.seconds if len(marks) > 1 else None,
        bound_by=max(shares, key=lambda kind: shares[kind], default=""),
        shares=shares,
        operators=sorted(step.operators.items(), key=lambda row: -row[1])[:_MAX_ROWS],
        launches=step.launching / device.launch_seconds if device.launch_seconds else 0.0,
        layers={kind: len(names) for kind, names in recorder.layers.items()},
        slices=[*recorder.slices],
    )


def _step(marks: list[Mark]) -> Mark:
    """Return the mean step. The first step is excluded if there are others, because it includes preparations."""
    begin, end = marks[1 if len(marks) > 2 else 0], marks[-1]
    count = max(1, len(marks) - (2 if len(marks) > 2 else 1))
    return Mark(
        (end.seconds - begin.seconds) / count,
        _mean(begin.path, end.path, count),
        (end.launching - begin.launching) / count,
        _mean(begin.busy, end.busy, count),
        _mean(begin.operators, end.operators, count),
    )


def _mean(before: Mapping[Any, float], after: Mapping[Any, float], count: int) -> dict[Any, float]:
    return {name: (value - before.get(name, 0.0)) / count for name, value in after.items()}


def _device(device: SimDevice, step: Mark, recorder: Recorder) -> DevicePlan:
    ledger = recorder.ledgers[device]
    names = [stream.name for actor in device.actors for stream in actor.all_streams()]
    return DevicePlan(
        name=repr(device),
        memory=device.pool.limit,
        peak=ledger.peak,
        roles=ledger.by_role(),
        holders=ledger.holders(_MAX_ROWS),
        utilization={name: step.busy[name] / step.seconds for name in names if step.busy.get(name)},
        exceeded=recorder.exceeded.get(device),
    )
