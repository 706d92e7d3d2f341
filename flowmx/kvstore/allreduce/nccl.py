"""Sums over GPUs by NCCL, through CuPy.

NCCL's kernels on the devices wait for each other, so every device must get the same collectives in the same order: two
devices that begin with different ones wait for ever. So a collective is one operation of the engine, which launches
the part of each device in one group call; and all collectives of the process write one variable, so that the engine
launches them in the order pushed, whichever communicator and thread they come from.

The parts run on streams of their own, while the devices compute. The operation's own stream, one of the first
device's, goes before these and after them: what waits for the operation waits for all of them.

Which way a sum takes is NCCL's choice, so sums of more than two devices may differ in their last bits from those of
:class:`~flowmx.kvstore.allreduce.communicator.PeerCommunicator`, and with the size of buckets.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowmx.devices import Device
from flowmx.devices.streams import Stream, current_stream
from flowmx.engine import Variable
from flowmx.kvstore.allreduce.communicator import Communicator, PeerCommunicator, empty_on, enqueue
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import name_of

__all__ = ["NcclCommunicator", "are_gpus", "library"]

_TURN = Variable("turn of collectives")
"""Written by each collective: they are launched in the order pushed."""


def library() -> Any:
    """CuPy's module of NCCL; None where there is none."""
    try:
        found = importlib.import_module("cupy.cuda.nccl")
    except ImportError:
        return None
    return found if getattr(found, "available", False) else None


def are_gpus(devices: Iterable[Device]) -> bool:
    """Tell whether all devices are GPUs of this machine, not simulated ones."""
    return all(each.context.device_type == "gpu" and hasattr(each, "number") for each in devices)


class NcclCommunicator(Communicator):
    """Collectives of some GPUs; what NCCL can not do (a dtype that it does not know) is done by peers' copies.

    Args:
        devices: the GPUs, all that its arrays will be on.
        nccl: the module of NCCL.
        stream_of: makes the stream on which a device's parts run.

    Raises:
        RuntimeError: NCCL can not be used with these.
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
        root, total = self._ranks[device], empty_on(device, sources[0].size, sources[0]._dtype)
        results = [total if rank == root else None for rank in range(len(self.devices))]
        self._push("reduce", self._of_all(sources), results, (self._nccl.NCCL_SUM, root), priority)
        return total

    def all_reduce(self, sources: Sequence[NDArray], devices: Sequence[Device], priority: int = 0) -> list[NDArray]:
        if self._type_of(sources[0]) is None:
            return self._peers.all_reduce(sources, devices, priority)
        results = [empty_on(each, sources[0].size, sources[0]._dtype) for each in self.devices]
        self._push("allReduce", self._of_all(sources), results, (self._nccl.NCCL_SUM,), priority)
        return [results[self._ranks[device]] for device in devices]

    def broadcast(self, source: NDArray, targets: Sequence[NDArray], priority: int = 0) -> None:
        if self._type_of(source) is None:
            self._peers.broadcast(source, targets, priority)
            return
        root = self._ranks[source._storage.device]
        wanted = {each._storage.device: each for each in targets}
        results = [wanted.get(each) for each in self.devices]
        for rank, device in enumerate(self.devices):
            if rank != root and results[rank] is None:  # it takes part
                results[rank] = empty_on(device, source.size, source._dtype)
        sources = [source if rank == root else each for rank, each in enumerate(results)]
        self._push("broadcast", sources, results, (root,), priority)

    def _type_of(self, array: NDArray) -> Any:
        return getattr(self._nccl, f"NCCL_{name_of(array._dtype).upper()}", None)

    def _of_all(self, sources: Sequence[NDArray]) -> list[NDArray | None]:
        """For each rank its source; None where it has none, and takes part with zeros."""
        found: list[NDArray | None] = [None] * len(self.devices)
        for each in sources:
            found[self._ranks[each._storage.device]] = each
        return found

    def _push(
        self, method: str, sources: Sequence[NDArray | None], results: Sequence[NDArray | None],
        options: tuple[int, ...], priority: int,
    ) -> None:  # fmt: skip
        written = [each for each in results if each is not None]
        given = [each for each in sources if each is not None and not any(each is result for result in written)]
        actor = self.devices[0].copy_actor(self.devices[1])
        arguments = (self, method, list(sources), list(results), options)
        enqueue(_collective, arguments, given, written, actor, f"kvstore {method}", priority, [_TURN])

    def launch(
        self, method: str, sources: Sequence[NDArray | None], results: Sequence[NDArray | None],
        options: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Launch a collective: the parts of all devices, in a group call, after and before the current stream."""
        leader = current_stream()
        assert leader is not None
        form = next(each for each in (*sources, *results) if each is not None)
        begun = leader.record()
        parts = []
        for device, stream, source, result in zip(self.devices, self._streams, sources, results, strict=True):
            with stream:  # and so with its device as CUDA's current one
                stream.wait(begun)
                parts.append(_memory(device, source, result, form))
        self._nccl.groupStart()
        try:
            for comm, stream, (sent, received) in zip(self._comms, self._streams, parts, strict=True):
                pointers = _address(sent), _address(received)
                getattr(comm, method)(*pointers, form.size, self._type_of(form), *options, _raw(stream))
        finally:
            self._nccl.groupEnd()
        for stream in self._streams:
            with stream:
                ended = stream.record()
            leader.wait(ended)


def _collective(communicator: NcclCommunicator, *arguments: Any) -> None:
    communicator.launch(*arguments)


_collective.moves_memory = True  # type: ignore[attr-defined]  # a simulated device must not put it off


def _memory(device: Device, source: NDArray | None, result: NDArray | None, form: NDArray) -> tuple[Any, Any]:
    """Send and receive buffers of a rank: zeros if it has no source; the send buffer twice if it wants no result."""
    received = None if result is None else result._written()
    if source is None:
        sent = device.allocate((form.size,), form._dtype)
        sent[...] = 0
    else:
        sent = received if source is result else source._read().reshape(-1)
    return sent, sent if received is None else received


def _number(device: Any) -> int:
    """CUDA's number of a GPU."""
    return int(device.number)


def _stream_of(device: Any) -> Stream:
    """A stream like those on which a device's copies from peers run."""
    made: Stream = type(device.peers.streams[0])(device, "collectives")
    return made


def _raw(stream: Any) -> int:
    """A stream's address, as CuPy takes it."""
    return int(stream.raw.ptr)


def _address(array: Any) -> int:
    """Address of an array's first byte, of CuPy's or, on a simulated device, of NumPy's."""
    pointer = getattr(array.data, "ptr", None)
    return int(array.__array_interface__["data"][0] if pointer is None else pointer)
