"""The operators (installed as ``flowmx.ops``): a registry, and a room for each kind of operator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from flowmx.ops.registry.operators import Operator, lookup, registered

__all__ = ["Operator", "lookup", "registered"]


def _import(path: Iterable[str], prefix: str) -> None:
    """Import all modules of a room, which registers their operators."""
    for found in pkgutil.iter_modules(path, prefix):
        if found.name not in (_KERNELS, _SPARSE):
            module = importlib.import_module(found.name)
            if found.ispkg:
                _import(module.__path__, f"{found.name}.")


# Kernels come last, since they are registered for operators; what sparse arrays need when there is one.
_KERNELS, _SPARSE = f"{__name__}.kernels", f"{__name__}.sparse"
_import(__path__, f"{__name__}.")
importlib.import_module(_KERNELS)
