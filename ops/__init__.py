"""The operators (installed as ``flowmx.ops``): a registry, and a module for each family."""

from __future__ import annotations

import importlib
import pkgutil

from flowmx.ops.registry import Operator, lookup, registered

__all__ = ["Operator", "lookup", "registered"]

# Importing a family registers its operators.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
