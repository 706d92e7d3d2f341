"""A server with the real code, whose sums and updates take the measured time and compute nothing."""

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
from flowmx.ops.registry.operators import Array

__all__ = ["Channel", "Server"]

ENVELOPE_BYTES, PART_BYTES = 700, 60
"""Bytes of a request's HTTP headers and signature, and bytes of its header for each part."""


class _Store(Store):
    """A store whose sums and updates take simulated time and leave arrays unchanged."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(threads=1)
        self._costs = costs
        self._adding, self._updating = Cpu(), Cpu()

    def is_small(self, gradients: Sequence[object]) -> bool:
        return len(gradients) == 1

    async def merge(self, gradients: Sequence[Sequence[Any]]) -> list[Any]:
        await self._adding.use(self._costs.add * sum(array.nbytes for parts in gradients for array in parts[1:]))
        return [parts[0] for parts in gradients]

    async def update(self, key: object, value: Value, merged: Any) -> Value:
        await self._updating.use(self._costs.update * merged.nbytes)
        return Value(merged)


class Server:
    """One server on one machine.

    Args:
        name: the name of its node.
        machine: the number of its machine.
        servers: the number of servers.
        fabric: the network.
        costs: the durations of messages, sums and updates.
        find: returns the server at an address.
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
        """Start with a view, and with keys that all workers have initialized."""
        home = next(member.rank for member in view.servers if member.address == self.service.name)
        members = {
            identity(worker.id, worker.incarnation): Member(worker.rank, worker.epoch) for worker in view.workers
        }
        self._real.effects.run(self._real.core.restore(_records(entries, home, members)))
        self._real.update_view(view)

    async def close(self) -> None:
        """Cancel running tasks."""
        await self._real.close()


def _records(entries: Sequence[KeyState], home: int, members: dict[str, Member]) -> Iterator[Record]:
    for entry in entries:
        for shard in entry.shards:
            if shard.home == home:
                value = Value(np.empty(entry.shape_of(shard), entry.dtype))
                yield Record(Part(*shard[:3]), 0, 1, 0, dict.fromkeys(members, 0), members, {}, value)


class Channel:
    """Simulated connection to one server, in place of a :class:`flowmx.comm.client.Peer`.

    Args:
        node: the caller's name.
        machine: the number of the caller's machine.
        cpu: the thread of the caller's event loop.
        server: the server that it calls.
        fabric: the network.
        costs: the durations of messages.
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
        into: Sequence[Array] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation: send its bytes, and the bytes of the response back."""
        message = Message(header, list(tensors))
        await self._carry(message, self._cpu, self._server.cpu, self._machine, self._server.machine, sent)
        result = self._server.service.find(operation).handler(self._caller, message)
        response = result if isinstance(result, Message) else await result
        await self._carry(response, self._server.cpu, self._cpu, self._server.machine, self._machine)
        return response

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    async def _carry(
        self, message: Message, sender: Cpu, receiver: Cpu, source: int, target: int,
        sent: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        nbytes = sum(tensor.data.nbytes for tensor in message.tensors)
        seconds = self._costs.request + self._costs.byte * nbytes
        part_count = max(len(message.header.get("parts", ())), len(message.tensors))
        await sender.use(seconds)
        await self._fabric.send(source, target, nbytes + ENVELOPE_BYTES + PART_BYTES * part_count, sent)
        await receiver.use(seconds)
