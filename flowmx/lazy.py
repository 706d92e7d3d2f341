"""Lazy imports: modules are imported when first used, which keeps ``import flowmx`` fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from flowmx.foreign_names import MODULES, advice
from flowmx.renaming import warn_renamed
from flowmx.suggestions import did_you_mean

__all__ = ["lazy_attributes", "missing", "public_names"]


def public_names(module: ModuleType) -> list[str]:
    """Return a module's public names, for ``dir``: those of ``__all__``, or else those that it defines."""
    names = vars(module)
    if "__all__" in names:
        return sorted(names["__all__"])
    return sorted(
        name for name, value in names.items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )  # fmt: skip


def missing(module: ModuleType, name: str, others: Mapping[str, str] | None = None) -> AttributeError:
    """Return the error of a name that a module lacks, with the equivalent or the most similar name.

    Args:
        module: the module.
        name: the name.
        others: names that other libraries use, in lower case, with flowmx's names for them.
    """
    text = f"module {module.__name__!r} has no attribute {name!r}"
    if name.startswith("_"):  # Python itself looks up many private names; they need no suggestion
        return AttributeError(text)
    hint = advice(MODULES.get(module.__name__, {}), name)
    hint = hint or did_you_mean(name, [other for other in dir(module) if other[0] != "_"], others)
    if hint:
        return AttributeError(f"{text}{hint}", name=name)  # Python adds no suggestion to an error without an object
    return AttributeError(text, name=name, obj=module)


def lazy_attributes(
    package: str,
    names: Mapping[str, str] | None = None,
    others: Mapping[str, str] | None = None,
    old_names: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that imports some of its names when first used.

    Args:
        package: name of the package.
        names: modules by name; ``module:attribute`` for an attribute of a module.
        others: names that other libraries use, in lower case, with flowmx's names for them; the error suggests these.
        old_names: former names, with the present ones; a DeprecationWarning names these.
    """
    names = names or {}
    old_names = old_names or {}

    def find(name: str) -> Any:
        if name in old_names:
            warn_renamed(f"{package}.{name}", f"{package}.{old_names[name]}")
            return getattr(sys.modules[package], old_names[name])
        if name not in names:
            raise missing(sys.modules[package], name, others)
        module, _, attribute = names[name].partition(":")
        value: Any = importlib.import_module(module)
        if attribute:
            value = getattr(value, attribute)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*public_names(sys.modules[package]), *names})

    return find, list_names
