"""The properties of the functions that operations launch, for simulated devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Moves = list[tuple[str, int]]
"""For each launch, where it moves bytes and how many: ``here`` is the device, ``there`` another one."""


class LaunchTraits(NamedTuple):
    """The properties of a function that launches work.

    Attributes:
        captured_by: ``captured_by(*arguments)`` returns the object that identifies the capture of a bound graph with
            its shapes, the part of the graph, and the number of launches of its replay.
        moves: ``moves(*arguments)`` returns the bytes that its launches move, or None if they are unknown.
        moves_memory: whether it replaces the memory of arrays, so that it must not be deferred.
    """

    captured_by: Callable[..., tuple[object, object, int]] | None = None
    moves: Callable[..., Moves | None] | None = None
    moves_memory: bool = False


_DEFAULT = LaunchTraits()
_traits: dict[Callable[..., object], LaunchTraits] = {}


def set_launch_traits(function: Callable[..., object], traits: LaunchTraits) -> None:
    """Set the traits of a function, or of a method (passed as ``Class.method``)."""
    _traits[function] = traits


def launch_traits(function: Callable[..., object]) -> LaunchTraits:
    """Return the traits of a function or bound method."""
    try:
        return _traits.get(getattr(function, "__func__", function), _DEFAULT)
    except TypeError:  # a user's callable that cannot be hashed
        return _DEFAULT
