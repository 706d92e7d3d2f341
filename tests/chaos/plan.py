"""The faults of a run, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.proxy import Weather

__all__ = ["Event", "Plan", "planned"]

LONG = 3.5  # seconds of a pause after which a node is gone for the others


@dataclass(frozen=True)
class Event:
    """Something that happens once.

    Args:
        after: pushes and pulls that all servers together have been sent before.
        kind: ``kill``, ``pause``; and, of the connections of a server or of one node to the scheduler: ``cut``,
            ``swallow`` (they never carry anything again), ``hold`` (nothing passes for a while).
        targets: nodes; or ``"worker 0 to scheduler"``.
        seconds: that it lasts.
    """

    after: int
    kind: str
    targets: tuple[str, ...]
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A job and what happens to it.

    Args:
        seed: of everything.
        mode: ``"sync"``, ``"async"`` or ``"stale"``.
        policy: ``"elastic"``, with processes started again, or ``"stop"``.
        workers: how many.
        servers: how many.
        rounds: steps that are trained.
        compute: seconds that a step takes besides.
        secret: whether requests are signed.
        snapshot: whether the scheduler has a file.
        reported: True where ended processes are reported to the scheduler at once, as launchers do.
        weather: what happens to requests.
        events: what happens once.
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
    weather: Weather = Weather()
    events: tuple[Event, ...] = ()

    @property
    def may_lose(self) -> bool:
        """True where two servers may be down at once: the job may then report a loss."""
        gone = [event for event in self.events if event.kind == "kill" or event.seconds > 2.0]
        return len({name for event in gone for name in event.targets if name.startswith("server")}) > 1


def planned(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(seed)
    workers, servers = draw.choice((2, 2, 3)), draw.choice((2, 2, 3))
    policy = "stop" if seed % 5 == 4 else "elastic"
    return Plan(
        seed,
        mode=("sync", "async", "stale")[seed % 3],
        policy=policy,
        workers=workers,
        servers=servers,
        rounds=draw.randrange(8, 16),
        compute=draw.choice((0.0, 0.1, 0.3)),
        secret=draw.random() < 0.25,
        snapshot=draw.random() < 0.5,
        reported=draw.random() < 0.6,
        weather=_weather(draw),
        events=(_kill(draw, workers, servers, policy),)
        if policy == "stop"
        else tuple(_event(draw, workers, servers) for _ in range(draw.choice((1, 1, 2, 2, 3)))),
    )


def _weather(draw: random.Random) -> Weather:
    if draw.random() < 0.25:
        return Weather()
    return Weather(
        delayed=draw.choice((0.0, 0.1, 0.4)),
        most=draw.choice((0.02, 0.1)),
        cut=draw.choice((0.0, 0.01, 0.03)),
        deaf=draw.choice((0.0, 0.01, 0.03)),
        repeated=draw.choice((0.0, 0.05, 0.2)),
        split=draw.choice((0.0, 0.2)),
    )


def _nodes(workers: int, servers: int) -> list[str]:
    return [f"worker {rank}" for rank in range(workers)] + [f"server {rank}" for rank in range(servers)]


def _kill(draw: random.Random, workers: int, servers: int, policy: str = "elastic") -> Event:
    names = _nodes(workers, servers)
    if policy == "elastic" or draw.random() < 0.2:
        names.append("scheduler")
    two = policy == "elastic" and draw.random() < 0.2
    return Event(draw.randrange(3, 60), "kill", tuple(draw.sample(names, 2 if two else 1)))


def _event(draw: random.Random, workers: int, servers: int) -> Event:
    kind = draw.choice(("kill", "kill", "kill", "pause", "cut", "swallow", "hold"))
    if kind == "kill":
        return _kill(draw, workers, servers)
    nodes = _nodes(workers, servers)
    if kind == "pause":
        return Event(draw.randrange(3, 60), kind, (draw.choice([*nodes, "scheduler"]),), draw.choice((0.5, LONG)))
    lines = [name for name in nodes if name.startswith("server")] + [f"{name} to scheduler" for name in nodes]
    return Event(draw.randrange(3, 60), kind, (draw.choice(lines),), draw.choice((0.5, 1.5, LONG)))
