"""Graphs in graphviz's language and as SVG, for where its package or its program is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowmx.serialization.atomic import replace_file


class Dot:
    """A drawing in graphviz's language, and as SVG, where graphviz is not installed. Notebooks show it.

    Args:
        name: the graph's name.
        format: of the files that graphviz would write.
        picture: makes the SVG.

    Attributes:
        name: the graph's name.
        source: the text.
    """

    def __init__(self, name: str, format: str = "pdf", picture: Callable[[], str] | None = None) -> None:
        self.name = name
        self._picture = picture or (lambda: '<svg xmlns="http://www.w3.org/2000/svg"/>')
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

    def render(self, filename: str | Path | None = None, *_: Any, **__: Any) -> str:
        """Write the picture to a file, as SVG whatever the format: other formats take graphviz's program.

        Args:
            filename: its name, to which ``.svg`` is added where it has not that ending; default: the drawing's name.

        Returns:
            the path of the file.
        """
        path = str(filename or self.name)
        path = path if path.endswith(".svg") else f"{path}.svg"
        replace_file(path, [self._repr_svg_().encode()])
        return path

    def view(self, *given: Any, **options: Any) -> str:
        """As :meth:`render`: no viewer is opened."""
        return self.render(*given, **options)

    def _repr_svg_(self) -> str:
        """The picture that notebooks show."""
        return self._picture()


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _listed(attributes: Mapping[str, str]) -> str:
    return f" [{' '.join(f'{key}={_quoted(value)}' for key, value in attributes.items())}]"
