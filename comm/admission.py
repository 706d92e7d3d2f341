"""Admission control: limits on the requests and bytes in flight in a service, and on each peer's request rate.

This module does no I/O.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowmx.comm.errors import Busy
from flowmx.comm.limits import Limits
from flowmx.comm.rate_limits import TokenBuckets

__all__ = ["Admission", "AdmittedRequest", "Budget"]


class Budget:
    """The bytes of requests in flight.

    Args:
        limit: maximum number of bytes in flight.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0

    @contextmanager
    def enter(self) -> Iterator[AdmittedRequest]:
        """Admit a request; its bytes are in flight until the context ends."""
        entry = AdmittedRequest(self)
        try:
            yield entry
        finally:
            self.nbytes -= entry.nbytes


class AdmittedRequest:
    """A request that was admitted."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.nbytes = 0

    def announce(self, nbytes: int) -> None:
        """Add bytes that the request is about to send.

        Raises:
            Busy: the total would exceed the limit.
        """
        limit, total = self._budget.limit, self._budget.nbytes
        if total + nbytes > limit:
            raise Busy(
                f"{total} bytes are being received, of at most {limit} (Limits.in_flight); this request has {nbytes}"
            )
        self.nbytes += nbytes
        self._budget.nbytes += nbytes

    def release(self, nbytes: int) -> None:
        """Remove bytes that have been processed, while the request continues."""
        self.nbytes -= nbytes
        self._budget.nbytes -= nbytes


class Admission:
    """The numbers of requests and bytes in flight, and the limits on them.

    Args:
        limits: the service's limits.
        clock: the time in seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.budget = Budget(limits.in_flight)
        self._clock = clock
        self._rates = TokenBuckets(limits.requests_per_second, limits.peers)
        self._requests: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """The total size of requests in flight, in bytes."""
        return self.budget.nbytes

    @property
    def requests(self) -> int:
        """The number of requests in flight."""
        return self._requests.total()

    @contextmanager
    def enter(self, peer: str) -> Iterator[AdmittedRequest]:
        """Admit a request until the context ends.

        Raises:
            Busy: there are too many requests, in total or of this peer, or the peer exceeds its rate.
        """
        limits = self.limits
        if not self._rates.take(peer, self._clock()):
            rate = limits.requests_per_second
            raise Busy(f"{peer} makes more than {rate:g} requests a second (Limits.requests_per_second): retry later")
        if self.requests >= limits.requests:
            raise Busy(f"{limits.requests} requests are in progress, the maximum (Limits.requests)")
        if self._requests[peer] >= limits.requests_by_peer:
            raise Busy(f"{limits.requests_by_peer} requests of {peer} are in progress (Limits.requests_by_peer)")
        self._requests[peer] += 1
        try:
            with self.budget.enter() as entry:
                yield entry
        finally:
            self._requests[peer] -= 1
            if not self._requests[peer]:
                del self._requests[peer]
