"""Recordings of the native calls of a step: compiled loops, oneDNN primitives, copies of memory.

While a thread records, the functions that make native calls also add them to the current :class:`Recording`. A bound
graph records its steps during one run, and then makes all their calls at once (``llvm/native_run.py``).

A recording refers to memory by :class:`Place`: an item of the step's lists of arrays, and a distance from its data. The
arrays in these lists may be replaced between runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from flowmx.ops.registry.operators import Array


class Place(NamedTuple):
    """An address, relative to the data of an item of a list.

    Attributes:
        arrays: the list.
        position: the position of the array in it.
        offset: the distance from the array's data, in bytes.
        is_aligned: whether the distance counts from the first cache line that begins in the array.
    """

    arrays: list[Array | None]
    position: int
    offset: int
    is_aligned: bool = False


class LoopCall(NamedTuple):
    """A call of a compiled loop.

    Attributes:
        function: the address of its code.
        words: its arguments; the last ones stand for the arrays, or are the addresses of their data.
        arrays: the places of its arrays.
        threads: the maximum number of threads.
        needs_lines: whether the arrays must begin at a cache line.
        takes_addresses: whether the last words are addresses, not array objects.
    """

    function: int
    words: bytearray
    arrays: tuple[Place, ...]
    threads: int
    needs_lines: bool = False
    takes_addresses: bool = False


class PrimitiveCall(NamedTuple):
    """A call of a oneDNN primitive.

    Attributes:
        call: the primitive with memory objects that only this call uses.
        arguments: the place of each memory object.
        threads: the number of OpenMP threads that it was made for.
    """

    call: Any
    arguments: tuple[Place, ...]
    threads: int


class CopyCall(NamedTuple):
    """A copy of bytes from one place to another."""

    target: Place
    source: Place
    nbytes: int


NativeCall = LoopCall | PrimitiveCall | CopyCall


class Recording:
    """The native calls of one step, in order.

    Args:
        lists: the lists of the arrays that the step reads and writes.
        pointer: returns the address of an array's data.
        is_planned: returns whether a plan places an array: two of these that share memory always do.

    Attributes:
        calls: the calls.
        is_complete: whether the calls are all that the step did, and all their memory belongs to the step.
    """

    def __init__(
        self, lists: Sequence[list[Array | None]], pointer: Callable[[Array], int], is_planned: Callable[[Array], bool]
    ) -> None:  # fmt: skip
        self.calls: list[NativeCall] = []
        self.is_complete = True
        self._pointer = pointer
        self._is_planned = is_planned
        self._spans: list[tuple[int, int, Place]] = []
        for arrays in lists:
            self._add_spans(arrays, False)

    def _add_spans(self, arrays: list[Array | None], is_aligned: bool) -> None:
        for position in range(len(arrays)):
            self._add_span(arrays, position, is_aligned)

    def _add_span(self, arrays: list[Array | None], position: int, is_aligned: bool = False) -> None:
        array = arrays[position]
        if array is not None and array.size:
            start = self._pointer(array)
            stop = start + sum(
                (length - 1) * abs(step) for length, step in zip(array.shape, array.strides, strict=True)
            )
            self._spans.append((start, stop + array.itemsize, Place(arrays, position, 0, is_aligned)))

    def use_items(self, arrays: list[Array | None], positions: Iterable[int]) -> None:
        """Add items of a list of arrays that the step reads and writes."""
        for position in positions:
            self._add_span(arrays, position)

    def use_memory(self, arrays: list[Array | None], is_aligned: bool = False) -> None:
        """Add a list of arrays that the calls may use. The recording keeps them alive.

        Args:
            arrays: the list.
            is_aligned: whether only whole cache lines of the arrays are used.
        """
        self._add_spans(arrays, is_aligned)

    def place(self, address: int) -> Place | None:
        """Return the place of an address; None, and the recording is incomplete, if it is not one of the step's."""
        places = [(start, place) for start, stop, place in self._spans if start <= address < stop]
        shared = len(places) > 1 and not all(
            self._is_planned(cast("Array", place.arrays[place.position])) for _, place in places
        )
        if not places or shared:  # foreign memory, or two arrays that only happen to overlap now
            self.is_complete = False
            return None
        start, place = places[-1]
        return place._replace(offset=address - (-(-start // LINE) * LINE if place.is_aligned else start))

    def places(self, addresses: Sequence[int]) -> tuple[Place, ...] | None:
        """Return the places of addresses; None, and the recording is incomplete, if one is not the step's."""
        places = tuple(place for address in addresses if (place := self.place(address)) is not None)
        return places if len(places) == len(addresses) else None

    def add_loop(
        self, function: int, words: bytes, arrays: Sequence[Array], threads: int, needs_lines: bool = False
    ) -> None:  # fmt: skip
        """Add a call of a compiled loop; its last words stand for the arrays."""
        places = self.places([self._pointer(array) for array in arrays])
        if places is not None:
            copy = bytearray(words)  # the call itself changes its words
            self.calls.append(LoopCall(function, copy, places, threads, needs_lines))

    def add_loop_at(self, function: int, words: bytes, addresses: Sequence[int], threads: int) -> None:
        """Add a call of a compiled loop; its last words are addresses."""
        places = self.places(addresses)
        if places is not None:
            self.calls.append(LoopCall(function, bytearray(words), places, threads, takes_addresses=True))

    def add_primitive(self, call: Any, threads: int) -> None:
        """Add a call of a primitive, with the addresses that it has now."""
        places = self.places(call.addresses)
        if places is not None:
            self.calls.append(PrimitiveCall(call, places, threads))

    def add_copy(self, target: Array, source: Array) -> None:
        """Add a copy between arrays of the same form in C order; a copy of any other form cannot be recorded."""
        is_plain = target.dtype == source.dtype and target.shape == source.shape
        if not (is_plain and target.flags.c_contiguous and source.flags.c_contiguous):
            self.is_complete = False
        else:
            self.add_bytes(target, source)

    def add_bytes(self, target: Array, source: Array) -> None:
        """Add a copy of all bytes between arrays in C order of the same size."""
        places = self.places([self._pointer(target), self._pointer(source)]) if target.size else None
        if places is not None:
            self.calls.append(CopyCall(places[0], places[1], target.nbytes))


LINE = 64


class _Local(threading.local):
    """The recording of a thread, or None."""

    recording: Recording | None = None


_local = _Local()


def current() -> Recording | None:
    """Return the recording of this thread, or None if it does not record."""
    return _local.recording


def use_memory(memory: Array) -> Array:
    """Return memory that the calls of a step use besides its arrays; the current recording, if any, keeps it alive."""
    if _local.recording is not None:
        _local.recording.use_memory([memory])
    return memory


def mark_incomplete() -> None:
    """Mark the current recording, if any, as incomplete: the step does work that is no native call."""
    if _local.recording is not None:
        _local.recording.is_complete = False


@contextmanager
def expect_calls() -> Iterator[None]:
    """Mark the current recording, if any, as incomplete if no native call is made inside the context."""
    recording = _local.recording
    count = 0 if recording is None else len(recording.calls)
    yield
    if recording is not None and len(recording.calls) == count:
        recording.is_complete = False


@contextmanager
def recording_to(recording: Recording) -> Iterator[Recording]:
    """Record the native calls of this thread inside the context."""
    outer, _local.recording = _local.recording, recording
    try:
        yield recording
    finally:
        _local.recording = outer
