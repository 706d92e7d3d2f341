"""Checks of modules' arguments: names of inputs, devices of groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any


class MissingParameterError(ValueError, RuntimeError):
    """A parameter is not among those that were given; a RuntimeError too, as which MXNet raises it."""


def check_names(arguments: Sequence[str], names: Sequence[str], argument: str, throw: bool) -> None:
    """Raise, or warn, where a name is no argument of the symbol."""
    for name in names:
        if name in arguments:
            continue
        inputs = [each for each in arguments if not each.endswith(("_weight", "_bias", "_gamma", "_beta"))]
        expected = f"expected one of {', '.join(inputs)}"
        message = f"Module: {argument} has {name!r}, which is no argument of the symbol; {expected}"
        if throw:
            raise ValueError(message)
        warnings.warn(message, stacklevel=3)


def device_groups(given: Any, count: int) -> list[dict[str, Any] | None]:
    """The devices of ``ctx_group``s, for each of the module's devices."""
    if isinstance(given, (list, tuple)):
        if len(given) != count:
            raise ValueError(f"Module: group2ctxs has {len(given)} entries, expected {count}, one for each device")
        return [None if each is None else dict(each) for each in given]
    if not given:
        return [None] * count
    found: list[dict[str, Any] | None] = []
    for position in range(count):
        groups = {}
        for name, contexts in given.items():
            several = list(contexts) if isinstance(contexts, (list, tuple)) else [contexts]
            several = several * count if len(several) == 1 else several
            if len(several) != count:
                raise ValueError(
                    f"Module: group2ctxs puts {name!r} on {len(several)} devices, expected {count}, one for each of "
                    "the module's"
                )
            groups[name] = several[position]
        found.append(groups)
    return found
