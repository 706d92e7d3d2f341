"""The guard process of a launcher: it outlives the launcher, kills its processes, and removes its folders.

It reads ``+<group>`` and ``-<group>`` lines and paths of folders. At the end of its input it kills the remaining
groups, and then removes the folders.

It is run as a separate program that uses only the standard library, so that it starts fast and uses little memory. The
launcher's end of the pipe closes even if the launcher is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    """Read the lines on standard input, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        if line.startswith("/"):
            folders.append(line.rstrip("\n"))
        else:
            (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
