"""Aggregates: all operations of one operator, or of one layer, together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from flowmx import markup
from flowmx.profiler.names import named
from flowmx.profiler.records import Record, Span

__all__ = ["COLUMNS", "KINDS", "Table", "aggregated", "table"]

COLUMNS = {"count": "Count", "total": "Total (ms)", "min": "Min (ms)", "max": "Max (ms)", "avg": "Avg (ms)"}
KINDS = ("operator", "layer")
_SHOWN = 60

Rows = dict[str, dict[str, float]]


def aggregated(records: Iterable[Record], spans: Iterable[Span], by: str = "operator") -> Rows:
    """Count and milliseconds, by operator (with the user's tasks and the requests to servers), or by layer."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        for each in named(record):
            name = each.operator if by == "operator" else each.layer
            if name:
                times[name].append((each.end - each.start) * 1e3)
    if by == "operator":
        for span in spans:
            times[f"{span.category}: {span.name}"].append((span.end - span.start) * 1e3)
    return {name: _row(found) for name, found in times.items()}


def _row(found: list[float]) -> dict[str, float]:
    total = sum(found)
    return {"count": len(found), "total": total, "min": min(found), "max": max(found), "avg": total / len(found)}


class Table(str):
    """A table of times, as text; a notebook shows it as one.

    Attributes:
        rows: what it shows.
        heading: of the names.
    """

    rows: Rows
    heading: str

    def _repr_html_(self) -> str:
        cells = [[name, *_numbers(row).split()] for name, row in self.rows.items()]
        return markup.table([self.heading, *COLUMNS.values()], markup.shortened(cells, _SHOWN))


def table(rows: Rows, by: str = "operator") -> Table:
    """The rows as text."""
    title = "Layer" if by == "layer" else "Name"
    width = max([len(title), *map(len, rows)])
    lines = [f"{title:<{width}}" + "".join(f"{each:>14}" for each in COLUMNS.values())]
    lines += [f"{name:<{width}}" + _numbers(row) for name, row in rows.items()]
    found = Table("\n".join([*lines, ""]))
    found.rows, found.heading = rows, title
    return found


def _numbers(row: dict[str, Any]) -> str:
    return f"{row['count']:>14.0f}" + "".join(f"{row[column]:>14.4f}" for column in COLUMNS if column != "count")
