"""The launcher of a whole job.

The launcher starts the scheduler, the servers and the workers on the hosts of a site. It prints their output, prefixing
each line with the name of its node, forwards signals, and reports ended processes to the scheduler immediately. Under
the policy ``stop`` the first failure ends the job, and the launcher's exit status is that of the failed process. Under
``elastic`` processes are restarted, a limited number of times: servers on the same host, which has their snapshots, and
workers on any host, with the same rank. No process outlives the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flowmx import settings
from flowmx.comm.errors import CommError
from flowmx.comm.exit_reason import classify_exit, shell_status
from flowmx.comm.launch.hosts import Host, LocalSite, Process, Site
from flowmx.comm.launch.output import Output, print_line
from flowmx.comm.launch.placement import choose_host
from flowmx.comm.launch.plan import Plan, ProcessSpec
from flowmx.comm.launch.scheduler import ANNOUNCEMENT
from flowmx.comm.node import Connection
from flowmx.comm.view import View

__all__ = ["Launcher", "Plan"]

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launcher:
    """The launcher of one plan. It belongs to the event loop on which it was created.

    Args:
        plan: the plan of the job.
        output: called with the name of a process and each output line (default: print both to standard output).
        site: the hosts (default: this machine).

    Attributes:
        hosts: the last host of each process.
        failure: the reason of the job's failure; empty otherwise.
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
        self._lost_servers = 0  # the number of server restarts
        self._excused: dict[str, int] = {}  # by worker: the value of _lost_servers when it last ended
        self._failures: Counter[str] = Counter()  # by host
        self._done: set[str] = set()  # processes that ended and need no restart
        self._signals: list[int] = []
        self._alarm = asyncio.Event()  # a signal was received, or a worker is absent
        self._absent: Process | None = None  # a worker that exited without joining
        self._unreported: dict[str, tuple[Process, str]] = {}  # workers that failed while the scheduler was unreachable
        self._connection: Connection | None = None
        self._view: View | None = None

    async def run(self, signals: bool = True) -> int:
        """Run the job to completion; return the exit status: 0, or that of the first failed process.

        Args:
            signals: whether SIGINT, SIGTERM and SIGHUP end the job, workers first.
        """
        with self._signal_handlers(FORWARDED if signals else ()):
            try:
                async with self.site:
                    try:
                        return await self._run()
                    finally:
                        await self._end_all()
            finally:
                await self._all_ended_within(1.0)  # the site has killed the remaining processes

    @contextlib.contextmanager
    def _signal_handlers(self, numbers: tuple[int, ...]) -> Iterator[None]:
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
        events: set[asyncio.Future[Any]] = {self._address, scheduler.ended}
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        if not self._address.done():
            return self._fail(f"the scheduler did not start: {scheduler.status_text}", scheduler)
        self._connection = self.site.connect(self._address.result())
        for name in self.plan.names:
            await self._start(name)
        watch = asyncio.create_task(self._watch())
        try:
            return await self._supervise()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self._connection.close()

    # Starting

    async def _start(self, name: str) -> Process:
        role, former_process = name.partition(" ")[0], self._children.get(name)
        # A restarted worker is a new node; servers and the scheduler keep their ids.
        node = former_process.node if former_process and role != "worker" else uuid.uuid4().hex
        host = self._choose_host(name, role)
        address, scheduler = host.address, self._address.result() if self._address.done() else ""
        port = scheduler.rpartition(":")[2] if scheduler else "0"
        spec = ProcessSpec(
            name=name,
            node=node,
            command=self.plan.arguments(name, address, port, host.scratch),
            is_flowmx=self.plan.is_flowmx or role != "worker",
            environ=self.plan.environment(name, node, address, scheduler if role != "scheduler" else ""),
            scratch=host.scratch,
            secret=self.site.secret,
        )
        self.hosts[name] = host
        self._children[name] = child = await host.start(spec, self._handle_line)
        return child

    def _choose_host(self, name: str, role: str) -> Host:
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
                raise ValueError(f"the scheduler can only be restarted at {former.address}, which is lost")
        return choose_host(hosts, load, self._failures, former)

    def _handle_line(self, name: str, line: str) -> None:
        if name == "scheduler" and line.startswith(ANNOUNCEMENT) and not self._address.done():
            self._address.set_result(line.removeprefix(ANNOUNCEMENT))
        self._output(name, line)

    def _print(self, text: str) -> None:
        self.site.log_message(text)
        self._output("launch", text)

    def _fail(self, reason: str, failed: Process) -> int:
        """Mark the job as failed because of a process; return the exit status."""
        self.failure = reason
        self._print(reason)
        return shell_status(failed.status or 1)

    # Supervision

    async def _supervise(self) -> int:
        """Handle ended processes as the policy says, until the workers are done; return the exit status."""
        while not self._done.issuperset(self.plan.worker_names):
            running = {child.ended: child for child in self._children.values() if child.name not in self._done}
            alarm = asyncio.create_task(self._alarm.wait())
            done, _ = await asyncio.wait({*running, alarm}, return_when=asyncio.FIRST_COMPLETED)
            alarm.cancel()
            if self._signals:
                return await self._signal_all()
            if self._absent is not None:
                where = self._name_with_host(self._absent)
                return self._fail(
                    f"{where} ended without joining the job, and the other nodes wait for it", self._absent
                )
            for child in [running[task] for task in done if task in running]:
                status = await self._handle_end(child)
                if status is not None:
                    return status
        return 0

    async def _handle_end(self, child: Process) -> int | None:
        """Handle the end of a process; return the job's status if this ends the job, otherwise None."""
        assert child.status is not None
        reason = classify_exit(status=child.status, left=await self._has_left(child))
        if not reason.failed:  # servers and the scheduler may end before the last worker
            self._done.add(child.name)
            await self._report("leave", child)
            self._end_late_workers()
            self._find_absent_worker()
            return None
        cause = reason.why if child.status == 0 else child.status_text
        self._failures[self.hosts[child.name].name] += child.lost
        self._print(f"{self._name_with_host(child)} ended: {cause}")
        await self._report("fail", child, cause)
        if self.plan.policy == "stop":
            return await self._fail_after_loss(child)
        if await self._is_finished(child):
            self._done.add(child.name)
            return None
        if self._is_excused(child.name):
            self._restarts += 1
        if not self._restarts:
            return self._fail(f"{child.name} is not restarted: all {self.plan.restarts} restarts are used up", child)
        return await self._restart(child)

    async def _has_left(self, child: Process) -> bool | None:
        """Return whether a worker left the job before its process ended; None if unknown, or it was not a member."""
        if child.status != 0 or not child.name.startswith("worker") or not await self._call_scheduler("view", {}, 2.0):
            return None
        member = self._view.find(child.node) if self._view is not None else None
        return None if member is None else member.state != "alive"

    def _find_absent_worker(self) -> None:
        """Raise the alarm if a worker has exited without joining a job that other nodes wait to form."""
        if self._view is None or self._view.phase != "forming" or not self._view.workers:
            return
        ended = [self._children[name] for name in self.plan.worker_names if name in self._done]
        self._absent = next((child for child in ended if self._view.find(child.node) is None), None)
        if self._absent is not None:
            self._alarm.set()

    async def _is_finished(self, child: Process) -> bool:
        """Return whether the process has no work left, so that it need not be restarted."""
        if child.name.startswith("worker"):
            return bool(self._done.intersection(self.plan.worker_names))
        await self._call_scheduler("view", {}, 2.0)
        return self._view is not None and self._view.phase == "finished"

    def _is_excused(self, name: str) -> bool:
        """Return whether a worker's end may be due to a lost server; at most once for each server and worker."""
        is_excused = self._excused.get(name, 0) < self._lost_servers and name.startswith("worker")
        self._excused[name] = self._lost_servers
        return is_excused

    async def _restart(self, child: Process) -> int | None:
        self._restarts -= 1
        self._lost_servers += child.name.startswith("server")
        try:
            await self._start(child.name)
        except ValueError as error:
            return self._fail(f"{child.name} is not restarted: {error}", child)
        place = self._name_with_host(child).removeprefix(child.name)
        self._print(f"{child.name} is restarted{place} ({self._restarts} restarts left)")
        return None

    def _name_with_host(self, child: Process) -> str:
        """Return the name of a process with that of its host."""
        host = self.hosts[child.name].name
        return f"{child.name} on {host}" if host else child.name

    def _end_late_workers(self) -> None:
        """Terminate workers that were restarted too late: the job has finished, and they would wait forever."""
        finished = self._children["scheduler"].status == 0 or (self._view and self._view.phase == "finished")
        if self._view is None or not finished:
            return
        for name in self.plan.worker_names:
            child = self._children[name]
            if child.status is None and self._view.find(child.node) is None and name not in self._done:
                self._print(f"{name} joins too late: the job has finished")
                self._done.add(name)
                child.signal(signal.SIGTERM)

    async def _fail_after_loss(self, child: Process) -> int:
        """Mark the job as failed because of the first lost node, which may not be `child`; return the exit status."""
        await self._update_view()
        first = self._view.lost[0] if self._view is not None and self._view.lost else None
        culprit = next((process for process in self._children.values() if first and process.node == first.id), child)
        cause = culprit.status_text if culprit.status is not None else child.status_text
        reason = first.loss_message if first else cause
        self._fail(f"the job has failed because of {self._name_with_host(culprit)}: {reason}", culprit)
        if self._has_formed:
            await self._all_ended_within(self.plan.grace / 2)  # the nodes are notified, and exit by themselves
        return shell_status(culprit.status or child.status or 1)

    def _forward(self, number: int) -> None:
        self._signals.append(number)
        self._alarm.set()
        if len(self._signals) > 1:  # a second signal: kill at once
            for child in self._children.values():
                child.signal(signal.SIGKILL)

    async def _signal_all(self) -> int:
        number = self._signals[0]
        self._print(f"{signal.Signals(number).name}: asking the workers to end")
        workers = [self._children[name] for name in self.plan.worker_names]
        for child in workers:
            child.signal(number)
        await asyncio.wait(
            {child.ended for child in workers}, timeout=max(self.plan.grace, settings.get().leave_timeout)
        )
        return 0 if all(child.status == 0 for child in workers) else 128 + number

    async def _watch(self) -> None:
        """Follow the job's view; kill lost workers that do not end by themselves."""
        while True:
            await self._update_view({"epoch": self._view.epoch if self._view is not None else 0})
            await self._retry_reports()
            self._find_absent_worker()
            lost = {member.id for member in self._view.lost} if self._view is not None else set()
            for child in list(self._children.values()):
                if child.node in lost and child.name.startswith("worker") and child.status is None:
                    await asyncio.wait({child.ended}, timeout=self.plan.grace / 2)
                    child.signal(signal.SIGKILL)

    @property
    def _has_formed(self) -> bool:
        """True once the job has formed; then the scheduler announces its end to the nodes."""
        return self._view is not None and self._view.phase != "forming"

    # The scheduler

    async def _report(self, operation: str, child: Process, reason: str = "") -> None:
        """Report a node's end to the scheduler; if it does not answer, store a failed worker's report for a retry."""
        answered = await self._call_scheduler(
            operation, {"who": child.node, **({"why": reason} if reason else {})}, 2.0
        )
        if not answered and operation == "fail" and child.name.startswith("worker"):
            self._unreported[child.node] = child, reason

    async def _retry_reports(self) -> None:
        """Repeat the stored reports of failed workers. The scheduler learns of a server's failure when it restarts."""
        alive = {member.id for member in self._view.workers} if self._view is not None else set()
        for node in alive & set(self._unreported):
            await self._report("fail", *self._unreported.pop(node))

    async def _update_view(self, header: Mapping[str, int] | None = None) -> None:
        """Get the scheduler's view. If `header` has an epoch, wait for a view with a different one."""
        if not await self._call_scheduler("view", dict(header or {}), 10.0):
            await asyncio.sleep(0.1)  # the scheduler may be restarting

    async def _call_scheduler(self, operation: str, header: dict[str, Any], seconds: float) -> bool:
        try:
            assert self._connection is not None
            response = await self._connection.call(operation, header, timeout=seconds)
            self._view = View.from_wire(response.header["view"])
        except (CommError, TimeoutError, ValueError, KeyError):
            return False
        return True

    # Shutdown

    async def _end_all(self) -> None:
        """Wait for processes to end by themselves, then terminate them, then kill them."""
        if self._done.issuperset(self.plan.worker_names) and self._has_formed:
            await asyncio.wait(
                {self._children["scheduler"].ended}, timeout=self.plan.grace
            )  # until all nodes know of the job's end
            self._end_late_nodes()
            await self._all_ended_within(self.plan.grace)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children.values():
                child.signal(number)
            if await self._all_ended_within(self.plan.grace / 2):
                return

    def _end_late_nodes(self) -> None:
        """Terminate nodes that were restarted and have not joined in time: they would wait for the scheduler."""
        for child in self._children.values():
            member = self._view.find(child.node) if self._view is not None else None
            if member is None or member.state == "gone":
                child.signal(signal.SIGTERM)

    async def _all_ended_within(self, seconds: float) -> bool:
        running = {child.ended for child in self._children.values() if not child.ended.done()}
        if running:
            await asyncio.wait(running, timeout=seconds)
        return all(task.done() for task in running)
