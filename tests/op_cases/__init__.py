"""Tables of operators: each module has rows in its ``CASES``."""

import importlib
import pkgutil
from typing import Any


def tables() -> dict[str, list[Any]]:
    """Return the rows of each module with a table, by the name of the module."""
    names = [actual.name for actual in pkgutil.iter_modules(__path__)]
    return {name: getattr(importlib.import_module(f"{__name__}.{name}"), "CASES", []) for name in names}


def every_case() -> list[Any]:
    """Return the rows of all modules."""
    return [case for table in tables().values() for case in table]
