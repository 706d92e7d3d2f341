"""Checks of modules' arguments: names of inputs, devices of groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from flowmx.io import DataDesc


class MissingParameterError(ValueError, RuntimeError):
    """A parameter is missing; a RuntimeError too, because MXNet raises that."""


def check_names(arguments: Sequence[str], names: Sequence[str], argument: str, throw: bool) -> None:
    """Raise ValueError, or warn, if a name is not an argument of the symbol."""
    for name in names:
        if name in arguments:
            continue
        inputs = [name for name in arguments if not name.endswith(("_weight", "_bias", "_gamma", "_beta"))]
        expected = f"expected one of {', '.join(inputs)}"
        message = f"Module: {argument} has {name!r}, which is not an argument of the symbol; {expected}"
        if throw:
            raise ValueError(message)
        warnings.warn(message, stacklevel=3)


def device_groups(group2ctxs: Any, count: int) -> list[dict[str, Any] | None]:
    """Return the devices of the ``ctx_group``s, for each of the module's devices."""
    if isinstance(group2ctxs, (list, tuple)):
        if len(group2ctxs) != count:
            raise ValueError(f"Module: group2ctxs has {len(group2ctxs)} entries, expected {count}, one for each device")
        return [None if groups is None else dict(groups) for groups in group2ctxs]
    if not group2ctxs:
        return [None] * count
    per_device: list[dict[str, Any] | None] = []
    for position in range(count):
        groups = {}
        for name, contexts in group2ctxs.items():
            devices = list(contexts) if isinstance(contexts, (list, tuple)) else [contexts]
            devices = devices * count if len(devices) == 1 else devices
            if len(devices) != count:
                raise ValueError(
                    f"Module: group2ctxs puts {name!r} on {len(devices)} devices, expected {count}, one for each of "
                    "the module's"
                )
            groups[name] = devices[position]
        per_device.append(groups)
    return per_device


def descriptions(argument: str, shapes: Any) -> list[DataDesc]:
    """Return the descriptions of inputs from pairs of name and shape.

    Raises:
        TypeError: the argument is something else, such as a shape.
    """
    try:
        return [each if isinstance(each, DataDesc) else DataDesc(*each) for each in shapes]
    except TypeError:
        raise TypeError(
            f"bind: {argument} is {shapes!r}, expected pairs of name and shape, such as [('data', (32, 10))]"
        ) from None


def check_iterator(name: str, data: object) -> None:
    """Raise TypeError if data are not an iterator of batches."""
    if not hasattr(data, "provide_data"):
        raise TypeError(
            f"{name}: the data are a {type(data).__name__}, expected an iterator such as "
            "mx.io.NDArrayIter(x, y, batch_size=32)"
        )
