"""Operators on arrays from several CPU devices, or in different kinds of CPU memory: pinned, shared, and ordinary.

Loaders return batches in pinned or shared memory. As in MXNet, operators accept them, and also mix arrays on ``cpu(1)``
and ``cpu(0)``: inputs on other devices are copied to the operator's device, and the copies are recorded.
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
    """Return ``cpu()`` for pinned and shared CPU memory; any other context unchanged."""
    return cpu() if context.device_type in KINDS else context


def copy_to_one_device(op: Operator, inputs: Sequence[BaseArray], out: BaseArray | None = None) -> list[BaseArray]:
    """Copy the inputs of an operator to the device that it runs on: that of ``out``, or of the first input.

    Args:
        op: the operator.
        inputs: arrays on several devices.
        out: the array that it writes into, if there is one.

    Raises:
        DeviceError: a device is not a CPU, or an input that the operator also writes is on another device.
    """
    target = plain(inputs[0].context) if out is None else out.context
    for position in (*op.updates, *range(len(inputs) - len(op.auxiliary), len(inputs))):
        if inputs[position].context != target:
            raise _refusal(op.name, f"input {position}, which it also writes,", inputs[position].context, target)
    return [copy_to_device_of_call(op.name, f"input {position}", each, target) for position, each in enumerate(inputs)]


def copy_to_device_of_call(name: str, what: str, array: BaseArray, target: Context) -> BaseArray:
    """Return an operator's input on the operator's device: itself, or a copy between CPU devices.

    Raises:
        DeviceError: one of the two devices is not a CPU.
    """
    context = array.context
    if context != target and not (context.device_type in HOST and target.device_type in HOST):
        raise _refusal(name, what, context, target)
    moved: BaseArray = array.as_in_context(target)
    return moved


def _refusal(name: str, what: str, context: Context, target: Context) -> DeviceError:
    return DeviceError(
        f"{name}: {what} is on {context}, but the operator runs on {target}: bring them together with as_in_context"
    )
