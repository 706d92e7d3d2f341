"""Readers of a peer's header fields: each checks a type and a limit, and raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["choice", "flag", "mapping", "sequence", "text", "whole"]

MOST = 2**63 - 1


def mapping(found: object, what: str) -> Mapping[str, Any]:
    """`found`, which must be a map with text for keys.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{what} must be a map with text for keys, and is {_brief(found)}")
    return found


def text(header: Mapping[str, Any], name: str, most: int, *, least: int = 0) -> str:
    """The text of a field; one that is missing counts as empty.

    Raises:
        ValueError: it is no text, or its length is outside the limits.
    """
    found = header.get(name, "")
    if not isinstance(found, str) or not least <= len(found) <= most:
        raise _error(name, found, f"text of {least} to {most} characters")
    return found


def choice(header: Mapping[str, Any], name: str, among: Sequence[str]) -> str:
    """The text of a field that must be one of several.

    Raises:
        ValueError: it is none of them.
    """
    found = header.get(name)
    if not isinstance(found, str) or found not in among:
        raise _error(name, found, "one of " + ", ".join(among))
    return found


def whole(header: Mapping[str, Any], name: str, default: int = 0, most: int = MOST) -> int:
    """The int of a field, not negative.

    Raises:
        ValueError: it is another kind of value, or outside the limits.
    """
    found = header.get(name, default)
    if type(found) is not int or not 0 <= found <= most:
        raise _error(name, found, f"an int from 0 to {most}")
    return found


def flag(header: Mapping[str, Any], name: str) -> bool:
    """The bool of a field; False where it is missing.

    Raises:
        ValueError: it is neither true nor false.
    """
    found = header.get(name, False)
    if not isinstance(found, bool):
        raise _error(name, found, "true or false")
    return found


def sequence(header: Mapping[str, Any], name: str, most: int) -> Sequence[Any]:
    """The list of a field; empty where it is missing.

    Raises:
        ValueError: it is no list, or too long.
    """
    found = header.get(name, [])
    if not isinstance(found, list | tuple) or len(found) > most:
        raise _error(name, found, f"a list of at most {most} items")
    return found


def _error(name: str, found: object, expected: str) -> ValueError:
    return ValueError(f"the field {name!r} must be {expected}, and is {_brief(found)}")


def _brief(found: object) -> str:
    shown = repr(found)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
