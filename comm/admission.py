"""Admission control: limits on the requests and bytes in flight in a service, and on each peer's request rate. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowmx.comm.errors import Busy
from flowmx.comm.limits import Limits
from flowmx.comm.rates import Buckets

__all__ = ["Admission", "Admitted", "Budget"]


class Budget:
    """The bytes of requests in flight.

    Args:
        most: so many may be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0

    @contextmanager
    def enter(self) -> Iterator[Admitted]:
        """Let a request in; its bytes are in flight until the context ends."""
        entry = Admitted(self)
        try:
            yield entry
        finally:
            self.nbytes -= entry.nbytes


class Admitted:
    """A request that was let in."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.nbytes = 0

    def announce(self, nbytes: int) -> None:
        """Note that so many bytes come in.

        Raises:
            Busy: with the others, that is too much.
        """
        most, now = self._budget.most, self._budget.nbytes
        if now + nbytes > most:
            raise Busy(f"{now} bytes are coming in, and at most {most} may (Limits.in_flight); this has {nbytes}")
        self.nbytes += nbytes
        self._budget.nbytes += nbytes


class Admission:
    """The counts of requests and bytes in flight, held to the limits.

    Args:
        limits: what is allowed.
        clock: the time in seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.budget = Budget(limits.in_flight)
        self._clock = clock
        self._rates = Buckets(limits.requests_per_second, limits.peers)
        self._requests: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """The bytes of requests in flight."""
        return self.budget.nbytes

    @property
    def requests(self) -> int:
        """The number of requests in flight."""
        return self._requests.total()

    @contextmanager
    def enter(self, peer: str) -> Iterator[Admitted]:
        """Let a request in, until the context ends.

        Raises:
            Busy: there are too many, in all or of this peer, or this peer asks too often.
        """
        limits = self.limits
        if not self._rates.take(peer, self._clock()):
            most = limits.requests_per_second
            raise Busy(f"{peer} makes more than {most:g} requests a second (Limits.requests_per_second): wait a little")
        if self.requests >= limits.requests:
            raise Busy(f"{limits.requests} requests are under way, as many as may be (Limits.requests)")
        if self._requests[peer] >= limits.requests_by_peer:
            raise Busy(f"{limits.requests_by_peer} requests of {peer} are under way (Limits.requests_by_peer)")
        self._requests[peer] += 1
        try:
            with self.budget.enter() as entry:
                yield entry
        finally:
            self._requests[peer] -= 1
            if not self._requests[peer]:
                del self._requests[peer]
