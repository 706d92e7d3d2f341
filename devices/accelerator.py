"""The base class of GPUs and simulated devices: stream actors, copy streams, and a memory pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from flowmx import settings
from flowmx.devices.block_pool import BlockPool
from flowmx.devices.device import Device
from flowmx.devices.streams import Stream, StreamActor
from flowmx.engine.actor import Actor
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation

COMPUTE, FROM_HOST, TO_HOST, FROM_PEERS = "compute", "copies from the host", "copies to the host", "copies of peers"
"""Purposes of an accelerator's streams."""


class Accelerator(Device):
    """A device with separate memory and streams.

    Attributes:
        pool: the pool of its memory.
        compute: the compute actor, which has a separate stream for operations with a priority above 0.
        incoming, outgoing, peers: the actors for copies from the host, to the host, and from other accelerators.
        actors: all these actors.
    """

    is_asynchronous = True
    captures = False
    """Whether launches may be captured as graphs."""
    pool: BlockPool
    compute: StreamActor

    def open(self, streams: int | None = None, on_push: Callable[[Operation], None] | None = None) -> None:
        """Create the actors.

        Args:
            streams: the number of compute streams (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
            on_push: see :class:`StreamActor`.
        """
        config = settings.get()
        copies = config.gpu_copy_nthreads
        self.compute = self._create_actor(repr(self.context), COMPUTE, streams or config.gpu_worker_nthreads, True)
        self.incoming = self._create_actor(f"host to {self.context}", FROM_HOST, copies)
        self.outgoing = self._create_actor(f"{self.context} to host", TO_HOST, copies)
        self.peers = self._create_actor(f"peers to {self.context}", FROM_PEERS, copies)
        self.actors = (self.compute, self.incoming, self.outgoing, self.peers)
        for actor in self.actors:
            actor.on_push = on_push
        engine.synchronizers.append(self.synchronize)

    def _create_actor(self, name: str, purpose: str, count: int, has_urgent: bool = False) -> StreamActor:
        streams = [self.stream(f"{purpose} {index}", purpose) for index in range(count)]
        urgent = self.stream(f"{purpose} urgent", purpose, 1) if has_urgent else None
        user = self.stream(f"{purpose} of user code", purpose) if has_urgent and self.captures else None
        return StreamActor(name, streams, urgent, user, home=repr(self.context))

    @abstractmethod
    def stream(self, name: str, purpose: str, priority: int = 0) -> Stream:
        """Create a stream.

        Args:
            name: its name.
            purpose: its purpose.
            priority: 1 for work that the device should prefer.
        """

    def empty_cache(self) -> None:
        self.pool.trim()

    def copy_actor(self, source: Device) -> Actor:
        if source is self:
            return self.compute
        return self.peers if source.is_asynchronous else self.incoming

    def copy_actor_out(self) -> Actor:
        return self.outgoing

    def synchronize(self) -> None:
        for actor in self.actors:
            for stream in actor.all_streams():
                stream.synchronize()

    def close(self) -> None:
        """Stop the device's actors; no more operations may be pushed to it."""
        if self.synchronize in engine.synchronizers:
            engine.synchronizers.remove(self.synchronize)
        for actor in self.actors:
            actor.close()
