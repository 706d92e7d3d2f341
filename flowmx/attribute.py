"""Attributes of the symbols created in a scope: ``with mx.AttrScope(ctx_group="dev1"):``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextvars import ContextVar
from typing import ClassVar

from flowmx.base import ClassProperties, ClassProperty
from flowmx.scopes import Entries, Value, assign

HIDDEN = frozenset(["ctx_group", "force_mirroring", "lr_mult", "mirror_stage", "profiler_scope", "wd_mult"])
"""MXNet's attributes. They are stored with double underscores on both sides, and displayed under both names."""


def is_attribute(name: str) -> bool:
    """Return whether a keyword is a node attribute instead of a parameter of the operator."""
    return name in HIDDEN or (name.startswith("__") and name.endswith("__"))


def stored_form(attributes: Mapping[str, object]) -> dict[str, str]:
    """Return attributes in the form that nodes store: as text, and MXNet's attributes with underscores."""
    return {f"__{name}__" if name in HIDDEN else name: str(value) for name, value in attributes.items()}


def display_form(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes for display: MXNet's attributes under both names."""
    plain = {name.strip("_"): value for name, value in attributes.items() if name.startswith("__")}
    return {**{name: value for name, value in plain.items() if name in HIDDEN}, **attributes}


class AttrScope(metaclass=ClassProperties):
    """A context manager that sets attributes of the symbols created in it; inner scopes extend and override outer ones.

    Args:
        **attributes: text values.

    Attributes:
        current: the current scope; it can be set.

    Raises:
        ValueError: a value is not a str.
    """

    current = ClassProperty(
        lambda owner: owner._from_attributes(_current.get().value),
        lambda scope: assign(_current, Value(dict(scope._attributes))),
    )
    """The current scope, with the attributes of all entered scopes."""
    _subgraph_names: ClassVar[defaultdict[str, int]] = defaultdict(int)
    """Counters of the subgraphs of loops and branches by name, which MXNet's tests read."""

    @classmethod
    def _from_attributes(cls, attributes: dict[str, str]) -> AttrScope:
        scope = cls()
        scope._attributes = attributes
        return scope

    def __init__(self, **attributes: str) -> None:
        for name, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"AttrScope: attribute {name} is {value!r}, expected text")
        self._attributes = attributes
        self._entries = Entries(_current)

    def get(self, attributes: dict[str, str] | None) -> dict[str, str]:
        """Return the scope's attributes, overridden by ``attributes``."""
        return {**_current.get().value, **self._attributes, **(attributes or {})}

    def __enter__(self) -> AttrScope:
        self._entries.enter(Value({**_current.get().value, **self._attributes}))
        return self

    def __exit__(self, *error: object) -> None:
        self._entries.leave()


_current: ContextVar[Value[dict[str, str]]] = ContextVar("flowmx_attributes", default=Value({}))  # noqa: B039


def current() -> dict[str, str]:
    """Return the attributes of symbols created in the current scope, in their original form."""
    return _current.get().value
