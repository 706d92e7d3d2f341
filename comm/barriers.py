"""Barriers by name: a state machine that does no I/O, like all of membership.

The rounds of a barrier are counted. A worker's request contains the last round of that name which it has passed. A
request that is sent twice, or whose response was lost, is therefore recognized: its round has already ended, and it
gets the same response again. Workers know the counts too. A restarted scheduler learns them from the workers that
reconnect, so no worker waits for a worker that has already passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["MAX_NAMES", "Barriers"]

MAX_NAMES = 4096
"""The maximum number of barriers in use at a time, and of stored round counts."""


class Barriers:
    """The state of all barriers: the rounds that have ended, and the nodes that wait for the next.

    Attributes:
        rounds: the number of ended rounds of each barrier.
        waiting: by barrier, the nodes that wait for its next round.
        meetings: the barriers that do not wait for a late worker until it has arrived once.
    """

    def __init__(self, rounds: Mapping[str, int] | None = None) -> None:
        self.rounds: dict[str, int] = dict(rounds or {})
        self.waiting: dict[str, set[str]] = {}
        self.meetings: set[str] = set()
        self._released: set[tuple[str, str]] = set()

    def enter(self, node: str, name: str, after: int, excused: bool) -> int | None:
        """Enter a worker at a barrier; return the round that it has passed, or None if it must wait.

        Args:
            node: the worker's id.
            name: the name of the barrier.
            after: the last round of this name that the worker knows of.
            excused: whether it joined late and arrives here for the first time. If a round has ended and no node waits
                for the next, the barrier belongs to the start of the job, which this worker missed: it passes.
        """
        ended = self.rounds.get(name, 0)
        if after > ended:  # a restarted scheduler that did not know these rounds
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
        self._released = {entry for entry in self._released if entry[1] != node}

    def retain(self, nodes: Iterable[str]) -> None:
        """Withdraw all workers except `nodes` from all barriers."""
        for node in set().union(*self.waiting.values()).difference(nodes):
            self.forget(node)

    def learn(self, rounds: Mapping[str, int]) -> bool:
        """Add rounds that other nodes know of; return True if any was new.

        A node that waits for a round that has ended passes it.
        """
        new_rounds = {name: number for name, number in rounds.items() if number > self.rounds.get(name, 0)}
        for name, number in new_rounds.items():
            self._end(name, number)
        return bool(new_rounds)

    def complete_rounds(
        self, workers: Collection[str], newcomers: Callable[[str], Collection[str]] = lambda name: ()
    ) -> list[str]:
        """End the round of every barrier at which all `workers` wait; return their names.

        Args:
            workers: the workers that are alive.
            newcomers: returns, for a meeting, the workers that joined late and have not arrived at it yet.
        """

        def required(name: str) -> Collection[str]:
            return (set(workers).difference(newcomers(name)) if name in self.meetings else ()) or workers

        complete = [name for name, waiting in self.waiting.items() if waiting and waiting.issuperset(required(name))]
        for name in complete:
            self._end(name, self.rounds.get(name, 0) + 1)
        return complete

    def release(self, workers: Collection[str], late: Collection[str]) -> bool:
        """Release late workers from meetings that no other worker will attend; return True if any were released.

        No other worker will come if all workers are waiting and only late ones wait at the meeting: the others have
        passed it already, and wait elsewhere for the late ones.

        Args:
            workers: the workers that are alive.
            late: the workers that joined late.
        """
        if not set().union(*self.waiting.values()).issuperset(workers):
            return False
        stuck = [name for name in self.meetings if self.rounds.get(name) and self.waiting.get(name)]
        stuck = [name for name in stuck if self.waiting[name].issubset(late)]
        for name in stuck:
            self._released.update((name, node) for node in self.waiting.pop(name))
            self.meetings.discard(name)
        return bool(stuck)

    def to_wire(self) -> dict[str, object]:
        """Return the rounds for a snapshot, the only state that a restarted scheduler needs."""
        return dict(self.rounds)

    def _end(self, name: str, number: int) -> None:
        self.waiting.pop(name, None)
        self.meetings.discard(name)
        self.rounds.pop(name, None)
        self.rounds[name] = number  # at the end: the oldest names are dropped first
        while len(self.rounds) > MAX_NAMES:
            del self.rounds[next(iter(self.rounds))]

    def _drop(self, name: str, node: str) -> None:
        waiting = self.waiting.get(name, set())
        waiting.discard(node)
        if not waiting:
            self.waiting.pop(name, None)
