"""The operators (installed as ``flowmx.ops``): a registry, and a module for each family."""

from __future__ import annotations

import importlib
import pkgutil

from flowmx.ops.registry import Operator, lookup, registered

__all__ = ["Operator", "lookup", "registered"]

# Importing a family registers its operators; the packages come last, since kernels are registered for operators.
for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.ispkg):
    importlib.import_module(f"{__name__}.{_module.name}")
