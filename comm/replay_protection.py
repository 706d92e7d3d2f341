"""Replay protection for signed requests: a window of recent nonces.

The caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque

from flowmx.comm.errors import Busy, Unauthorized

__all__ = ["ReplayWindow"]

SLACK = 0.2
"""Seconds by which synchronized clocks may differ; less than a service takes to restart."""
SPAN = 1.0
"""Nonces are stored in groups, one for each interval of this many seconds."""


class ReplayWindow:
    """A window of accepted nonces; requests that are too old, from the future, or repeated are refused.

    Args:
        skew: seconds by which the clocks of two machines may differ, plus the transfer time.
        capacity: maximum number of stored nonces; they all belong to requests that were signed with the secret.
        start: the time since which nonces are stored; earlier requests cannot be checked and are refused.
    """

    def __init__(self, skew: float, capacity: int, start: float = -math.inf) -> None:
        self.skew = skew
        self.capacity = capacity
        self.start = start
        self._nonces: set[bytes] = set()
        self._order: deque[tuple[float, list[bytes]]] = deque()  # the start of each interval, and its nonces

    def admit(self, nonce: bytes, sent: float, now: float) -> None:
        """Record a request.

        Args:
            nonce: the request's unique number.
            sent: the time of its signature by the sender's clock, in seconds.
            now: the local time.

        Raises:
            Unauthorized: it is too old, too new, or repeated.
            Busy: there are too many recent requests, or it was signed before the service started.
        """
        if abs(now - sent) > self.skew:
            raise Unauthorized(
                f"the request was signed {now - sent:+.1f} s ago by this clock; at most {self.skew:g} s in either "
                "direction are allowed: synchronize the clocks of both machines"
            )
        if sent < self.start - SLACK:
            raise Busy(
                "the request was signed before this service started, so a repetition cannot be detected: sign it again"
            )
        self._drop_old(now)
        if nonce in self._nonces:
            raise Unauthorized("this request was received before (same nonce): sign each request separately")
        if len(self._nonces) >= self.capacity:
            raise Busy(
                f"there were {self.capacity} requests within {2 * self.skew:g} s, and no more nonces can be stored"
            )
        self._nonces.add(nonce)
        if not self._order or now >= self._order[-1][0] + SPAN:
            self._order.append((now, []))
        self._order[-1][1].append(nonce)

    def _drop_old(self, now: float) -> None:
        # A nonce received at t was signed at most at t + skew, and is too old at t + 2 * skew. The nonces of an
        # interval are dropped together.
        while self._order and self._order[0][0] + SPAN <= now - 2 * self.skew:
            self._nonces.difference_update(self._order.popleft()[1])
