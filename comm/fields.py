"""Readers of a peer's header fields: each checks a type and a limit, and raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["choice", "flag", "integer", "mapping", "sequence", "text"]

MAX_INT64 = 2**63 - 1


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return a value that must be a map with text keys.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} must be a map with text keys, and is {_brief(value)}")
    return value


def text(header: Mapping[str, object], name: str, max_length: int, *, min_length: int = 0) -> str:
    """Return the text of a field; a missing field is empty.

    Raises:
        ValueError: it is not text, or its length is outside the limits.
    """
    value = header.get(name, "")
    if not isinstance(value, str) or not min_length <= len(value) <= max_length:
        raise _error(name, value, f"text of {min_length} to {max_length} characters")
    return value


def choice(header: Mapping[str, object], name: str, among: Sequence[str]) -> str:
    """Return the text of a field, which must be one of `among`.

    Raises:
        ValueError: it is not.
    """
    value = header.get(name)
    if not isinstance(value, str) or value not in among:
        raise _error(name, value, "one of " + ", ".join(among))
    return value


def integer(header: Mapping[str, object], name: str, default: int = 0, maximum: int = MAX_INT64) -> int:
    """Return the non-negative int of a field.

    Raises:
        ValueError: it is not an int, or outside the limits.
    """
    value = header.get(name, default)
    if type(value) is not int or not 0 <= value <= maximum:
        raise _error(name, value, f"an int from 0 to {maximum}")
    return value


def flag(header: Mapping[str, object], name: str) -> bool:
    """Return the bool of a field; a missing field is False.

    Raises:
        ValueError: it is neither true nor false.
    """
    value = header.get(name, False)
    if not isinstance(value, bool):
        raise _error(name, value, "true or false")
    return value


def sequence(header: Mapping[str, object], name: str, max_length: int) -> Sequence[Any]:
    """Return the list of a field; a missing field is empty.

    Raises:
        ValueError: it is not a list, or too long.
    """
    value = header.get(name, [])
    if not isinstance(value, list | tuple) or len(value) > max_length:
        raise _error(name, value, f"a list of at most {max_length} items")
    return value


def _error(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"the field {name!r} must be {expected}, and is {_brief(value)}")


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
