"""Role of a process in its job, from the environment: ``FLOWMX_ROLE``, or MXNet's ``DMLC_ROLE``.

As with MXNet, every role may run the same program: where the environment makes the process a server or the scheduler,
creating a distributed store turns the process into that node, and the program never continues.
"""

from __future__ import annotations

import os
import sys

from flowmx import settings

__all__ = ["run_if_server"]


def run_if_server() -> None:
    """Become a server or the scheduler, if that is this process's role; return in a worker.

    ``python -m flowmx server`` (or ``scheduler``) replaces the process: the memory of the program is freed, the node
    has its signal handlers and event loop, and its exit status becomes the process's. Exit handlers of the program do
    not run.
    """
    role = settings.get().role
    if role == "worker":
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", "flowmx", role])
