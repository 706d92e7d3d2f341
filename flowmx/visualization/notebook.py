"""HTML of a symbol for notebooks: a drawing, and a table of its nodes."""

from __future__ import annotations

from flowmx import markup
from flowmx.graph.node import Node
from flowmx.symbol import Symbol
from flowmx.visualization.common import kind
from flowmx.visualization.svg import network

__all__ = ["symbol_html"]

_ROWS = 40


def symbol_html(symbol: Symbol) -> str:
    """A symbol."""
    nodes = symbol._nodes()
    operators = [node for node in nodes if not node.is_variable]
    about = f"{symbol!r}: {len(operators)} operators, {len(nodes) - len(operators)} variables"
    rows = [_row(node) for node in operators]
    table = markup.table(["name", "operator", "parameters", "inputs"], markup.shortened(rows, _ROWS))
    picture = network(symbol)
    drawn = "" if picture is None else f"<details><summary>drawing</summary>{picture}</details>"
    return markup.note(about) + drawn + (table if rows else "")


def _row(node: Node) -> list[str]:
    given = ", ".join(f"{name}={value}" for name, value in node.given.items())
    return [node.name, kind(node), given, ", ".join(entry.node.name for entry in node.inputs)]
