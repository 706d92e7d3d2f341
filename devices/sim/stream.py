"""Streams of a simulated device: work is noted on the clock, checked for races, and carried out at once or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.devices.sim.system import Deferred, System, Work
from flowmx.devices.streams import Launch, Stream, Token, here
from flowmx.engine.running import call_in
from flowmx.engine.scheduler import Operation

if TYPE_CHECKING:
    from flowmx.devices.sim.device import SimDevice


class SimStream(Stream):
    """A stream of a simulated device.

    Args:
        system: the machine.
        device: the device.
        name: what it is for.
        engine: what it keeps busy, such as the arithmetic or a link: two streams of one engine take turns.
        priority: as of :class:`Stream`.
    """

    device: SimDevice

    def __init__(self, system: System, device: SimDevice, name: str, engine: str, priority: int = 0) -> None:
        super().__init__(f"{device} {name}", device, priority)
        self.system = system
        self.engine = f"{device} {engine}"

    def run(self, launch: Launch) -> Any:
        system = self.system
        system.progress()
        if system.rng is None or _may_do_anything(launch):
            launch.work = Work()
            if system.rng is not None:  # what may wait, or do anything, finds what it comes after done
                for token in (self.record(), *launch.waited):
                    system.run_until(token)
            result = launch.call()
        else:
            result = None
            launch.work = Deferred(self._deferred(launch))
        if not launch.work.kernels:
            self.device.account_for_launch(launch)
        self.device.replay(launch)
        system.check(launch)
        return result

    def _deferred(self, launch: Launch) -> Callable[[], Any]:
        """The work of an operation, on memory that is looked up now and not kept alive."""
        for variable in launch.writes:
            ensure = getattr(variable, "ensure", None)
            if ensure is not None:
                ensure()
        # Not the launch itself, which holds on to the arrays.
        function, arguments = launch.function, tuple(map(unleased, launch.arguments))
        op, layers = launch.op, launch.op.layers
        if layers:  # they may look at what the operation was about, which it forgets as soon as it is launched
            op = Operation(function, arguments, launch.reads, launch.writes, op.actor, op.name, op.origin)

        def carry_out() -> None:
            outer, here.launch = here.launch, None
            try:
                with self:
                    call_in(layers, op, function, arguments)
            finally:
                here.launch = outer

        return carry_out

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

    def finished(self, token: Token) -> None:
        self.system.finished(token)


def _may_do_anything(launch: Launch) -> bool:
    """True where an operation does more than compute on its arrays: user code, settling of errors, allocation."""
    return not launch.op.bulkable or launch.op.settles or getattr(launch.function, "moves_memory", False)


def unleased(argument: Any) -> Any:
    """An argument whose arrays use the memory that they have now without keeping it.

    Arrays are known by what they have: a ``_storage`` with a device, an array, a shape and a dtype.
    """
    if type(argument) in (list, tuple):
        return type(argument)([unleased(each) for each in argument])
    storage = getattr(argument, "_storage", None)
    if storage is None or storage.array is None or not storage.device.is_asynchronous:
        return argument
    memory = storage.device.without_lease(storage.array)
    if memory is None:
        return argument
    copy = object.__new__(type(argument))
    copy._storage = _Looked(storage, memory)
    copy._shape, copy._dtype, copy._view = argument._shape, argument._dtype, argument._view
    return copy


class _Looked:
    """A storage as it was found at a launch."""

    shared = True

    def __init__(self, storage: Any, memory: Any) -> None:
        self.device, self.shape, self.dtype, self.array = storage.device, storage.shape, storage.dtype, memory

    def ensure(self) -> Any:
        return self.array
