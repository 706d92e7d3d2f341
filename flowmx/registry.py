"""``mx.registry``: registries of classes by name, for optimizers, initializers and metrics."""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from flowmx.errors import ArgumentError
from flowmx.foreign_names import MODULES, advice
from flowmx.keywords import ChecksKeywords
from flowmx.suggestions import did_you_mean

T = TypeVar("T")
C = TypeVar("C", bound=type)


_registries: dict[type, Registry[Any]] = {}
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
        self.lazy_modules: dict[str, str] = {}
        """Names that are registered later, and the modules that register them."""
        _registries.setdefault(base, self)

    def register(self, cls: C, name: str | None = None) -> C:
        """Register a class under its name or another one; usable as a decorator.

        Raises:
            TypeError: the class is not a subclass of the base class.
        """
        candidate: Any = cls
        if not (isinstance(candidate, type) and issubclass(candidate, self.base)):
            raise TypeError(f"register: {candidate!r} is not a subclass of {self.base.__name__}")
        key = (name or cls.__name__).lower()
        if self.classes.get(key, cls) is not cls:
            old = self.classes[key]
            warnings.warn(
                f"the {self.nickname} {key!r} is now {cls.__module__}.{cls.__qualname__} instead of "
                f"{old.__module__}.{old.__qualname__}",
                stacklevel=2,
            )
        self.classes[key] = cls
        return cls

    def alias(self, *names: str) -> Callable[[C], C]:
        """Return a decorator that registers a class under further names."""

        def register(cls: C) -> C:
            for name in names:
                self.register(cls, name)
            return cls

        return register

    def register_lazily(self, module: str, *names: str) -> None:
        """Declare names that a module registers; the module is imported when one of them is looked up."""
        self.lazy_modules.update((name.lower(), module) for name in names)

    def find(self, name: str) -> type[T]:
        """Return the class of a name, case-insensitively.

        Raises:
            ValueError: the name is unknown; the message has the nearest one.
        """
        if name.lower() not in self.classes and name.lower() in self.lazy_modules:
            importlib.import_module(self.lazy_modules[name.lower()])
        cls = self.classes.get(name.lower())
        if cls is None:
            names = sorted({*self.classes, *self.lazy_modules})
            hint = advice(MODULES.get(f"flowmx.{self.nickname}", {}), name) or did_you_mean(name, names)
            hint = hint or f"; expected one of {', '.join(names)}"
            raise ArgumentError(
                f"unknown {self.nickname} {name!r}{hint} (register custom ones with @mx.{self.nickname}.register)"
            )
        return cls

    def create(self, spec: Any = None, /, *args: Any, **kwargs: Any) -> T:
        """Create an instance from a name and arguments, a dict, or the JSON form of either.

        An instance is returned unchanged. The JSON forms are ``'["name", {"argument": value}]'`` and
        ``'{"<nickname>": "name", "argument": value}'``.

        Raises:
            ValueError: the name is unknown, or there are arguments in addition to an instance or a JSON string.
            TypeError: ``spec`` has a different type.
        """
        if spec is None:
            spec = kwargs.pop(self.nickname, None)
        if isinstance(spec, dict):
            return self.create(**spec)
        if isinstance(spec, self.base):
            self._refuse_arguments(spec, args, kwargs)
            return spec
        if not isinstance(spec, str):
            raise TypeError(
                f"create: the {self.nickname} is {spec!r}, expected a name, its JSON form, or an instance of "
                f"{self.base.__name__}"
            )
        if spec.startswith(("[", "{")):
            self._refuse_arguments(spec, args, kwargs)
            decoded = json.loads(spec)
            return self.create(decoded) if isinstance(decoded, dict) else self.create(decoded[0], **decoded[1])
        return self.find(spec)(*args, **kwargs)

    def _refuse_arguments(self, spec: Any, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> None:
        if args or kwargs:
            raise ValueError(f"create: {spec!r} is complete, but there are further arguments: {args} {kwargs}")


def _registry_of(base_class: type[T], nickname: str) -> Registry[T]:
    return _registries.get(base_class) or Registry(base_class, nickname)


def get_registry(base_class: type[T]) -> dict[str, type[T]]:
    """Return the registered subclasses of a base class by lower-case name."""
    return dict(_registry_of(base_class, base_class.__name__.lower()).classes)


def get_register_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """Return a decorator that registers subclasses of a base class.

    Args:
        base_class: the base class.
        nickname: its name in messages and the JSON form.
    """
    return _registry_of(base_class, nickname).register


def get_alias_func(base_class: type, nickname: str) -> Callable[..., Callable[[C], C]]:
    """Return a function that takes names and returns a decorator, which registers a class under them."""
    return _registry_of(base_class, nickname).alias


def get_create_func(base_class: type[T], nickname: str) -> Callable[..., T]:
    """Return a function that creates instances of registered classes; see :meth:`Registry.create`."""
    return _registry_of(base_class, nickname).create


class RecordsArguments(ChecksKeywords):
    """Records the constructor arguments of an instance, so that it can be serialized as name and arguments."""

    init_arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls, *args, **kwargs)
        self.init_arguments = _named_arguments(cls, args, kwargs)
        return self


def _named_arguments(cls: type, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError:
        return {}  # the constructor raises the error
    named: dict[str, object] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    return named
