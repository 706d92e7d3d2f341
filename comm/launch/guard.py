"""Outlives a launcher and kills what it started: reads ``+<group>`` and ``-<group>`` lines; at their end the rest dies.

Run as a program of its own, with the standard library alone, so that it starts fast and holds little. However the
launcher dies, its end of the pipe closes.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Follow the lines on standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line.startswith("+") else groups.discard)(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
