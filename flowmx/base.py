"""``mx.base``: errors and tuples of types, as in MXNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.errors import MXNetError, NotImplementedForSymbol

__all__ = [
    "ClassProperties", "ClassProperty", "MXNetError", "NotImplementedForSymbol", "integer_types", "mx_real_t",
    "numeric_types", "string_types",
]  # fmt: skip

integer_types = (int, np.integer)
numeric_types = (float, int, np.generic)
string_types = (str,)
mx_real_t = np.float32
"""The default dtype of arrays."""


class ClassProperty:
    """A property of a class. It can be set if the metaclass is :class:`ClassProperties`.

    Args:
        getter: called with the class.
        setter: called with the value.
    """

    def __init__(self, getter: Callable[[Any], Any], setter: Callable[[Any], object]) -> None:
        self._getter, self.setter = getter, setter

    def __get__(self, instance: object, owner: type) -> Any:
        return self._getter(owner)


class ClassProperties(type):
    """The metaclass of classes with a :class:`ClassProperty`."""

    def __setattr__(cls, name: str, value: object) -> None:
        member = vars(cls).get(name)
        if isinstance(member, ClassProperty):
            member.setter(value)
        else:
            super().__setattr__(name, value)
