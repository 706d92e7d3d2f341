"""Registry of reports that other parts of flowmx make on request: a KVStore's peers, a service's queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["describe", "forget", "said"]

_speakers: dict[str, Callable[[], Mapping[str, Any]]] = {}


def describe(name: str, say: Callable[[], Mapping[str, Any]]) -> None:
    """Register a report: a function that is called, on any thread, for each snapshot of this process.

    Args:
        name: whose words they are, such as ``"kvstore"``; who speaks under the same name takes its place.
        say: returns values that JSON can hold. Understood are ``node`` (what this process is called in its job),
            ``peers`` (a list of ``name``, ``state``, ``why``), ``waits`` (a list of ``for``, a peer's name, ``what``
            and ``seconds``), ``facts`` (what must be alike on all nodes), ``warnings`` (sentences), and ``kind`` (what
            the doctor calls those).
    """
    _speakers[name] = say


def forget(name: str, say: Callable[[], Mapping[str, Any]] | None = None) -> None:
    """Remove a report; given a function, only if it is still the one registered under the name."""
    if say is None or _speakers.get(name) is say:
        _speakers.pop(name, None)


def said() -> dict[str, dict[str, Any]]:
    """Call every registered report; returns them by name. For one that raises: ``{"error": "Type: message"}``."""
    found = {}
    for name, say in list(_speakers.items()):
        try:
            found[name] = dict(say())
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found
