"""Primitives that together compute an operator, and their workspace.

Copies and scratch memory lie in a workspace, whose layout is fixed before anything runs: a bound graph plans it,
otherwise it belongs to the thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from flowmx import settings
from flowmx.bounded_tables import make_room
from flowmx.ops.kernels.onednn.layouts import Array, Desc, Geometry, library_or_raise, pointer
from flowmx.ops.kernels.onednn.library import OneDNNError, library
from flowmx.ops.kernels.onednn.primitives import LINE, Bound, Call, Primitive, Reorder, WorkspaceLayout
from flowmx.ops.kernels.recording import current, use_memory

_PLAN_KIB = 100
"""The approximate size of a computation's machine code and tables, in KiB."""
_SHARE = 4
"""The share of the memory for compiled graphs that computations outside bound graphs may use: a quarter."""
_MIN_PLANS = 256
_WORTH_THREADS_NS = 50_000
"""The approximate time on one core from which several threads pay off: they synchronize at barriers, and must be woken
if the last computation was some time ago."""
_NS_PER_ELEMENT, _PRODUCTS_PER_NS = 0.5, 30
_KEPT_BYTES = 1 << 26
"""The largest workspace that a thread keeps, in bytes."""


class _ThreadMemory(threading.local):
    """A thread's workspace."""

    def __init__(self) -> None:
        self.memory: Array = np.empty(0, np.uint8)


_thread = _ThreadMemory()


def workspace_memory(nbytes: int) -> Array:
    """Return uninitialized bytes for one computation: the thread's workspace, or new memory if it is too large.

    A recorded computation gets new memory, since it runs later on any thread.
    """
    if current() is not None:
        return use_memory(np.empty(nbytes, np.uint8))
    if _thread.memory.nbytes >= nbytes:
        return _thread.memory
    memory = np.empty(nbytes, np.uint8)
    if nbytes <= _KEPT_BYTES:
        _thread.memory = memory
    return memory


