"""Sums over GPUs by NCCL, through CuPy.

NCCL's kernels on the devices wait for each other, so every device must run the same collectives in the same order: two
devices that start with different ones deadlock. Therefore a collective is one operation of the engine, which launches
the parts of all devices in one group call; and all collectives of the process write one variable, so that the engine
launches them in the order in which they were enqueued, from any communicator and thread.

The parts run on dedicated streams, concurrently with computation. The operation's stream, one of the first device, is
ordered before and after them: waiting for the operation waits for all parts.

NCCL chooses the algorithm of a sum, so sums over more than two devices may differ in their last bits from those of
:class:`~flowmx.kvstore.allreduce.communicator.PeerCommunicator`, and with the size of buckets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowmx.devices import Device
from flowmx.devices.launch_traits import LaunchTraits, set_launch_traits
from flowmx.devices.streams import Stream, current_stream
from flowmx.engine import Variable
from flowmx.kvstore.allreduce.communicator import Communicator, PeerCommunicator, empty_on, enqueue
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import name_of

__all__ = ["NcclCommunicator", "are_gpus", "library"]

_ORDER = Variable("turn of collectives")
"""Every collective writes it, so they are launched in the order in which they were enqueued."""


def library() -> Any:
    """Return CuPy's module of NCCL, or None if it is not available."""
    try:
        module = importlib.import_module("cupy.cuda.nccl")
    except ImportError:
        return None
    return module if getattr(module, "available", False) else None


def are_gpus(devices: Iterable[Device]) -> bool:
    """Return whether all devices are GPUs of this machine, not simulated ones."""
    return all(device.context.device_type == "gpu" and hasattr(device, "number") for device in devices)


class NcclCommunicator(Communicator):
    """Collectives over some GPUs by NCCL; for dtypes that NCCL does not support, copies between peers are used.

    Args:
        devices: the GPUs that its arrays will be on.
        nccl: the module of NCCL.
        stream_of: makes the stream for a device's parts.

    Raises:
        RuntimeError: NCCL does not work with these GPUs.
    """

    def __init__(self, devices: Sequence[Device], nccl: Any, stream_of: Callable[[Any], Stream] | None = None) -> None:
        self.devices = tuple(devices)
        self._nccl = nccl
        self._ranks = {device: rank for rank, device in enumerate(self.devices)}
        self._comms = nccl.NcclCommunicator.initAll([_number(device) for device in self.devices])
        self._streams = [(stream_of or _stream_of)(device) for device in self.devices]
        self._peers = PeerCommunicator()

    def reduce(self, sources: Sequence[NDArray], device: Device, priority: int = 0) -> NDArray:
        if self._type_of(sources[0]) is None:
            return self._peers.reduce(sources, device, priority)
        root, total = self._ranks[device], empty_on(device, sources[0].size, sources[0].element_type)
        results = [total if rank == root else None for rank in range(len(self.devices))]
        self._push("reduce", self._sources_by_rank(sources), results, (self._nccl.NCCL_SUM, root), priority)
        return total

    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        if self._type_of(sources[0]) is None:
            return self._peers.all_reduce(sources, devices, priority)
        results = [empty_on(device, sources[0].size, sources[0].element_type) for device in self.devices]
        self._push("allReduce", self._sources_by_rank(sources), results, (self._nccl.NCCL_SUM,), priority)
        return [results[self._ranks[device]] for device in devices]

    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        if self._type_of(source) is None:
            self._peers.broadcast(source, targets, priority)
            return
        root = self._ranks[source.storage.device]
        target_on = {array.storage.device: array for array in targets}
        results = [target_on.get(array) for array in self.devices]
        for rank, device in enumerate(self.devices):
            if rank != root and results[rank] is None:  # it participates, and discards the result
                results[rank] = empty_on(device, source.size, source.element_type)
        sources = [source if rank == root else array for rank, array in enumerate(results)]
        self._push("broadcast", sources, results, (root,), priority)

    def _type_of(self, array: NDArray) -> Any:
        return getattr(self._nccl, f"NCCL_{name_of(array.element_type).upper()}", None)

    def _sources_by_rank(self, sources: Sequence[NDArray]) -> list[NDArray | None]:
        """Return the source of each rank, or None if it has none, and participates with zeros."""
        by_rank: list[NDArray | None] = [None] * len(self.devices)
        for source in sources:
            by_rank[self._ranks[source.storage.device]] = source
        return by_rank

    def _push(
        self, method: str, sources: Sequence[NDArray | None], results: Sequence[NDArray | None],
        options: tuple[int, ...], priority: int,
    ) -> None:  # fmt: skip
        outputs = [array for array in results if array is not None]
        inputs = [array for array in sources if array is not None and not any(array is result for result in outputs)]
        actor = self.devices[0].copy_actor(self.devices[1])
        arguments = (self, method, list(sources), list(results), options)
        enqueue(_collective, arguments, inputs, outputs, actor, f"kvstore {method}", priority, [_ORDER])

    def launch(
        self, method: str, sources: Sequence[NDArray | None], results: Sequence[NDArray | None],
        options: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Launch the parts of a collective on all devices in a group call, ordered with the current stream."""
        leader = current_stream()
        assert leader is not None
        sample = next(array for array in (*sources, *results) if array is not None)
        begin_event = leader.record()
        parts = []
        for device, stream, source, result in zip(self.devices, self._streams, sources, results, strict=True):
            with stream:  # also makes its device CUDA's current one
                stream.wait(begin_event)
                parts.append(_buffers(device, source, result, sample))
        self._nccl.groupStart()
        try:
            for comm, stream, (send, receive) in zip(self._comms, self._streams, parts, strict=True):
                pointers = _address(send), _address(receive)
                getattr(comm, method)(*pointers, sample.size, self._type_of(sample), *options, _raw(stream))
        finally:
            self._nccl.groupEnd()
        for stream in self._streams:
            with stream:
                end_event = stream.record()
            leader.wait(end_event)


def _collective(communicator: NcclCommunicator, *arguments: Any) -> None:
    communicator.launch(*arguments)


set_launch_traits(_collective, LaunchTraits(moves_memory=True))


def _buffers(device: Device, source: NDArray | None, result: NDArray | None, sample: NDArray) -> tuple[Any, Any]:
    """Return the send and receive buffers of a rank: zeros without a source; the send buffer twice without a result."""
    receive = None if result is None else result.raw_for_writing()
    if source is None:
        send = device.allocate((sample.size,), sample.element_type)
        send[...] = 0
    elif receive is not None and source is result:
        send = receive
    else:
        send = source.raw().reshape(-1)
    return send, send if receive is None else receive


def _number(device: Any) -> int:
    """Return CUDA's number of a GPU."""
    return int(device.number)


def _stream_of(device: Any) -> Stream:
    """Make a stream like those for a device's copies from peers."""
    stream: Stream = type(device.peers.streams[0])(device, "collectives")
    return stream


def _raw(stream: Any) -> int:
    """Return a stream's address for CuPy."""
    return int(stream.raw.ptr)


def _address(array: Any) -> int:
    """Return the address of an array's first byte: a CuPy array or, on a simulated device, a NumPy array."""
    pointer = getattr(array.data, "ptr", None)
    return int(array.__array_interface__["data"][0] if pointer is None else pointer)
