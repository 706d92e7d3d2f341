"""HTML for notebooks: tables and notes for light and dark pages. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["code", "note", "shorten", "table"]

_CELL = "padding:2px 10px;text-align:left;white-space:pre;font-family:monospace;border:0;background:none"
_HEAD = f"{_CELL};font-weight:600;border-bottom:1px solid rgba(128,128,128,.5)"


def note(text: object) -> str:
    """Return a small line of text."""
    return f'<div style="font-family:sans-serif;font-size:.9em;opacity:.85">{escape(str(text))}</div>'


def code(text: object) -> str:
    """Return preformatted text."""
    return f'<pre style="margin:.3em 0;background:none;line-height:1.3">{escape(str(text))}</pre>'


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], caption: object = "") -> str:
    """Return a table.

    Args:
        heads: headings of the columns; empty: no headings.
        rows: rows of cells.
        caption: text above the table.
    """
    parts = [note(caption)] if caption else []
    parts.append('<table style="border-collapse:collapse;font-size:.9em;margin:.3em 0">')
    if heads:
        parts.append(_row(heads, "th", _HEAD))
    parts += [_row(row, "td", _CELL) for row in rows]
    return "".join([*parts, "</table>"])


def _row(cells: Sequence[object], tag: str, style: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="{style}">{escape(str(cell))}</{tag}>' for cell in cells) + "</tr>"


def shorten(rows: Sequence[Sequence[object]], max_rows: int) -> list[Sequence[object]]:
    """Return at most ``max_rows`` rows; a row in the middle has the number of omitted rows."""
    if len(rows) <= max_rows:
        return list(rows)
    placeholder = f"... {len(rows) - max_rows + 1} more ..."
    head = max_rows * 2 // 3
    return [*rows[:head], [placeholder], *rows[len(rows) - (max_rows - head - 1) :]]
