"""Exec a program that is killed when the launcher ends: ``start.py <process id of the launcher> <program> ...``.

It uses only the standard library. Doing this between fork and exec (``preexec_fn``) could hang if the launcher has
threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL when the parent dies, and exec the program."""
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(launcher):  # the launcher has already died
            os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
