"""Compiled loops that run in a sequence of oneDNN primitives."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import Array
from flowmx.ops.kernels.onednn.primitives import Call
from flowmx.ops.kernels.recording import Recording, mark_incomplete

Words = tuple[int | float, ...]


class ProgramLoop:
    """A compiled loop in place of a primitive; its last arguments are the addresses of its arrays.

    Args:
        program: the function; None if the fallback always runs.
        tasks: the number of tasks.
        words: its words before the addresses.
        threads: the number of threads.
        fallback: computes the same from the addresses while the function is not compiled.
    """

    def __init__(
        self, program: Program | None, tasks: int, words: Words, threads: int, fallback: Callable[..., None]
    ) -> None:  # fmt: skip
        self.program = program
        self.threads = threads
        self.fallback = fallback
        self.head = struct.pack("2q", 0, tasks)
        self.head += b"".join(struct.pack("d" if isinstance(word, float) else "q", word) for word in words)

    def at(self, *addresses: int) -> Call:
        """Return a call on arrays at these addresses."""
        return self, addresses

    def call(self, addresses: tuple[int, ...]) -> _BoundLoop:
        """Return a separate call that can run repeatedly."""
        call = _BoundLoop(self)
        call.point(addresses)
        return call

    def run(self, addresses: tuple[int, ...]) -> None:
        """Run once."""
        self.call(addresses)()


class _BoundLoop:
    """A loop bound to arrays.

    Attributes:
        of: the loop.
        addresses: the addresses of the arrays.
    """

    def __init__(self, of: ProgramLoop) -> None:
        self.of = of
        self.addresses: tuple[int, ...] = ()

    def point(self, addresses: tuple[int, ...]) -> None:
        """Set the addresses of the arrays."""
        self.addresses = addresses
        self._words = self.of.head + struct.pack(f"{len(addresses)}q", *addresses)

    def __call__(self) -> None:
        of = self.of
        function = None if of.program is None else of.program.get()
        if function is None:
            mark_incomplete()
            of.fallback(*self.addresses)
        else:
            # The function counts tasks in the words, so each call gets a copy.
            team.run(function, bytes(bytearray(self._words)), of.threads, addresses=self.addresses)

    def record(self, recording: Recording, threads: int) -> None:
        """Do nothing: the loop adds its call when it runs."""


def activated(values: Array, epilogue: Epilogue) -> Array:
    """Return the activation of values."""
    if not epilogue.activation:
        return values
    if epilogue.activation == "tanh":
        return np.tanh(values)
    if epilogue.activation in ("sigmoid", "swish"):
        gate = 1 / (1 + np.exp(-values))
        return gate if epilogue.activation == "sigmoid" else values * gate
    low = epilogue.slope * values if epilogue.activation == "leaky" else np.float32(0)
    values = np.where(values > 0, values, low)
    return np.minimum(values, np.float32(epilogue.slope)) if epilogue.activation == "clip" else values


def array_at(address: int, shape: Sequence[int]) -> Array:
    """Return the float32 numbers at an address."""
    memory: Any = (ctypes.c_float * prod(shape)).from_address(address)
    return np.ndarray(tuple(shape), np.float32, memory)
