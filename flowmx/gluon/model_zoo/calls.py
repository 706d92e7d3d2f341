"""Calls of models with optional inputs."""

from __future__ import annotations

from typing import Any


def without_nones(*arguments: Any) -> tuple[object, ...]:
    """Return the arguments of a call without None at the end."""
    end = max(index for index, each in enumerate(arguments) if index == 0 or each is not None)
    return arguments[: end + 1]
