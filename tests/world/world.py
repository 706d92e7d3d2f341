"""One run of a scenario: the processes, the faults, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from flowmx import ndarray as nd
from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.errors import Refused
from flowmx.comm.node_errors import NodeGone
from flowmx.engine.runtime import engine
from tests.world.ledger import Ledger, Violation
from tests.world.loop import Loop, WorldError
from tests.world.machine import simulated
from tests.world.network import Link, Network
from tests.world.processes import CURRENT, Process
from tests.world.programs import SCHEDULER, run_scheduler, run_server, run_worker
from tests.world.scenario import Fault, Scenario
from tests.world.story import Event

__all__ = ["Outcome", "run"]

DEADLINE = 600.0
"""Simulated seconds in which every wait must end."""
MAX_STEPS = 3_000_000


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        violation: the law that was broken; empty if none was.
        digest: a hash of the whole run.
        steps: the number of callbacks.
        seconds: the simulated duration.
        story: what happened.
    """

    violation: str = ""
    digest: str = ""
    steps: int = 0
    seconds: float = 0.0
    story: list[Event] = field(default_factory=list)


def run(scenario: Scenario) -> Outcome:
    """Run a scenario."""
    with settings.override(flight_recorder=False):  # its thread would call the loop
        return _run(scenario)


def _run(scenario: Scenario) -> Outcome:
    _warm_up()
    loop = Loop(scenario.seed)
    world = World(scenario, loop)
    outcome = world.outcome
    gc.disable()  # finalizers would run at times that depend on earlier runs
    try:
        with world.prepared():
            outcome.violation = world.judge()
    finally:
        gc.enable()
        del world
        _clean_up(loop)
    return outcome


def _clean_up(loop: Loop) -> None:
    """Collect the coroutines of processes that were killed; what they still do has no effect and is not reported."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    logging.disable()
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
        loop.close()


def _warm_up() -> None:
    """Start the CPU's actor, so that short operations run on the thread that pushes them, and reset counts."""
    (nd.ones(1) + 1).wait_to_read()
    engine.wait_all()
    engine.waiting._awaits = 0


