"""The interface of devices, which the CPU, GPUs and simulated devices implement.

A device owns

* a **compute actor**, which runs the operators of arrays that live there,
* **copy actors** for bytes that arrive from elsewhere (a GPU has one for each direction),
* its **memory**: :meth:`Device.allocate` and what it reports of it,
* an **array namespace** (``xp``: NumPy's functions, or CuPy's) in which operators are written,
* a **random generator**, whose state is an engine variable that sampling operators write.

Completion
----------
For the CPU an operation is complete when its function returns. An asynchronous device (``is_asynchronous``) completes
an operation for the scheduler when it has been *launched* on a stream; what is known of the rest of its life is in
``streams.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.devices.context import Context
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor

if TYPE_CHECKING:
    from flowmx.devices.streams import Token
    from flowmx.engine.scheduler import Variable


class Device(ABC):
    """A place where arrays live and operators run.

    Attributes:
        context: the device's name.
        xp: the array namespace of its operators.
        compute: the actor that runs operators.
        generator: the state of its random numbers.
        kernels: the device type whose kernels its operators use.
        is_asynchronous: whether operations are complete when they have been launched.
        has_numerics: whether it computes; a device that only counts memory and time does not.
        reads_are_copies: whether :meth:`to_host` never shares memory.
        graphs: launches steps that come again and again as one where it can; None: nothing does.
        dlpack_device: DLPack's type and number of it.
    """

    context: Context
    xp: Any
    compute: Actor
    generator: Generator
    kernels = ""
    is_asynchronous = False
    has_numerics = True
    reads_are_copies = False
    graphs: Any = None
    dlpack_device = (1, 0)

    @property
    def replays(self) -> bool:
        """True where steps that come again and again are launched as one."""
        return self.graphs is not None

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new, uninitialised, C-contiguous array on this device."""

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        """A part of one of this device's arrays, without a copy.

        Args:
            array: the array.
            shape: of the part.
            dtype: of both.
            offset: where it begins in the array, in bytes.
            strides: of the part, in bytes.
        """
        return type(array)(shape, dtype, array, offset, strides)

    @abstractmethod
    def copy_actor(self, source: Device) -> Actor:
        """The actor that brings bytes here from another device."""

    @abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Copy an array of any device into one of this device (runs on the copy actor; may convert dtype)."""

    def copy_out(self, source: Any, target: Any) -> None:
        """Copy one of an asynchronous device's arrays into one of the host's (runs on :meth:`copy_actor_out`)."""
        np.copyto(target, source, casting="unsafe")

    @abstractmethod
    def to_host(self, array: Any) -> Any:
        """A NumPy array with the content of one of this device's arrays (may share memory)."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes."""

    def empty_cache(self) -> None:
        """Return cached memory to the system."""

    def copy_actor_out(self) -> Actor:
        """The actor that brings bytes from an asynchronous device to the host."""
        return self.compute

    def used(self, variable: Variable, token: Token) -> None:
        """Note that work which ends with a token uses a variable's memory on this device."""

    def finish_work_of_host(self) -> None:
        """Wait for what the calling thread has launched outside of the device's actors, in an operation of the host."""

    def timed(self, op: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The computation of an operator, as it is to be called here."""
        return forward

    def synchronize(self) -> None:
        """Block until all that was launched here is done."""

    def __repr__(self) -> str:
        return repr(self.context)
