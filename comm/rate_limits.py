"""Rate limits: a token bucket for each peer, and a throttle. The caller passes the time."""

from __future__ import annotations

__all__ = ["Throttle", "TokenBuckets"]


class TokenBuckets:
    """Token buckets by name. Each is filled at `rate` tokens a second, and holds at most one second's tokens.

    Args:
        rate: tokens a second.
        max_buckets: maximum number of buckets; beyond it, the least recently used bucket is dropped.
    """

    def __init__(self, rate: float, max_buckets: int) -> None:
        self.rate = rate
        self.max_buckets = max_buckets
        self._capacity = max(rate, 1.0)
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens and the time of the last count; newest last

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> bool:
        """Take a token; return False if the bucket is empty."""
        tokens, then = self._buckets.pop(name, (self._capacity, now))
        tokens = min(tokens + max(now - then, 0.0) * self.rate, self._capacity)
        is_available = tokens >= 1.0
        self._buckets[name] = (tokens - is_available, now)
        if len(self._buckets) > self.max_buckets:
            del self._buckets[next(iter(self._buckets))]
        return is_available


class Throttle:
    """Spreads events over time: each event is assigned a delay.

    Args:
        rate: events a second; one second's events may happen at once.
        max_delay: maximum delay in seconds.
    """

    def __init__(self, rate: float, max_delay: float) -> None:
        self.rate = rate
        self.max_delay = max_delay
        self._next = 0.0

    def delay(self, now: float) -> float:
        """Reserve the next slot, and return the number of seconds until then."""
        self._next = min(max(self._next, now - 1.0) + 1.0 / self.rate, now + self.max_delay)
        return max(self._next - now, 0.0)
