"""The operators (installed as ``flowmx.ops``): a registry, and one package per kind of operator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from flowmx.ops.registry.operators import Operator, lookup, registered_operators

__all__ = ["Operator", "lookup", "registered_operators"]


def _import(path: Iterable[str], prefix: str) -> None:
    """Import all modules of a package, which registers their operators."""
    for info in pkgutil.iter_modules(path, prefix):
        if info.name not in (_KERNELS, _SPARSE):
            module = importlib.import_module(info.name)
            if info.ispkg:
                _import(module.__path__, f"{info.name}.")


# Kernels come last, since they are registered for operators; the first sparse array imports the sparse package.
_KERNELS, _SPARSE = f"{__name__}.kernels", f"{__name__}.sparse"
_import(__path__, f"{__name__}.")
importlib.import_module(_KERNELS)
