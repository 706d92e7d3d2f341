"""The faults of a run, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.proxy import NetworkFaults

__all__ = ["Event", "Plan", "make_plan"]

LONG = 3.5  # a node that pauses for so many seconds is declared gone


@dataclass(frozen=True)
class Event:
    """A fault that happens once.

    Args:
        after: the number of pushes and pulls, of all servers together, before the fault.
        kind: ``kill`` or ``pause`` for nodes; ``cut``, ``swallow`` (block for good) or ``hold`` (block for a while) for
            the connections of a server, or of one node to the scheduler.
        targets: the nodes; or the connection, such as ``"worker 0 to scheduler"``.
        seconds: the duration.
    """

    after: int
    kind: str
    targets: tuple[str, ...]
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A job and its faults.

    Args:
        seed: the seed of all random numbers.
        mode: ``"sync"``, ``"async"`` or ``"stale"``.
        policy: ``"elastic"``, where processes are restarted, or ``"stop"``.
        workers: the number of workers.
        servers: the number of servers.
        rounds: the number of training steps.
        compute: the seconds that a worker sleeps in each step, in place of computation.
        secret: whether requests are signed.
        snapshot: whether the scheduler writes snapshots.
        reported: whether ended processes are reported to the scheduler immediately, as launchers do.
        faults: the probabilities of network faults.
        events: the faults that happen once.
    """

    seed: int
    mode: str = "sync"
    policy: str = "elastic"
    workers: int = 2
    servers: int = 2
    rounds: int = 10
    compute: float = 0.0
    secret: bool = False
    snapshot: bool = True
    reported: bool = True
    faults: NetworkFaults = NetworkFaults()
    events: tuple[Event, ...] = ()

    @property
    def may_lose(self) -> bool:
        """Whether two servers may be down at once: the job may then report a loss."""
        failures = [event for event in self.events if event.kind == "kill" or event.seconds > 2.0]
        return len({name for event in failures for name in event.targets if name.startswith("server")}) > 1


def make_plan(seed: int) -> Plan:
    """Draw a plan from a seed."""
    rng = random.Random(seed)
    workers, servers = rng.choice((2, 2, 3)), rng.choice((2, 2, 3))
    policy = "stop" if seed % 5 == 4 else "elastic"
    return Plan(
        seed,
        mode=("sync", "async", "stale")[seed % 3],
        policy=policy,
        workers=workers,
        servers=servers,
        rounds=rng.randrange(8, 16),
        compute=rng.choice((0.0, 0.1, 0.3)),
        secret=rng.random() < 0.25,
        snapshot=rng.random() < 0.5,
        reported=rng.random() < 0.6,
        faults=_faults(rng),
        events=(_kill(rng, workers, servers, policy),)
        if policy == "stop"
        else tuple(_event(rng, workers, servers) for _ in range(rng.choice((1, 1, 2, 2, 3)))),
    )


def _faults(rng: random.Random) -> NetworkFaults:
    if rng.random() < 0.25:
        return NetworkFaults()
    return NetworkFaults(
        delay=rng.choice((0.0, 0.1, 0.4)),
        max_delay=rng.choice((0.02, 0.1)),
        cut_request=rng.choice((0.0, 0.01, 0.03)),
        cut_answer=rng.choice((0.0, 0.01, 0.03)),
        repeat=rng.choice((0.0, 0.05, 0.2)),
        split=rng.choice((0.0, 0.2)),
    )


def _nodes(workers: int, servers: int) -> list[str]:
    return [f"worker {rank}" for rank in range(workers)] + [f"server {rank}" for rank in range(servers)]


def _kill(rng: random.Random, workers: int, servers: int, policy: str = "elastic") -> Event:
    names = _nodes(workers, servers)
    if policy == "elastic" or rng.random() < 0.2:
        names.append("scheduler")
    two = policy == "elastic" and rng.random() < 0.2
    return Event(rng.randrange(3, 60), "kill", tuple(rng.sample(names, 2 if two else 1)))


def _event(rng: random.Random, workers: int, servers: int) -> Event:
    kind = rng.choice(("kill", "kill", "kill", "pause", "cut", "swallow", "hold"))
    if kind == "kill":
        return _kill(rng, workers, servers)
    nodes = _nodes(workers, servers)
    if kind == "pause":
        return Event(rng.randrange(3, 60), kind, (rng.choice([*nodes, "scheduler"]),), rng.choice((0.5, LONG)))
    connections = [name for name in nodes if name.startswith("server")] + [f"{name} to scheduler" for name in nodes]
    return Event(rng.randrange(3, 60), kind, (rng.choice(connections),), rng.choice((0.5, 1.5, LONG)))
