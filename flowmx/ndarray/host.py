"""Operators on arrays of several CPU devices, or in several kinds of the CPU's memory: pinned, shared, and plain.

A loader hands batches out in pinned or shared memory. MXNet's operators take them, and arrays of ``cpu(1)`` with
those of ``cpu(0)``, and so do ours: what lies elsewhere is copied to the device that the operator runs on, which the
tape knows of.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.devices import Context, cpu
from flowmx.errors import DeviceError
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.operators import Operator

KINDS = ("cpu_pinned", "cpu_shared")
HOST = ("cpu", *KINDS)


def plain(context: Context) -> Context:
    """The context of plain memory that stands for one of another kind of the CPU's; any other context itself."""
    return cpu() if context.device_type in KINDS else context


def together(op: Operator, inputs: Sequence[BaseArray], out: BaseArray | None = None) -> list[BaseArray]:
    """Bring the inputs of an operator together on the device that it is to run on: that of ``out``, or of the first.

    Args:
        op: the operator.
        inputs: arrays of several devices.
        out: the array that it writes into, if there is one.

    Raises:
        DeviceError: one of the devices is no CPU, or an input that is also written lies elsewhere.
    """
    target = plain(inputs[0].context) if out is None else out.context
    for position in (*op.updates, *range(len(inputs) - len(op.auxiliary), len(inputs))):
        if inputs[position].context != target:
            raise _refusal(op.name, f"input {position}, which it also writes,", inputs[position].context, target)
    return [bring(op.name, f"input {position}", each, target) for position, each in enumerate(inputs)]


def bring(name: str, what: str, array: BaseArray, target: Context) -> BaseArray:
    """An operator's input on the device that the operator runs on: itself, or a copy between CPU devices.

    Raises:
        DeviceError: one of the two devices is no CPU.
    """
    context = array.context
    if context != target and not (context.device_type in HOST and target.device_type in HOST):
        raise _refusal(name, what, context, target)
    return array.as_in_context(target)  # type: ignore[attr-defined,no-any-return]


def _refusal(name: str, what: str, context: Context, target: Context) -> DeviceError:
    return DeviceError(
        f"{name}: {what} is on {context}, but the operator runs on {target}: bring them together with as_in_context"
    )
