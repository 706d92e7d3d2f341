"""Nested lists of arrays or symbols, which the functions passed to loops and branches take and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from flowmx.errors import ArgumentKindError

Format: TypeAlias = "int | list[Format]"
"""Nesting of flat items: an int for one item (0) or that many of them, a list for a list, -1 for a None."""


def flatten(nested: object, leaf: type, what: str, optional: bool = False) -> tuple[list[Any], Format]:
    """Return the items of a nested list in order, and the nesting.

    A symbol with several outputs counts as that many consecutive items. With ``optional``, a None may replace an item
    and adds no item.

    Raises:
        TypeError: a value is neither a list nor a ``leaf``; the message begins with ``what``.
    """
    if isinstance(nested, leaf):
        items: Any = nested
        outputs = items.num_outputs if hasattr(type(nested), "num_outputs") else 1
        return ([items], 0) if outputs == 1 else (list(items), outputs)
    if nested is None and optional:
        return [], -1
    if not isinstance(nested, (list, tuple)):
        raise ArgumentKindError(f"{what}: expected {leaf.__name__}s in (nested) lists, got {type(nested).__name__}")
    parts = [flatten(part, leaf, what, optional) for part in nested]
    return [item for items, _ in parts for item in items], [form for _, form in parts]


def regroup(items: Sequence[object], form: Format) -> Any:
    """Nest flat items as ``form`` says."""
    return _take(iter(items), form)


def _take(items: Iterator[object], form: Format) -> Any:
    if isinstance(form, list):
        return [_take(items, part) for part in form]
    if form == -1:
        return None
    return next(items) if form == 0 else [next(items) for _ in range(form)]
