"""Replay protection for signed requests: a window of recent nonces. Pure: the caller passes the time."""

from __future__ import annotations

import math
from collections import deque

from flowmx.comm.errors import Busy, Unauthorized

__all__ = ["Window"]

SLACK = 0.2
"""Seconds by which well-kept clocks differ, and less than a service takes to start anew."""


SPAN = 1.0
"""Seconds whose nonces are kept together."""


class Window:
    """The window of accepted nonces: requests that are too old, from the future, or repeated are refused.

    Args:
        skew: seconds by which the clocks of two machines, and the way between them, may differ.
        most: how many nonces are kept; all of them are of requests that were signed with the secret.
        start: the time since which nonces are kept; earlier ones can not be checked, and are refused.
    """

    def __init__(self, skew: float, most: int, start: float = -math.inf) -> None:
        self.skew = skew
        self.most = most
        self.start = start
        self._seen: set[bytes] = set()
        self._order: deque[tuple[float, list[bytes]]] = deque()  # those of a second, and when it began

    def admit(self, nonce: bytes, sent: float, now: float) -> None:
        """Take note of a request.

        Args:
            nonce: what no other request has.
            sent: when it was signed, by the sender's clock, in seconds.
            now: the time here.

        Raises:
            Unauthorized: it is too old, too new, or a repetition.
            Busy: there are too many others, or the service was not there yet when it was signed.
        """
        if abs(now - sent) > self.skew:
            raise Unauthorized(
                f"the request was signed {now - sent:+.1f} s ago by this clock; at most {self.skew:g} s either way are "
                "allowed: set the clocks of both machines"
            )
        if sent < self.start - SLACK:
            raise Busy(
                "the request was signed before this service started, which remembers none of that time: sign anew"
            )
        self._forget(now)
        if nonce in self._seen:
            raise Unauthorized("this request was here before (the same nonce): each is to be signed anew")
        if len(self._seen) >= self.most:
            raise Busy(
                f"there were {self.most} requests within {2 * self.skew:g} s, which is as many as are remembered"
            )
        self._seen.add(nonce)
        if not self._order or now >= self._order[-1][0] + SPAN:
            self._order.append((now, []))
        self._order[-1][1].append(nonce)

    def _forget(self, now: float) -> None:
        # A nonce seen at t was signed at most `skew` ahead of t, and is too old `skew` after that. Those of a second
        # are forgotten together.
        while self._order and self._order[0][0] + SPAN <= now - 2 * self.skew:
            self._seen.difference_update(self._order.popleft()[1])
