"""A whole job, from its first process to its last.

The launcher starts the scheduler, the servers and the workers on the hosts of a site, shows their output with the name
of the node before each line, forwards signals, and tells the scheduler at once of processes that end. Under the policy
``stop`` the first failure ends the job, and the launcher's status is that of the culprit; under ``elastic`` processes
are started again, so many times: servers where they were, since their snapshots are there, and workers on any host,
with the rank that they had. Whatever happens, no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flowmx import settings
from flowmx.comm.errors import CommError
from flowmx.comm.launch.child import Output
from flowmx.comm.launch.hosts import Host, LocalSite, Process, Site, choose
from flowmx.comm.launch.plan import Order, Plan
from flowmx.comm.launch.scheduler import ANNOUNCEMENT
from flowmx.comm.node import Connection
from flowmx.comm.verdict import Evidence, judge, shell_status
from flowmx.comm.view import View

__all__ = ["Launcher", "Plan", "print_line"]

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher:
    """The launcher of one plan. Belongs to the event loop that it was made on.

    Args:
        plan: what is to be launched.
        output: is given each line and the name of the process that wrote it; by default standard output gets both.
        site: where it runs, by default on this machine.

    Attributes:
        hosts: where each process was started last.
        failure: why the job failed; empty otherwise.
    """

    def __init__(self, plan: Plan, output: Output | None = None, site: Site | None = None) -> None:
        self.plan = plan
        self.site = site or LocalSite(plan)
        self.hosts: dict[str, Host] = {}
        self.failure = ""
        self._output = output or print_line
        self._children: dict[str, Process] = {}
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._restarts = plan.restarts
        self._lost_servers = 0  # starts of servers in place of others
        self._excused: dict[str, int] = {}  # of each worker: how many of these it was started again for
        self._failures: Counter[str] = Counter()  # of hosts
        self._done: set[str] = set()  # processes that ended, and are not missed
        self._signals: list[int] = []
        self._alarm = asyncio.Event()  # a signal came, or somebody is absent
        self._absent: Process | None = None  # a worker that the others wait for, and that ended well without them
        self._unreported: dict[str, tuple[Process, str]] = {}  # workers that failed while the scheduler was away
        self._line: Connection | None = None
        self._seen: View | None = None

    async def run(self, signals: bool = True) -> int:
        """Run the job to its end; return the exit status: 0, or that of the first process that failed.

        Args:
            signals: whether SIGINT, SIGTERM and SIGHUP end the job, the workers first.
        """
        with self._handling(FORWARDED if signals else ()):
            try:
                async with self.site:
                    try:
                        return await self._run()
                    finally:
                        await self._end_all()
            finally:
                await self._gone_within(1.0)  # the site has killed what was left

    @contextlib.contextmanager
    def _handling(self, numbers: tuple[int, ...]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self._forward, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        scheduler = await self._start("scheduler")
        either: set[asyncio.Future[Any]] = {self._address, scheduler.ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._address.done():
            return self._fail(f"the scheduler did not start: {scheduler.how}", scheduler)
        self._line = self.site.connect(self._address.result())
        for name in self.plan.names:
            await self._start(name)
        watch = asyncio.create_task(self._watch())
        try:
            return await self._follow()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._line.close()

    # Starting

    async def _start(self, name: str) -> Process:
        role, known = name.partition(" ")[0], self._children.get(name)
        # A worker that starts again is a new node; servers and the scheduler go on where they were.
        node = known.node if known and role != "worker" else uuid.uuid4().hex
        host = self._place(name, role)
        at, scheduler = host.address, self._address.result() if self._address.done() else ""
        port = scheduler.rpartition(":")[2] if scheduler else "0"
        order = Order(
            name=name,
            node=node,
            command=self.plan.arguments(name, at, port, host.scratch),
            own=self.plan.own or role != "worker",
            environ=self.plan.environment(name, node, at, scheduler if role != "scheduler" else ""),
            scratch=host.scratch,
            secret=self.site.secret,
        )
        self.hosts[name] = host
        self._children[name] = child = await host.start(order, self._listen)
        return child

    def _place(self, name: str, role: str) -> Host:
        """Choose the host for a process.

        Raises:
            ValueError: there is no host for it.
        """
        hosts = self.site.hosts()
        running = [key for key, child in self._children.items() if child.status is None]
        load = Counter(self.hosts[key].name for key in running if key != "scheduler")
        former = self.hosts.get(name) if role != "worker" else None
        if role == "scheduler" and former is not None:
            hosts = [host for host in hosts if host.address == former.address]
            if not hosts:
                raise ValueError(f"the scheduler can only be started again at {former.address}, which is lost")
        return choose(hosts, load, self._failures, former)

    def _listen(self, name: str, line: str) -> None:
        if name == "scheduler" and line.startswith(ANNOUNCEMENT) and not self._address.done():
            self._address.set_result(line.removeprefix(ANNOUNCEMENT))
        self._output(name, line)

    def _say(self, text: str) -> None:
        self.site.tell(text)
        self._output("launch", text)

    def _fail(self, why: str, culprit: Process) -> int:
        """End the job as failed; return its status."""
        self.failure = why
        self._say(why)
        return shell_status(culprit.status or 1)

    # While it runs

    async def _follow(self) -> int:
        """Wait for processes to end, and apply the policy, until the workers are done."""
        while not self._done.issuperset(self.plan.worker_names):
            running = {child.ended: child for child in self._children.values() if child.name not in self._done}
            alarm = asyncio.create_task(self._alarm.wait())
            done, _ = await asyncio.wait({*running, alarm}, return_when=asyncio.FIRST_COMPLETED)
            alarm.cancel()
            if self._signals:
                return await self._signal_all()
            if self._absent is not None:
                where = self._where(self._absent)
                return self._fail(f"{where} ended without joining the job, which the others wait for", self._absent)
            for child in [running[task] for task in done if task in running]:
                status = await self._ended(child)
                if status is not None:
                    return status
        return 0

    async def _ended(self, child: Process) -> int | None:
        """Handle the end of a process; return the job's status, if that ends the job."""
        assert child.status is not None
        verdict = judge(Evidence(status=child.status, left=await self._has_left(child)))
        if not verdict.failed:  # a server and the scheduler may hear of the job's end before the last worker has ended
            self._done.add(child.name)
            await self._tell("leave", child)
            self._dismiss()
            self._look_for_absent()
            return None
        how = verdict.why if child.status == 0 else child.how
        self._failures[self.hosts[child.name].name] += child.lost
        self._say(f"{self._where(child)} ended: {how}")
        await self._tell("fail", child, how)
        if self.plan.policy == "stop":
            return await self._blame(child)
        if await self._is_needless(child):
            self._done.add(child.name)
            return None
        if self._is_excused(child.name):
            self._restarts += 1
        if not self._restarts:
            return self._fail(
                f"{child.name} is not started again: all {self.plan.restarts} restarts are used up", child
            )
        return await self._start_again(child)

    async def _has_left(self, child: Process) -> bool | None:
        """Tell whether a worker said goodbye before its process ended; None where it was no member, or nobody knows."""
        if child.status != 0 or not child.name.startswith("worker") or not await self._ask("view", {}, 2.0):
            return None
        member = self._seen.find(child.node) if self._seen is not None else None
        return None if member is None else member.state != "alive"

    def _look_for_absent(self) -> None:
        """Raise the alarm where a worker has ended well without joining a job that others wait for to form."""
        if self._seen is None or self._seen.phase != "forming" or not self._seen.workers:
            return
        ended = [self._children[name] for name in self.plan.worker_names if name in self._done]
        self._absent = next((child for child in ended if self._seen.find(child.node) is None), None)
        if self._absent is not None:
            self._alarm.set()

    async def _is_needless(self, child: Process) -> bool:
        """True when the process has nothing left to do, so that it need not be started again."""
        if child.name.startswith("worker"):
            return bool(self._done.intersection(self.plan.worker_names))
        await self._ask("view", {}, 2.0)
        return self._seen is not None and self._seen.phase == "finished"

    def _is_excused(self, name: str) -> bool:
        """Tell whether a worker may have ended because servers were lost with what it knew; once for each of them."""
        excused = self._excused.get(name, 0) < self._lost_servers and name.startswith("worker")
        self._excused[name] = self._lost_servers
        return excused

    async def _start_again(self, child: Process) -> int | None:
        self._restarts -= 1
        self._lost_servers += child.name.startswith("server")
        try:
            await self._start(child.name)
        except ValueError as error:
            return self._fail(f"{child.name} is not started again: {error}", child)
        place = self._where(child).removeprefix(child.name)
        self._say(f"{child.name} is started again{place} ({self._restarts} restarts left)")
        return None

    def _where(self, child: Process) -> str:
        """The name of a process with its host's."""
        host = self.hosts[child.name].name
        return f"{child.name} on {host}" if host else child.name

    def _dismiss(self) -> None:
        """End workers that were started again too late: the job has finished, and they would look for it in vain."""
        finished = self._children["scheduler"].status == 0 or (self._seen and self._seen.phase == "finished")
        if self._seen is None or not finished:
            return
        for name in self.plan.worker_names:
            child = self._children[name]
            if child.status is None and self._seen.find(child.node) is None and name not in self._done:
                self._say(f"{name} comes too late: the job has finished")
                self._done.add(name)
                child.signal(signal.SIGTERM)

    async def _blame(self, child: Process) -> int:
        """Name who was lost first, which need not be whose process ended first; return its status."""
        await self._look()
        first = self._seen.gone[0] if self._seen is not None and self._seen.gone else None
        culprit = next((found for found in self._children.values() if first and found.node == first.id), child)
        how = culprit.how if culprit.status is not None else child.how
        why = first.obituary if first else how
        self._fail(f"the job has failed because of {self._where(culprit)}: {why}", culprit)
        if self._joined:
            await self._gone_within(self.plan.grace / 2)  # the nodes are informed, and end by themselves
        return shell_status(culprit.status or child.status or 1)

    def _forward(self, number: int) -> None:
        self._signals.append(number)
        self._alarm.set()
        if len(self._signals) > 1:  # signalled twice: end at once
            for child in self._children.values():
                child.signal(signal.SIGKILL)

    async def _signal_all(self) -> int:
        number = self._signals[0]
        self._say(f"{signal.Signals(number).name}: the workers are asked to end")
        workers = [self._children[name] for name in self.plan.worker_names]
        for child in workers:
            child.signal(number)
        await asyncio.wait(
            {child.ended for child in workers}, timeout=max(self.plan.grace, settings.get().leave_timeout)
        )
        return 0 if all(child.status == 0 for child in workers) else 128 + number

    async def _watch(self) -> None:
        """Follow the job; kill processes that the scheduler has given up, and that do not end by themselves."""
        while True:
            await self._look({"epoch": self._seen.epoch if self._seen is not None else 0})
            await self._remind()
            self._look_for_absent()
            lost = {member.id for member in self._seen.gone} if self._seen is not None else set()
            for child in list(self._children.values()):
                if child.node in lost and child.name.startswith("worker") and child.status is None:
                    await asyncio.wait({child.ended}, timeout=self.plan.grace / 2)
                    child.signal(signal.SIGKILL)

    @property
    def _joined(self) -> bool:
        """True once the nodes have formed a job, whose end the scheduler announces to them."""
        return self._seen is not None and self._seen.phase != "forming"

    # The scheduler

    async def _tell(self, operation: str, child: Process, why: str = "") -> None:
        """Report a node's end; without an answer it reported itself, or was no node, or the scheduler is away."""
        answered = await self._ask(operation, {"who": child.node, **({"why": why} if why else {})}, 2.0)
        if not answered and operation == "fail" and child.name.startswith("worker"):
            self._unreported[child.node] = child, why

    async def _remind(self) -> None:
        """Repeat the reports of failed workers; a server's failure shows at its next start."""
        alive = {member.id for member in self._seen.workers} if self._seen is not None else set()
        for node in alive & set(self._unreported):
            await self._tell("fail", *self._unreported.pop(node))

    async def _look(self, header: Mapping[str, int] | None = None) -> None:
        """Get the scheduler's view; given an epoch, as soon as it has another one."""
        if not await self._ask("view", dict(header or {}), 10.0):
            await asyncio.sleep(0.1)  # it may be on its way back

    async def _ask(self, operation: str, header: dict[str, Any], seconds: float) -> bool:
        try:
            assert self._line is not None
            answer = await self._line.call(operation, header, timeout=seconds)
            self._seen = View.from_wire(answer.header["view"])
        except (CommError, TimeoutError, ValueError, KeyError):
            return False
        return True

    # The end

    async def _end_all(self) -> None:
        """Give what still runs the time to end by itself, then ask, then kill."""
        if self._done.issuperset(self.plan.worker_names) and self._joined:
            await asyncio.wait({self._children["scheduler"].ended}, timeout=self.plan.grace)  # all nodes know then
            self._end_late()
            await self._gone_within(self.plan.grace)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children.values():
                child.signal(number)
            if await self._gone_within(self.plan.grace / 2):
                return

    def _end_late(self) -> None:
        """End nodes that were started again and did not come back in time: they would look for the scheduler."""
        for child in self._children.values():
            member = self._seen.find(child.node) if self._seen is not None else None
            if member is None or member.state == "gone":
                child.signal(signal.SIGTERM)

    async def _gone_within(self, seconds: float) -> bool:
        left = {child.ended for child in self._children.values() if not child.ended.done()}
        if left:
            await asyncio.wait(left, timeout=seconds)
        return all(task.done() for task in left)


def print_line(name: str, line: str) -> None:
    """Show a line of a process, with its name before it."""
    sys.stdout.write(f"[{name}] {line}\n")
    sys.stdout.flush()
