"""A workaround for objects that several threads set attributes on: CPython may give one object two dictionaries.

CPython 3.11 stores the attributes of an object inline, under names that its class has learned from earlier objects. An
attribute whose name does not fit moves all of them into a dictionary. Allocating it may start the garbage collector,
whose callbacks and finalizers may switch threads. If the other thread sets such an attribute of the same object, both
dictionaries own, and free, the same memory. Nothing reports this: another object is damaged, and the process crashes
later, elsewhere. So classes learn all their names before the first object is created.
"""

from __future__ import annotations

from typing import Generic


class DeclaredAttributes:
    """A base class of classes that declare, in the class body, every attribute that ``__init__`` does not always set.

    A declaration is an annotation or a default.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        first = object.__new__(cls)
        for name in _declared_names(cls):
            object.__setattr__(first, name, None)


def _declared_names(cls: type) -> list[str]:
    """Return the names of the instance attributes that a class and its bases declare."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        if base is Generic:
            continue
        members = vars(base)
        annotations = {name: str(annotation) for name, annotation in members.get("__annotations__", {}).items()}
        names |= dict.fromkeys(name for name, text in annotations.items() if not text.startswith("ClassVar"))
        names |= dict.fromkeys(name for name, value in members.items() if _is_default(name, value))
    return [name for name in names if not hasattr(getattr(cls, name, None), "__set__")]  # slots are stored elsewhere


def _is_default(name: str, value: object) -> bool:
    return not (name.startswith("__") or callable(value) or hasattr(value, "__get__"))
