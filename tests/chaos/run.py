"""Runs one job with faults: starts its processes, injects the planned faults, and restarts processes that ended."""

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
LOST = "restart from a checkpoint"  # part of a worker's message when all copies of a value are gone
DEADLINE = 40.0  # seconds for a whole run
MODULES = {"scheduler": "flowmx.comm.launch.scheduler", "server": "flowmx.kvstore.server.main"}
TRAINING = {"push", "pull", "pushpull"}


@dataclass
class NodeRun:
    """A run of a node: its process, from the start to the end.

    Attributes:
        name: the node's name.
        node_id: the node's id.
        process: the process.
        start: the time of the start.
        log: the file of its output.
        writer: the worker's number in gradients; -1 for other nodes.
        end: the time of the end; 0 while it runs.
        pauses: the time and the duration of each pause.
    """

    name: str
    node_id: str
    process: Process
    start: float
    log: Path
    writer: int = -1
    end: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)

    @property
    def output(self) -> str:
        """The output so far."""
        return self.log.read_text(errors="replace")


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        plan: the plan.
        runs: the runs of all nodes; a restarted node has several.
        records: the records of all ledgers.
        happened: the planned events that happened, each with its time.
        counts: the number of each network fault.
        hung: whether the job did not end in time.
        seconds: the duration of the run.
    """

    plan: Plan
    runs: list[NodeRun]
    records: list[dict[str, Any]]
    happened: list[tuple[float, Event]]
    counts: Counter[str]
    hung: bool
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether the training completed."""
        return any(record["kind"] == "ended" for record in self.records)

    @property
    def lost(self) -> bool:
        """Whether a worker reported lost data."""
        return any(record["kind"] == "failed" and LOST in record["error"] for record in self.records)

    @property
    def longest_wait(self) -> float:
        """The longest wait of any worker for an answer in seconds, without the worker's pauses."""
        return max((self._wait(record) for record in self.records if "start" in record), default=0.0)

    def _wait(self, record: dict[str, Any]) -> float:
        run = next(run for run in self.runs if run.writer == record["writer"])
        begin, end = record["start"], record["time"]
        paused = sum(max(0.0, min(start + seconds, end) - max(start, begin)) for start, seconds in run.pauses)
        return float(end - begin - paused)

    def problems(self) -> list[str]:
        """Return all violations of the guarantees of a job."""
        problems = check(self.records, self.plan.mode, worker.STALENESS)
        problems += self._find_missing_reports()
        if self.hung:
            problems.append(f"the job did not end within {DEADLINE:g} s")
        if self.longest_wait > 15.0:
            problems.append(f"a worker waited for {self.longest_wait:.1f} s")
        if self.plan.policy == "elastic" and not self.finished and not (self.plan.may_lose and self.lost):
            problems.append("the training did not finish")
        if self.plan.policy == "stop" and self.happened:
            problems += self._find_survivors()
        return problems

    def _find_survivors(self) -> list[str]:
        """Find processes that did not fail in time, although the policy is to stop."""
        killed = {name for _, event in self.happened for name in event.targets}
        at = self.happened[0][0]
        problems = []
        for run in self.runs:
            if run.name in killed or run.name == "scheduler":
                continue
            if not run.process.ended.done() or run.process.ended.result() == 0:
                problems.append(f"{run.name} continued, or succeeded, without {', '.join(killed)}")
            elif run.end - at > 15.0:
                problems.append(f"{run.name} ended {run.end - at:.1f} s after {', '.join(killed)}")
        return problems

    def _find_missing_reports(self) -> list[str]:
        """Find processes that survived a fault and did not report the failed member."""
        problems = []
        for at, event in self.happened:
            is_lost = event.kind == "kill" or (event.kind == "pause" and event.seconds > 2 * TIMEOUT)
            for name in event.targets if is_lost else ():
                for run in self.runs:
                    if run.name not in event.targets and run.start < at and self._must_report(run, at):
                        text = "the scheduler at" if name == "scheduler" else f"{name} on"
                        if text not in run.output:
                            problems.append(
                                f"{run.name} (process {run.process.pid}) did not report that {name} was gone"
                            )
        return problems

    def _must_report(self, run: NodeRun, at: float) -> bool:
        """Return whether a process was a member of the job for long enough to report a fault at this time."""
        after = at + TIMEOUT + 2.0
        connection = f"{run.name} to scheduler"
        if any(
            connection in event.targets and event.kind == "hold" and event.seconds > TIMEOUT
            for _, event in self.happened
        ):
            return False  # it was declared gone itself, and reports the scheduler
        awake = all(start + seconds < at or start > after for start, seconds in run.pauses)
        killed = run.process.ended.done() and run.process.ended.result() < 0
        return awake and (run.end > after or (self.plan.policy == "stop" and not killed))


async def run(plan: Plan, zygote: Zygote, folder: Path) -> Outcome:
    """Run a plan."""
    return await _Runner(plan, zygote, folder).run()


