"""Checks of modules' arguments: names of inputs, devices of groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any


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
