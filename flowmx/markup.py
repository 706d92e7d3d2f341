"""HTML for notebooks: tables and notes that look right on light and dark pages. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["code", "note", "shortened", "table"]

_CELL = "padding:2px 10px;text-align:left;white-space:pre;font-family:monospace;border:0;background:none"
_HEAD = f"{_CELL};font-weight:600;border-bottom:1px solid rgba(128,128,128,.5)"


def note(text: object) -> str:
    """A small line of text."""
    return f'<div style="font-family:sans-serif;font-size:.9em;opacity:.85">{escape(str(text))}</div>'


def code(text: object) -> str:
    """Text as it is."""
    return f'<pre style="margin:.3em 0;background:none;line-height:1.3">{escape(str(text))}</pre>'


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], caption: object = "") -> str:
    """A table.

    Args:
        heads: of the columns; none: no heads.
        rows: cells, as text.
        caption: above it.
    """
    parts = [note(caption)] if caption else []
    parts.append('<table style="border-collapse:collapse;font-size:.9em;margin:.3em 0">')
    if heads:
        parts.append(_row(heads, "th", _HEAD))
    parts += [_row(row, "td", _CELL) for row in rows]
    return "".join([*parts, "</table>"])


def _row(cells: Sequence[object], tag: str, style: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="{style}">{escape(str(cell))}</{tag}>' for cell in cells) + "</tr>"


def shortened(rows: Sequence[Sequence[object]], most: int) -> list[Sequence[object]]:
    """The first rows, at most so many, and one with the number of those left out."""
    if len(rows) <= most:
        return list(rows)
    left_out = f"... {len(rows) - most + 1} more ..."
    head = most * 2 // 3
    return [*rows[:head], [left_out], *rows[len(rows) - (most - head - 1) :]]
