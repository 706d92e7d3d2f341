"""Tables of operators: each module has rows in its ``CASES``."""

import importlib
import pkgutil
from typing import Any


def tables() -> dict[str, list[Any]]:
    """The rows of each module, by its name; none for a module without a table."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    return {name: getattr(importlib.import_module(f"{__name__}.{name}"), "CASES", []) for name in names}


def every_case() -> list[Any]:
    """The rows of all modules."""
    return [case for table in tables().values() for case in table]
