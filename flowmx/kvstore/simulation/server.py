"""A server of the real code, whose sums and updates take the time that was measured, and make nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.comm.frames import Message, Tensor
from flowmx.comm.server import Caller, Service
from flowmx.comm.view import View
from flowmx.kvstore.server.protocol import Member, Part, Record
from flowmx.kvstore.server.service import KVServer, identity
from flowmx.kvstore.server.store import Store, Value
from flowmx.kvstore.simulation.network import Cpu, Fabric
from flowmx.kvstore.simulation.profile import Costs
from flowmx.kvstore.worker.keys import KeyState

__all__ = ["Channel", "Server"]

ENVELOPE, DESCRIBED = 700, 60
"""Bytes of a request's HTTP headers and signature, and of what its header says of a part."""


class _Store(Store):
    """Takes the time of sums and updates, and leaves arrays alone."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(threads=1)
        self._costs = costs
        self._adding, self._updating = Cpu(), Cpu()

    def is_small(self, gradients: Sequence[Any]) -> bool:
        return len(gradients) == 1

    async def merge(self, gradients: Sequence[Sequence[Any]]) -> list[Any]:
        await self._adding.use(self._costs.add * sum(each.nbytes for found in gradients for each in found[1:]))
        return [found[0] for found in gradients]

    async def update(self, key: Any, value: Value, merged: Any) -> Value:
        await self._updating.use(self._costs.update * merged.nbytes)
        return Value(merged)


class Server:
    """One server on one machine.

    Args:
        name: of its node.
        machine: where it is.
        servers: how many there are.
        fabric: the network.
        costs: what takes how long.
        find: from an address to a server.
    """

    def __init__(
        self, name: str, machine: int, servers: int, fabric: Fabric, costs: Costs, find: Callable[[str], Server]
    ) -> None:
        self.machine = machine
        self.cpu = Cpu()
        self.service = Service(name)
        connect = lambda address: Channel(name, machine, self.cpu, find(address), fabric, costs)  # noqa: E731
        self._real = KVServer(name, 1, servers, self.service, connect, _Store(costs))

    def begin(self, view: View, entries: Sequence[KeyState]) -> None:
        """Take the first view, with keys that all workers have started long ago."""
        home = next(member.rank for member in view.servers if member.address == self.service.name)
        counted = {identity(each.id, each.incarnation): Member(each.rank, each.epoch) for each in view.workers}
        self._real._do(self._real.core.restore(_records(entries, home, counted)))
        self._real.know(view)

    async def close(self) -> None:
        """Cancel running tasks."""
        await self._real.close()


def _records(entries: Sequence[KeyState], home: int, counted: dict[str, Member]) -> Iterator[Record]:
    for entry in entries:
        for shard in entry.shards:
            if shard.home == home:
                value = Value(np.empty(entry.shape_of(shard), entry.dtype))
                yield Record(Part(*shard[:3]), 0, 1, 0, dict.fromkeys(counted, 0), counted, {}, value)


class Channel:
    """Simulated connection to one server, in place of a :class:`flowmx.comm.client.Peer`.

    Args:
        node: the caller's name.
        machine: where it is.
        cpu: the thread of its event loop.
        server: whom it calls.
        fabric: the network.
        costs: what takes how long.
    """

    def __init__(self, node: str, machine: int, cpu: Cpu, server: Server, fabric: Fabric, costs: Costs) -> None:
        self._caller = Caller("", node=node, incarnation=1)
        self._machine = machine
        self._cpu = cpu
        self._server = server
        self._fabric = fabric
        self._costs = costs

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor] = (),
        into: Sequence[np.ndarray[Any, Any]] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation: its bytes travel there, and those of the answer back."""
        message = Message(header, list(tensors))
        await self._carry(message, self._cpu, self._server.cpu, self._machine, self._server.machine, sent)
        found = self._server.service.find(operation).handler(self._caller, message)
        answer = found if isinstance(found, Message) else await found
        await self._carry(answer, self._server.cpu, self._cpu, self._server.machine, self._machine)
        return answer

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    async def _carry(
        self, message: Message, here: Cpu, there: Cpu, source: int, target: int,
        sent: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        nbytes = sum(tensor.data.nbytes for tensor in message.tensors)
        seconds = self._costs.request + self._costs.byte * nbytes
        described = max(len(message.header.get("parts", ())), len(message.tensors))
        await here.use(seconds)
        await self._fabric.send(source, target, nbytes + ENVELOPE + DESCRIBED * described, sent)
        await there.use(seconds)
