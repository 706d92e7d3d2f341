"""Primitives that together compute an operator, and the workspace that they need.

Copies and scratch memory lie in a workspace, whose layout is known before anything runs: a bound graph plans it,
elsewhere it belongs to the thread.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from flowmx.ops.kernels.onednn.layouts import Array, Desc, Geometry, loaded, pointer
from flowmx.ops.kernels.onednn.library import OneDNNError, library
from flowmx.ops.kernels.onednn.primitives import LINE, Bound, Call, Primitive, Reorder, Room

_KEPT_PLANS = 256
"""Computations that are kept besides those of bound graphs: each has machine code and tables, about 100 KiB."""
_WORTH_THREADS_NS = 50_000
"""The time on one core, about, from which several threads pay for a computation: they wait for each other at barriers
and have to be woken where the last computation was some time ago."""
_NS_AN_ELEMENT, _PRODUCTS_A_NS = 0.5, 30
_KEPT_BYTES = 1 << 26
"""Bytes of a thread's workspace up to which it is kept."""


class _Kept(threading.local):
    """A thread's workspace."""

    def __init__(self) -> None:
        self.memory: Array = np.empty(0, np.uint8)


_kept = _Kept()


def workspace(nbytes: int) -> Array:
    """Uninitialised bytes for one computation: the thread's own, or new ones where they are too many to be kept."""
    if _kept.memory.nbytes >= nbytes:
        return _kept.memory
    made = np.empty(nbytes, np.uint8)
    if nbytes <= _KEPT_BYTES:
        _kept.memory = made
    return made


def first_line(memory: Array) -> int:
    """The first address in an array that is aligned to a cache line."""
    return -(-pointer(memory) // LINE) * LINE


class Work:
    """The primitives that compute one operator for one geometry of its arrays, run one after the other.

    Attributes:
        room: the workspace that they need.
        threads: the number of threads that they take: where it was made.
    """

    def __init__(self) -> None:
        self.room = Room()
        self.threads = loaded().threads()

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        """The time that it takes on one core, about, from what it is made of; infinite where that is not known."""
        return math.inf

    @property
    def nbytes(self) -> int:
        """The bytes of workspace, wherever it begins."""
        return self.room.nbytes + LINE if self.room.nbytes else 0

    def calls(self, base: int, *addresses: int) -> Sequence[Call]:
        """The calls to run, for arrays at these addresses and a workspace at ``base``."""
        raise NotImplementedError

    def __call__(self, *addresses: int) -> None:
        """Run it now, in a workspace of the thread's."""
        memory = workspace(self.nbytes)
        run_all(self.calls(first_line(memory), *addresses), self.threads)


def run_all(calls: Iterable[Call], threads: int) -> None:
    """Run primitives one after the other, with the number of threads for which they were made."""
    lib = loaded()
    before = lib.threads()
    if before != threads:
        lib.use_threads(threads)
    try:
        for primitive, where in calls:
            primitive.run(where)
    finally:
        if before != threads:
            lib.use_threads(before)


def call_all(calls: Iterable[Bound], threads: int) -> None:
    """The same of calls with arguments."""
    lib = loaded()
    before = lib.threads()
    if before != threads:
        lib.use_threads(threads)
    try:
        for each in calls:
            each()
    finally:
        if before != threads:
            lib.use_threads(before)


_APART = 1 << 48
"""Bytes between the addresses that stand for arguments."""


class FixedWork:
    """A work whose calls were looked up once: which argument each of their addresses is in, and how far.

    Args:
        work: the work, whose calls must be the same wherever its arguments are.
        count: how many arguments it has.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._work = work  # its primitives are used
        self._nbytes, self._threads = work.nbytes, work.threads
        self._calls = [
            (runs, tuple([(address // _APART - 1, address % _APART) for address in where]))
            for runs, where in work.calls(*[_APART * (number + 1) for number in range(count + 1)])
        ]

    def __call__(self, *addresses: int) -> None:
        """Run it now, in a workspace of the thread's."""
        memory = workspace(self._nbytes) if self._nbytes else None
        places = (0 if memory is None else first_line(memory), *addresses)
        run_all(
            [(runs, tuple([places[which] + offset for which, offset in where])) for runs, where in self._calls],
            self._threads,
        )


def moving(*arrays: Geometry) -> float:
    """The nanoseconds that it takes to move elements, about."""
    return _NS_AN_ELEMENT * sum(math.prod(each.shape) for each in arrays)


def multiplying(count: int) -> float:
    """The nanoseconds that so many multiplications and additions take, about."""
    return count / _PRODUCTS_A_NS


class Operand:
    """An argument whose layout may differ from the primitive's: then a copy takes its place."""

    def __init__(
        self, room: Room, given: Desc, wanted: Desc, is_output: bool = False, scale: tuple[int, Desc] | None = None
    ) -> None:  # fmt: skip
        """Look whether a copy is needed.

        Args:
            room: where the copy would be.
            given: how it lies.
            wanted: how it should.
            is_output: the primitive writes it.
            scale: for an input that is multiplied on the way, as :class:`Reorder` takes it.
        """
        self._copy: Reorder | None = None
        if given != wanted or scale is not None:
            self._copy = Reorder(room, wanted, given) if is_output else Reorder(room, given, wanted, scale)
            self._offset = room.take(wanted.nbytes)

    def at(self, base: int, address: int) -> int:
        """The address for the primitive."""
        return address if self._copy is None else base + self._offset

    def before(self, base: int, address: int, *scale: int) -> list[Call]:
        """The calls that copy an input to where the primitive reads it; none where it reads the array itself."""
        return [] if self._copy is None else [self._copy.at(base, address, base + self._offset, *scale)]

    def after(self, base: int, address: int) -> list[Call]:
        """The calls that copy an output from where the primitive wrote it; none where it wrote the array itself."""
        return [] if self._copy is None else [self._copy.at(base, base + self._offset, address)]


def with_copies(run: Primitive, source: Operand, target: Operand, base: int, addresses: Sequence[int]) -> list[Call]:
    """A run on an input, an output and further arguments at these addresses, between the copies that it needs."""
    given, wanted, *more = addresses
    return [
        *source.before(base, given),
        run.at(base, source.at(base, given), target.at(base, wanted), *more),
        *target.after(base, wanted),
    ]


Plan = TypeVar("Plan", bound=Work)
_plans: OrderedDict[Any, Any] = OrderedDict()


def plan(kind: type[Plan], *key: Any) -> Plan | None:
    """``kind(*key)``, made once and kept while others are asked for; None where oneDNN has no implementation of it.

    It has none for arrays without elements.

    It is to be run by threads alone that give primitives as many threads as the calling one does. Small ones take one.
    """
    found = library()
    if found is None:
        return None
    whole = (found.threads(), kind, *key)
    try:
        made = _plans[whole]
        _plans.move_to_end(whole)
        return made  # type: ignore[no-any-return]
    except KeyError:
        pass
    # No lock, whose holder a signal handler could stop that waits for an operation which wants the same: now and then
    # one is made twice.
    is_empty = any(isinstance(each, Geometry) and 0 in each.shape for each in key)
    threads = found.threads()
    is_small = not is_empty and threads > 1 and kind.nanoseconds(*key) < _WORTH_THREADS_NS
    try:
        if is_small:
            found.use_threads(1)
        made = None if is_empty else kind(*key)
    except OneDNNError:
        made = None
    finally:
        if is_small:
            found.use_threads(threads)
    while len(_plans) >= _KEPT_PLANS:
        _plans.popitem(last=False)
    kept: Plan | None = _plans.setdefault(whole, made)
    return kept
