"""Agreement of a job's nodes on their facts: versions, seeds, shapes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowmx.comm.errors import Refused
from flowmx.comm.fields import mapping
from flowmx.kvstore.facts import DIFFER

__all__ = ["Facts", "facts_of"]

MOST_ITEMS = 1 << 17
LONGEST = 1000
_SHOWN = 5


class Facts:
    """Compares the facts of each node with those of the nodes that are in the job."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._said: dict[str, dict[str, str]] = {}

    def know(self, names: Mapping[str, str]) -> None:
        """Set the nodes of the job, names by identity; facts of all others are dropped."""
        self._names = dict(names)
        self._said = {item: left for item, values in self._said.items() if (left := _of(values, names))}

    def say(self, node: str, facts: Mapping[str, str]) -> None:
        """Record facts of a node that must equal those of the others.

        Raises:
            Refused: another node has a different value, or there are too many facts.
        """
        differences = self.differences(node, facts)
        if differences:
            raise Refused(_sentence(differences), "invalid")
        self.note(node, facts)

    def note(self, node: str, facts: Mapping[str, str]) -> None:
        """Record facts of a node that may differ from those of the others.

        Raises:
            Refused: there are too many facts.
        """
        if len(self._said.keys() | facts.keys()) > MOST_ITEMS:
            raise Refused(f"the nodes of the job say more than {MOST_ITEMS} things of themselves", "invalid")
        for item, value in facts.items():
            self._said.setdefault(item, {})[node] = value

    def differences(self, node: str, facts: Mapping[str, str]) -> list[str]:
        """Sentences on the facts in which a node differs from another one."""
        return [
            f"{item} is {value} on {self._name(node)}, and {other} on {self._name(who)}"
            for item, value in facts.items()
            for who, other in self._said.get(item, {}).items()
            if who != node and other != value
        ]

    def _name(self, node: str) -> str:
        return self._names.get(node, node[:40])


def facts_of(header: Mapping[str, Any], name: str) -> dict[str, str]:
    """A node's facts from a field of a header; empty where it is missing.

    Raises:
        ValueError: it is no map of text to text, or too large.
    """
    found = mapping(header.get(name, {}), name)
    if len(found) > MOST_ITEMS or any(
        not isinstance(value, str) or len(value) > LONGEST or len(item) > 2 * LONGEST for item, value in found.items()
    ):
        raise ValueError(f"{name} must be a map of at most {MOST_ITEMS} texts of at most {LONGEST} characters")
    return dict(found)


def _of(values: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    known = set(names)
    return {node: value for node, value in values.items() if node in known}


def _sentence(differences: list[str]) -> str:
    more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return DIFFER + "; ".join(differences[:_SHOWN]) + more
