"""The output of a job's processes, line by line."""

import sys
from collections.abc import Callable

__all__ = ["Output", "print_line"]

Output = Callable[[str, str], None]
"""A function that receives the name of a process and a line of its output."""


def print_line(name: str, line: str) -> None:
    """Print a line of a process, prefixed with the process's name."""
    sys.stdout.write(f"[{name}] {line}\n")
    sys.stdout.flush()
