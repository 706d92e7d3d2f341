"""Limits on the messages and connections of peers: one table, the same for clients and services."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["DEFAULT", "Limits"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one service or peer.

    Args:
        header: most bytes of a frame's header.
        tensors: most tensors of a message.
        tensor: most bytes of one tensor.
        total: most bytes of a message.
        in_flight: most bytes of all messages that a service receives at one time.
        requests: most requests that a service answers at one time.
        requests_by_peer: most of them of one node (of one address, where requests are not signed).
        requests_per_second: most requests a second of one node or address, on average over a second.
        peers: most connections to a service.
        connections: most connections that a client opens to one service.
        idle: seconds that a sender or a receiver may pause in the middle of a message.
        rate: bytes a second that a transfer must reach, on average, once it took longer than `idle`.
        connect: seconds that connecting may take.
        timeout: default seconds that a call may take.

    Raises:
        ValueError: a limit is not above zero.
    """

    header: int = MIB
    tensors: int = 4096
    tensor: int = 4 * GIB
    total: int = 8 * GIB
    in_flight: int = 32 * GIB
    requests: int = 4096
    requests_by_peer: int = 256
    requests_per_second: float = 10_000.0
    peers: int = 4096
    connections: int = 32
    idle: float = 15.0
    rate: float = 64.0 * KIB
    connect: float = 10.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ValueError(f"Limits: {limit.name} was given {value!r}; it takes a number above 0")


DEFAULT = Limits()
