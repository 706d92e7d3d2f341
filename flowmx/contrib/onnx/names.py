"""Unique names in an ONNX graph or an imported symbol."""

from __future__ import annotations


class Names:
    """The names in use."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._used

    def fresh(self, base: str) -> str:
        """Return an unused name: ``base``, with a number appended if necessary."""
        name, number = base, 0
        while name in self._used:
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name
