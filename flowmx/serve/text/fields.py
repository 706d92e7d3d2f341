"""The fields of a JSON request, each read once with its type checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TypeGuard

from flowmx.serve.text.errors import BadRequest
from flowmx.suggestions import did_you_mean

__all__ = ["Fields", "is_texts", "is_tokens", "parse_object"]


class Fields:
    """The fields of a JSON object.

    A field that is missing or null has the default value.

    Args:
        values: the object.
        names: the names that are expected.
        ignored: names that have no effect here.

    Raises:
        BadRequest: the object has a field of another name.
    """

    def __init__(self, values: Mapping[str, object], names: Collection[str], ignored: Collection[str] = ()) -> None:
        for name in values:
            if name not in names and name not in ignored:
                hint = did_you_mean(name, names)
                raise BadRequest(f"the field {name[:80]!r} is unknown{hint}", name[:80])
        self._values = values

    def get(self, name: str) -> object:
        """Return a field of any type; None if it is missing."""
        return self._values.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string.

        Raises:
            BadRequest: the value is not a string, or it is missing and has no default.
        """
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def number(self, name: str) -> float | None:
        """Return a number."""
        value = self._values.get(name)
        if value is None or _is_number(value):
            return value
        raise self.wrong(name, "a number")

    def integer(self, name: str) -> int | None:
        """Return an integer."""
        value = self._values.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, "an integer")

    def count(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer in a range."""
        value = self.integer(name)
        value = default if value is None else value
        if not low <= value <= high:
            raise self.wrong(name, f"an integer from {low} to {high}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a string, or a list of strings, as a list."""
        value = self._values.get(name)
        if value is None:
            return []
        texts = [value] if isinstance(value, str) else value
        if not is_texts(texts):
            raise self.wrong(name, "a string or a list of strings")
        return texts

    def mapping(self, name: str) -> Mapping[str, object] | None:
        """Return a JSON object."""
        value = self._values.get(name)
        if value is None or isinstance(value, dict):
            return value
        raise self.wrong(name, "an object")

    def expect(self, name: str, *values: object) -> None:
        """Refuse a value that has an effect in other services, and none here."""
        value = self._values.get(name)
        if value is not None and value not in values:
            supported = ", ".join(json.dumps(each) for each in values)
            raise BadRequest(f"{name} is {_shown(value)}, which is not supported; expected {supported}", name)

    def wrong(self, name: str, expected: str) -> BadRequest:
        """Return the error of a field with a wrong value."""
        value = self._values.get(name)
        state = "is missing" if value is None else f"is {_shown(value)}"
        return BadRequest(f"{name} {state}, expected {expected}", name)


def parse_object(body: bytes) -> Mapping[str, object]:
    """Parse the body of a request.

    Raises:
        BadRequest: the body is not a JSON object.
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadRequest(f"the body is a JSON {_kind(values)}, expected an object")
    return values


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_tokens(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a list of integers that is not empty."""
    return isinstance(value, list) and len(value) > 0 and all(type(each) is int for each in value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: object) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
