"""Streams of a simulated device: they add work to the clock, check it for races, and run it at once or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.devices.launch_traits import launch_traits
from flowmx.devices.sim.system import Deferred, System, Work
from flowmx.devices.streams import Launch, Stream, Token, thread_streams
from flowmx.engine.running import call_in_layers
from flowmx.engine.scheduler import Operation

if TYPE_CHECKING:
    from flowmx.devices.sim.device import SimDevice


class SimStream(Stream):
    """A stream of a simulated device.

    Args:
        system: the machine.
        device: the device.
        name: its purpose.
        engine: the engine that it uses, such as the arithmetic or a link; streams of one engine take turns.
        priority: see :class:`Stream`.
    """

    device: SimDevice

    def __init__(self, system: System, device: SimDevice, name: str, engine: str, priority: int = 0) -> None:
        super().__init__(f"{device} {name}", device, priority)
        self.system = system
        self.engine = f"{device} {engine}"

    def run(self, launch: Launch) -> Any:
        system = self.system
        system.progress()
        if system.rng is None or _has_side_effects(launch):
            launch.work = Work()
            if system.rng is not None:  # run all earlier work first: this operation may wait or have side effects
                for token in (self.record(), *launch.waited):
                    system.run_until(token)
            result = launch.call()
        else:
            result = None
            launch.work = Deferred(self._defer(launch))
        if not launch.work.kernels:
            self.device.account_for_launch(launch)
        self.device.replay(launch)
        system.check(launch)
        return result

    def _defer(self, launch: Launch) -> Callable[[], Any]:
        """Return a function that runs an operation later, on its current memory, without keeping that memory alive."""
        for variable in launch.writes:
            ensure = getattr(variable, "ensure", None)
            if ensure is not None:
                ensure()
        # Not the launch itself, which keeps the arrays alive.
        function, arguments = launch.function, tuple(map(without_leases, launch.arguments))
        op, layers = launch.op, launch.op.layers
        if layers:  # they may read fields that the operation clears when it is launched
            op = Operation(function, arguments, launch.reads, launch.writes, op.actor, op.name, op.origin)

        def run_later() -> None:
            outer, thread_streams.launch = thread_streams.launch, None
            try:
                with self:
                    call_in_layers(layers, op, function, arguments)
            finally:
                thread_streams.launch = outer

        return run_later

    def can_wait_for(self, token: Token) -> bool:
        return isinstance(token.stream, SimStream) or super().can_wait_for(token)

    def _wait(self, token: Token) -> None:
        self.system.wait(self, token)

    def _record(self, token: Token, launch: Launch | None) -> None:
        self.system.record(token, launch, self.engine)

    def is_done(self, token: Token) -> bool:
        return self.system.is_done(token)

    def finish(self, token: Token) -> None:
        self.system.finish(token)

    def on_host_wait(self, token: Token) -> None:
        self.system.on_host_wait(token)


def _has_side_effects(launch: Launch) -> bool:
    """Return whether an operation does more than compute: user code, handling of errors, or allocation."""
    return not launch.op.bulkable or launch.op.handles_failures or launch_traits(launch.function).moves_memory


def without_leases(argument: Any) -> Any:
    """Copy an argument so that its arrays use their current memory without keeping it alive.

    An argument with a ``storage`` is an array.
    """
    if type(argument) in (list, tuple):
        return type(argument)([without_leases(item) for item in argument])
    storage = getattr(argument, "storage", None)
    if storage is None or storage.array is None or not storage.device.is_asynchronous:
        return argument
    memory = storage.device.without_lease(storage.array)
    if memory is None:
        return argument
    copy = object.__new__(type(argument))
    copy.storage = _StorageSnapshot(storage, memory)
    copy.dims, copy.element_type, copy.strided_view = argument.dims, argument.element_type, argument.strided_view
    return copy


class _StorageSnapshot:
    """The state of a storage at a launch."""

    shared = True

    def __init__(self, storage: Any, memory: Any) -> None:
        self.device, self.shape, self.dtype, self.array = storage.device, storage.shape, storage.dtype, memory

    def ensure(self) -> Any:
        return self.array
