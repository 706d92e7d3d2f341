"""Exec another program, which is killed when the launcher ends: ``start.py <launcher's process> <program> ...``.

Run with the standard library alone. A process that was to arrange this between fork and exec (``preexec_fn``) could
hang where the launcher has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal at the parent's death, and exec the program."""
    launcher, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(launcher):  # it died before
            os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} can not be started: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()
