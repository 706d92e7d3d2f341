"""One job with its faults: starts the processes, makes happen what is planned, starts again what has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowmx.comm.client import Peer
from flowmx.comm.errors import CommError
from flowmx.comm.security import Security
from tests.chaos import worker
from tests.chaos.ledgers import check
from tests.chaos.plan import Event, Plan
from tests.chaos.proxy import Proxy
from tests.chaos.zygote import Process, Zygote
from tests.ports import free_ports

__all__ = ["TIMEOUT", "Outcome", "run"]

TIMEOUT, HEARTBEAT, RECONNECT = 1.5, 0.2, 8.0
LOST = "start again from a checkpoint"  # what a worker says where servers had something that nobody has any more
DEADLINE = 40.0  # seconds that a whole run may take
MODULES = {"scheduler": "flowmx.comm.launch.scheduler", "server": "flowmx.kvstore.server.main"}
TRAINING = {"push", "pull", "pushpull"}


@dataclass
class Life:
    """One process: a node from a start to its end.

    Attributes:
        name: of the node.
        node: its id.
        process: it.
        began: when.
        log: its output.
        writer: of a worker, its number in gradients.
        ended: when.
        paused: when it was stopped, and for how long.
    """

    name: str
    node: str
    process: Process
    began: float
    log: Path
    writer: int = -1
    ended: float = 0.0
    paused: list[tuple[float, float]] = field(default_factory=list)

    @property
    def said(self) -> str:
        """Its output."""
        return self.log.read_text(errors="replace")


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        plan: what was planned.
        lives: all processes.
        records: of all ledgers.
        happened: what happened of what was planned, and when.
        counts: what the network did.
        hung: whether it did not end in time.
        seconds: that it took.
    """

    plan: Plan
    lives: list[Life]
    records: list[dict[str, Any]]
    happened: list[tuple[float, Event]]
    counts: Counter[str]
    hung: bool
    seconds: float

    @property
    def finished(self) -> bool:
        """True where the training completed."""
        return any(record["kind"] == "ended" for record in self.records)

    @property
    def lost(self) -> bool:
        """True where a worker reported that data is lost."""
        return any(record["kind"] == "failed" and LOST in record["error"] for record in self.records)

    @property
    def longest(self) -> float:
        """Seconds of the longest wait of any worker for an answer, but for time in which it was paused itself."""
        return max((self._waited(record) for record in self.records if "since" in record), default=0.0)

    def _waited(self, record: dict[str, Any]) -> float:
        life = next(life for life in self.lives if life.writer == record["writer"])
        paused = sum(
            max(0.0, min(start + seconds, record["at"]) - max(start, record["since"])) for start, seconds in life.paused
        )
        return float(record["at"] - record["since"] - paused)

    def problems(self) -> list[str]:
        """Everything that is not as it must be."""
        found = check(self.records, self.plan.mode, worker.STALENESS)
        found += self._unnamed()
        if self.hung:
            found.append(f"not over after {DEADLINE:g} s")
        if self.longest > 15.0:
            found.append(f"a worker waited for {self.longest:.1f} s")
        if self.plan.policy == "elastic" and not self.finished and not (self.plan.may_lose and self.lost):
            found.append("the training did not come to its end")
        if self.plan.policy == "stop" and self.happened:
            found += self._not_stopped()
        return found

    def _not_stopped(self) -> list[str]:
        killed = {name for _, event in self.happened for name in event.targets}
        at = self.happened[0][0]
        found = []
        for life in self.lives:
            if life.name in killed or life.name == "scheduler":
                continue
            if not life.process.ended.done() or life.process.ended.result() == 0:
                found.append(f"{life.name} went on, or ended well, without {', '.join(killed)}")
            elif life.ended - at > 15.0:
                found.append(f"{life.name} ended {life.ended - at:.1f} s after {', '.join(killed)}")
        return found

    def _unnamed(self) -> list[str]:
        """Processes that survived a fault and did not report the failed member."""
        found = []
        for at, event in self.happened:
            gone = event.kind == "kill" or (event.kind == "pause" and event.seconds > 2 * TIMEOUT)
            for name in event.targets if gone else ():
                for life in self.lives:
                    if life.name not in event.targets and life.began < at and self._knew(life, at):
                        text = "the scheduler at" if name == "scheduler" else f"{name} on"
                        if text not in life.said:
                            found.append(f"{life.name} (process {life.process.pid}) never said that {name} was gone")
        return found

    def _knew(self, life: Life, at: float) -> bool:
        """True where a process was a member of the job for long enough to learn of the fault."""
        after = at + TIMEOUT + 2.0
        line = f"{life.name} to scheduler"
        if any(
            line in event.targets and event.kind == "hold" and event.seconds > TIMEOUT for _, event in self.happened
        ):
            return False  # for that long it was itself gone for the others, and says that the scheduler is
        awake = all(start + seconds < at or start > after for start, seconds in life.paused)
        killed = life.process.ended.done() and life.process.ended.result() < 0
        return awake and (life.ended > after or (self.plan.policy == "stop" and not killed))


