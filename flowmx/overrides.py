"""Methods of flowmx's classes that other code may replace: in a subclass, in the class, or in one object."""

from __future__ import annotations


def is_replaced(owner: object, name: str, original: object) -> bool:
    """Return whether a method of an object is not `original`, the function that flowmx defines."""
    return getattr(type(owner), name) is not original or name in vars(owner)
