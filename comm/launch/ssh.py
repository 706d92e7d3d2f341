"""Hosts that are reached by ssh.

Each process has its own connection, with an agent at the other end (:mod:`flowmx.comm.launch.agent`). The agent reads
its specification, with the job's secret, from the connection's input, so that neither appears in a list of processes.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from flowmx import settings
from flowmx.comm.exit_reason import describe
from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.launch.hosts import Host, connect_to
from flowmx.comm.launch.output import Output
from flowmx.comm.launch.plan import Plan, ProcessSpec, job_secret
from flowmx.comm.node import Connection
from flowmx.comm.security import is_loopback

__all__ = ["SSH", "HostSpec", "SshSite", "parse_hosts", "read_hostfile"]

SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
SSH_FAILED = 255  # ssh's exit status if the connection failed
AGENT = ("-m", "flowmx.comm.launch.agent")
_HOST = re.compile(r"[A-Za-z0-9._@:\[\]%-]+", re.ASCII)


@dataclass(frozen=True)
class HostSpec:
    """A host from the command line or a hostfile.

    Args:
        name: its name for ssh, optionally with ``user@``.
        slots: the number of processes that it should run.
        address: the address at which the other hosts reach it; by default, its name is resolved.
    """

    name: str
    slots: int = 1
    address: str = ""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.name) or self.name.startswith("-"):
            raise ValueError(f"{self.name!r} is not a valid host name")
        if self.slots < 1:
            raise ValueError(f"host {self.name} has slots={self.slots}, expected at least 1")


def parse_hosts(text: str) -> list[HostSpec]:
    """Parse the hosts of ``--hosts a,b,c``.

    Raises:
        ValueError: the list is empty, or a name is invalid or repeated.
    """
    return _check_hosts([HostSpec(name.strip()) for name in text.split(",") if name.strip()], "--hosts")


def read_hostfile(path: str | os.PathLike[str]) -> list[HostSpec]:
    """Read hosts from a file, one per line: ``name [slots=n] [address=a]``, with comments after ``#``.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is invalid; the message contains its number.
    """
    specs = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                specs.append(_parse_host(words))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return _check_hosts(specs, str(path))


def _parse_host(words: Sequence[str]) -> HostSpec:
    options = dict(word.partition("=")[::2] for word in words[1:])
    unknown = set(options) - {"slots", "address"}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: the options after a host's name are slots=n and address=a")
    return HostSpec(words[0], int(options.get("slots", 1)), options.get("address", ""))


def _check_hosts(hosts: list[HostSpec], where: str) -> list[HostSpec]:
    names = [host.name for host in hosts]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(
            f"{where} names {', '.join(duplicates)} more than once; use slots=n for several processes on a host"
        )
    if not hosts:
        raise ValueError(f"{where} names no hosts")
    return hosts


def resolve(hosts: Iterable[HostSpec]) -> list[HostSpec]:
    """Look up the address of each host.

    Raises:
        ValueError: a name has no address, or one that the other hosts cannot reach.
    """
    hosts_with_address = [host if host.address else replace(host, address=_address(host.name)) for host in hosts]
    local_hosts = [host for host in hosts_with_address if is_loopback(host.address)]
    if local_hosts and len(local_hosts) < len(hosts_with_address):
        raise ValueError(
            f"{local_hosts[0].name} is {local_hosts[0].address}, which the other hosts cannot reach: set its address "
            "in a hostfile (name address=10.0.0.1)"
        )
    return hosts_with_address


def _address(name: str) -> str:
    host = name.rpartition("@")[2].strip("[]")
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ValueError(
            f"the address of {host} was not found ({error}): set one in a hostfile ({name} address=10.0.0.1)"
        ) from None


class Remote(Child):
    """A process at the other end of an ssh connection."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and its descendants."""
        if self.status is None:
            self.write_line(str(number))
        if number == signal.SIGKILL and self.status is None:
            self.close_input()

    @property
    def status_text(self) -> str:
        """The exit status as text, for messages."""
        if self.lost:
            return "the ssh connection failed or ended (exit status 255)"
        return "running" if self.status is None else describe(self.status)

    def _translate(self, status: int) -> int:
        self.lost = status == SSH_FAILED
        return 128 - status if 128 < status < 128 + signal.NSIG else status


class SshHost:
    """One host.

    Args:
        host: its name, slots and address.
        site: the site that it belongs to.
    """

    def __init__(self, host: HostSpec, site: SshSite) -> None:
        self.name, self.slots, self.address = host.name, host.slots, host.address
        self.scratch = site.scratch
        self._site = site
        self.used = False

    async def start(self, spec: ProcessSpec, output: Output) -> Remote:
        """Start a process on this host."""
        self.used = True
        spec = replace(spec, folder=self._site.folder)
        child = await Remote.start(
            spec.name, spec.node, self._command(), os.environ, self._site.guard, output, has_input=True
        )
        child.write_line(spec.to_json())
        return child

    async def clean(self) -> None:
        """Remove the job's temporary folder."""
        spec = ProcessSpec("clean", "", (), is_flowmx=False, environ={}, scratch=self.scratch)
        child = await self.start(spec, lambda name, line: None)
        await asyncio.wait({child.ended}, timeout=10.0)
        Child.signal(child, signal.SIGKILL)  # ends the connection
        await child.ended

    def _command(self) -> tuple[str, ...]:
        path = os.environ.get("PYTHONPATH")
        agent = (*(("env", f"PYTHONPATH={path}") if path else ()), self._site.python, *AGENT)
        return (*self._site.ssh, self.name, "exec " + shlex.join(agent))


class SshSite:
    """Hosts that are reached by ssh, with the scheduler on the first.

    Args:
        plan: the plan of the job.
        hosts: the hosts.
        ssh: the ssh program and its options; a host's name and a command are appended.
        python: the Python of the hosts, with flowmx installed.
        folder: the processes' working folder.

    Raises:
        ValueError: a host has no address, or one that the other hosts cannot reach.
        OSError: the secret's file cannot be read.
    """

    def __init__(
        self, plan: Plan, hosts: Sequence[HostSpec], ssh: Sequence[str] = (), python: str = "", folder: str = ""
    ) -> None:
        self.plan = plan
        self.ssh = tuple(ssh) or tuple(shlex.split(SSH))
        self.python = python or sys.executable
        self.folder = folder or str(Path.cwd())
        self.scratch = f"/tmp/flowmx-{secrets.token_hex(8)}" if plan.policy == "elastic" else ""
        resolved = resolve(hosts)
        self.secret: bytes | None = job_secret(settings.get().secret_file)
        self.guard = Guard()
        self._hosts = [SshHost(host, self) for host in resolved]

    async def __aenter__(self) -> Self:
        self.guard.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.scratch:
            await asyncio.gather(*(host.clean() for host in self._hosts if host.used), return_exceptions=True)
        await asyncio.to_thread(self.guard.__exit__, kind, error, trace)

    def hosts(self) -> Sequence[Host]:
        """Return all hosts."""
        return self._hosts

    def connect(self, scheduler: str) -> Connection:
        """Return a connection to the job's scheduler."""
        return connect_to(scheduler, self.secret)

    def log_message(self, line: str) -> None:
        """Do nothing: there is no other process to notify."""
