"""``flowmx dashboard``: the dashboards of several processes on one page."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from flowmx.tools import usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Serve a page of the processes' dashboards until interrupted."""
    parser = usage.parser(
        "dashboard",
        "Show several processes on one page, such as those of a job. Every process must serve its dashboard.",
        ["http://127.0.0.1:8080 http://127.0.0.1:8081", "one=http://10.0.0.7:8080/?token=... --port 9000"],
    )
    parser.add_argument(
        "processes",
        nargs="+",
        metavar="[NAME=]URL",
        help="URL of the dashboard of a process, with ?token=SECRET if it has a secret",
    )
    parser.add_argument("--port", type=usage.port, default=0, help="port of the page (default: a free one)")
    parser.add_argument("--host", default="127.0.0.1", help="address of the page (default: %(default)s)")
    secret = "environment variable with the secret of the page; required for addresses other than 127.0.0.1"
    parser.add_argument("--secret-from", metavar="VARIABLE", help=secret)
    arguments = parser.parse_args(argv)
    if arguments.secret_from and arguments.secret_from not in os.environ:
        raise ValueError(f"--secret-from is {arguments.secret_from!r}, expected a variable that is set")
    from flowmx.observability.dashboard import start

    processes = dict(_parse_process(text) for text in arguments.processes)
    with start(arguments.host, arguments.port, os.environ.get(arguments.secret_from or ""), job=processes) as page:
        sys.stderr.write(f"flowmx: the dashboard of {len(processes)} processes is at {page.url}\n")
        threading.Event().wait()
    return usage.SUCCESS


def _parse_process(text: str) -> tuple[str, str]:
    """Return the name and URL of a process; the default name is its host and port."""
    name, is_named, address = text.partition("=")
    if is_named and "/" not in name:
        return name, address
    return text.removeprefix("http://").removeprefix("https://").partition("/")[0], text
