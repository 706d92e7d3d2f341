"""``python -m flowmx launch``: a whole job on this machine.

The launcher starts the scheduler, the servers and the workers, shows their output with the name of the node before each
line, forwards signals, and tells the scheduler at once of processes that end. Under the policy ``stop`` the first
failure ends the job, and the launcher's status is that of the culprit; under ``elastic`` processes are started again,
so many times. Whatever happens, no process is left: each is in a group of its own that dies with the launcher.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.errors import CommError
from flowmx.comm.launch.child import Child, Guard, Output, describe
from flowmx.comm.launch.scheduler import ANNOUNCEMENT
from flowmx.comm.members import POLICIES, Policy
from flowmx.comm.scheduler import LIMITS
from flowmx.comm.security import Security
from flowmx.comm.view import View

__all__ = ["Launcher", "Plan", "main"]

FLOWMX = (sys.executable, "-m", "flowmx")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """What is to be launched.

    Args:
        command: the workers' program and its arguments.
        workers: how many.
        servers: how many.
        policy: ``"stop"`` or ``"elastic"``.
        restarts: how often processes are started again under ``"elastic"``, all together.
        grace: seconds that processes have to end by themselves before they are killed.
        environ: the environment of all.
    """

    command: Sequence[str]
    workers: int = 1
    servers: int = 1
    policy: Policy = "stop"
    restarts: int = 3
    grace: float = 10.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Launcher:
    """Runs one plan.

    Args:
        plan: what is to be launched.
        output: is given each line and the name of the process that wrote it; by default standard output gets both.
    """

    def __init__(self, plan: Plan, output: Output | None = None) -> None:
        self.plan = plan
        self._output = output or _print
        self._children: dict[str, Child] = {}
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._restarts = plan.restarts
        self._done: set[str] = set()  # processes that ended, and are not missed
        self._signals: list[int] = []
        self._signalled = asyncio.Event()
        self._peer: Peer | None = None
        self._seen: View | None = None

    async def run(self) -> int:
        """Run the job to its end; return the exit status: 0, or that of the first process that failed."""
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            loop.add_signal_handler(number, self._forward, number)
        try:
            with Guard() as guard, tempfile.TemporaryDirectory(prefix="flowmx-") as folder:
                self._guard, self._folder = guard, Path(folder)
                try:
                    return await self._run()
                finally:
                    await self._end_all()
        finally:
            for number in FORWARDED:
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        scheduler = await self._start("scheduler")
        either: set[asyncio.Future[str] | asyncio.Task[int]] = {self._address, scheduler.ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._address.done():
            self._say(f"the scheduler did not start: {describe(scheduler.ended.result())}")
            return _status(scheduler.ended.result()) or 1
        config = settings.get()
        security = Security.from_file(config.secret_file) if config.secret_file else None
        self._peer = Peer(self._address.result(), security=security, limits=LIMITS, node="launcher")
        for name in [*(f"server {rank}" for rank in range(self.plan.servers)), *self._workers()]:
            await self._start(name)
        watch = asyncio.create_task(self._watch())
        try:
            return await self._follow()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._peer.close()

    def _workers(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self.plan.workers)]

    async def _start(self, name: str) -> Child:
        role, _, rank = name.partition(" ")
        known = self._children.get(name)
        # A worker that starts again is a new node; servers and the scheduler go on where they were.
        node = known.node if known and role != "worker" else uuid.uuid4().hex
        environ = {**self.plan.environ, **self._environ(role, rank, node)}
        child = await Child.start(name, node, self._command(role), environ, self._guard, self._listen)
        self._children[name] = child
        return child

    def _command(self, role: str) -> Sequence[str]:
        if role == "worker":
            return self.plan.command
        if role == "server":
            return (*FLOWMX, "server", "--servers", str(self.plan.servers))
        port = self._address.result().rpartition(":")[2] if self._address.done() else "0"
        job = ("--workers", str(self.plan.workers), "--servers", str(self.plan.servers), "--policy", self.plan.policy)
        kept = ("--snapshot", str(self._folder / "scheduler"))
        return (*FLOWMX, "scheduler", "--host", "127.0.0.1", "--port", port, *job, *kept)

    def _environ(self, role: str, rank: str, node: str) -> dict[str, str]:
        found = {
            "FLOWMX_ROLE": role,
            "FLOWMX_NODE_ID": node,
            "FLOWMX_NUM_WORKERS": str(self.plan.workers),
            "FLOWMX_NUM_SERVERS": str(self.plan.servers),
            "FLOWMX_KVSTORE_POLICY": self.plan.policy,
            "FLOWMX_NODE_HOST": "127.0.0.1",
        }
        if rank:
            found["FLOWMX_RANK"] = rank
        if self._address.done():
            found["FLOWMX_SCHEDULER"] = self._address.result()
        return found

    def _listen(self, name: str, line: str) -> None:
        if name == "scheduler" and line.startswith(ANNOUNCEMENT) and not self._address.done():
            self._address.set_result(line.removeprefix(ANNOUNCEMENT))
        self._output(name, line)

    def _say(self, text: str) -> None:
        self._output("launch", text)

    # While it runs

    async def _follow(self) -> int:
        """Wait for processes to end, and do what the policy says, until the workers are done."""
        while not self._done.issuperset(self._workers()):
            running = {child.ended: child for child in self._children.values() if child.name not in self._done}
            signalled = asyncio.create_task(self._signalled.wait())
            done, _ = await asyncio.wait({*running, signalled}, return_when=asyncio.FIRST_COMPLETED)
            signalled.cancel()
            if signalled in done:
                return await self._signal_all()
            for child in [running[task] for task in done if task in running]:
                status = await self._ended(child)
                if status is not None:
                    return status
        return 0

    async def _ended(self, child: Child) -> int | None:
        """A process has ended; return the job's status, if that ends the job."""
        assert child.status is not None
        if child.status == 0:  # a server and the scheduler may hear of the job's end before the last worker has ended
            self._done.add(child.name)
            await self._tell("leave", child)
            self._dismiss()
            return None
        how = describe(child.status)
        self._say(f"{child.name} ended: {how}")
        await self._tell("fail", child, how)
        if self.plan.policy == "stop":
            return await self._blame(child)
        if child.name.startswith("worker") and self._done.intersection(self._workers()):
            self._done.add(child.name)  # others have done the work: there is nothing to come back to
            return None
        if not self._restarts:
            self._say(f"{child.name} is not started again: all {self.plan.restarts} restarts are used up")
            return _status(child.status) or 1
        self._restarts -= 1
        self._say(f"{child.name} is started again ({self._restarts} restarts left)")
        await self._start(child.name)
        return None

    def _dismiss(self) -> None:
        """End workers that were started again too late: the job has finished, and they would look for it in vain."""
        finished = self._children["scheduler"].status == 0 or (self._seen and self._seen.phase == "finished")
        if self._seen is None or not finished:
            return
        for name in self._workers():
            child = self._children[name]
            if child.status is None and self._seen.find(child.node) is None and name not in self._done:
                self._say(f"{name} comes too late: the job has finished")
                self._done.add(name)
                child.signal(signal.SIGTERM)

    async def _blame(self, child: Child) -> int:
        """Name who was lost first, which need not be whose process ended first; return its status."""
        await self._look()
        first = self._seen.gone[0] if self._seen is not None and self._seen.gone else None
        culprit = next((found for found in self._children.values() if first and found.node == first.id), child)
        how = describe(child.status) if child.status is not None else "unknown"
        self._say(f"the job has failed because of {culprit.name}: {first.obituary if first else how}")
        if self._joined:
            await self._gone_within(self.plan.grace / 2)  # the nodes are told, and end by themselves
        return _status(culprit.status or child.status or 1)

    def _forward(self, number: int) -> None:
        self._signals.append(number)
        self._signalled.set()
        if len(self._signals) > 1:  # said twice: at once
            for child in self._children.values():
                child.signal(signal.SIGKILL)

    async def _signal_all(self) -> int:
        number = self._signals[0]
        self._say(f"{signal.Signals(number).name}: the workers are asked to end")
        for child in self._children.values():
            if child.name.startswith("worker"):
                child.signal(number)
        workers = {child.ended for child in self._children.values() if child.name.startswith("worker")}
        await asyncio.wait(workers, timeout=self.plan.grace)
        drained = all(child.status == 0 for child in self._children.values() if child.name.startswith("worker"))
        return 0 if drained else 128 + number

    async def _watch(self) -> None:
        """Follow the job; kill processes that hang: those that the scheduler has given up, and that still run."""
        while True:
            await self._look({"epoch": self._seen.epoch if self._seen is not None else 0})
            lost = {member.id for member in self._seen.gone} if self._seen is not None else set()
            for child in list(self._children.values()):
                if child.node in lost and child.name.startswith("worker") and child.status is None:
                    await asyncio.wait({child.ended}, timeout=settings.get().kvstore_heartbeat)
                    child.signal(signal.SIGKILL)

    @property
    def _joined(self) -> bool:
        """Whether the nodes have formed a job, whose end they are told of."""
        return self._seen is not None and self._seen.phase != "forming"

    # The scheduler

    async def _tell(self, operation: str, child: Child, why: str = "") -> None:
        header = {"who": child.node, **({"why": why} if why else {})}
        try:
            assert self._peer is not None
            await self._peer.call(operation, header, timeout=2.0)
        except (CommError, TimeoutError):
            pass  # it said so itself, or was no node, or the scheduler is the one that ended

    async def _look(self, header: dict[str, int] | None = None) -> None:
        """See what the scheduler knows; given an epoch, as soon as it knows anything else."""
        try:
            assert self._peer is not None
            view = View.from_wire((await self._peer.call("view", header or {}, timeout=10.0)).header["view"])
        except (CommError, TimeoutError, ValueError, KeyError):
            await asyncio.sleep(0.1)  # it may be on its way back
        else:
            self._seen = view

    # The end

    async def _end_all(self) -> None:
        """Give what still runs the time to end by itself, then ask, then kill."""
        if self._done.issuperset(self._workers()) and self._joined:
            await self._gone_within(self.plan.grace)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children.values():
                child.signal(number)
            if await self._gone_within(self.plan.grace / 2):
                return

    async def _gone_within(self, seconds: float) -> bool:
        left = {child.ended for child in self._children.values() if not child.ended.done()}
        if left:
            await asyncio.wait(left, timeout=seconds)
        return all(task.done() for task in left)


