"""The attributes of an object, such as the sums of a metric, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, str, np.ndarray, np.generic)


def state(owner: object) -> dict[str, Any]:
    """Return an object's numbers, strings and arrays, and recursively those of the objects in it."""
    content: dict[str, object] = {}
    for name, value in vars(owner).items():
        if isinstance(value, _PLAIN):
            content[name] = value
        elif isinstance(value, list) and value and all(map(_has_state, value)):
            content[name] = [state(item) for item in value]
        elif _has_state(value):
            content[name] = state(value)
    return content


def set_state(owner: object, state: Mapping[str, object]) -> None:
    """Restore a result of :func:`state` onto a freshly constructed object."""
    for name, value in state.items():
        current = vars(owner).get(name)
        if isinstance(value, list):
            for item, part in zip(current or (), value, strict=True):
                set_state(item, part)
        elif isinstance(value, dict):
            set_state(current, value)
        else:
            setattr(owner, name, value)


def _has_state(value: object) -> bool:
    """Return whether a value is an object with attributes, and not a function, class or array."""
    return hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "asnumpy")
