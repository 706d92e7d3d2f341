"""Counts of the calls of methods. It runs with either package, so it imports neither."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from typing import Any

DUNDERS = {"__call__", "__next__", "__getitem__", "__len__"}
UNSEEN = {"__init__", "__new__"}


def method_names(cls: type) -> list[str]:
    """Return the names of the methods that a class has, private ones too."""
    names = {name for each in cls.__mro__ if each is not object for name in vars(each)}
    selection = (name for name in names if name in DUNDERS or not name.startswith("__"))
    return sorted(name for name in selection if inspect.isfunction(inspect.getattr_static(cls, name, None)))


class Spy:
    """Counts the calls of methods of classes, in subclasses or in the classes themselves.

    Args:
        names: the names of the counted methods by class name; of a class that is missing, all methods are counted.
        patch: replace the methods of the classes themselves; otherwise :meth:`of` makes subclasses.
    """

    def __init__(self, names: dict[str, list[str]] | None = None, patch: bool = True) -> None:
        self.names, self.patch = names, patch
        self.counts: Counter[str] = Counter()
        self.watched: dict[str, list[str]] = {}
        self._undo = contextlib.ExitStack()

    def close(self) -> None:
        """Restore the original methods of the classes."""
        self._undo.close()

    def of(self, cls: Any) -> Any:
        """Return a class whose calls are counted: a subclass, or the class itself."""
        if self.patch:
            self.watch(cls)
            return cls
        subclass = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        for name in self._methods(cls):
            setattr(
                subclass, name, self._counting(cls, name, lambda own, name=name: getattr(super(subclass, own), name))
            )
        return subclass

    def watch(self, *classes: Any) -> None:
        """Count the calls of methods of classes themselves."""
        for cls in classes:
            for name in self._methods(cls):
                inner = inspect.getattr_static(cls, name, None)
                had = name in vars(cls)
                setattr(cls, name, self._counting(cls, name, None if inner is None else inner.__get__))
                self._undo.callback(_restore, cls, name, inner, had)

    def _methods(self, cls: Any) -> list[str]:
        method_names_of_class = (self.names or {}).get(cls.__name__)
        self.watched[cls.__name__] = method_names_of_class if method_names_of_class is not None else method_names(cls)
        return self.watched[cls.__name__]

    def _counting(self, cls: type, name: str, bind: Any) -> Any:
        key = f"{cls.__name__}.{name}"

        def counted(own: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts[key] += 1
            if bind is None:
                raise NotImplementedError(f"{key} is called, but is not there")
            return bind(own)(*args, **kwargs)

        inner = inspect.getattr_static(cls, name, None)
        if inspect.isfunction(inner):
            counted = functools.wraps(inner)(counted)
        return counted


def _restore(cls: type, name: str, inner: Any, had: bool) -> None:
    if had:
        setattr(cls, name, inner)
    else:
        delattr(cls, name)
