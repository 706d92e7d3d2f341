"""``flowmx launch``: a job, with a page of its processes where it is asked for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from flowmx.comm.launch.child import Output
from flowmx.kvstore.launching import command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Launch a job; return its exit status."""
    return command.main(argv, _page)


@contextlib.contextmanager
def _page(port: int) -> Iterator[Output]:
    """The page of a job, whose processes say in their output where their dashboards are."""
    from flowmx.observability.dashboard import start  # most jobs have none
    from flowmx.observability.dashboard.job import Job, announced

    job = Job()

    def heard(name: str, line: str) -> None:
        if (address := announced(line)) is not None:
            job.add(name, address)

    with start(port=port, job=job) as made:
        sys.stderr.write(f"flowmx: the dashboard of the job is at {made.url}\n")
        yield heard
