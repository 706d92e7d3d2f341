"""Hosts that are reached by ssh.

Each process has a connection of its own, with an agent at the other end (:mod:`flowmx.comm.launch.agent`). What it is
to do goes through the connection's input, the job's secret with it, so that neither is seen in any list of processes.
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
from flowmx.comm.launch.child import Child, Guard, Output
from flowmx.comm.launch.hosts import Host, peer
from flowmx.comm.launch.plan import Order, Plan, job_secret
from flowmx.comm.node import Connection
from flowmx.comm.security import is_loopback
from flowmx.comm.verdict import describe

__all__ = ["SSH", "Named", "Ssh", "named", "read_hostfile"]

SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
BROKEN = 255  # ssh's own status where there is no connection
AGENT = ("-m", "flowmx.comm.launch.agent")
_HOST = re.compile(r"[A-Za-z0-9._@:\[\]%-]+", re.ASCII)


@dataclass(frozen=True)
class Named:
    """A host as given on the command line or in a hostfile.

    Args:
        name: what ssh calls it, ``user@`` included.
        slots: how many processes it is meant for.
        address: on which the other hosts reach it; by default what its name stands for.
    """

    name: str
    slots: int = 1
    address: str = ""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.name) or self.name.startswith("-"):
            raise ValueError(f"{self.name!r} is no name of a host")
        if self.slots < 1:
            raise ValueError(f"host {self.name} has slots={self.slots}, expected at least 1")


def named(text: str) -> list[Named]:
    """The hosts of ``--hosts a,b,c``.

    Raises:
        ValueError: there are none, one is written twice, or is no name of a host.
    """
    return _checked([Named(name.strip()) for name in text.split(",") if name.strip()], "--hosts")


def read_hostfile(path: str | os.PathLike[str]) -> list[Named]:
    """The hosts of a file: one a line, ``name [slots=n] [address=a]``, with comments from ``#`` on.

    Raises:
        OSError: it can not be read.
        ValueError: a line is none of these; the message names it.
    """
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                found.append(_host(words))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return _checked(found, str(path))


def _host(words: Sequence[str]) -> Named:
    options = dict(word.partition("=")[::2] for word in words[1:])
    unknown = set(options) - {"slots", "address"}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: after a host's name there may be slots=n and address=a")
    return Named(words[0], int(options.get("slots", 1)), options.get("address", ""))


def _checked(hosts: list[Named], where: str) -> list[Named]:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} names {', '.join(twice)} more than once; a host with room for more has slots=n")
    if not hosts:
        raise ValueError(f"{where} names no host")
    return hosts


def resolve(hosts: Iterable[Named]) -> list[Named]:
    """Give each host an address.

    Raises:
        ValueError: a name stands for none, or for one that the other hosts can not reach.
    """
    found = [host if host.address else replace(host, address=_address(host.name)) for host in hosts]
    inside = [host for host in found if is_loopback(host.address)]
    if inside and len(inside) < len(found):
        raise ValueError(
            f"{inside[0].name} is {inside[0].address}, which the other hosts can not reach: give its address in a "
            "hostfile (name address=10.0.0.1)"
        )
    return found


def _address(name: str) -> str:
    host = name.rpartition("@")[2].strip("[]")
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ValueError(
            f"no address of {host} is known ({error}): give one in a hostfile ({name} address=10.0.0.1)"
        ) from None


class Remote(Child):
    """A process at the other end of a connection."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started."""
        if self.status is None:
            self.tell(str(number))
        if number == signal.SIGKILL and self.status is None:
            self.hang_up()

    @property
    def how(self) -> str:
        """The exit status as text, for messages."""
        if self.lost:
            return "ssh's connection ended, or there was none (exit status 255)"
        return "it runs" if self.status is None else describe(self.status)

    def _meaning(self, status: int) -> int:
        self.lost = status == BROKEN
        return 128 - status if 128 < status < 128 + signal.NSIG else status


class Reached:
    """One host.

    Args:
        host: its name, slots and address.
        site: of which it is a part.
    """

    def __init__(self, host: Named, site: Ssh) -> None:
        self.name, self.slots, self.address = host.name, host.slots, host.address
        self.scratch = site.scratch
        self._site = site
        self.used = False

    async def start(self, order: Order, output: Output) -> Remote:
        """Start a process on this host."""
        self.used = True
        order = replace(order, folder=self._site.folder)
        child = await Remote.start(
            order.name, order.node, self._command(), os.environ, self._site.guard, output, reads=True
        )
        child.tell(order.to_json())
        return child

    async def clean(self) -> None:
        """Remove the job's temporary folder."""
        order = Order("clean", "", (), own=False, environ={}, scratch=self.scratch)
        child = await self.start(order, lambda name, line: None)
        await asyncio.wait({child.ended}, timeout=10.0)
        Child.signal(child, signal.SIGKILL)  # the connection itself
        await child.ended

    def _command(self) -> tuple[str, ...]:
        path = os.environ.get("PYTHONPATH")
        agent = (*(("env", f"PYTHONPATH={path}") if path else ()), self._site.python, *AGENT)
        return (*self._site.ssh, self.name, "exec " + shlex.join(agent))


class Ssh:
    """Hosts that are reached by ssh, with the scheduler on the first.

    Args:
        plan: what is to be launched.
        hosts: where.
        ssh: the program and its options; a host's name and a command follow.
        python: of the hosts, with flowmx installed.
        folder: the processes' working folder.

    Raises:
        ValueError: a host has no address, or one that the others can not reach.
        OSError: the secret's file can not be read.
    """

    def __init__(
        self, plan: Plan, hosts: Sequence[Named], ssh: Sequence[str] = (), python: str = "", folder: str = ""
    ) -> None:
        self.plan = plan
        self.ssh = tuple(ssh) or tuple(shlex.split(SSH))
        self.python = python or sys.executable
        self.folder = folder or str(Path.cwd())
        self.scratch = f"/tmp/flowmx-{secrets.token_hex(8)}" if plan.policy == "elastic" else ""
        found = resolve(hosts)
        self.secret: bytes | None = job_secret(settings.get().secret_file)
        self.guard = Guard()
        self._hosts = [Reached(host, self) for host in found]

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
        """All hosts."""
        return self._hosts

    def connect(self, scheduler: str) -> Connection:
        """A connection to the job's scheduler."""
        return peer(scheduler, self.secret)

    def tell(self, line: str) -> None:
        """Do nothing: there is no other process to tell."""
