"""Private helpers of ``mxnet.contrib.amp.amp`` that packages import."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flowmx.amp.policy import Policy
from flowmx.ndarray import core

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    """Return ``_amp_initialized``, whether mixed precision is on, or the package ``lists``."""
    if name == "lists":
        return import_module("flowmx.contrib.amp.lists")
    if name == "_amp_initialized":
        return isinstance(core.casting, Policy)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
