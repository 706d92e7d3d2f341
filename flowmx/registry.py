"""Classes that can be made by name: optimizers, initializers, metrics (``mx.registry``)."""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from flowmx.errors import ArgumentError
from flowmx.suggestions import did_you_mean

T = TypeVar("T")
C = TypeVar("C", bound=type)


_known: dict[type, Registry[Any]] = {}
"""The first registry of each base class."""


class Registry(Generic[T]):
    """The subclasses of one base class, by lower-case name.

    Args:
        base: the base class.
        nickname: its name in messages and the JSON form, such as ``"metric"``.
    """

    def __init__(self, base: type[T], nickname: str) -> None:
        self.base = base
        self.nickname = nickname
        self.classes: dict[str, type[T]] = {}
        self.coming: dict[str, str] = {}
        """Names that are not there yet, and the modules that register them."""
        _known.setdefault(base, self)

    def register(self, cls: C, name: str | None = None) -> C:
        """Make a class known by its name, or by another one; usable as a decorator.

        Raises:
            TypeError: it is no subclass of the base class.
        """
        given: Any = cls
        if not (isinstance(given, type) and issubclass(given, self.base)):
            raise TypeError(f"register: {given!r} is not a subclass of {self.base.__name__}")
        key = (name or cls.__name__).lower()
        if self.classes.get(key, cls) is not cls:
            old = self.classes[key]
            warnings.warn(
                f"the {self.nickname} {key!r} is now {cls.__module__}.{cls.__qualname__}, and no longer "
                f"{old.__module__}.{old.__qualname__}",
                stacklevel=2,
            )
        self.classes[key] = cls
        return cls

    def alias(self, *names: str) -> Callable[[C], C]:
        """A decorator that makes a class known by further names."""

        def register(cls: C) -> C:
            for name in names:
                self.register(cls, name)
            return cls

        return register

    def later(self, module: str, *names: str) -> None:
        """Names that a module registers: it is imported when the first of them is asked for."""
        self.coming.update((name.lower(), module) for name in names)

    def find(self, name: str) -> type[T]:
        """The class of a name, in any case.

        Raises:
            ValueError: there is none; the message names the nearest.
        """
        if name.lower() not in self.classes and name.lower() in self.coming:
            importlib.import_module(self.coming[name.lower()])
        cls = self.classes.get(name.lower())
        if cls is None:
            known = sorted({*self.classes, *self.coming})
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise ArgumentError(
                f"there is no {self.nickname} {name!r}{hint} (your own must be registered with "
                f"@mx.{self.nickname}.register)"
            )
        return cls

    def create(self, given: Any = None, /, *args: Any, **kwargs: Any) -> T:
        """Make an instance from a name and arguments, a dict, or the JSON form of either.

        An instance is returned as it is. The JSON forms are ``'["name", {"argument": value}]'`` and
        ``'{"<nickname>": "name", "argument": value}'``.

        Raises:
            ValueError: unknown name, or arguments along with an instance or a JSON string.
            TypeError: ``given`` is neither.
        """
        if given is None:
            given = kwargs.pop(self.nickname, None)
        if isinstance(given, dict):
            return self.create(**given)
        if isinstance(given, self.base):
            self._refuse_arguments(given, args, kwargs)
            return given
        if not isinstance(given, str):
            raise TypeError(
                f"create: the {self.nickname} is {given!r}, expected a name, its JSON form, or an instance of "
                f"{self.base.__name__}"
            )
        if given.startswith(("[", "{")):
            self._refuse_arguments(given, args, kwargs)
            decoded = json.loads(given)
            return self.create(decoded) if isinstance(decoded, dict) else self.create(decoded[0], **decoded[1])
        return self.find(given)(*args, **kwargs)

    def _refuse_arguments(self, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args or kwargs:
            raise ValueError(f"create: {given!r} is complete, but these arguments came with it: {args} {kwargs}")


def _of(base_class: type[T], nickname: str) -> Registry[T]:
    return _known.get(base_class) or Registry(base_class, nickname)


def get_registry(base_class: type[T]) -> dict[str, type[T]]:
    """The classes that :func:`get_register_func` registered for a base class, by lower-case name."""
    return dict(_of(base_class, base_class.__name__.lower()).classes)


def get_register_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """A decorator that registers subclasses of a base class under their names, or others.

    Args:
        base_class: the base class.
        nickname: its name in messages and the JSON form.
    """
    return _of(base_class, nickname).register


def get_alias_func(base_class: type, nickname: str) -> Callable[..., Callable[[C], C]]:
    """A function of names that gives a decorator, which registers a class under each of them."""
    return _of(base_class, nickname).alias


def get_create_func(base_class: type[T], nickname: str) -> Callable[..., T]:
    """A function that makes instances of what was registered; see :meth:`Registry.create`."""
    return _of(base_class, nickname).create


class Recorded:
    """Remembers the arguments that an instance was made with, so that it can travel as name and arguments."""

    given: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self.given = _named_arguments(cls, args, kwargs)
        return self


def _named_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError:
        return {}  # the constructor is about to say what is wrong
    named: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    return named
