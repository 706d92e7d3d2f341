"""Notebook view of a plan: a bar per device, and the text report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx import markup

if TYPE_CHECKING:
    from flowmx.tools.plan.report import DevicePlan, Plan

__all__ = ["html"]


def html(plan: Plan) -> str:
    """Return a plan as HTML."""
    return "".join([*(_bar(device) for device in plan.devices), markup.code(plan.text())])


def _bar(device: DevicePlan) -> str:
    part = device.peak / device.memory
    color = "#c0392b" if device.exceeded is not None else "#2980b9"
    return (
        markup.note(f"{device.name}: {part:.0%} of its memory at the peak")
        + '<div style="width:20em;height:.7em;background:rgba(128,128,128,.3);border-radius:.3em;overflow:hidden">'
        + f'<div style="width:{min(1.0, part):.1%};height:100%;background:{color}"></div></div>'
    )
