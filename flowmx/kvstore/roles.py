"""Role of a process in its job, from the environment: ``FLOWMX_ROLE``, or MXNet's ``DMLC_ROLE``.

As with MXNet, every role may run the same program: where the environment makes it a server or the scheduler, creating a
distributed store makes the process that, and its program goes no further.
"""

from __future__ import annotations

import os
import sys

from flowmx import settings

__all__ = ["run_if_server"]


def run_if_server() -> None:
    """Become a server or the scheduler, if that is this process's role; a worker's program goes on.

    The process is replaced by ``python -m flowmx server`` (or ``scheduler``): what the program has loaded is freed, it
    has signals and an event loop of its own, and its exit status is the node's. The program's exit handlers do not run.
    """
    role = settings.get().role
    if role == "worker":
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", "flowmx", role])
