"""Collective sums and copies over devices: the interface, and a portable implementation by copies between peers.

Arrays have one dtype and length, at most one on each device, and sums are flat. All operations are enqueued, and run on
the actors of copies between peers, concurrently with computation on the devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from flowmx import settings
from flowmx.devices import Device
from flowmx.devices.launch_traits import LaunchTraits, Moves, set_launch_traits
from flowmx.engine import Actor, Operation, Variable, capture
from flowmx.engine.runtime import engine
from flowmx.ndarray import NDArray
from flowmx.ndarray.core import allocate

__all__ = ["Communicator", "PeerCommunicator", "empty_on", "enqueue"]

"""Bytes of each launch, within a device (``here``) or from another device (``there``): costs of simulated devices."""


class Communicator(ABC):
    """Interface of collective operations over devices."""

    @abstractmethod
    def reduce(self, sources: Sequence[NDArray], device: Device, priority: int = 0) -> NDArray:
        """Enqueue the sum of arrays.

        Args:
            sources: the arrays, on distinct devices, in the order to add them in.
            device: the device of the sum.
            priority: operations with higher priority run first among those that are ready.
        """

    @abstractmethod
    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        """Enqueue the sum of arrays, as :meth:`reduce`, on each of these devices."""

    @abstractmethod
    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        """Enqueue copies of the source into arrays on other devices; none of them may be a view."""


class PeerCommunicator(Communicator):
    """Collectives by copies between peers, with sums on the devices.

    Arrays are added in the order of the sources, element by element: results are bit-identical for both methods. Small
    arrays are copied whole to each device of a sum, which adds them up. For a big array each device gathers and adds
    one piece, and the pieces are exchanged: that moves as few bytes as a ring does, but needs many more copies.
    Therefore a piece has at least half of ``FLOWMX_KVSTORE_BIGARRAY_BOUND`` elements.
    """

    def reduce(self, sources: Sequence[NDArray], device: Device, priority: int = 0) -> NDArray:
        return self.all_reduce(sources, [device], priority)[0]

    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        size = sources[0].size
        if len(sources) < 3 or 2 * size < settings.get().kvstore_bigarray_bound * len(sources):
            return [_sum_piece(sources, device, 0, size, priority) for device in devices]
        owners = [source.storage.device for source in sources]
        edges = [size * index // len(owners) for index in range(len(owners) + 1)]
        pieces = [
            _sum_piece(sources, owner, edges[index], edges[index + 1], priority) for index, owner in enumerate(owners)
        ]
        totals = [empty_on(device, size, sources[0].element_type) for device in devices]
        for total in totals:
            _collect_into(pieces, total, priority)
        return totals

    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        for target in targets:
            _collect_into([source], target, priority)


def empty_on(device: Device, size: int, dtype: Any) -> NDArray:
    """Return a flat array; the first operation that writes it allocates its memory."""
    return cast("NDArray", allocate(device, (size,), dtype))


def enqueue(
    function: Any, arguments: tuple[object, ...], sources: Sequence[NDArray], targets: Sequence[NDArray], actor: Actor,
    name: str, priority: int, orders: Sequence[Variable] = (),
) -> None:  # fmt: skip
    """Enqueue an operation that reads some arrays and writes others; elements outside a target view are preserved.

    Args:
        function: called with the arguments, on the actor.
        arguments: the arguments of the function.
        sources: the arrays that it reads.
        targets: the arrays that it writes.
        actor: the actor that runs it.
        name: its name in messages and profiles.
        priority: operations with higher priority run first among those that are ready.
        orders: further variables that it writes, to order it among other operations.
    """
    views = [array for array in targets if array.strided_view is not None]
    reads = tuple(dict.fromkeys(array.storage for array in (*sources, *views)))
    writes = (*dict.fromkeys(array.storage for array in targets), *orders)
    op = Operation(function, arguments, reads, writes, actor, name, capture())
    op.priority = priority
    engine.enqueue(op)


def _lane(device: Device, arrays: Sequence[NDArray]) -> Actor:
    """Return the actor that copies arrays to a device concurrently with computation."""
    other_device = next((array.storage.device for array in arrays if array.storage.device is not device), device)
    return device.copy_actor(other_device)


def _sum_piece(sources: Sequence[NDArray], device: Device, start: int, stop: int, priority: int) -> NDArray:
    """Enqueue the sum of a piece of each array."""
    total = empty_on(device, stop - start, sources[0].element_type)
    arguments = (list(sources), start, stop, total)
    enqueue(_gather_and_add, arguments, sources, [total], _lane(device, sources), "kvstore sum", priority)
    return total


def _collect_into(pieces: Sequence[NDArray], whole: NDArray, priority: int) -> None:
    """Enqueue copies of arrays of several devices into one array, one after the other."""
    actor = _lane(whole.storage.device, pieces)
    enqueue(_collect, (list(pieces), whole), pieces, [whole], actor, "kvstore copy", priority)


# -- operations ----------------------------------------------------------------------------------------------


def _gather_and_add(sources: Sequence[NDArray], start: int, stop: int, total: NDArray) -> None:
    device = total.storage.device
    result = total.raw_for_writing()
    buffer: Any = None
    for index, source in enumerate(sources):
        piece = source.raw().reshape(-1)[start:stop]
        if index == 0:
            device.copy(piece, result)
        elif source.storage.device is device:
            device.xp.add(result, piece, out=result)
        else:
            buffer = device.allocate(piece.shape, piece.dtype) if buffer is None else buffer
            device.copy(piece, buffer)
            device.xp.add(result, buffer, out=result)


def _bytes_of_add(sources: Sequence[NDArray], start: int, stop: int, total: NDArray) -> Moves:
    nbytes = (stop - start) * total.element_type.itemsize
    moves: Moves = []
    for index, source in enumerate(sources):
        is_local = source.storage.device is total.storage.device
        moves += [] if is_local and index else [("here", 2 * nbytes) if is_local else ("there", nbytes)]
        moves += [("here", 3 * nbytes)] if index else []
    return moves


def _collect(pieces: Sequence[NDArray], whole: NDArray) -> None:
    result = whole.raw_for_writing().reshape(-1)
    start = 0
    for piece in pieces:
        whole.storage.device.copy(piece.raw().reshape(-1), result[start : start + piece.size])
        start += piece.size


def _bytes_of_collect(pieces: Sequence[NDArray], whole: NDArray) -> Moves:
    nbytes = [piece.size * whole.element_type.itemsize for piece in pieces]
    return [
        ("here", 2 * size) if piece.storage.device is whole.storage.device else ("there", size)
        for piece, size in zip(pieces, nbytes, strict=True)
    ]


set_launch_traits(_gather_and_add, LaunchTraits(moves=_bytes_of_add))
set_launch_traits(_collect, LaunchTraits(moves=_bytes_of_collect))
