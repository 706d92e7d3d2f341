"""Limits on what peers and strangers may send: one table for jobs, services of models and the dashboard.

docs/operations.md has it for people; its numbers are held to these by a test. ``FLOWMX_JOB_LIMITS``,
``FLOWMX_SERVE_LIMITS`` and ``FLOWMX_DASHBOARD_LIMITS`` put others in their place (:func:`in_force`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from flowmx import settings
from flowmx.scanning import Bounds
from flowmx.settings import SettingError

__all__ = ["DASHBOARD", "DEFAULT", "SERVING", "Limits", "in_force"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one service or peer.

    Args:
        header: most bytes of a frame's header.
        depth: most lists and maps inside one another in a header or body.
        containers: most lists and maps in it.
        items: most elements of its lists and maps, together.
        tensors: most tensors of a message.
        tensor: most bytes of one tensor.
        total: most bytes of a message.
        in_flight: most bytes of all messages that a service receives at one time.
        requests: most requests that a service answers at one time.
        requests_by_peer: most of them of one node (of one address, where requests are not signed).
        requests_per_second: most requests a second of one node or address, on average over a second.
        peers: most connections to a service.
        share: most of the files that the process may have open, as a share, that connections take.
        strangers: most of them that have not proven yet whose they are (by a request that was let in); where one more
            comes, one that waits is closed in its favour.
        head: seconds in which a stranger must send the head of a request, and anyone the rest of one that was begun.
        refusals: refusals of strangers, and of requests for want of room, in a second; more of them wait, so that those
            who come again at once do not take the processor from the rest.
        connections: most connections that a client opens to one service.
        idle: seconds that a sender or a receiver may pause in the middle of a message.
        rate: bytes a second that a transfer must reach, on average, once it took longer than `idle`.
        keep_alive: seconds that a connection may idle between two requests.
        connect: seconds that connecting may take.
        timeout: default seconds that a call may take.

    Raises:
        ValueError: a limit is not above zero.
    """

    header: int = MIB
    depth: int = 16
    containers: int = 1 << 15
    items: int = 1 << 17
    tensors: int = 4096
    tensor: int = 4 * GIB
    total: int = 8 * GIB
    in_flight: int = 32 * GIB
    requests: int = 4096
    requests_by_peer: int = 256
    requests_per_second: float = 10_000.0
    peers: int = 4096
    share: float = 0.5
    strangers: int = 512
    head: float = 10.0
    refusals: float = 100.0
    connections: int = 32
    idle: float = 15.0
    rate: float = 64.0 * KIB
    keep_alive: float = 75.0
    connect: float = 10.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ValueError(f"Limits: {limit.name} was given {value!r}; it takes a number above 0")

    @property
    def bounds(self) -> Bounds:
        """Bounds of what a header or body may become."""
        return Bounds(self.depth, self.containers, self.items)

    @property
    def open_connections(self) -> int:
        """Most connections to a service of this process, by `peers` and `share`."""
        return max(min(self.peers, int(_open_files() * self.share)), 1)


def _open_files() -> int:
    """The number of files that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


DEFAULT = Limits()
"""Of the nodes of a job."""
SERVING = replace(
    DEFAULT, depth=64, containers=1 << 16, items=1 << 19, total=64 * MIB, in_flight=512 * MIB, strangers=1024,
    refusals=50.0,
)  # fmt: skip
"""Of a service of models."""
DASHBOARD = replace(DEFAULT, total=64 * KIB, in_flight=MIB, peers=64, share=0.125, strangers=32)
"""Of the dashboard, which leaves the descriptors to the process that it watches."""

KINDS = {"job": DEFAULT, "serve": SERVING, "dashboard": DASHBOARD}


def in_force(kind: str, limits: Limits | None = None) -> Limits:
    """Limits with those in their place that the environment sets for a kind of service.

    Args:
        kind: ``job``, ``serve`` or ``dashboard``; ``FLOWMX_<KIND>_LIMITS`` is read, such as ``peers=8192,total=1e9``.
        limits: by default those of the kind.

    Raises:
        SettingError: the variable names no limit, or gives one what it does not take.

    Example:
        >>> in_force("serve").total
        67108864
    """
    return _changed(kind, limits or KINDS[kind], getattr(settings.get(), f"{kind}_limits"))


@cache
def _changed(kind: str, limits: Limits, text: str) -> Limits:
    try:
        pairs = (each.split("=") for each in text.split(",") if each.strip())
        return replace(limits, **{name.strip(): _number(limits, name.strip(), value) for name, value in pairs})
    except ValueError as error:
        raise SettingError(
            f"FLOWMX_{kind.upper()}_LIMITS was given {text!r} ({error}); it takes limits with numbers above 0, such as "
            f"'peers=8192,total=1e9', of {', '.join(each.name for each in fields(Limits))}"
        ) from None


def _number(limits: Limits, name: str, text: str) -> Any:
    """The value of a limit, of its own type."""
    if name not in (each.name for each in fields(limits)):
        raise ValueError(f"{name} is no limit")
    kind, value = type(getattr(limits, name)), float(text)
    if not value > 0 or (kind is int and not value.is_integer()):
        raise ValueError(f"{name} takes {'an int' if kind is int else 'a number'} above 0")
    return int(value) if kind is int else value
