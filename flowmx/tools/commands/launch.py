"""``flowmx launch``: launches a job, optionally with a dashboard of its processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from flowmx.comm.launch.output import Output
from flowmx.kvstore.launching import command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Launch a job; return its exit status."""
    return command.main(argv, _page)


@contextlib.contextmanager
def _page(port: int) -> Iterator[Output]:
    """Serve the page of a job, whose processes announce their dashboards in their output."""
    from flowmx.observability.dashboard import start  # here, because most jobs have no dashboard
    from flowmx.observability.dashboard.job import Job, announced_address

    job = Job()

    def on_line(name: str, line: str) -> None:
        if (address := announced_address(line)) is not None:
            job.add(name, address)

    with start(port=port, job=job) as page:
        sys.stderr.write(f"flowmx: the dashboard of the job is at {page.url}\n")
        yield on_line
