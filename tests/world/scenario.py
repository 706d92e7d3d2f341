"""A scenario: a job, the behavior of its network, and its faults, all drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

__all__ = ["Fault", "Scenario", "draw"]

HEARTBEAT, TIMEOUT, RECONNECT = 1.0, 10.0, 30.0
"""A node's timing in a world, in seconds: the defaults of the settings."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once.

    Attributes:
        at: the time, in seconds.
        kind: ``kill``, ``terminate`` (SIGTERM), ``pause``, ``cut`` (both directions), ``mute`` (one direction),
            ``reset``, ``slow``, or ``crash`` (of all processes: the job resumes from its snapshots).
        target: the process.
        other: the other process of a fault of their link.
        seconds: the duration; for ``kill`` and ``terminate``, the time until another start, or 0.
    """

    at: float
    kind: str
    target: str
    other: str = ""
    seconds: float = 0.0

    @property
    def loses(self) -> str:
        """The node that the job may lose by it, or an empty string."""
        is_long = self.seconds > TIMEOUT / 3 and self.other in ("", "scheduler")
        return self.target if self.kind in ("kill", "terminate") or is_long else ""

    def __str__(self) -> str:
        where = f"{self.target} and {self.other}" if self.other else self.target
        return f"{self.at:.3f} s: {self.kind} {where}" + (f" for {self.seconds:.1f} s" if self.seconds else "")


@dataclass(frozen=True)
class Scenario:
    """A job and its faults.

    Attributes:
        seed: the seed of the schedule and of the network.
        mode: the consistency mode: ``sync``, ``async`` or ``stale``.
        policy: ``elastic`` or ``stop``.
        steps: the number of training steps.
        keys: the number of keys.
        compute: the longest duration of a step's computation, in seconds.
        delay, split: the delay of the network's links, and the probability that a write is split.
        bound: elements from which a key is split over the servers.
        snapshots: seconds between the servers' snapshots, or 0 for none.
    """

    seed: int
    mode: str = "sync"
    policy: str = "elastic"
    workers: int = 2
    servers: int = 2
    steps: int = 20
    keys: int = 2
    compute: float = 1.0
    delay: float = 1e-4
    split: float = 0.0
    bound: int = 1_000_000
    snapshots: float = 0.0
    faults: tuple[Fault, ...] = field(default=())

    @property
    def writers(self) -> int:
        """The largest number of starts of workers."""
        return self.workers * (2 if self.snapshots else 1) + len(self.faults)


def draw(seed: int) -> Scenario:
    """Draw a scenario."""
    rng = random.Random(f"{seed} scenario")
    workers, servers = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 2, 3))
    policy = rng.choice(("elastic", "elastic", "elastic", "stop"))
    scenario = Scenario(
        seed,
        mode=rng.choice(("sync", "sync", "async", "stale")),
        policy=policy,
        workers=workers,
        servers=servers,
        steps=rng.randint(5, 30),
        keys=rng.randint(1, 4),
        compute=rng.choice((0.01, 0.3, 2.0)),
        delay=rng.choice((1e-4, 1e-3, 0.05)),
        split=rng.choice((0.0, 0.0, 0.3)),
        bound=rng.choice((4, 1_000_000)),
        faults=_stop_fault(rng, workers, servers) if policy == "stop" else _faults(rng, workers, servers),
    )
    return _resumed(rng, scenario) if policy == "elastic" and rng.random() < 0.2 else scenario


def _resumed(rng: random.Random, scenario: Scenario) -> Scenario:
    """Return a scenario with snapshots whose job crashes after a loss, and resumes."""
    at = rng.choice((0.05, 1.0, 5.0)) + rng.uniform(0, 8)
    faults = tuple(fault for fault in scenario.faults[:1] if fault.kind in ("kill", "terminate") and fault.at < at)
    return replace(scenario, snapshots=rng.choice((0.5, 2.0)), faults=(*faults, Fault(at, "crash", "scheduler")))


def _stop_fault(rng: random.Random, workers: int, servers: int) -> tuple[Fault, ...]:
    if rng.random() < 0.3:
        return ()
    return (Fault(rng.uniform(0, 20), "kill", rng.choice(_nodes(workers, servers))),)


def _faults(rng: random.Random, workers: int, servers: int) -> tuple[Fault, ...]:
    """Draw faults that a job survives: at most one server at a time is lost, and its successor gets time to copy."""
    faults, now = list[Fault](), 0.0
    scale = rng.choice((0.05, 0.5, 5.0, 15.0))  # many bugs are in the first moments of a job
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
        now += rng.uniform(0, scale)
        faults.append(fault := _fault(rng, now, workers, servers))
        if fault.loses.startswith("server"):
            now += 3 * TIMEOUT + fault.seconds
    return tuple(faults)


def _fault(rng: random.Random, at: float, workers: int, servers: int) -> Fault:
    nodes = _nodes(workers, servers)
    losable = nodes if servers > 1 else [name for name in nodes if name.startswith("worker")]
    kind = rng.choice(("kill", "kill", "kill", "terminate", "pause", "cut", "mute", "reset", "slow"))
    if kind == "kill":
        return Fault(at, kind, rng.choice([*losable, "scheduler"]), seconds=rng.choice((0.01, 0.5, 3.0, 15.0)))
    if kind == "terminate":
        return Fault(at, kind, rng.choice(losable), seconds=rng.choice((0.5, 3.0)))
    if rng.random() < 0.25:  # so long that the node is lost
        target = rng.choice(losable)
        seconds = rng.uniform(TIMEOUT, 2 * TIMEOUT)
        return (
            Fault(at, "pause", target, "", seconds)
            if kind == "pause"
            else Fault(at, "cut", target, "scheduler", seconds)
        )
    short = rng.uniform(0.01, TIMEOUT / 3)
    if kind == "pause":
        return Fault(at, kind, rng.choice([*nodes, "scheduler"]), seconds=short)
    target, other = rng.sample([*nodes, "scheduler"], 2)
    return Fault(at, kind, target, other, 0.0 if kind == "reset" else short)


def _nodes(workers: int, servers: int) -> list[str]:
    return [f"worker {rank}" for rank in range(workers)] + [f"server {rank}" for rank in range(servers)]