def first_line(memory: Array) -> int:
    """Return the first address in an array that is aligned to a cache line."""
    return -(-pointer(memory) // LINE) * LINE


class Work:
    """The primitives that compute one operator for one geometry of its arrays, run in order.

    Attributes:
        workspace: the layout of their workspace.
        threads: the number of threads, set when the work was made.
        constants: arrays whose addresses the calls contain.
    """

    def __init__(self) -> None:
        self.workspace = WorkspaceLayout()
        self.constants: list[Array] = []
        self.threads = library_or_raise().threads()

    @staticmethod
    def nanoseconds(*key: object) -> float:
        """Estimate the time on one core from the key; infinite if unknown."""
        return math.inf

    @property
    def nbytes(self) -> int:
        """The workspace size in bytes, for any start address."""
        return self.workspace.nbytes + LINE if self.workspace.nbytes else 0

    def calls(self, base: int, *addresses: int) -> Sequence[Call]:
        """Return the calls to run, for arrays at these addresses and a workspace at ``base``."""
        raise NotImplementedError

    def __call__(self, *addresses: int) -> None:
        """Run now, in the thread's workspace."""
        memory = workspace_memory(self.nbytes)
        record_constants(self)
        run_all(self.calls(first_line(memory), *addresses), self.threads)


def record_constants(work: Work) -> None:
    """Add the constants of a work to the memory of the current recording, if any."""
    recording = current()
    if recording is not None:
        recording.use_memory(work.constants)


def run_all(calls: Iterable[Call], threads: int) -> None:
    """Run primitives in order, with the number of threads for which they were made."""
    if current() is not None:  # a recording needs calls that nobody else uses
        call_all([primitive.call(where) for primitive, where in calls], threads)
        return
    lib = library_or_raise()
    before = lib.threads()
    if before != threads:
        lib.use_threads(threads)
    try:
        for primitive, where in calls:
            primitive.run(where)
    finally:
        if before != threads:
            lib.use_threads(before)


def call_all(calls: Sequence[Bound], threads: int) -> None:
    """Run bound calls in order, with the number of threads for which they were made."""
    recording = current()
    lib = library_or_raise()
    before = lib.threads()
    if before != threads:
        lib.use_threads(threads)
    try:
        for each in calls:
            if recording is not None:
                each.record(recording, threads)
            each()
    finally:
        if before != threads:
            lib.use_threads(before)


_APART = 1 << 48
"""The distance in bytes between the addresses that represent arguments. Real addresses, of constants, are smaller."""


class FixedWork:
    """A work with precomputed calls: the argument and offset of each of their addresses.

    Args:
        work: the work, whose calls must not depend on the addresses.
        count: the number of arguments.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._work = work  # keeps its primitives alive
        self._nbytes, self._threads = work.nbytes, work.threads
        self._calls = [
            (runs, tuple([(address // _APART - 1, address % _APART) for address in where]))
            for runs, where in work.calls(*[_APART * (number + 1) for number in range(count + 1)])
        ]

    def __call__(self, *addresses: int) -> None:
        """Run now, in the thread's workspace."""
        memory = workspace_memory(self._nbytes) if self._nbytes else None
        places = (0 if memory is None else first_line(memory), *addresses, 0)  # constants: the last place
        record_constants(self._work)
        run_all(
            [(runs, tuple([places[which] + offset for which, offset in where])) for runs, where in self._calls],
            self._threads,
        )


def move_time_ns(*arrays: Geometry) -> float:
    """Estimate the nanoseconds to move the elements of arrays."""
    return _NS_PER_ELEMENT * sum(math.prod(each.shape) for each in arrays)


def multiply_time_ns(count: int) -> float:
    """Estimate the nanoseconds of this many multiplications and additions."""
    return count / _PRODUCTS_PER_NS


class Operand:
    """An argument whose layout may differ from the primitive's: then a copy replaces it."""

    def __init__(
        self, workspace: WorkspaceLayout, actual: Desc, required: Desc, is_output: bool = False,
        scale: tuple[int, Desc] | None = None,
    ) -> None:  # fmt: skip
        """Make a copy if the layouts differ.

        Args:
            workspace: the workspace layout, for the copy.
            actual: the layout of the argument.
            required: the primitive's layout.
            is_output: whether the primitive writes it.
            scale: the scale of an input, as in :class:`Reorder`.
        """
        self._copy: Reorder | None = None
        if actual != required or scale is not None:
            self._copy = (
                Reorder(workspace, required, actual) if is_output else Reorder(workspace, actual, required, scale)
            )
            self._offset = workspace.take(required.nbytes)

    def at(self, base: int, address: int) -> int:
        """Return the address for the primitive."""
        return address if self._copy is None else base + self._offset

    def before(self, base: int, address: int, *scale: int) -> list[Call]:
        """Return the calls that copy an input for the primitive; none if it reads the array."""
        return [] if self._copy is None else [self._copy.at(base, address, base + self._offset, *scale)]

    def after(self, base: int, address: int) -> list[Call]:
        """Return the calls that copy an output from the primitive; none if it wrote the array."""
        return [] if self._copy is None else [self._copy.at(base, base + self._offset, address)]


def with_copies(run: Primitive, source: Operand, target: Operand, base: int, addresses: Sequence[int]) -> list[Call]:
    """Return a call on an input, an output and further arguments, with the copies before and after it."""
    input_address, output_address, *extra = addresses
    return [
        *source.before(base, input_address),
        run.at(base, source.at(base, input_address), target.at(base, output_address), *extra),
        *target.after(base, output_address),
    ]


Plan = TypeVar("Plan", bound=Work)
_plans: dict[object, Any] = {}


def plan(kind: type[Plan], *key: object) -> Plan | None:
    """Return ``kind(*key)``, cached; None if oneDNN has no implementation, or an array is empty.

    Only threads with the same number of OpenMP threads as the calling one may run it. Small works take one thread.
    """
    lib = library()
    if lib is None:
        return None
    full_key = (lib.threads(), kind, *key)
    try:
        return _plans[full_key]  # type: ignore[no-any-return]
    except KeyError:
        pass
    # Without a lock: a signal handler could interrupt the holder and wait for an operation that needs the lock.
    # Occasionally a plan is made twice.
    is_empty = any(isinstance(each, Geometry) and 0 in each.shape for each in key)
    threads = lib.threads()
    is_small = not is_empty and threads > 1 and kind.nanoseconds(*key) < _WORTH_THREADS_NS
    try:
        if is_small:
            lib.use_threads(1)
        work = None if is_empty else kind(*key)
    except OneDNNError:
        work = None
    finally:
        if is_small:
            lib.use_threads(threads)
    make_room(_plans, max(_MIN_PLANS, (settings.get().graph_cache << 10) // (_SHARE * _PLAN_KIB)))
    cached: Plan | None = _plans.setdefault(full_key, work)
    return cached
