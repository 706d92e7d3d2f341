"""Reports of artifacts, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Report", "bytes_text"]

_UNITS = ("bytes", "KB", "MB", "GB", "TB")
_LABEL_WIDTH = 12


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
    """

    path: Path
    kind: str
    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problem: str = ""
    commands: list[str] = field(default_factory=list)
    parts: list[Report] = field(default_factory=list)

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
