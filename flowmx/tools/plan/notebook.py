"""Notebook view of a plan: a bar for each device, and the report's text."""

from __future__ import annotations

from flowmx import markup
from flowmx.tools.plan.report import DevicePlan, Plan

__all__ = ["html"]


def html(plan: Plan) -> str:
    """A plan."""
    return "".join([*(_bar(each) for each in plan.devices), markup.code(plan.text())])


def _bar(device: DevicePlan) -> str:
    part = device.peak / device.memory
    colour = "#c0392b" if device.exceeded is not None else "#2980b9"
    return (
        markup.note(f"{device.name}: {part:.0%} of its memory at the peak")
        + '<div style="width:20em;height:.7em;background:rgba(128,128,128,.3);border-radius:.3em;overflow:hidden">'
        + f'<div style="width:{min(1.0, part):.1%};height:100%;background:{colour}"></div></div>'
    )
