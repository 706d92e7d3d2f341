"""A training job on simulated machines, each with a worker and a server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowmx.comm.frames import Message, Tensor
from flowmx.comm.view import Member, View
from flowmx.kvstore.shards import Key, Layout
from flowmx.kvstore.simulation import clock
from flowmx.kvstore.simulation.network import Cpu, Fabric, Network
from flowmx.kvstore.simulation.profile import PassStep, Profile
from flowmx.kvstore.simulation.server import Channel, Server
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import Exchange, Item
from flowmx.kvstore.worker.sender import Sender
from flowmx.ops.registry.operators import Array

__all__ = ["Setting", "simulate"]


@dataclass(frozen=True)
class Setting:
    """The parameters of a simulated job.

    Args:
        profile: the training of one machine.
        machines: the number of machines, each with a worker and a server.
        network: the network between them.
        overlap: whether a gradient is pushed as soon as it is ready, and a step of the forward pass waits only for its
            parameters; otherwise everything is pushed after the backward pass, and pulled before the next step.
        steps: the number of steps after the first one, which is not counted.
    """

    profile: Profile
    machines: int = 1
    network: Network = field(default_factory=Network)
    overlap: bool = True
    steps: int = 2


def simulate(setting: Setting) -> float:
    """Return the duration of a step in seconds: the mean over all steps except the first, of the slowest worker.

    Raises:
        ValueError: there are no machines or no steps.
    """
    if setting.machines < 1 or setting.steps < 1:
        raise ValueError(f"a job takes at least one machine and one step, not {setting.machines} and {setting.steps}")
    return clock.run(_job(setting))


async def _job(setting: Setting) -> float:
    entries = functools.partial(_entries, setting.profile, setting.machines)
    fabric = Fabric(setting.machines, setting.network)
    servers: dict[str, Server] = {}
    for rank in range(setting.machines):
        name = f"server-{rank}"
        servers[name] = Server(name, rank, setting.machines, fabric, setting.profile.costs, servers.__getitem__)
    view = _view(setting.machines)
    for server in servers.values():
        server.begin(view, entries())
    workers = [_Worker(rank, setting, list(servers.values()), fabric, entries()) for rank in range(setting.machines)]
    times = await asyncio.gather(*(worker.train() for worker in workers))
    await asyncio.gather(*(server.close() for server in servers.values()))
    begin, *_, end = (max(moments) for moments in zip(*times, strict=True))
    return float(end - begin) / setting.steps


def _entries(profile: Profile, servers: int) -> list[KeyState]:
    layout = Layout(servers)
    layout.add(profile.shapes)
    return [KeyState(key, shape, np.dtype(np.float32), layout[key]) for key, shape in profile.shapes.items()]


def _view(machines: int) -> View:
    def member(role: Any, rank: int) -> Member:
        name = f"{role}-{rank}"
        return Member(name, role, rank, name, incarnation=1, epoch=1)

    members = [member(role, rank) for role in ("worker", "server") for rank in range(machines)]
    return View("simulated", 1, 1, "running", tuple(members))


class _Worker:
    """A worker that trains: computation takes simulated time, and the real sender sends the gradients."""

    def __init__(
        self, rank: int, setting: Setting, servers: Sequence[Server], fabric: Fabric, entries: Sequence[KeyState]
    ) -> None:
        profile, cpu = setting.profile, Cpu()
        self._profile = profile
        self._overlap = setting.overlap
        self._steps = setting.steps + 1
        channels = [Channel(f"worker-{rank}", rank, cpu, server, fabric, profile.costs) for server in servers]
        simulated_servers: Any = _Servers(channels)
        self._sender = Sender(simulated_servers, {})
        self._entries = {entry.key: entry for entry in entries}
        self._priorities = {entry.key: -index for index, entry in enumerate(entries)}
        self._arrived: dict[Key, asyncio.Event] = {entry.key: asyncio.Event() for entry in entries}
        for event in self._arrived.values():
            event.set()

    async def train(self) -> list[float]:
        """Run the steps; return the time at which each ended, without overlap including the pulls of its parameters."""
        times = []
        for _ in range(self._steps):
            await self._compute(self._profile.forward, before=self._wait)
            pushed: list[Key] = []
            await self._compute(self._profile.backward, after=self._exchange if self._overlap else pushed.extend)
            self._exchange(pushed)
            if not self._overlap:
                await self._wait(self._arrived)
            times.append(asyncio.get_running_loop().time())
        await self._wait(self._arrived)
        return times

    async def _compute(
        self, steps: Iterable[PassStep], before: Any = None, after: Callable[[Sequence[Key]], None] | None = None
    ) -> None:
        for step in steps:
            if before is not None:
                await before(step.keys)
            await asyncio.sleep(step.seconds)
            if after is not None:
                after(step.keys)

    async def _wait(self, keys: Iterable[Key]) -> None:
        for key in keys:
            await self._arrived[key].wait()

    def _exchange(self, keys: Iterable[Key]) -> None:
        """Push gradients and pull the new values, as a store's pushpull does."""
        for key in keys:
            entry, arrived = self._entries[key], self._arrived[key]
            entry.advance()
            arrived.clear()
            exchange = Exchange(len(entry.shards), arrived.set)
            self._sender.put(
                Item("pushpull", shard, number, self._priorities[key], [exchange], tensor, None, target)
                for shard, number, (tensor, target) in zip(entry.shards, entry.numbers, _memory(entry), strict=True)
            )


class _Servers:
    """Replacement of :class:`flowmx.kvstore.worker.servers.Servers` with servers that never fail."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = channels

    async def call(
        self, home: int, operation: str, header: dict[str, Any], tensors: Sequence[Tensor] = (),
        into: Any = None, sent: Callable[[], object] = lambda: None,
    ) -> Message:  # fmt: skip
        return await self._channels[home].call(operation, header, tensors, into, None, sent)

    def is_local(self, home: int) -> bool:
        return False


def _memory(entry: KeyState) -> list[tuple[Tensor, Array]]:
    """Return a gradient and a target for each shard; nothing ever writes to them."""
    arrays = [np.empty(entry.shape_of(shard), entry.dtype) for shard in entry.shards]
    return [(Tensor.of(array), array) for array in arrays]
