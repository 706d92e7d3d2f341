"""Ports for services that a test starts, and restarts, in separate processes."""

from __future__ import annotations

import contextlib
import random
import socket

_BELOW = 32768
"""The ports from here on the system gives to connections: one of them may be taken while a service is restarted."""


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1 outside the range of outgoing connections."""
    chosen = random.SystemRandom()  # not with the test's seed, with which other processes draw too
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port = chosen.randrange(10_000, _BELOW)
                taken.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """Return one free port."""
    return free_ports(1)[0]
