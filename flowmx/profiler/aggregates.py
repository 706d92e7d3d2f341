"""Aggregated times by operator or layer, as tables and JSON. This module does no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from flowmx import markup
from flowmx.profiler.names import named_operations
from flowmx.profiler.records import CUSTOM, Change, Record, Span

__all__ = ["COLUMNS", "KINDS", "Table", "aggregate", "sections", "sort_rows", "table"]

COLUMNS = {"count": "Count", "total": "Total (ms)", "min": "Min (ms)", "max": "Max (ms)", "avg": "Avg (ms)"}
KINDS = ("operator", "layer")
_MAX_ROWS = 60

Rows = dict[str, dict[str, float]]


def aggregate(records: Iterable[Record], spans: Iterable[Span], by: str = "operator") -> Rows:
    """Return counts and milliseconds by operator (with user tasks and requests to servers) or by layer."""
    rows: Rows = {}
    for category, entries in by_category(records, spans, by).items():
        prefix = "" if category in KINDS else f"{category}: "
        rows.update({prefix + name: row for name, row in entries.items()})
    return rows


def by_category(records: Iterable[Record], spans: Iterable[Span], by: str = "operator") -> dict[str, Rows]:
    """Return counts and milliseconds by category: operators or layers, custom operators, tasks by domain, and so on."""
    times: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for op in named_operations(record):
            name = op.operator if by == "operator" else op.layer
            if name and record.within and by == "operator":
                times[CUSTOM][f"{record.within}::{name}"].append((op.end - op.start) * 1e3)
            elif name:
                times[by][name].append((op.end - op.start) * 1e3)
    if by == "operator":
        for span in spans:
            times[span.category][span.name].append((span.end - span.start) * 1e3)
    return {category: {name: _row(values) for name, values in names.items()} for category, names in times.items()}


def sections(
    records: Iterable[Record], spans: Iterable[Span], changes: Iterable[Change], by: str, sort_by: str, ascending: bool
) -> dict[str, object]:
    """Return the aggregates in the format of MXNet's JSON: times by category, memory by device, and the units."""
    memory: defaultdict[str, list[float]] = defaultdict(list)
    for change in changes:
        if change.category == "memory":
            name = change.name.removeprefix("memory of ").replace("(", "/").rstrip(")")
            memory[f"Memory: {name}"].append(change.value / 1024)
    content = {
        "Time": by_category(records, spans, by),
        "Memory": {"Device Storage": {name: _row(values) for name, values in memory.items()}},
    }
    result: dict[str, object] = {
        section: {
            category: {name: _titled(row, section) for name, row in sort_rows(rows, sort_by, ascending).items()}
            for category, rows in categories.items()
        }
        for section, categories in content.items()
    }
    return {**result, "Unit": {"Time": "ms", "Memory": "kB"}}


def sort_rows(rows: Rows, sort_by: str, ascending: bool) -> Rows:
    """Sort rows by a column."""
    return dict(sorted(rows.items(), key=lambda row: row[1][sort_by], reverse=not ascending))


def _titled(row: dict[str, float], section: str) -> dict[str, float]:
    return {name.title(): value for name, value in row.items() if section == "Time" or name != "total"}


def _row(values: list[float]) -> dict[str, float]:
    total = sum(values)
    return {"count": len(values), "total": total, "min": min(values), "max": max(values), "avg": total / len(values)}


class Table(str):
    """A table of times as text; notebooks render it as HTML.

    Attributes:
        rows: the rows.
        heading: heading of the name column.
    """

    rows: Rows
    heading: str

    def _repr_html_(self) -> str:
        cells = [[name, *_numbers(row).split()] for name, row in self.rows.items()]
        return markup.table([self.heading, *COLUMNS.values()], markup.shorten(cells, _MAX_ROWS))


def table(rows: Rows, by: str = "operator") -> Table:
    """Return the rows as a text table."""
    title = "Layer" if by == "layer" else "Name"
    width = max([len(title), *map(len, rows)])
    lines = [f"{title:<{width}}" + "".join(f"{column:>14}" for column in COLUMNS.values())]
    lines += [f"{name:<{width}}" + _numbers(row) for name, row in rows.items()]
    result = Table("\n".join([*lines, ""]))
    result.rows, result.heading = rows, title
    return result


def _numbers(row: dict[str, Any]) -> str:
    return f"{row['count']:>14.0f}" + "".join(f"{row[column]:>14.4f}" for column in COLUMNS if column != "count")
