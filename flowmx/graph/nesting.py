"""Nested lists of arrays or symbols, as the functions that users give to loops and branches take and return them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from flowmx.errors import ArgumentKindError

Format: TypeAlias = "int | list[Format]"
"""Nesting of flat items: an int for one item (0) or that many of them, a list for a list, -1 for a None."""


def flatten(nested: Any, leaf: type, what: str, optional: bool = False) -> tuple[list[Any], Format]:
    """The items of a nested list in order, and how they nest.

    A symbol with several outputs counts as so many items in a row. Where they are ``optional``, a None may stand
    in the place of an item, and is none.

    Raises:
        TypeError: something is neither a list nor a ``leaf``; the message begins with ``what``.
    """
    if isinstance(nested, leaf):
        outputs = getattr(nested, "num_outputs", 1)
        return ([nested], 0) if outputs == 1 else (list(nested), outputs)  # type: ignore[call-overload]
    if nested is None and optional:
        return [], -1
    if not isinstance(nested, (list, tuple)):
        raise ArgumentKindError(f"{what}: expected {leaf.__name__}s in (nested) lists, found {type(nested).__name__}")
    parts = [flatten(each, leaf, what, optional) for each in nested]
    return [item for items, _ in parts for item in items], [form for _, form in parts]


def regroup(items: Sequence[Any], form: Format) -> Any:
    """Flat items nested anew."""
    return _take(iter(items), form)


def _take(items: Iterator[Any], form: Format) -> Any:
    if isinstance(form, list):
        return [_take(items, each) for each in form]
    if form == -1:
        return None
    return next(items) if form == 0 else [next(items) for _ in range(form)]
