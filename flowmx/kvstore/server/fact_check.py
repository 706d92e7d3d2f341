"""Checks that the nodes of a job agree on facts: versions, seeds, shapes. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowmx.comm.errors import Refused
from flowmx.comm.fields import mapping
from flowmx.kvstore.versions import DIFFER

__all__ = ["Facts", "read_facts"]

MAX_ITEMS = 1 << 17
MAX_LENGTH = 1000
_SHOWN = 5


class Facts:
    """Compares the facts of each node with those of the other nodes in the job."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, dict[str, str]] = {}

    def set_nodes(self, names: Mapping[str, str]) -> None:
        """Set the nodes of the job, names by identity; drop the facts of all other nodes."""
        self._names = dict(names)
        self._values = {
            item: values_left for item, values in self._values.items() if (values_left := _only(values, names))
        }

    def add_equal(self, node: str, facts: Mapping[str, str]) -> None:
        """Record facts of a node that must equal those of the other nodes.

        Raises:
            Refused: another node has a different value, or there are too many facts.
        """
        differences = self.differences(node, facts)
        if differences:
            raise Refused(_sentence(differences), "invalid")
        self.add(node, facts)

    def add(self, node: str, facts: Mapping[str, str]) -> None:
        """Record facts of a node that may differ from those of the other nodes.

        Raises:
            Refused: there are too many facts.
        """
        if len(self._values.keys() | facts.keys()) > MAX_ITEMS:
            raise Refused(f"the nodes of the job report more than {MAX_ITEMS} facts", "invalid")
        for item, value in facts.items():
            self._values.setdefault(item, {})[node] = value

    def differences(self, node: str, facts: Mapping[str, str]) -> list[str]:
        """Return a sentence for each fact in which a node differs from another one."""
        return [
            f"{item} is {value} on {self._name(node)}, and {other} on {self._name(other_node)}"
            for item, value in facts.items()
            for other_node, other in self._values.get(item, {}).items()
            if other_node != node and other != value
        ]

    def _name(self, node: str) -> str:
        return self._names.get(node, node[:40])


def read_facts(header: Mapping[str, object], name: str) -> dict[str, str]:
    """Read a node's facts from a field of a header; return {} where it is missing.

    Raises:
        ValueError: the field is not a map from strings to strings, or is too large.
    """
    facts = mapping(header.get(name, {}), name)
    if len(facts) > MAX_ITEMS or any(
        not isinstance(value, str) or len(value) > MAX_LENGTH or len(item) > 2 * MAX_LENGTH
        for item, value in facts.items()
    ):
        raise ValueError(f"{name} must be a map of at most {MAX_ITEMS} strings of at most {MAX_LENGTH} characters")
    return dict(facts)


def _only(values: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    nodes = set(names)
    return {node: value for node, value in values.items() if node in nodes}


def _sentence(differences: list[str]) -> str:
    more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return DIFFER + "; ".join(differences[:_SHOWN]) + more
