"""``flowmx dashboard``: the dashboards of several processes on one page."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from flowmx.tools import usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Serve a page of processes that have dashboards, until it is interrupted."""
    parser = usage.parser(
        "dashboard",
        "Show several processes on one page: those of a job, whoever started them. Each serves a dashboard of its own.",
        ["http://127.0.0.1:8080 http://127.0.0.1:8081", "one=http://10.0.0.7:8080/?token=... --port 9000"],
    )
    parser.add_argument(
        "processes",
        nargs="+",
        metavar="[NAME=]URL",
        help="address of a process's dashboard, with ?token=SECRET where it has one",
    )
    parser.add_argument("--port", type=usage.port, default=0, help="port of the page (default: a free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address of the page (default: %(default)s)")
    secret = "variable with what viewers of the page must know, which another address than 127.0.0.1 takes"
    parser.add_argument("--secret-from", metavar="VARIABLE", help=secret)
    given = parser.parse_args(argv)
    if given.secret_from and given.secret_from not in os.environ:
        raise ValueError(f"--secret-from is {given.secret_from!r}, expected a variable that is set")
    from flowmx.observability.dashboard import start

    named = dict(_named(each) for each in given.processes)
    with start(given.host, given.port, os.environ.get(given.secret_from or ""), job=named) as made:
        sys.stderr.write(f"flowmx: the dashboard of {len(named)} processes is at {made.url}\n")
        threading.Event().wait()
    return usage.FINE


def _named(text: str) -> tuple[str, str]:
    """A process and where its dashboard is; one without a name is called by its address."""
    name, is_named, address = text.partition("=")
    if is_named and "/" not in name:
        return name, address
    return text.removeprefix("http://").partition("/")[0], text
