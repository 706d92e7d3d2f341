"""Names in an ONNX graph, or in the symbol made of one."""

from __future__ import annotations


class Names:
    """The names that are taken."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet: the one wanted, or with a number behind it."""
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name
