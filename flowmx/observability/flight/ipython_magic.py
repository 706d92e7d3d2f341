"""``%%engine``: runs a notebook cell and shows its operations, in the order in which they began."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any

from flowmx.engine.origin import lookup
from flowmx.engine.runtime import engine
from flowmx.observability.flight import watcher

__all__ = ["add_to", "table"]

_MAX_ROWS = 60
"""Maximum number of rows shown."""


def add_to(shell: Any) -> None:
    """Add the magic to an IPython shell."""

    def run(line: str, cell: str) -> None:
        """Run a cell, wait for its operations, and show them in the order in which they began."""
        watcher.start()
        begun, executed = monotonic(), _executed()
        shell.run_cell(cell)
        engine.wait_all()
        entries = [entry for entry in list(engine.books.journal or ()) if entry[4] and entry[4] >= begun]
        sys.stdout.write(table(entries, begun, _executed() - executed))

    shell.register_magic_function(run, "cell", "engine")


def table(entries: Sequence[Any], begun: float, executed: int) -> str:
    """Return the operations as a table.

    Args:
        entries: entries of the flight recorder's journal.
        begun: when the cell began.
        executed: number of operations that have run, including those that ran when pushed, which the journal lacks.
    """
    rows = sorted(entries, key=lambda entry: entry[4])
    lines = [f"{'began':>10}  {'took':>10}  {'on':<12}  {'operation':<28}  line\n"]
    for _, name, actor, origin, at, ended, failed in rows[:_MAX_ROWS]:
        took = "failed" if failed else f"{(ended - at) * 1e3:.2f} ms"
        lines.append(f"{(at - begun) * 1e3:>7.2f} ms  {took:>10}  {actor:<12}  {name[:28]:<28}  {_line(origin)}\n")
    if len(rows) > _MAX_ROWS:
        lines.append(f"and {len(rows) - _MAX_ROWS} more\n")
    light = max(executed - len(rows), 0)
    return "".join(lines) + f"{len(rows)} operations were queued; {light} light ones ran where they were pushed\n"


def _executed() -> int:
    return sum(actor.executed for actor in engine.actors.values())


def _line(origin: Any) -> str:
    place = lookup(origin) if origin is not None else None
    return "" if place is None else linecache.getline(place[0], place[1]).strip()
