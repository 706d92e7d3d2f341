"""The guard process of a launcher: it outlives it, kills its processes, and removes its folders.

It reads ``+<group>`` and ``-<group>`` lines, and at their end kills the groups that are left; then it removes the
folders whose paths it read.

Run as a program of its own, with the standard library alone, so that it starts fast and holds little. However the
launcher dies, its end of the pipe closes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    """Follow the lines on standard input."""
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
