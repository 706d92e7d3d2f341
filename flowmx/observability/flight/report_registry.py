"""Registry of the reports that other parts of flowmx add to snapshots: a KVStore's peers, a service's queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["describe", "forget", "reports"]

_functions: dict[str, Callable[[], Mapping[str, Any]]] = {}


def describe(name: str, make_report: Callable[[], Mapping[str, Any]]) -> None:
    """Register a function that returns a report; it is called, on any thread, for each snapshot of this process.

    Args:
        name: name of the report, such as ``"kvstore"``; replaces an earlier report of that name.
        make_report: returns the report, JSON-compatible. The doctor uses these keys: ``node`` (name of this process in
            its job), ``peers`` (a list of ``name``, ``state``, ``why``), ``waits`` (a list of ``for``, a peer's name,
            ``what`` and ``seconds``), ``facts`` (values that must be equal on all nodes), ``warnings`` (sentences), and
            ``kind`` (the kind of the findings that the doctor reports for the warnings).
    """
    _functions[name] = make_report


def forget(name: str, make_report: Callable[[], Mapping[str, Any]] | None = None) -> None:
    """Remove a report; given a function, only if it is still the one registered under the name."""
    if make_report is None or _functions.get(name) is make_report:
        _functions.pop(name, None)


def reports() -> dict[str, dict[str, Any]]:
    """Return the reports of all registered functions by name; ``{"error": "Type: message"}`` for one that raises."""
    by_name = {}
    for name, make_report in list(_functions.items()):
        try:
            by_name[name] = dict(make_report())
        except Exception as error:  # user code
            by_name[name] = {"error": f"{type(error).__name__}: {error}"}
    return by_name