class World:
    """The processes of a job.

    Args:
        scenario: the job and its faults.
        loop: the loop on which all run.
    """

    def __init__(self, scenario: Scenario, loop: Loop) -> None:
        self.scenario, self.loop = scenario, loop
        self.outcome = Outcome()
        self.ledger = Ledger(scenario.mode, scenario.steps)
        self.network = Network(loop, scenario.seed)
        self.network.default = Link(scenario.delay, scenario.delay, split=scenario.split)
        self.folder = Path()
        self.processes: dict[str, Process] = {}
        self.started: list[Process] = []
        self.killed: list[str] = []
        self.excused: set[Process] = set()
        self._writers = 0

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Simulate the machine, and record the story."""
        bound = self.scenario.bound
        with (
            settings.override(kvstore_local=False, kvstore_bigarray_bound=bound),
            tempfile.TemporaryDirectory() as folder,
            simulated(self.loop, self.scenario.seed),
            _recorded(self),
        ):
            self.folder = Path(folder)
            yield

    def judge(self) -> str:
        """Run to the end; return the law that was broken, or an empty string."""
        try:
            self.loop.kernel.context.copy().run(self.loop.run_until_complete, self._live())
        except (Violation, WorldError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.outcome.digest = self.loop.digest()
            self.outcome.steps, self.outcome.seconds = self.loop.steps, self.loop.time()
            self._close()
        return ""

    def tell(self, text: str, process: str = "", target: str = "") -> None:
        """Add a line to the story."""
        event = Event(self.loop.time(), process or CURRENT.get().name, text, target)
        self.outcome.story.append(event)
        self.loop.record(event)

    # -- processes -------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process."""
        role, _, rank = name.partition(" ")
        host = SCHEDULER[0] if role == "scheduler" else f"127.0.{1 if role == 'server' else 2}.{int(rank) + 1}"
        process = self.processes[name] = Process(name, host, self.loop, len(self.started) + 1)
        self.started.append(process)
        self.tell("starts", name)
        process.start(self._program(role, rank))

    async def _program(self, role: str, rank: str) -> Any:
        if role == "scheduler":
            return await run_scheduler(self.scenario, self.folder / "scheduler")
        if role == "server":
            folder = self.folder / "snapshots" if self.scenario.snapshots else None
            return await run_server(self.scenario, int(rank), folder)
        writer, self._writers = self._writers, self._writers + 1
        self.tell(f"is writer {writer}")
        return await run_worker(self.scenario, int(rank), writer, self.ledger)

    async def _live(self) -> None:
        self._start_all()
        faults = [asyncio.ensure_future(self._inject(fault)) for fault in self.scenario.faults]
        while any(process.is_alive for process in self.processes.values()):
            if self.loop.time() > DEADLINE or self.loop.steps > MAX_STEPS:
                raise Violation(f"waits did not end: {self._waits()}")
            await asyncio.sleep(1.0)
            self._check_failures()
        for fault in faults:
            fault.cancel()

    def _start_all(self) -> None:
        names = [f"server {rank}" for rank in range(self.scenario.servers)]
        names += [f"worker {rank}" for rank in range(self.scenario.workers)]
        for name in ("scheduler", *names):
            self.start(name)

    def _waits(self) -> str:
        alive = [process for process in self.processes.values() if process.is_alive]
        return "; ".join(f"{process.name} ({process.describe()})" for process in alive)

    # -- faults ----------------------------------------------------------------------------------------

    async def _inject(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        process = self.processes[fault.target]
        if not process.is_alive:
            return
        if fault.loses:
            self.killed.append(process.name)
            self.excused.add(process)
        self.tell(fault.kind + (f" ({fault.seconds:.2f} s)" if fault.seconds else ""), fault.target, fault.other)
        await getattr(self, f"_{fault.kind}")(fault, process)

    async def _kill(self, fault: Fault, process: Process) -> None:
        process.end()
        await self._restart(fault, process)

    async def _crash(self, fault: Fault, process: Process) -> None:
        """End all processes, and start the job again: a new one, which has only the servers' snapshots."""
        if self._is_over():
            return
        for other in self.processes.values():
            other.end()
        (self.folder / "scheduler").unlink(missing_ok=True)
        self.ledger.forget()
        await asyncio.sleep(1.0)
        self._start_all()

    async def _terminate(self, fault: Fault, process: Process) -> None:
        process.terminate()
        while process.is_alive:
            await asyncio.sleep(0.1)
        await self._restart(fault, process)

    async def _restart(self, fault: Fault, process: Process) -> None:
        """Start a process again, as a launcher does."""
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
            if not self._is_over() and self.processes[process.name] is process:
                self.start(process.name)

    def _is_over(self) -> bool:
        """Return whether the scheduler has ended, as it does when the job is over."""
        return _has_finished(self.processes["scheduler"])

    async def _pause(self, fault: Fault, process: Process) -> None:
        process.pause(fault.seconds)

    async def _cut(self, fault: Fault, process: Process) -> None:
        await self._lose(fault, [(process.host, self._host(fault)), (self._host(fault), process.host)])

    async def _mute(self, fault: Fault, process: Process) -> None:
        await self._lose(fault, [(process.host, self._host(fault))])

    async def _lose(self, fault: Fault, links: list[tuple[str, str]]) -> None:
        for link in links:
            self.network.cut(*link)
        await asyncio.sleep(fault.seconds)
        for link in links:
            self.network.heal(*link)

    async def _reset(self, fault: Fault, process: Process) -> None:
        self.network.reset(process.host, self._host(fault))

    async def _slow(self, fault: Fault, process: Process) -> None:
        link = self.network.link(process.host, self._host(fault))
        rate, link.rate = link.rate, 2000.0
        await asyncio.sleep(fault.seconds)
        link.rate = rate

    def _host(self, fault: Fault) -> str:
        return self.processes[fault.other].host

    # -- judgements ------------------------------------------------------------------------------------

    def _check_failures(self) -> None:
        """Check that no process has failed that should not have."""
        for process in self.started:
            if process.errors:
                raise Violation(f"{process.name}: {process.errors[0]}")
            error = _error_of(process)
            if isinstance(error, Violation):
                raise error
            if error is None:
                continue
            if process in self.excused and self.scenario.policy == "elastic" and _says_lost(error):
                if self.processes[process.name] is process and not self._is_over():
                    self.start(process.name)
            elif not self._may_fail(error) and not (process in self.excused and self._is_over()):
                raise Violation(f"{process.name} failed: {type(error).__name__}: {error}")

    def _may_fail(self, error: BaseException) -> bool:
        """Return whether an error is right: the job is over, or under ``stop`` has lost a node that it names."""
        if self._is_over() or getattr(error, "kind", "") == "over":
            return isinstance(error, NodeGone | Refused)
        if self.scenario.policy != "stop" or not self.killed:
            return False
        return isinstance(error, NodeGone) and (self.killed[0] in str(error) or self.killed[0] == "scheduler")

    def _close(self) -> None:
        for process in self.started:
            process.end()
            for task in process.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        with engine.lock:
            engine.books.take_unraised()


def _says_lost(error: BaseException) -> bool:
    """Return whether an error says that its node is lost."""
    return isinstance(error, NodeGone | Refused) or "this worker was declared lost" in str(error)


def _has_finished(process: Process) -> bool:
    main = process.main
    return main is not None and main.done() and not main.cancelled()


def _error_of(process: Process) -> BaseException | None:
    return process.main.exception() if process.main is not None and _has_finished(process) else None


@contextlib.contextmanager
def _recorded(world: World) -> Iterator[None]:
    """Record log messages and calls in the story."""
    logger, handler = logging.getLogger("flowmx"), _Recorder(world)
    level, propagates, handlers = logger.level, logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [handler]
    logger.setLevel(logging.INFO)
    try:
        with mock.patch.object(Peer, "_call", _record_calls(world, Peer._call)):
            yield
    finally:
        logger.propagate, logger.handlers = propagates, handlers
        logger.setLevel(level)


class _Recorder(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.tell(record.getMessage())


def _record_calls(world: World, call: Any) -> Any:
    """Wrap the calls of peers."""

    async def record(peer: Peer, operation: str, *arguments: Any) -> Any:
        host = peer.address.partition("//")[2].partition(":")[0]
        target = next((process.name for process in world.processes.values() if process.host == host), host)
        number = world.loop.steps
        if operation not in ("heartbeat", "local"):
            world.tell(f"{operation} #{number}", target=target)
        try:
            return await call(peer, operation, *arguments)
        except BaseException as error:
            if operation not in ("heartbeat", "local"):
                world.tell(f"{operation} #{number} ends: {type(error).__name__}", target=target)
            raise

    return record
