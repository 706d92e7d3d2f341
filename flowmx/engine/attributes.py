"""Objects that several threads give attributes to, on an interpreter that may give one of them two dictionaries.

CPython 3.11 keeps the attributes of an object next to it, under names that its class has learned from earlier objects.
An attribute of a name that the class has no room for any more moves all of them into a dictionary. To make one may
start the garbage collector, whose callbacks and finalizers may let another thread run; where that one sets such an
attribute of the same object too, both dictionaries own, and free, the same memory. Nothing says so: some other object
is damaged, and the process dies later, elsewhere. So classes learn all their names before the first object.
"""

from __future__ import annotations

from typing import Any


class KnownAttributes:
    """A base of classes whose attributes are all declared in their bodies: by an annotation, or by a default.

    Attributes that ``__init__`` gives to every object need not be declared.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        first = object.__new__(cls)
        for name in _declared(cls):
            object.__setattr__(first, name, None)


def _declared(cls: type) -> list[str]:
    """The names of the attributes that a class and its bases declare for objects."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        own = vars(base)
        annotations = {name: str(each) for name, each in own.get("__annotations__", {}).items()}
        names |= dict.fromkeys(name for name, text in annotations.items() if not text.startswith("ClassVar"))
        names |= dict.fromkeys(name for name, value in own.items() if _is_default(name, value))
    return [name for name in names if not hasattr(getattr(cls, name, None), "__set__")]  # slots have their place


def _is_default(name: str, value: Any) -> bool:
    return not (name.startswith("__") or callable(value) or hasattr(value, "__get__"))
