"""Barriers by name: a pure state machine, as all of membership.

The rounds of a barrier are counted. A worker says after which round it comes (the last one of this name that it has
passed), so a request that is sent twice, or whose answer was lost, is seen for what it is: the round after that one has
ended already, and the answer is the same again. Since workers know the counts too, a scheduler that starts anew learns
them from those that come back, and nobody waits for a worker that has gone on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

__all__ = ["MOST_NAMES", "Barriers"]

MOST_NAMES = 4096


class Barriers:
    """The state of all barriers: rounds that have ended, and the nodes that wait for the next.

    Attributes:
        rounds: how many rounds of each barrier have ended.
        waiting: who waits for the next round of each.
        meetings: the names of those that newcomers are not waited for at, until they come by themselves.
    """

    def __init__(self, rounds: Mapping[str, int] | None = None) -> None:
        self.rounds: dict[str, int] = dict(rounds or {})
        self.waiting: dict[str, set[str]] = {}
        self.meetings: set[str] = set()
        self._released: set[tuple[str, str]] = set()

    def enter(self, node: str, name: str, after: int, excused: bool) -> int | None:
        """Enter a worker at a barrier; return the round that it has passed, or None: it waits.

        Args:
            node: the worker's id.
            name: the barrier's.
            after: the last round of this name that the worker knows of.
            excused: it joined late and comes here for the first time: where a round has ended before, and nobody waits
                for the next, this is a barrier from the start of the job, which it missed.
        """
        ended = self.rounds.get(name, 0)
        if after > ended:  # a scheduler that started anew, and hears of these rounds for the first time
            self.learn({name: after})
            ended = after
        if after < ended:
            return after + 1
        if (name, node) in self._released:
            self._released.discard((name, node))
            return ended
        if excused and ended and not self.waiting.get(name):
            return ended
        self.waiting.setdefault(name, set()).add(node)
        return None

    def withdraw(self, node: str, name: str) -> None:
        """Withdraw a worker from one barrier."""
        self._drop(name, node)

    def forget(self, node: str) -> None:
        """Withdraw a worker from all barriers."""
        for name in list(self.waiting):
            self._drop(name, node)
        self._released = {each for each in self._released if each[1] != node}

    def keep(self, nodes: Iterable[str]) -> None:
        """Withdraw all workers but these from all barriers."""
        kept = set(nodes)
        for node in set().union(*self.waiting.values()) - kept:
            self.forget(node)

    def learn(self, rounds: Mapping[str, int]) -> bool:
        """Take over rounds that others know of; return True if any was new.

        Whoever waits for a round that has ended has passed it.
        """
        news = {name: number for name, number in rounds.items() if number > self.rounds.get(name, 0)}
        for name, number in news.items():
            self._end(name, number)
        return bool(news)

    def settle(
        self, workers: Collection[str], newcomers: Callable[[str], Collection[str]] = lambda name: ()
    ) -> list[str]:
        """End the round of every barrier at which all `workers` wait; return their names.

        Args:
            workers: who lives.
            newcomers: of a meeting, who of these joined late and has not come to it yet.
        """

        def wanted(name: str) -> Collection[str]:
            return (set(workers).difference(newcomers(name)) if name in self.meetings else ()) or workers

        complete = [name for name, waiting in self.waiting.items() if waiting and waiting.issuperset(wanted(name))]
        for name in complete:
            self._end(name, self.rounds.get(name, 0) + 1)
        return complete

    def release(self, workers: Collection[str], late: Collection[str]) -> bool:
        """Let workers that joined late pass meetings to which nobody else will come; return True if any does.

        That is so where all workers wait, and the others at other barriers: they have passed this meeting before, and
        wait for those who are here.

        Args:
            workers: who lives.
            late: who of these joined late.
        """
        if not set().union(*self.waiting.values()).issuperset(workers):
            return False
        stuck = [name for name in self.meetings if self.rounds.get(name) and self.waiting.get(name)]
        stuck = [name for name in stuck if self.waiting[name].issubset(late)]
        for name in stuck:
            self._released.update((name, node) for node in self.waiting.pop(name))
            self.meetings.discard(name)
        return bool(stuck)

    def to_wire(self) -> dict[str, Any]:
        """The rounds, for a snapshot: nothing else outlives a scheduler."""
        return dict(self.rounds)

    def _end(self, name: str, number: int) -> None:
        self.waiting.pop(name, None)
        self.meetings.discard(name)
        self.rounds.pop(name, None)
        self.rounds[name] = number  # last in order: the oldest names go first
        while len(self.rounds) > MOST_NAMES:
            del self.rounds[next(iter(self.rounds))]

    def _drop(self, name: str, node: str) -> None:
        waiting = self.waiting.get(name, set())
        waiting.discard(node)
        if not waiting:
            self.waiting.pop(name, None)
