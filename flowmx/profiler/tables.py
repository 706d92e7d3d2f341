"""Aggregates: all operations of one operator, or of one layer, together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from flowmx import markup
from flowmx.profiler.names import named
from flowmx.profiler.records import CUSTOM, Change, Record, Span

__all__ = ["COLUMNS", "KINDS", "Table", "aggregated", "ordered", "sections", "table"]

COLUMNS = {"count": "Count", "total": "Total (ms)", "min": "Min (ms)", "max": "Max (ms)", "avg": "Avg (ms)"}
KINDS = ("operator", "layer")
_SHOWN = 60

Rows = dict[str, dict[str, float]]


def aggregated(records: Iterable[Record], spans: Iterable[Span], by: str = "operator") -> Rows:
    """Count and milliseconds, by operator (with the user's tasks and the requests to servers), or by layer."""
    rows: Rows = {}
    for category, found in by_category(records, spans, by).items():
        front = "" if category in KINDS else f"{category}: "
        rows.update({front + name: row for name, row in found.items()})
    return rows


def by_category(records: Iterable[Record], spans: Iterable[Span], by: str = "operator") -> dict[str, Rows]:
    """Count and milliseconds of operators or layers, what users' operators do, tasks by their domain, and so on."""
    times: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for each in named(record):
            name = each.operator if by == "operator" else each.layer
            if name and record.within and by == "operator":
                times[CUSTOM][f"{record.within}::{name}"].append((each.end - each.start) * 1e3)
            elif name:
                times[by][name].append((each.end - each.start) * 1e3)
    if by == "operator":
        for span in spans:
            times[span.category][span.name].append((span.end - span.start) * 1e3)
    return {category: {name: _row(each) for name, each in found.items()} for category, found in times.items()}


def sections(
    records: Iterable[Record], spans: Iterable[Span], changes: Iterable[Change], by: str, sort_by: str, ascending: bool
) -> dict[str, Any]:
    """The aggregates as MXNet's JSON has them: times by category, memory by device, and the units."""
    memory: defaultdict[str, list[float]] = defaultdict(list)
    for change in changes:
        if change.category == "memory":
            name = change.name.removeprefix("memory of ").replace("(", "/").rstrip(")")
            memory[f"Memory: {name}"].append(change.value / 1024)
    found = {
        "Time": by_category(records, spans, by),
        "Memory": {"Device Storage": {name: _row(each) for name, each in memory.items()}},
    }
    shown: dict[str, Any] = {
        what: {
            category: {name: _titled(row, what) for name, row in ordered(rows, sort_by, ascending).items()}
            for category, rows in categories.items()
        }
        for what, categories in found.items()
    }
    return {**shown, "Unit": {"Time": "ms", "Memory": "kB"}}


def ordered(rows: Rows, sort_by: str, ascending: bool) -> Rows:
    """Rows in the order of a column."""
    return dict(sorted(rows.items(), key=lambda row: row[1][sort_by], reverse=not ascending))


def _titled(row: dict[str, float], what: str) -> dict[str, float]:
    return {name.title(): value for name, value in row.items() if what == "Time" or name != "total"}


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
