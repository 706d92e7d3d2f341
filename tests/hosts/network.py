"""Hosts on one switch: this process forwards packets between the namespaces, according to a model of the wire.

Linux can delay and lose packets itself (``tc`` with netem), but not every kernel has netem. Every kernel that has
namespaces has TUN devices, and here the losses are the same in every run.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from flowmx.comm.launch.child import Guard
from flowmx.comm.notifier import Notifier
from tests.hosts.namespace import Namespace
from tests.hosts.process import Process
from tests.hosts.wire import Link, Wire

__all__ = ["Host", "Network"]

MAX_READ = 64  # packets of one host before others get their turn


class Host:
    """A simulated machine: its processes have a separate network and host name, and share the file system.

    Attributes:
        number: its index in the network.
        name: its host name.
        address: its IP address.
    """

    def __init__(self, number: int, namespace: Namespace, guard: Guard) -> None:
        self.number = number
        self.name = f"host-{number}"
        self.address = _address(number)
        self.processes: list[Process] = []
        self._namespace = namespace
        self._guard = guard

    async def start(self, name: str, command: Sequence[str], environ: Mapping[str, str] | None = None) -> Process:
        """Start a program on this host.

        Args:
            name: the name of the process, for messages.
            command: the program and its arguments.
            environ: variables to add to the environment.
        """
        process = await Process.start(
            name, [*self._namespace.enter(), *command], {**os.environ, **(environ or {})}, self._guard
        )
        self.processes.append(process)
        return process

    async def python(self, name: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Process:
        """Start Python on this host."""
        return await self.start(name, [sys.executable, *arguments], environ)


class Network:
    """A number of hosts on a switch, which exist inside ``async with`` and are removed afterwards.

    Args:
        hosts: the number of hosts.
        link: the link of each host.
        mtu: the size of the largest packet in bytes.
        seed: the seed of the losses.

    Example:
        >>> async with Network(3, Link(rate=100e6, latency=0.01)) as network:
        ...     server = await network.hosts[0].python("server", "-m", "http.server")
        ...     network.partition(network.hosts[2])
        ...     network.heal()
    """

    def __init__(self, hosts: int, link: Link | None = None, *, mtu: int = 1500, seed: int = 0) -> None:
        if not 1 <= hosts <= 250:
            raise ValueError(f"hosts is {hosts}, expected 1 to 250")
        self.hosts: list[Host] = []
        self._count = hosts
        self._mtu = mtu
        self._wire = Wire([link or Link()] * hosts, seed)
        self._guard = Guard()
        self._sent = Notifier()
        self._namespaces: list[Namespace] = []
        self._numbers = {bytes(map(int, _address(number).split("."))): number for number in range(hosts)}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._guard.__enter__()
        try:
            for number in range(self._count):
                namespace = Namespace.create(f"host-{number}", f"{_address(number)}/24", self._mtu)
                self._namespaces.append(namespace)
                self._loop.add_reader(namespace.tun, self._read, number)
                self.hosts.append(Host(number, namespace, self._guard))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def shape(self, link: Link, *hosts: Host) -> None:
        """Change the links of these hosts, or of all hosts if none is named."""
        for host in hosts or self.hosts:
            self._wire.links[host.number] = link

    def partition(self, *hosts: Host) -> None:
        """Drop all packets between these hosts and all others."""
        numbers = {host.number for host in hosts}
        self._wire.cut(numbers, set(range(self._count)) - numbers)

    def cut(self, one: Host, other: Host) -> None:
        """Drop all packets between two hosts."""
        self._wire.cut([one.number], [other.number])

    def heal(self) -> None:
        """Undo all cuts."""
        self._wire.heal()

    async def wait_for_drops(self, packets: int) -> None:
        """Wait until cuts have dropped this number of further packets; senders retransmit at growing intervals."""
        total = self._wire.dropped + packets
        while self._wire.dropped < total:
            await self._sent.next()

    async def _end(self) -> None:
        for host in self.hosts:
            for process in host.processes:
                process.kill()
        await asyncio.gather(*(process.ended for host in self.hosts for process in host.processes))
        if self._alarm is not None:
            self._alarm.cancel()
        for namespace in self._namespaces:
            self._loop.remove_reader(namespace.tun)
            namespace.close()
        self._namespaces.clear()
        self._guard.__exit__(None, None, None)

    def _read(self, source: int) -> None:
        now, tun = self._loop.time(), self._namespaces[source].tun
        with suppress(BlockingIOError):
            for _ in range(MAX_READ):
                packet = os.read(tun, 1 << 16)
                target = self._numbers.get(packet[16:20])  # the destination address of an IPv4 packet
                if target is not None and packet[0] >> 4 == 4:
                    self._wire.send(now, source, target, packet)
        self._sent.notify()
        self._deliver()

    def _deliver(self) -> None:
        for target, packet in self._wire.due(self._loop.time()):
            with suppress(BlockingIOError):
                os.write(self._namespaces[target].tun, packet)
        at = self._wire.next
        if at is not None and at < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._alarm_at = self._loop.call_at(at, self._wake), at

    def _wake(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self._deliver()


def _address(number: int) -> str:
    return f"10.99.0.{number + 1}"
