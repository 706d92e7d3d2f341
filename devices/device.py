"""The interface of devices: the CPU, GPUs and simulated devices.

A device owns

* a **compute actor**, which runs the operators on its arrays,
* **copy actors** for data from other devices (a GPU has one for each direction),
* its **memory**: :meth:`Device.allocate` and its statistics,
* an **array namespace** (``xp``: NumPy's functions, or CuPy's), which operators use,
* a **random generator**, whose state is an engine variable that sampling operators write.

Completion
----------
On the CPU an operation is complete when its function returns. On an asynchronous device (``is_asynchronous``) an
operation is complete for the scheduler when it has been *launched* on a stream; ``streams.py`` tracks its execution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.devices.arrays import Array, DType
from flowmx.devices.context import Context
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor

if TYPE_CHECKING:
    from flowmx.devices.cuda.graphs import Graphs
    from flowmx.devices.streams import Token
    from flowmx.engine.scheduler import Variable


class Device(ABC):
    """A device with arrays and operators.

    Attributes:
        context: the device's name.
        xp: the array namespace of its operators.
        compute: the actor that runs operators.
        generator: the state of its random numbers.
        kernels: the device type whose kernels its operators use.
        has_native_runs: whether repeated steps may run as one native call, which calls no forward function.
        is_asynchronous: whether operations are complete when they have been launched.
        has_numerics: whether it computes values; simulated devices may only count memory and time.
        reads_are_copies: whether :meth:`to_host` never shares memory.
        graphs: launches repeated steps as one graph; None if the device has no graphs.
        dlpack_device: its DLPack type and number.
    """

    context: Context
    xp: Any
    compute: Actor
    generator: Generator
    kernels = ""
    has_native_runs = False
    is_asynchronous = False
    has_numerics = True
    reads_are_copies = False
    graphs: Graphs | None = None
    dlpack_device = (1, 0)

    @property
    def replays(self) -> bool:
        """Whether repeated steps are launched as one graph."""
        return self.graphs is not None

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Allocate an uninitialized C-contiguous array on this device."""

    def view(self, array: Array, shape: tuple[int, ...], dtype: DType, offset: int, strides: tuple[int, ...]) -> Array:
        """Return a view of one of this device's arrays.

        Args:
            array: the array.
            shape: the view's shape.
            dtype: the dtype of both.
            offset: the view's start in the array, in bytes.
            strides: the view's strides, in bytes.
        """
        return type(array)(shape, dtype, array, offset, strides)

    @abstractmethod
    def copy_actor(self, source: Device) -> Actor:
        """Return the actor for copies from another device to this one."""

    @abstractmethod
    def copy(self, source: Array, target: Array) -> None:
        """Copy an array of any device to one of this device (on the copy actor; may convert the dtype)."""

    def copy_out(self, source: Array, target: Array) -> None:
        """Copy an array of an asynchronous device to one of the host (on :meth:`copy_actor_out`)."""
        np.copyto(target, source, casting="unsafe")

    @abstractmethod
    def to_host(self, array: Array) -> Array:
        """Return the content of one of this device's arrays as a NumPy array (which may share memory)."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return the free and total bytes."""

    def empty_cache(self) -> None:
        """Return cached memory to the system."""

    def copy_actor_out(self) -> Actor:
        """Return the actor for copies from an asynchronous device to the host."""
        return self.compute

    def record_use(self, variable: Variable, token: Token) -> None:
        """Record that work up to a token uses a variable's memory on this device."""

    def synchronize_host_work(self) -> None:
        """Wait for work that a host operation has launched in this thread, outside the device's actors."""

    def timed(self, op: object, forward: Callable[..., object]) -> Callable[..., Any]:
        """Wrap the forward function of an operator for this device."""
        return forward

    def synchronize(self) -> None:
        """Block until all work launched here is done."""

    def __repr__(self) -> str:
        return repr(self.context)