async def run(plan: Plan, zygote: Zygote, folder: Path) -> Outcome:
    """Run a plan."""
    return await _Run(plan, zygote, folder).run()


class _Run:
    def __init__(self, plan: Plan, zygote: Zygote, folder: Path) -> None:
        self.plan, self.zygote, self.folder = plan, zygote, folder
        self.random = random.Random(plan.seed + 1)
        self.lives: dict[str, Life] = {}
        self.all: list[Life] = []
        self.happened: list[tuple[float, Event]] = []
        self.waiting = sorted(plan.events, key=lambda event: -event.after)
        self.heard = 0
        self.writers = 0
        self.over = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.ports = free_ports(1 + plan.servers)
        self.servers = [f"server {rank}" for rank in range(plan.servers)]
        self.workers = [f"worker {rank}" for rank in range(plan.workers)]
        self.nodes = {name: uuid.uuid4().hex for name in self.servers}
        self.proxies: dict[str, Proxy] = {}
        self.secret = folder / "secret"

    async def run(self) -> Outcome:
        began = time.monotonic()
        if self.plan.secret:
            self.secret.touch(mode=0o600)
            self.secret.write_text("a secret of more than thirty-two characters")
        hung = False
        try:
            await self._start_proxies()
            async with asyncio.timeout(DEADLINE):
                await self._train()
        except TimeoutError:
            hung = True
            await self._dump()
        finally:
            await self._end()
        counts: Counter[str] = sum((Counter(proxy.counts) for proxy in self.proxies.values()), Counter())
        return Outcome(self.plan, self.all, self._records(), self.happened, counts, hung, time.monotonic() - began)

    async def _start_proxies(self) -> None:
        lines = {name: self.ports[1 + rank] for rank, name in enumerate(self.servers)}
        lines |= {f"{name} to scheduler": self.ports[0] for name in [*self.servers, *self.workers]}
        for number, (name, port) in enumerate(lines.items()):
            self.proxies[name] = Proxy(port, self.plan.weather, self.plan.seed * 100 + number, self._hear)
            await self.proxies[name].start()

    async def _train(self) -> None:
        for name in ("scheduler", *self.servers, *self.workers):
            await self._start(name)
        while not self.over:
            done, _ = await asyncio.wait(
                {life.process.ended for life in self.lives.values() if not life.ended},
                return_when=asyncio.FIRST_COMPLETED,
            )
            for life in [life for life in self.lives.values() if life.process.ended in done]:
                await self._ended(life)
        await asyncio.wait({life.process.ended for life in self.lives.values()}, timeout=12.0)
        for life in self.lives.values():
            life.ended = life.ended or time.monotonic()

    async def _ended(self, life: Life) -> None:
        life.ended = time.monotonic()
        workers = [self.lives[name] for name in self.workers]
        if life.process.ended.result() == 0 or self.plan.policy == "stop":
            self.over = all(worker.ended for worker in workers)
            return
        if life.name in self.workers and any(other.ended and not other.process.ended.result() for other in workers):
            self.over = all(worker.ended for worker in workers)
            return  # others have done the work
        if self._lost(life):
            self.over = True
            return
        if self.plan.reported:
            await self._tell(life)
        if life.name in self.workers and self.writers == worker.WRITERS:
            self.over = True  # there is no end to it
            return
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.2)))
        await self._start(life.name)

    def _lost(self, life: Life) -> bool:
        """True for a worker that has reported a loss and ended: it is not started again."""
        return self.plan.may_lose and life.name in self.workers and LOST in life.said

    async def _tell(self, life: Life) -> None:
        if life.name == "scheduler":
            return
        security = Security.from_file(self.secret) if self.plan.secret else None
        how = signal.Signals(-life.process.ended.result()).name if life.process.ended.result() < 0 else "exit status 1"
        async with Peer(f"127.0.0.1:{self.ports[0]}", security=security, node="launcher", local=False) as peer:
            with contextlib.suppress(CommError, TimeoutError):
                await peer.call("fail", {"who": life.node, "why": f"killed by {how}"}, timeout=1.0)

    # Starting

    async def _start(self, name: str) -> None:
        role = name.partition(" ")[0]
        starts = sum(life.name == name for life in self.all)
        log = self.folder / f"{name.replace(' ', '-')}.{starts}.log"
        node = self.nodes.get(name) or uuid.uuid4().hex
        module, arguments, writer = self._command(name, role)
        process = await self.zygote.start(module, arguments, self._environ(name, role, node), log)
        life = Life(name, node, process, time.monotonic(), log, writer)
        self.lives[name] = life
        self.all.append(life)

    def _command(self, name: str, role: str) -> tuple[str, list[str], int]:
        if role == "scheduler":
            file = ["--snapshot", str(self.folder / "scheduler.snapshot")] if self.plan.snapshot else []
            secret = [] if self.plan.secret else ["--insecure"]
            return MODULES[role], ["--port", str(self.ports[0]), *secret, *file], -1
        if role == "server":
            return MODULES[role], ["--port", str(self.ports[1 + int(name.split()[1])])], -1
        writer, self.writers = self.writers, self.writers + 1
        ledger = str(self.folder / f"ledger-{writer}.json")
        return (
            "tests.chaos.worker",
            [ledger, str(writer), self.plan.mode, str(self.plan.rounds), str(self.plan.compute)],
            writer,
        )

    def _environ(self, name: str, role: str, node: str) -> dict[str, str]:
        found = {
            "FLOWMX_ROLE": role,
            "FLOWMX_NUM_WORKERS": str(self.plan.workers),
            "FLOWMX_NUM_SERVERS": str(self.plan.servers),
            "FLOWMX_KVSTORE_POLICY": self.plan.policy,
            "FLOWMX_KVSTORE_TIMEOUT": str(TIMEOUT),
            "FLOWMX_KVSTORE_HEARTBEAT": str(HEARTBEAT),
            "FLOWMX_KVSTORE_RECONNECT": str(RECONNECT),
            "FLOWMX_KVSTORE_BIGARRAY_BOUND": str(worker.BOUND),
            "FLOWMX_KVSTORE_LOCAL": "0",
            "FLOWMX_NODE_ID": node,
        }
        if self.plan.secret:
            found["FLOWMX_SECRET_FILE"] = str(self.secret)
        if role != "scheduler":
            found["FLOWMX_RANK"] = name.split()[1]
            found["FLOWMX_SCHEDULER"] = self.proxies[f"{name} to scheduler"].address
        if role == "server":
            found["FLOWMX_NODE_ADDRESS"] = self.proxies[name].address
        return found

    # What happens

    def _hear(self, operation: str) -> None:
        self.heard += operation in TRAINING
        while self.waiting and self.waiting[-1].after <= self.heard:
            event = self.waiting.pop()
            self.happened.append((time.monotonic(), event))
            for target in event.targets:
                task = asyncio.create_task(_HAPPENS[event.kind](self, target, event.seconds))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _kill(self, target: str, seconds: float) -> None:
        self.lives[target].process.signal(signal.SIGKILL)

    async def _pause(self, target: str, seconds: float) -> None:
        life = self.lives[target]
        life.process.signal(signal.SIGSTOP)
        life.paused.append((time.monotonic(), seconds))
        await asyncio.sleep(seconds)
        life.process.signal(signal.SIGCONT)

    async def _cut(self, target: str, seconds: float) -> None:
        self.proxies[target].cut()

    async def _swallow(self, target: str, seconds: float) -> None:
        self.proxies[target].swallow()

    async def _hold(self, target: str, seconds: float) -> None:
        self.proxies[target].hold()
        await asyncio.sleep(seconds)
        self.proxies[target].release()

    # The end

    async def _dump(self) -> None:
        """Let everything that hangs say where."""
        for life in self.all:
            life.process.signal(signal.SIGUSR2)
        await asyncio.sleep(0.5)

    async def _end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for life in self.all:
            life.process.signal(signal.SIGKILL)
        await asyncio.gather(*self.tasks, *(life.process.ended for life in self.all), return_exceptions=True)
        await asyncio.gather(*(proxy.close() for proxy in self.proxies.values()))

    def _records(self) -> list[dict[str, Any]]:
        lines = [line for path in sorted(self.folder.glob("ledger-*.json")) for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]


_HAPPENS = {"kill": _Run._kill, "pause": _Run._pause, "cut": _Run._cut, "swallow": _Run._swallow, "hold": _Run._hold}
