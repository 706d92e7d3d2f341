"""MXNet's module paths, as `paths` lists them: modules made of names alone, and names added to flowmx's own modules.

The modules themselves know of neither. A finder stands first on ``sys.meta_path``; a module of flowmx whose path
is in the table is loaded as ever, and then looks for a name that it has not where the table says; where there is none,
an empty one is made, which does likewise. Nothing is imported before a name is asked for.

Importing this puts the finder there; modules that were imported before are not added to.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from flowmx.compat.paths import PATHS

__all__: list[str] = []

_OWN = "flowmx."
_MISSING = object()
_KNOWN = {*PATHS, *(each.rpartition(".")[0] for each in PATHS)}
"""The paths of the table, and those right above them."""


class _Finder(MetaPathFinder):
    """Finds the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_OWN) or fullname[len(_OWN) :] not in _KNOWN:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = _Adding(spec.loader)
                return spec
        is_package = any(True for _ in _below(fullname[len(_OWN) :]))
        return ModuleSpec(fullname, _Adding(None), is_package=is_package)


class _Adding(Loader):
    """Loads a module by its own loader, or makes an empty one where there is none, and adds what the table says."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._own is None else self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self._own is not None:
            assert module.__spec__ is not None
            module.__loader__ = module.__spec__.loader = self._own
            self._own.exec_module(module)
        _add(module)


def _add(module: ModuleType) -> None:
    """Have a module look for missing names where the table says, after its own ``__getattr__``."""
    path = module.__name__[len(_OWN) :]
    names = vars(module)
    own, own_dir = names.get("__getattr__"), names.get("__dir__")
    listed_by_itself = names.pop("__all__", None) if path in PATHS else None

    def find(name: str) -> Any:
        if name == "__all__" and listed_by_itself is not None:
            return [*listed_by_itself, *_starred(path)]
        try:
            if own is not None:
                return own(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        except AttributeError:
            found: Any = _MISSING if _is_own(module, name) else _elsewhere(path, name)
            if found is not _MISSING:
                return found if name != "__all__" else sorted({*found, *_defined(module)})
            if "__file__" not in names and len(PATHS.get(path, ())) == 1:  # it is that module under another name
                return getattr(importlib.import_module(PATHS[path][0]), name)  # whose error says more
            raise

    def listed() -> list[str]:
        return sorted({*(names if own_dir is None else own_dir()), *_below(path), *_held(path)})

    names.update(__getattr__=find, __dir__=listed)


def _is_own(module: ModuleType, name: str) -> bool:
    """True where the name is a submodule of the package, which the import system is about to import."""
    places = vars(module).get("__path__")
    return bool(places) and PathFinder.find_spec(f"{module.__name__}.{name}", places) is not None


def _elsewhere(path: str, name: str) -> Any:
    """The module of that name below a path, or what other modules hold under it."""
    if f"{path}.{name}" in PATHS:
        return importlib.import_module(f"{_OWN}{path}.{name}")
    if name == "__all__":
        return [each for each in sorted(_held(path)) if not each.startswith("_")]
    if name == "__version__" or not name.startswith("__"):
        for source in PATHS.get(path, ()):
            found = getattr(importlib.import_module(source), name, _MISSING)
            if found is not _MISSING:
                return found
    return _MISSING


def _starred(path: str) -> Iterator[str]:
    """The names that an import of all names of a path brings in addition to those that the module itself lists."""
    for source in PATHS[path]:
        if source != "flowmx.compat.common":
            yield from getattr(importlib.import_module(source), "__all__", ())


def _defined(module: ModuleType) -> Iterator[str]:
    """The public classes and functions that a module defines."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            yield name


def _below(path: str) -> Iterator[str]:
    """The names of the modules that the table has right below a path."""
    names = (each[len(path) + 1 :] for each in PATHS if each.startswith(f"{path}."))
    return (name for name in names if "." not in name)


def _held(path: str) -> set[str]:
    """The names that other modules hold for a path."""
    return {
        name for each in PATHS.get(path, ()) for name in dir(importlib.import_module(each)) if not name.startswith("__")
    }


sys.meta_path.insert(0, _Finder())
