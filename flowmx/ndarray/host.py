"""Operators on arrays that lie in several kinds of the CPU's memory: pinned, shared between processes, and plain.

A loader hands batches out in pinned or shared memory. MXNet's operators take them with plain ones, and so do ours:
what lies elsewhere is copied to the device that the operator runs on, which the tape knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.devices import Context, cpu
from flowmx.errors import DeviceError
from flowmx.ndarray.core import BaseArray

KINDS = ("cpu_pinned", "cpu_shared")


def plain(context: Context) -> Context:
    """The context of plain memory that stands for one of another kind of the CPU's; any other context itself."""
    return cpu() if context.device_type in KINDS else context


def together(name: str, inputs: Sequence[BaseArray], out: Any = None) -> list[BaseArray]:
    """Bring the inputs of an operator together on the device that it is to run on.

    Args:
        name: the operator's.
        inputs: arrays of several devices.
        out: the array that it writes into, if there is one.

    Raises:
        DeviceError: they are on devices that differ in more than the kind of the CPU's memory.
    """
    contexts = [each.context for each in inputs]
    target = out.context if isinstance(out, BaseArray) else plain(contexts[0])
    if len({plain(each) for each in (*contexts, target)}) > 1:
        other = next(each for each in contexts if each is not contexts[0])
        raise DeviceError(
            f"{name}: input 0 is on {contexts[0]} and another on {other}: bring them together with as_in_context"
        )
    return [each.as_in_context(target) for each in inputs]  # type: ignore[attr-defined]
