"""What every device is: the interface that the CPU implements, and CUDA and simulated devices will.

A device owns

* a **compute actor**, which runs the operators of arrays that live there,
* **copy actors** for bytes that arrive from elsewhere (a GPU has one for each direction),
* its **memory**: :meth:`Device.allocate` and what it reports of it,
* an **array namespace** (``xp``: NumPy's functions, or CuPy's) in which operators are written,
* a **random generator**, whose state is an engine variable that sampling operators write.

Completion
----------
For the CPU an operation is complete when its function returns. A CUDA or simulated stream will complete
an operation for the scheduler when it has been *launched*; the variables that it writes then carry a
token (:attr:`Device.token_after`, a stream with an event). :meth:`Device.wait_token` is what a consumer
does with a token: nothing on the same stream, a stream wait on another one, a host wait where a person
asked for the value. Memory goes back to a pool together with the tokens that still use it. The CPU has no
tokens: ``None`` means ready.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flowmx.devices.context import Context
from flowmx.devices.generator import Generator
from flowmx.engine.actor import Actor


class Device(ABC):
    """A place where arrays live and operators run.

    Attributes:
        context: the device's name.
        xp: the array namespace of its operators.
        compute: the actor that runs operators.
        generator: the state of its random numbers.
    """

    context: Context
    xp: Any
    compute: Actor
    generator: Generator

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new, uninitialised, C-contiguous array on this device."""

    @abstractmethod
    def copy_actor(self, source: Device) -> Actor:
        """The actor that brings bytes here from another device."""

    @abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Copy an array of any device into one of this device (runs on the copy actor; may convert dtype)."""

    @abstractmethod
    def to_host(self, array: Any) -> Any:
        """A NumPy array with the content of one of this device's arrays (may share memory)."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes."""

    def empty_cache(self) -> None:
        """Give memory that is kept for new arrays back to the system."""

    def token_after(self) -> object | None:
        """What completes when the work launched so far on this thread's stream does (None: it has)."""
        return None

    def wait_token(self, token: object | None) -> None:
        """Make the calling thread's stream, or the host where it has none, wait for a token."""

    def __repr__(self) -> str:
        return repr(self.context)
