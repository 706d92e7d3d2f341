"""Collective sums and copies over devices: the interface, and its portable form by copies between peers.

Arrays are of one dtype and length, at most one on each device, and sums are flat. All is enqueued, and runs on the
actors of copies between peers, concurrent with what the devices compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from flowmx import settings
from flowmx.devices import Device
from flowmx.engine import Actor, Operation, Variable, capture
from flowmx.engine.runtime import engine
from flowmx.ndarray import NDArray
from flowmx.ndarray.core import allocate

__all__ = ["Communicator", "Moves", "PeerCommunicator", "empty_on", "enqueue"]

Moves = list[tuple[str, int]]
"""Bytes by launch, ``here`` or ``there`` (from elsewhere to here): the costs on a simulated device."""


class Communicator(ABC):
    """Interface of collective operations over devices."""

    @abstractmethod
    def reduce(self, sources: Sequence[NDArray], device: Device, priority: int = 0) -> NDArray:
        """Enqueue the sum of arrays.

        Args:
            sources: the arrays, each on another device, in the order to add them in.
            device: where the sum is wanted.
            priority: higher is done earlier among what is ready.
        """

    @abstractmethod
    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        """As :meth:`reduce`, with a sum on each of these devices."""

    @abstractmethod
    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        """Enqueue that arrays, none of them a view, on other devices than the source get its content."""


class PeerCommunicator(Communicator):
    """Copies between peers, and sums on the devices.

    Sums are added in the order given, element by element, whatever way they take: results are the same bits. A small
    array goes whole to each device that wants the sum, which adds up by itself. Of a big one each device gathers a
    piece and adds it up, and the pieces are exchanged: that moves as few bytes as a ring does, by many more copies. So
    pieces must have half of ``FLOWMX_KVSTORE_BIGARRAY_BOUND``.
    """

    def reduce(self, sources: Sequence[NDArray], device: Device, priority: int = 0) -> NDArray:
        return self.all_reduce(sources, [device], priority)[0]

    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        size = sources[0].size
        if len(sources) < 3 or 2 * size < settings.get().kvstore_bigarray_bound * len(sources):
            return [_summed(sources, device, 0, size, priority) for device in devices]
        places = [each._storage.device for each in sources]
        edges = [size * index // len(places) for index in range(len(places) + 1)]
        pieces = [
            _summed(sources, place, edges[index], edges[index + 1], priority) for index, place in enumerate(places)
        ]
        totals = [empty_on(device, size, sources[0]._dtype) for device in devices]
        for total in totals:
            _collect_into(pieces, total, priority)
        return totals

    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        for target in targets:
            _collect_into([source], target, priority)


def empty_on(device: Device, size: int, dtype: Any) -> NDArray:
    """A flat array, whose memory is allocated by the first operation that writes it."""
    return cast("NDArray", allocate(device, (size,), dtype))


def enqueue(
    function: Any, arguments: tuple[Any, ...], sources: Sequence[NDArray], targets: Sequence[NDArray], actor: Actor,
    name: str, priority: int, orders: Sequence[Variable] = (),
) -> None:  # fmt: skip
    """Enqueue work that reads some arrays and writes others, of which views leave the rest as it is.

    Args:
        function: called with the arguments, on the actor.
        arguments: what it is called with.
        sources: what it reads.
        targets: what it writes.
        actor: where it runs.
        name: as in messages and profiles.
        priority: higher is done earlier among what is ready.
        orders: further variables that it writes, for the sake of the order.
    """
    kept = [each for each in targets if each._view is not None]
    reads = tuple(dict.fromkeys(each._storage for each in (*sources, *kept)))
    writes = (*dict.fromkeys(each._storage for each in targets), *orders)
    op = Operation(function, arguments, reads, writes, actor, name, capture())
    op.priority = priority
    engine.enqueue(op)


def _lane(device: Device, arrays: Sequence[NDArray]) -> Actor:
    """The actor that copies arrays to a device, while it computes."""
    far = next((each._storage.device for each in arrays if each._storage.device is not device), device)
    return device.copy_actor(far)


def _summed(sources: Sequence[NDArray], device: Device, start: int, stop: int, priority: int) -> NDArray:
    """The sum of a piece of each array."""
    total = empty_on(device, stop - start, sources[0]._dtype)
    arguments = (list(sources), start, stop, total)
    enqueue(_gather_and_add, arguments, sources, [total], _lane(device, sources), "kvstore sum", priority)
    return total


def _collect_into(pieces: Sequence[NDArray], whole: NDArray, priority: int) -> None:
    """Let an array hold those of several devices, one after the other."""
    actor = _lane(whole._storage.device, pieces)
    enqueue(_collect, (list(pieces), whole), pieces, [whole], actor, "kvstore copy", priority)


# -- operations ----------------------------------------------------------------------------------------------


def _gather_and_add(sources: Sequence[NDArray], start: int, stop: int, total: NDArray) -> None:
    device = total._storage.device
    result = total._written()
    arrived: Any = None
    for index, source in enumerate(sources):
        given = source._read().reshape(-1)[start:stop]
        if index == 0:
            device.copy(given, result)
        elif source._storage.device is device:
            device.xp.add(result, given, out=result)
        else:
            arrived = device.allocate(given.shape, given.dtype) if arrived is None else arrived
            device.copy(given, arrived)
            device.xp.add(result, arrived, out=result)


def _moved_to_add(sources: Sequence[NDArray], start: int, stop: int, total: NDArray) -> Moves:
    nbytes = (stop - start) * total._dtype.itemsize
    moves: Moves = []
    for index, source in enumerate(sources):
        near = source._storage.device is total._storage.device
        moves += [] if near and index else [("here", 2 * nbytes) if near else ("there", nbytes)]
        moves += [("here", 3 * nbytes)] if index else []
    return moves


def _collect(pieces: Sequence[NDArray], whole: NDArray) -> None:
    result = whole._written().reshape(-1)
    start = 0
    for each in pieces:
        whole._storage.device.copy(each._read().reshape(-1), result[start : start + each.size])
        start += each.size


def _moved_to_collect(pieces: Sequence[NDArray], whole: NDArray) -> Moves:
    nbytes = [each.size * whole._dtype.itemsize for each in pieces]
    return [
        ("here", 2 * size) if each._storage.device is whole._storage.device else ("there", size)
        for each, size in zip(pieces, nbytes, strict=True)
    ]


_gather_and_add.moves = _moved_to_add  # type: ignore[attr-defined]
_collect.moves = _moved_to_collect  # type: ignore[attr-defined]
