"""Rate limits: a token bucket for each peer, and turns in a queue. Pure: the caller passes the time."""

from __future__ import annotations

__all__ = ["Buckets", "Turns"]


class Buckets:
    """Token buckets by name, each filled at `rate` a second up to one second's tokens.

    Args:
        rate: tokens a second.
        most: how many names are remembered; beyond, the one that has been quiet for longest begins anew.
    """

    def __init__(self, rate: float, most: int) -> None:
        self.rate = rate
        self.most = most
        self._room = max(rate, 1.0)
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left and when; the last one asked is last

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> bool:
        """Take a token, if there is one."""
        left, then = self._buckets.pop(name, (self._room, now))
        left = min(left + max(now - then, 0.0) * self.rate, self._room)
        found = left >= 1.0
        self._buckets[name] = (left - found, now)
        if len(self._buckets) > self.most:
            del self._buckets[next(iter(self._buckets))]
        return found


class Turns:
    """Turns at a rate: who takes one is told how long to wait for it, so that many get theirs one after the other.

    Args:
        rate: turns a second; as many may be taken at once.
        longest: most seconds that anyone is told to wait.
    """

    def __init__(self, rate: float, longest: float) -> None:
        self.rate = rate
        self.longest = longest
        self._next = 0.0

    def take(self, now: float) -> float:
        """Take the next turn; returns the seconds until it comes."""
        self._next = min(max(self._next, now - 1.0) + 1.0 / self.rate, now + self.longest)
        return max(self._next - now, 0.0)