class _Runner:
    def __init__(self, plan: Plan, zygote: Zygote, folder: Path) -> None:
        self.plan, self.zygote, self.folder = plan, zygote, folder
        self.random = random.Random(plan.seed + 1)
        self.current: dict[str, NodeRun] = {}
        self.runs: list[NodeRun] = []
        self.happened: list[tuple[float, Event]] = []
        self.pending = sorted(plan.events, key=lambda event: -event.after)
        self.requests = 0
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
        return Outcome(self.plan, self.runs, self._records(), self.happened, counts, hung, time.monotonic() - began)

    async def _start_proxies(self) -> None:
        ports = {name: self.ports[1 + rank] for rank, name in enumerate(self.servers)}
        ports |= {f"{name} to scheduler": self.ports[0] for name in [*self.servers, *self.workers]}
        for number, (name, port) in enumerate(ports.items()):
            self.proxies[name] = Proxy(port, self.plan.faults, self.plan.seed * 100 + number, self._record_request)
            await self.proxies[name].start()

    async def _train(self) -> None:
        for name in ("scheduler", *self.servers, *self.workers):
            await self._start(name)
        while not self.over:
            done, _ = await asyncio.wait(
                {run.process.ended for run in self.current.values() if not run.end},
                return_when=asyncio.FIRST_COMPLETED,
            )
            for run in [run for run in self.current.values() if run.process.ended in done]:
                await self._handle_end(run)
        await asyncio.wait({run.process.ended for run in self.current.values()}, timeout=12.0)
        for run in self.current.values():
            run.end = run.end or time.monotonic()

    async def _handle_end(self, run: NodeRun) -> None:
        """Restart the process of a node that has ended, or note that the job is over."""
        run.end = time.monotonic()
        workers = [self.current[name] for name in self.workers]
        if run.process.ended.result() == 0 or self.plan.policy == "stop":
            self.over = all(other.end for other in workers)
            return
        if run.name in self.workers and any(other.end and not other.process.ended.result() for other in workers):
            self.over = all(other.end for other in workers)
            return  # another worker has finished the training
        if self._reported_loss(run):
            self.over = True
            return
        if self.plan.reported:
            await self._report_end(run)
        if run.name in self.workers and self.writers == worker.WRITERS:
            self.over = True  # gradients have no row for another writer
            return
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.2)))
        await self._start(run.name)

    def _reported_loss(self, run: NodeRun) -> bool:
        """Return whether this is a worker that has reported a loss: it is not restarted."""
        return self.plan.may_lose and run.name in self.workers and LOST in run.output

    async def _report_end(self, run: NodeRun) -> None:
        """Report the end of a process to the scheduler, as a launcher does."""
        if run.name == "scheduler":
            return
        security = Security.from_file(self.secret) if self.plan.secret else None
        how = signal.Signals(-run.process.ended.result()).name if run.process.ended.result() < 0 else "exit status 1"
        async with Peer(f"127.0.0.1:{self.ports[0]}", security=security, node="launcher", local=False) as peer:
            with contextlib.suppress(CommError, TimeoutError):
                await peer.call("fail", {"who": run.node_id, "why": f"killed by {how}"}, timeout=1.0)

    # Starting

    async def _start(self, name: str) -> None:
        role = name.partition(" ")[0]
        starts = sum(run.name == name for run in self.runs)
        log = self.folder / f"{name.replace(' ', '-')}.{starts}.log"
        node_id = self.nodes.get(name) or uuid.uuid4().hex
        module, arguments, writer = self._command(name, role)
        process = await self.zygote.start(module, arguments, self._environ(name, role, node_id), log)
        self.current[name] = NodeRun(name, node_id, process, time.monotonic(), log, writer)
        self.runs.append(self.current[name])

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
        environ = {
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
            environ["FLOWMX_SECRET_FILE"] = str(self.secret)
        if role != "scheduler":
            environ["FLOWMX_RANK"] = name.split()[1]
            environ["FLOWMX_SCHEDULER"] = self.proxies[f"{name} to scheduler"].address
        if role == "server":
            environ["FLOWMX_NODE_ADDRESS"] = self.proxies[name].address
        return environ

    # Faults

    def _record_request(self, operation: str) -> None:
        """Count a request to a server, and start the events that are due."""
        self.requests += operation in TRAINING
        while self.pending and self.pending[-1].after <= self.requests:
            event = self.pending.pop()
            self.happened.append((time.monotonic(), event))
            for target in event.targets:
                task = asyncio.create_task(_FAULTS[event.kind](self, target, event.seconds))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _kill(self, target: str, seconds: float) -> None:
        self.current[target].process.signal(signal.SIGKILL)

    async def _pause(self, target: str, seconds: float) -> None:
        run = self.current[target]
        run.process.signal(signal.SIGSTOP)
        run.pauses.append((time.monotonic(), seconds))
        await asyncio.sleep(seconds)
        run.process.signal(signal.SIGCONT)

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
        """Make every process print its stacks."""
        for run in self.runs:
            run.process.signal(signal.SIGUSR2)
        await asyncio.sleep(0.5)

    async def _end(self) -> None:
        for task in self.tasks:
            task.cancel()
        for run in self.runs:
            run.process.signal(signal.SIGKILL)
        await asyncio.gather(*self.tasks, *(run.process.ended for run in self.runs), return_exceptions=True)
        await asyncio.gather(*(proxy.close() for proxy in self.proxies.values()))

    def _records(self) -> list[dict[str, Any]]:
        lines = [line for path in sorted(self.folder.glob("ledger-*.json")) for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]


_FAULTS = {
    "kill": _Runner._kill,
    "pause": _Runner._pause,
    "cut": _Runner._cut,
    "swallow": _Runner._swallow,
    "hold": _Runner._hold,
}
