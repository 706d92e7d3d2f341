"""Graphs in graphviz's language and as SVG, without the graphviz package or program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowmx.serialization.atomic import replace_file


class Dot:
    """A drawing in graphviz's language and as SVG, used if graphviz is not installed. Notebooks display it.

    Args:
        name: the name of the graph.
        format: the format of graphviz's files.
        picture: a function that returns the SVG.

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
        """The text in the language of the program ``dot``."""
        return "\n".join([f"digraph {_quote(self.name)} {{", *self._lines, "}", ""])

    def node(self, name: str, label: str, **attributes: str) -> None:
        """Add a node."""
        self._lines.append(f"\t{_quote(name)}{_attribute_list({'label': label, **attributes})}")

    def edge(self, tail_name: str, head_name: str, **attributes: str) -> None:
        """Add an edge."""
        self._lines.append(f"\t{_quote(tail_name)} -> {_quote(head_name)}{_attribute_list(attributes)}")

    def save(self, filename: str | Path | None = None) -> str:
        """Write the text to a file (default: the name with ``.gv``) and return its path."""
        path = str(filename or f"{self.name}.gv")
        replace_file(path, [self.source.encode()])
        return path

    def render(self, filename: str | Path | None = None, *_: object, **__: object) -> str:
        """Write the drawing to an SVG file. Other formats need graphviz's program.

        Args:
            filename: its name, to which ``.svg`` is appended if missing; by default the name of the drawing.

        Returns:
            the path of the file.
        """
        path = str(filename or self.name)
        path = path if path.endswith(".svg") else f"{path}.svg"
        replace_file(path, [self._repr_svg_().encode()])
        return path

    def view(self, *args: Any, **options: Any) -> str:
        """As :meth:`render`; no viewer is opened."""
        return self.render(*args, **options)

    def _repr_svg_(self) -> str:
        """Return the SVG that notebooks display."""
        return self._picture()


def _quote(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _attribute_list(attributes: Mapping[str, str]) -> str:
    return f" [{' '.join(f'{key}={_quote(value)}' for key, value in attributes.items())}]"