def _status(status: int) -> int:
    """A process's status as a shell has it."""
    return status if status >= 0 else 128 - status


def _print(name: str, line: str) -> None:
    sys.stdout.write(f"[{name}] {line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """What ``launch`` takes.

    Raises:
        SettingError: a setting, which is a default here, has a wrong value.
    """
    config = settings.get()
    found = argparse.ArgumentParser(
        prog="flowmx launch",
        usage="flowmx launch [options] -- COMMAND ...",
        description="Run a distributed job on this machine.",
    )
    found.add_argument("--workers", type=int, default=config.num_workers, help="workers of the job")
    found.add_argument("--servers", type=int, default=config.num_servers, help="servers of the job")
    found.add_argument("--policy", choices=POLICIES, default=config.kvstore_policy, help="what a lost node means")
    found.add_argument("--restarts", type=int, default=3, help="processes started again under elastic, at most")
    found.add_argument("--grace", type=float, default=10.0, help="seconds to end in before being killed")
    found.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the workers' program")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Launch a job; return its exit status."""
    found = parser()
    given = found.parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        found.error("there is no command for the workers: flowmx launch --workers 2 -- python train.py")
    plan = Plan(command, given.workers, given.servers, given.policy, given.restarts, given.grace)

    async def run() -> int:
        return await Launcher(plan).run()

    return asyncio.run(run())
