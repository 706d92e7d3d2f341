"""The numbers and arrays that an object holds, such as a metric's sums, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, str, np.ndarray, np.generic)


def state(held_by: Any) -> dict[str, Any]:
    """Collect an object's state: its numbers, strings and arrays, and recursively those of the objects in it."""
    found: dict[str, Any] = {}
    for name, value in vars(held_by).items():
        if isinstance(value, _PLAIN):
            found[name] = value
        elif isinstance(value, list) and value and all(map(_holds, value)):
            found[name] = [state(each) for each in value]
        elif _holds(value):
            found[name] = state(value)
    return found


def set_state(held_by: Any, state: Mapping[str, Any]) -> None:
    """Let an object that was made in the same way hold that again."""
    for name, value in state.items():
        held = vars(held_by).get(name)
        if isinstance(value, list):
            for each, part in zip(held or (), value, strict=True):
                set_state(each, part)
        elif isinstance(value, dict):
            set_state(held, value)
        else:
            setattr(held_by, name, value)


def _holds(value: Any) -> bool:
    """True for an object with attributes of its own that is no function, class or array."""
    return hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "asnumpy")
