"""Ports for services that a test starts, and starts again, in processes of their own."""

from __future__ import annotations

import contextlib
import random
import socket

_BELOW = 32768
"""The ports from here on the system gives to connections: one of them may be taken while a service is restarted."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, and that no connection takes meanwhile."""
    chosen = random.SystemRandom()  # others draw, too, with the seed of this test
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port = chosen.randrange(10_000, _BELOW)
                taken.bind(("127.0.0.1", port))
                found.append(port)
    return found


def free_port() -> int:
    """The same for one."""
    return free_ports(1)[0]
