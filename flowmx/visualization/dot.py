"""Graphs in graphviz's language, for where its package is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowmx.serialization.atomic import replace_file


class Dot:
    """A drawing in graphviz's language, where its package is not installed.

    Attributes:
        name: the graph's name.
        source: the text.
    """

    def __init__(self, name: str, format: str = "pdf") -> None:
        self.name = name
        self.format = format
        self._lines: list[str] = []

    @property
    def source(self) -> str:
        """The text, as the program ``dot`` reads it."""
        return "\n".join([f"digraph {_quoted(self.name)} {{", *self._lines, "}", ""])

    def node(self, name: str, label: str, **attributes: str) -> None:
        """Add a node."""
        self._lines.append(f"\t{_quoted(name)}{_listed({'label': label, **attributes})}")

    def edge(self, tail_name: str, head_name: str, **attributes: str) -> None:
        """Add an edge."""
        self._lines.append(f"\t{_quoted(tail_name)} -> {_quoted(head_name)}{_listed(attributes)}")

    def save(self, filename: str | Path | None = None) -> str:
        """Write the text to a file (default: the name with ``.gv``); returns its path."""
        path = str(filename or f"{self.name}.gv")
        replace_file(path, [self.source.encode()])
        return path

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Needs graphviz.

        Raises:
            ImportError: always; says what to install.
        """
        raise ImportError(
            "this drawing is text only, since the package graphviz is not installed: pip install 'flowmx[viz]' (and "
            "the program dot), and draw it again; or save() the text and run dot on it"
        )

    view = render


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _listed(attributes: Mapping[str, str]) -> str:
    return f" [{' '.join(f'{key}={_quoted(value)}' for key, value in attributes.items())}]"
