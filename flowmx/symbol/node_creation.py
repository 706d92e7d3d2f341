"""Creation of the node of an operator call: its name, attributes, and variables for missing inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from flowmx import attribute, name
from flowmx.engine import Origin
from flowmx.errors import MXNetError
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import as_dtype, name_of
from flowmx.ops.registry.operators import Operator
from flowmx.symbol.initial_values import default_initializers

_SPACE = re.compile("^_(contrib|linalg|image|sparse)_")
"""Namespace prefixes of operators' names, which MXNet removes from the names of nodes."""


class Outputs(Protocol):
    """A symbol."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        """Return the number of outputs."""


def create_node(
    cls: type[Operator],
    inputs: Mapping[str, Outputs],
    parameters: Mapping[str, object],
    label: str | None,
    attributes: Mapping[str, str] | None,
    operator_name: str,
    origin: Origin,
) -> Node:
    """Return the node of an operator call; missing inputs become variables called ``<node>_<input>``, as in MXNet.

    Args:
        cls: the operator.
        inputs: symbols with one output, by input name.
        parameters: the operator's parameters.
        label: the name of the node, or None.
        attributes: the attributes of the node, besides those of the scope.
        operator_name: the name by which the operator was called.
        origin: the user's line.

    Raises:
        TypeError: the operator has no input with one of the names, or an input has several outputs.
    """
    texts = {key: _text(value) for key, value in parameters.items()}
    op = cls.create(**parameters)
    label = name.current().get(label, _hint(operator_name))
    scope = {**attribute.current(), **attributes} if attributes else attribute.current()
    scope = _attributes_of(cls, scope) if scope else {}
    entries: list[Entry] = []
    names = (*op.inputs(), *op.auxiliary)
    inputs = calling.shift_skipped(op, inputs)
    for extra in inputs:
        if extra not in names:
            raise TypeError(f"{cls.name} {label!r}: input {extra} is not taken by {op!r}; it takes {', '.join(names)}")
    for argument in names:
        symbol = inputs.get(argument)
        if symbol is None:
            # MXNet gives such a variable all of its operator's attributes.
            variable = Node(None, f"{label}_{argument}", attributes={**texts, **scope}, origin=origin)
            entries.append(Entry(variable, 0))
        elif len(symbol) != 1:
            raise TypeError(
                f"{cls.name} {label!r}: input {argument} is {symbol!r} with {len(symbol)} outputs: pick one with [i]"
            )
        else:
            entries.append(symbol.entries[0])
    _set_initializers(op, entries)
    return Node(op, label, tuple(entries), scope, texts, origin)


@lru_cache(None)
def _hint(operator_name: str) -> str:
    """Return the beginning of the names of an operator's nodes."""
    return _SPACE.sub("", operator_name).lower()


def _attributes_of(cls: type[Operator], attributes: Mapping[str, object]) -> dict[str, str]:
    """Return a node's attributes. For operators with parameters, add underscores around their names, as in MXNet."""
    return {
        name if name.startswith("__") or not cls.parameters else f"__{name}__": value
        for name, value in attribute.stored_form(attributes).items()
    }


def _set_initializers(op: Operator, entries: Sequence[Entry]) -> None:
    """Set the operator's default initializers on its variables that have none."""
    defaults = default_initializers(op.name)
    if not defaults:  # nearly always
        return
    for argument, entry in zip((*op.inputs(), *op.auxiliary), entries, strict=True):
        if argument in defaults and entry.node.is_variable:
            entry.node.attributes.setdefault("__init__", defaults[argument])


def _text(value: object) -> str:
    """Return a parameter as text, as MXNet's frontends write it."""
    if isinstance(value, (np.dtype, type)):
        try:
            return name_of(as_dtype(value))
        except MXNetError:
            return str(value)
    return str(value)
