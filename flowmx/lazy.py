"""Lazy imports: modules are imported at their first use, to keep ``import flowmx`` quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flowmx.suggestions import did_you_mean

__all__ = ["later"]


def later(
    package: str, names: Mapping[str, str] | None = None, others: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package some of whose names are found later.

    Args:
        package: its name.
        names: from a name to the module that it stands for, or, after a colon, to what it stands for in a module.
        others: names of other libraries and those that do the same here, in lower case, for the error's suggestion.
    """
    names = names or {}

    def find(name: str) -> Any:
        if name not in names:
            # Python itself asks modules for many names of its own.
            known = [each for each in listed() if not each.startswith("_")] if not name.startswith("_") else []
            raise AttributeError(f"module {package!r} has no attribute {name!r}{did_you_mean(name, known, others)}")
        module, _, attribute = names[name].partition(":")
        found = importlib.import_module(module)
        value = getattr(found, attribute) if attribute else found
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return find, listed
