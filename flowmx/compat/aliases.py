"""MXNet's module paths, as the table in `paths` lists them: alias modules, and names added to flowmx's modules.

The modules themselves do not depend on this one. ``flowmx`` and its subpackages get a class that is notified
when one of their modules has been imported. If the path of that module is in the table, it looks up the names that it
lacks in the modules that the table lists, and an alias module is created for each submodule that only MXNet has. The
listed modules are imported when a name is used. ``dir`` lists the names that a module offers.

Importing this module extends ``flowmx``, and every module of flowmx that is imported from then on.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from weakref import WeakSet

from flowmx.compat.paths import LOADED, PATHS, WITH_MODULES
from flowmx.late_binding import late
from flowmx.lazy import missing, public_names

__all__: list[str] = []

_PREFIX = "flowmx."
_MISSING = object()
_WITH_MEMBERS = frozenset({"flowmx.gluon", "flowmx.module"})
"""Packages whose import loads `members`, which adds attributes to flowmx's classes."""


class _Package(ModuleType):
    """A package that extends its modules when they have been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)  # the import system sets a module when it is complete
        if isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            extend(value)


def extend(module: ModuleType) -> None:
    """Extend a module that has been imported, and the submodules that it has imported, as the table says."""
    if isinstance(module, _Package) or module.__name__ == "flowmx.compat":
        return
    path = module.__name__.removeprefix("flowmx").removeprefix(".")
    if hasattr(module, "__path__"):
        module.__class__ = _Package
        for name in _submodules(path):
            if not (_is_internal(name) or _is_flowmx_module(module, name)):
                make_alias(f"{path}.{name}".removeprefix("."))
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{name}":
                extend(value)
    if "__dir__" not in vars(module):
        vars(module)["__dir__"] = partial(public_names, module)
    if path in PATHS or (path and any(f"{path}.{name}" in PATHS for name in _submodules(path))):
        _look_up_names(module, path)
    if module.__name__ in _WITH_MEMBERS:
        late("compat.members")


def make_alias(path: str) -> ModuleType:
    """Return the alias module of a path; it is created on the first call."""
    name = f"{_PREFIX}{path}"
    if name in sys.modules:
        return sys.modules[name]
    submodules = _submodules(path)
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=bool(submodules))
    if submodules:
        module.__path__ = []
    sys.modules[name] = module
    _look_up_names(module, path)
    for child in submodules:
        make_alias(f"{path}.{child}")
    return module


def ensure(name: str) -> None:
    """Create the alias module of a full name if the table has its path and flowmx has no module there."""
    package, _, last = name.rpartition(".")
    if name.removeprefix(_PREFIX) in PATHS and not _is_flowmx_module(importlib.import_module(package), last):
        make_alias(name.removeprefix(_PREFIX))


_extended_getattrs: WeakSet[Any] = WeakSet()
"""The ``__getattr__`` functions of modules that look up names in the modules of the table."""


def _is_internal(name: str) -> bool:
    """Return whether a module is internal to MXNet: its alias is created for the package ``mxnet``, or on first use."""
    return name.startswith(("gen_", "_op", "_register")) or name in ("numpy", "numpy_extension")


def _look_up_names(module: ModuleType, path: str) -> None:
    """Make a module look up missing names in the modules of the table, after its original ``__getattr__``."""
    names = vars(module)
    original = names.get("__getattr__")
    if original in _extended_getattrs:
        return

    def find(name: str) -> Any:
        try:
            if original is not None:
                return original(name)
            raise missing(module, name)
        except AttributeError:
            if name.startswith("__") and name not in ("__all__", "__version__"):  # Python's names
                raise
            value: Any = _MISSING if _is_flowmx_module(module, name) else _lookup(path, name)
            if value is not _MISSING:
                if name != "__all__":
                    return value
                return sorted({*value, *_defined_names(module), *_modules_of_star_import(path)})
            if "__file__" not in names and len(PATHS.get(path, ())) == 1:  # an alias of one module
                return getattr(importlib.import_module(PATHS[path][0]), name)  # its error may have a suggestion
            raise

    _extended_getattrs.add(find)
    names["__getattr__"] = find
    if "__file__" not in names:
        names["__dir__"] = lambda: sorted({*names, *_submodules(path), *_names_in_table(path)})


def complete(path: str) -> None:
    """Make ``from module import *`` import the same names as in MXNet, for the package ``mxnet``."""
    module = sys.modules[f"{_PREFIX}{path}"]
    names = vars(module)
    if (path not in PATHS and path not in WITH_MODULES) or "__all__" not in names:
        return
    _look_up_names(module, path)
    names["__dir__"] = partial(sorted, dir(module))
    listed, find = names.pop("__all__"), names["__getattr__"]

    def find_all(name: str) -> Any:
        if name != "__all__":
            return find(name)
        return [*listed, *_names_of_star_import(path), *_modules_of_star_import(path)]

    _extended_getattrs.add(find_all)
    names["__getattr__"] = find_all


def fill(path: str) -> None:
    """Store in a module the names that ``import *`` imports from it, so that ``vars`` has them."""
    module = sys.modules[f"{_PREFIX}{path}"]
    names = vars(module)
    added = set(_names_of_star_import(path)) if "__file__" in names else set()
    listed = module.__all__ if "__file__" in names else dir(importlib.import_module(PATHS[path][0]))
    for name in listed:
        if name not in names and not name.startswith("__"):
            value = _lookup(path, name) if name in added else _MISSING
            names[name] = getattr(module, name) if value is _MISSING else value


def _is_flowmx_module(module: ModuleType, name: str) -> bool:
    """Return whether flowmx has a submodule of this name in a package."""
    folders = vars(module).get("__path__")
    return bool(folders) and PathFinder.find_spec(f"{module.__name__}.{name}", folders) is not None


def _lookup(path: str, name: str) -> Any:
    """Return the alias module of that name at a path, or the attribute of the first module of the table that has it."""
    if f"{path}.{name}" in PATHS:
        return make_alias(f"{path}.{name}")
    if name == "__all__":
        is_private = path.endswith("_internal")  # its operators have private names
        return [other for other in sorted(_names_in_table(path)) if is_private or not other.startswith("_")]
    if name == "__version__" or not name.startswith("__"):
        for source in PATHS.get(path, ()):
            value = getattr(importlib.import_module(source), name, _MISSING)
            if value is not _MISSING:
                return value
    return _MISSING


def _names_of_star_import(path: str) -> Iterator[str]:
    """Yield the names that ``import *`` of a path imports in addition to the module's ``__all__``."""
    for source in PATHS.get(path, ()):
        if source != "flowmx.compat.shared_names":
            yield from getattr(importlib.import_module(source), "__all__", ())


def _defined_names(module: ModuleType) -> Iterator[str]:
    """Yield the names of the public classes and functions that a module defines."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            yield name


@cache
def _submodules(path: str) -> list[str]:
    """Return the names of the direct submodules that the table has for a path."""
    prefix = f"{path}." if path else ""
    return list(dict.fromkeys(other[len(prefix) :].partition(".")[0] for other in PATHS if other.startswith(prefix)))


def _modules_of_star_import(path: str) -> list[str]:
    """Return the names of the direct submodules that ``import *`` of a package imports."""
    return [other.rpartition(".")[2] for other in LOADED if path in WITH_MODULES and other.rpartition(".")[0] == path]


def _names_in_table(path: str) -> set[str]:
    """Return the names that the modules of the table have for a path."""
    return {
        name
        for source in map(importlib.import_module, PATHS.get(path, ()))
        for name in (*vars(source), *dir(source))
        if not name.startswith("__")
    }


extend(sys.modules["flowmx"])
