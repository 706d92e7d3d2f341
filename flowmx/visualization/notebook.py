"""HTML of a symbol for notebooks: a drawing and a table of its nodes."""

from __future__ import annotations

from flowmx import markup
from flowmx.graph.node import Node
from flowmx.symbol import Symbol
from flowmx.visualization.svg import network
from flowmx.visualization.symbol_facts import kind

__all__ = ["symbol_html"]

_ROWS = 40


def symbol_html(symbol: Symbol) -> str:
    """Return the HTML of a symbol."""
    nodes = symbol.nodes()
    operators = [node for node in nodes if not node.is_variable]
    about = f"{symbol!r}: {len(operators)} operators, {len(nodes) - len(operators)} variables"
    rows = [_row(node) for node in operators]
    table = markup.table(["name", "operator", "parameters", "inputs"], markup.shorten(rows, _ROWS))
    picture = network(symbol)
    details = "" if picture is None else f"<details><summary>drawing</summary>{picture}</details>"
    return markup.note(about) + details + (table if rows else "")


def _row(node: Node) -> list[str]:
    parameters = ", ".join(f"{name}={value}" for name, value in node.user_parameters.items())
    return [node.name, kind(node), parameters, ", ".join(entry.node.name for entry in node.inputs)]
