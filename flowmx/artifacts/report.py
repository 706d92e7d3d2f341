"""Reports of artifacts, as text and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowmx.ops.registry.dtypes import name_of

__all__ = ["Report", "arrays_text", "bytes_text", "names_text"]

_UNITS = ("bytes", "KB", "MB", "GB", "TB")
_LABEL_WIDTH = 12
_SHOWN_ARRAYS = 3


@dataclass
class Report:
    """The description of a file or folder.

    Attributes:
        path: the file or folder.
        kind: what it is, and what wrote it.
        facts: its properties by name.
        missing: what must be given or found before it can be used, a sentence each.
        problem: why it cannot be opened; empty if it can.
        commands: the next commands to type.
        parts: the artifacts in a folder or archive.
        is_detail: whether it only describes another artifact of its folder.
    """

    path: Path
    kind: str
    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problem: str = ""
    commands: list[str] = field(default_factory=list)
    parts: list[Report] = field(default_factory=list)
    is_detail: bool = False

    def as_dict(self) -> Mapping[str, object]:
        """Return the report as JSON-compatible values."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "facts": self.facts,
            "missing": self.missing,
            "problem": self.problem,
            "commands": self.commands,
            "parts": [part.as_dict() for part in self.parts],
        }

    def as_text(self) -> str:
        """Return the report as lines."""
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> Iterator[str]:
        name = str(self.path) if not indent else self.path.name
        yield f"{indent}{name}: {self.kind}"
        for label, text in self.facts.items():
            yield f"{indent}  {label:<{_LABEL_WIDTH}} {text}"
        for label, texts in (("missing", self.missing), ("problem", [self.problem] if self.problem else [])):
            for text in texts:
                yield f"{indent}  {label:<{_LABEL_WIDTH}} {text}"
        for number, command in enumerate(self.commands):
            yield f"{indent}  {'' if number else 'next':<{_LABEL_WIDTH}} {command}"
        for part in self.parts:
            yield from part._lines(indent + "  ")


def bytes_text(size: float) -> str:
    """Return a size in bytes as people read it, such as 97.8 MB."""
    number = 0
    while size >= 1000 and number < len(_UNITS) - 1:
        size, number = size / 1000, number + 1
    return f"{size:.0f} {_UNITS[number]}" if number == 0 or size >= 100 else f"{size:.3g} {_UNITS[number]}"


def arrays_text(arrays: Mapping[str, Any]) -> str:
    """Return the number of arrays, their elements, dtypes and bytes."""
    elements = sum(math.prod(array.shape) for array in arrays.values())
    dtypes = Counter(_dtype_name(array) for array in arrays.values())
    size = sum(math.prod(array.shape) * _itemsize(array) for array in arrays.values())
    return f"{len(arrays)} arrays, {elements:,} numbers, {', '.join(dtypes)}, {bytes_text(size)}"


def _dtype_name(array: Any) -> str:
    return name_of(getattr(array, "dtype", None) or array.data.dtype)


def _itemsize(array: Any) -> int:
    dtype = getattr(array, "dtype", None)
    return int((array.data.dtype if dtype is None else dtype).itemsize)


def names_text(arrays: Mapping[str, Any]) -> str:
    """Return the names and shapes of the first arrays."""
    shown = [f"{name} {tuple(array.shape)}" for name, array in list(arrays.items())[:_SHOWN_ARRAYS]]
    return ", ".join(shown) + (", ..." if len(arrays) > _SHOWN_ARRAYS else "")
