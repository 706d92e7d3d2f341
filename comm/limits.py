"""Limits on messages and connections: one table for jobs, model services and the dashboard.

docs/operations.md shows the table; a test compares the numbers. ``FLOWMX_JOB_LIMITS``, ``FLOWMX_SERVE_LIMITS`` and
``FLOWMX_DASHBOARD_LIMITS`` override limits (:func:`limits_for`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from flowmx import settings
from flowmx.scanning import Bounds
from flowmx.settings import SettingError

__all__ = ["DASHBOARD", "DEFAULT", "SERVING", "Limits", "limits_for"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one service or peer.

    Args:
        header: maximum size of a frame header in bytes.
        depth: maximum nesting depth of lists and maps in a header or body.
        containers: maximum number of lists and maps in a header or body.
        items: maximum number of elements of all its lists and maps.
        tensors: maximum number of tensors of a message.
        tensor: maximum size of one tensor in bytes.
        total: maximum size of a message in bytes.
        in_flight: maximum total size in bytes of the messages that a service is receiving.
        requests: maximum number of requests in progress in a service.
        requests_by_peer: maximum number of requests in progress of one node, or address if requests are not signed.
        requests_per_second: maximum requests per second from one node or address, averaged over a second.
        peers: maximum number of connections to a service.
        share: maximum number of connections, as a fraction of the files that the process may have open.
        unauthenticated: maximum number of connections without an accepted request; a further one closes a waiting one.
        head: seconds in which an unauthenticated client must send the head of a request, and any client the rest of a
            head that it has begun.
        refusals: maximum refusals per second, to unauthenticated clients or for lack of capacity. Further ones are
            delayed, so that clients that retry immediately do not use up the processor.
        connections: maximum number of connections that a client opens to one service.
        idle: seconds for which a sender or receiver may pause within a message.
        rate: minimum average bytes per second of a transfer that takes longer than `idle`.
        keep_alive: seconds for which a connection may be idle between two requests.
        connect: seconds in which a connection must be opened.
        timeout: default timeout of a call in seconds.

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
    unauthenticated: int = 512
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
                raise ValueError(f"Limits: {limit.name} is {value!r}, expected a number above 0")

    @property
    def bounds(self) -> Bounds:
        """Bounds on the decoded size of a header or body."""
        return Bounds(self.depth, self.containers, self.items)

    @property
    def open_connections(self) -> int:
        """Maximum number of connections to a service of this process, by `peers` and `share`."""
        return max(min(self.peers, int(_open_files() * self.share)), 1)


def _open_files() -> int:
    """Return the number of files that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


DEFAULT = Limits()
"""The limits of a job's nodes."""
SERVING = replace(
    DEFAULT, depth=64, containers=1 << 16, items=1 << 19, total=64 * MIB, in_flight=512 * MIB, unauthenticated=1024,
    refusals=50.0,
)  # fmt: skip
"""The limits of a model service."""
DASHBOARD = replace(DEFAULT, total=64 * KIB, in_flight=MIB, peers=64, share=0.125, unauthenticated=32)
"""The limits of the dashboard, which leaves most file descriptors to the process that it shows."""

KINDS = {"job": DEFAULT, "serve": SERVING, "dashboard": DASHBOARD}


def limits_for(kind: str, limits: Limits | None = None) -> Limits:
    """Return the limits for a kind of service, with the changes that the environment makes.

    Args:
        kind: ``job``, ``serve`` or ``dashboard``; reads ``FLOWMX_<KIND>_LIMITS``, such as ``peers=8192,total=1e9``.
        limits: the defaults; by default those of the kind.

    Raises:
        SettingError: the variable contains an unknown limit or an invalid value.

    Example:
        >>> limits_for("serve").total
        67108864
    """
    return _changed(kind, limits or KINDS[kind], getattr(settings.get(), f"{kind}_limits"))


@cache
def _changed(kind: str, limits: Limits, text: str) -> Limits:
    try:
        pairs = (part.split("=") for part in text.split(",") if part.strip())
        return replace(limits, **{name.strip(): _number(limits, name.strip(), value) for name, value in pairs})
    except ValueError as error:
        raise SettingError(
            f"FLOWMX_{kind.upper()}_LIMITS is {text!r} ({error}), expected limits with numbers above 0, such as "
            f"'peers=8192,total=1e9'; the names are {', '.join(limit.name for limit in fields(Limits))}"
        ) from None


def _number(limits: Limits, name: str, text: str) -> Any:
    """Return the value of a limit as its type."""
    if name not in (limit.name for limit in fields(limits)):
        raise ValueError(f"{name} is not a limit")
    kind, value = type(getattr(limits, name)), float(text)
    if not value > 0 or (kind is int and not value.is_integer()):
        raise ValueError(f"{name} takes {'an int' if kind is int else 'a number'} above 0")
    return int(value) if kind is int else value
