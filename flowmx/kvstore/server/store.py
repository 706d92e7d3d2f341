"""Storage of a server: values as NumPy arrays, sums by several threads, and updates by optimizers.

A value is updated in place, unless it is still being read: a response that is being sent holds a *lease* on the memory,
and an update of a leased value makes a copy first.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowmx import ndarray as nd
from flowmx import settings
from flowmx.comm.buffers import allocate
from flowmx.comm.frames import Tensor
from flowmx.kvstore.row_sparse_wire import RowSparseGradient
from flowmx.kvstore.server.missing_push import MissingPush, check_round
from flowmx.kvstore.server.optimizers import InstalledOptimizer, Optimizers
from flowmx.kvstore.shards import Key
from flowmx.kvstore.spaces import PLAIN, local_key
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.optimizer import states_file
from flowmx.optimizer.base_optimizer import from_config
from flowmx.optimizer.update_counts import set_progress
from flowmx.optimizer.updater import Updater, arrays_in

__all__ = [
    "SMALL",
    "Array",
    "OrderedGradient",
    "Slice",
    "States",
    "Store",
    "Value",
    "as_array",
    "ensure_writable",
    "join",
    "name_of",
    "shape_of",
]


Slice: TypeAlias = tuple[Array, int, int, tuple[int, ...]]
"""An array within a longer 1-dimensional array: that array, the start and end, and the shape."""


def as_array(array: Array | Slice) -> Array:
    """Return the array of a slice; return other arrays unchanged."""
    if isinstance(array, tuple):
        base, start, stop, shape = array
        return base[start:stop].reshape(shape)
    return array


def shape_of(array: Array | Slice) -> tuple[int, ...]:
    """Return the shape of an array or a slice."""
    return array[3] if isinstance(array, tuple) else array.shape


def join(arrays: Sequence[Array | Slice]) -> Array:
    """Concatenate flattened arrays; adjacent slices of one array are not copied."""
    pieces = [array for array in arrays if isinstance(array, tuple)]
    follow = all(a[0] is b[0] and a[2] == b[1] for a, b in pairwise(pieces))
    if pieces and follow and len(pieces) == len(arrays):
        return pieces[0][0][pieces[0][1] : pieces[-1][2]]
    return np.concatenate([as_array(array).reshape(-1) for array in arrays])


def ensure_writable(array: Array | RowSparseGradient) -> Array | RowSparseGradient:
    """Return a writable array: copy an array in a worker's memory, which is read-only."""
    if isinstance(array, RowSparseGradient):
        return array
    return array if array.flags.writeable else _copy(array)


SMALL = 64 << 10
"""Sums of at most this many bytes are computed on the event loop: that is faster than waking a thread."""

_AT_ONCE = 1 << 18
"""Several sums of at most this many elements in total are computed on the event loop."""

_BLOCK = 1 << 16
"""Elements that are summed over all workers at a time: they stay in the cache."""


@cache
def name_of(dtype: DType) -> str:
    """Return NumPy's name of a dtype; cached, since NumPy takes microseconds to compute it."""
    return dtype.name


class OrderedGradient(NamedTuple):
    """A gradient, or a sum, with the optimizer's state before it in the order of one process."""

    gradient: Any
    before: Sequence[Any]


class States(bytes):
    """The states of a part's optimizer, as ``Updater.get_states`` returns them."""

    def check(self) -> States:
        """Check and return them.

        Raises:
            StatesFormatError: the bytes have a different format, or are damaged.
        """
        states_file.loads(self)
        return self


_NO_STATES = States()
KIND = "kind"
"""Key in the progress of an earlier job's states: the name of their optimizer."""


@dataclass(slots=True)
class Value:
    """The content of a part.

    Attributes:
        array: C-contiguous; only the store writes to it.
        updater: the optimizer and its states, once there was an update.
        installed: the optimizer that the updater was made from.
        weight: the array as an NDArray for the optimizer.
        states: states that wait for the updater.
        view: a weak reference to the view that all readers of the array's memory hold.
        flat: the 1-dimensional array that contains the value and the start in it, if known.
        failure: why the last round failed; empty if it did not.
    """

    array: Array
    updater: Updater | None = None
    installed: InstalledOptimizer | None = None
    weight: NDArray | None = None
    states: States = _NO_STATES
    view: weakref.ref[Array] | None = None
    flat: tuple[Array, int] | None = None
    failure: str = ""

    def place(self) -> tuple[Array, int]:
        """Return a 1-dimensional array that contains the value, and the start of the value in it."""
        if self.flat is None:
            self.flat = self.array.reshape(-1), 0
        return self.flat

    def lease(self) -> Tensor:
        """Return the array as a tensor whose content does not change while the tensor is referenced."""
        view = None if self.view is None else self.view()
        if view is None:
            flat = self.array.reshape(-1).view(np.uint8)
            view = np.frombuffer(flat, np.uint8) if flat.size else np.empty(0, np.uint8)
            self.view = weakref.ref(view)
        return Tensor(name_of(self.array.dtype), self.array.shape, view.data)

    def content(self) -> Tensor:
        """Return the array, as :meth:`lease` does.

        Raises:
            Refused: the last round failed.
        """
        check_round(self.failure)
        return self.lease()

    def is_leased(self) -> bool:
        """True while a response still reads the array."""
        return self.view is not None and self.view() is not None

    def rows(self, ids: Array) -> Array:
        """Return a copy of some rows.

        Raises:
            Refused: the last round failed.
            ValueError: a row number is out of range, or `ids` is not a list of ints.
        """
        check_round(self.failure)
        if not self.array.ndim or ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(
                f"row ids are {ids.dtype} {ids.shape} for an array of shape {self.array.shape}, expected a list of "
                "ints for an array with rows"
            )
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.array):
            raise ValueError(
                f"row ids from {ids.min()} to {ids.max()} are out of range: the array has {len(self.array)} rows"
            )
        return self.array[ids]

    def get_states(self) -> States:
        """Return the optimizer's states; empty without an optimizer."""
        return self.states if self.updater is None else States(self.updater.get_states())


class Store:
    """Computes sums and updates.

    Args:
        threads: the number of threads that sum big arrays; by default ``FLOWMX_KVSTORE_REDUCTION_NTHREADS``.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = settings.get().kvstore_reduction_nthreads if threads is None else threads
        self.pool = ThreadPoolExecutor(self.threads, "flowmx-kvserver")
        self._optimizers = Optimizers()
        self._quiet = contextvars.Context()  # an overflow is visible in the result
        self._quiet.run(np.seterr, all="ignore")

    def close(self) -> None:
        """Stop the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def use(self, config: Mapping[str, object] | None, space: str = PLAIN, number: int = 0) -> None:
        """Set the optimizer of a key space, by its ``Optimizer.get_config`` (None: sums replace values).

        Args:
            config: the description.
            space: the key space.
            number: the number of the call of ``set_optimizer``: under a new one, counts and states start over.

        Raises:
            ValueError: the description is invalid, or the optimizer is unknown here.
        """
        self._optimizers.use(config, space, number)

    def has_optimizer(self, key: Key) -> bool:
        """Return whether an optimizer is set for a key."""
        return self._optimizers.of(key) is not None

    def count(self, key: Key, value: Value) -> int:
        """Return how often the current optimizer has updated a part."""
        installed = self._optimizers.of(key)
        if installed is None:
            return 0
        if value.updater is None and value.states:
            value.updater, value.installed = _updater(local_key(key), value, installed), installed
        initial_count = int(installed.config["attributes"].get("begin_num_update", 0))
        if value.updater is None or not _is_same(value.installed, installed):
            return initial_count
        return value.updater.optimizer._index_update_count.get(local_key(key), initial_count)

    def is_small(self, gradients: Sequence[Array]) -> bool:
        """Return whether computing a sum takes less time than waking a thread."""
        is_single = len(gradients) == 1 and gradients[0].flags.writeable
        return is_single or gradients[0].nbytes <= SMALL

    def merge_now(self, gradients: Sequence[Array]) -> Array:
        """Return the sum of gradients in this order, in the memory of the first one unless that is a worker's."""
        first, *rest = gradients
        total = first if first.flags.writeable else _copy(first)
        for gradient in rest:
            self._quiet.run(np.add, total, gradient, total)
        return total

    def are_small(self, gradients: Sequence[Sequence[Array | Slice]]) -> bool:
        """Return whether the sums of many parts are small enough to be computed in the calling thread."""
        return sum([_size(terms[0]) for terms in gradients]) <= _AT_ONCE

    def merge_all(self, gradients: Sequence[Sequence[Array | Slice]]) -> list[Array | Slice]:
        """Sum the gradients of many parts as :meth:`merge_now`; slices adjacent for all workers are summed together."""
        first = 0
        for part in range(1, len(gradients) + 1):
            if part == len(gradients) or not _are_adjacent(gradients[part - 1], gradients[part]):
                self.merge_now([_span(*ends) for ends in zip(gradients[first], gradients[part - 1], strict=True)])
                first = part
        return [terms[0] for terms in gradients]

    async def merge(self, gradients: Sequence[Sequence[Array]]) -> list[Array]:
        """Sum the gradients of many parts as :meth:`merge_now`, on threads.

        Elements are independent, so the bits do not depend on the number of threads.
        """
        totals = [terms[0] if terms[0].flags.writeable else _empty_like(terms[0]) for terms in gradients]
        sums = [
            (total.reshape(-1), [term.reshape(-1) for term in terms])
            for total, terms in zip(totals, gradients, strict=True)
        ]
        loop = asyncio.get_running_loop()
        shares = _shares(sums, self.threads)
        await asyncio.gather(*[loop.run_in_executor(self.pool, _sum_all, share) for share in shares])
        return totals

    def update(self, key: Key, value: Value, merged: Any) -> Value | Coroutine[Any, Any, Value]:
        """Return the value after an update, or a coroutine for it if it takes longer.

        The old value must not be used again.
        Without an optimizer the new value is the sum of the pushed gradients, as in MXNet.

        Raises:
            Exception: the optimizer raised it.
        """
        if isinstance(merged, MissingPush):
            return replace(value, failure=merged.why)
        before: Sequence[Any] = ()
        if isinstance(merged, OrderedGradient):
            merged, before = merged
        if isinstance(merged, States):
            return Value(value.array, weight=value.weight, states=merged, view=value.view)
        installed = self._optimizers.of(key)
        if isinstance(merged, RowSparseGradient) and (installed is None or 0 in merged.shape):
            merged = merged.dense()
        if installed is None:
            return _value_of_sum(merged)
        if value.updater is None or value.installed is not installed:
            value.updater, value.installed = _updater(local_key(key), value, installed), installed
        if before:
            set_progress(value.updater.optimizer, before)
        weight = value.weight
        if weight is None or value.is_leased():
            weight = nd.from_numpy(_copy(value.array))
        if isinstance(merged, RowSparseGradient) and not value.updater.optimizer.by_rows:
            merged = merged.dense()
        value.updater(local_key(key), _gradient(merged), weight)
        changed = [weight, *arrays_in(list(value.updater.states.values()))]
        if all(map(_is_ready, changed)):
            return Value(weight._host(), value.updater, installed, weight)
        return _wait_for_update(value.updater, installed, changed)

    def replace(self, merged: Sequence[Array | Slice]) -> list[Value] | None:
        """Return the new values of many parts if sums replace them; None if there is an optimizer."""
        return None if self._optimizers else [_value_of_sum(total) for total in merged]


def _updater(index: Key, value: Value, installed: InstalledOptimizer) -> Updater:
    """Make the updater of an optimizer; it keeps the current states if the optimizer is the same one."""
    # Each part has a separate updater, so that its counts do not depend on other parts on the server.
    updater, old = Updater(from_config(installed.config)), value.updater
    if old is None and value.states:
        kind = states_file.loads(value.states).progress.get(KIND, "")
        if kind in ("", installed.config["optimizer"]):
            updater.set_states(value.states)
    elif old is not None and _is_same(value.installed, installed) and type(old.optimizer) is type(updater.optimizer):
        updater.states = old.states
        updater.optimizer.set_progress(old.optimizer.progress())
    if index in updater.states:
        expected = updater.optimizer.create_state_multi_precision(index, nd.from_numpy(_copy(value.array)))
        updater.states = updater.states if _have_same_shapes(updater.states[index], expected) else {}
    return updater


def _is_same(old: InstalledOptimizer | None, installed: InstalledOptimizer) -> bool:
    """Return whether an optimizer is a new description of the previous one, or resumes that of an earlier job."""
    return old is not None and old.number in (0, installed.number)


def _gradient(merged: Array | Slice | RowSparseGradient) -> NDArray:
    """Return a sum as an NDArray for optimizers: row_sparse if rows were pushed, so that only these are updated."""
    if isinstance(merged, RowSparseGradient):
        return nd.sparse.row_sparse_array((merged.rows, merged.numbers), merged.shape, dtype=merged.rows.dtype)
    return nd.from_numpy(_writable(as_array(merged)))


def _size(array: Array | Slice) -> int:
    return array[2] - array[1] if isinstance(array, tuple) else array.size


def _span(first: Array | Slice, last: Array | Slice) -> Array:
    """Return the array from the start of the first slice to the end of the last one."""
    if first is not last and isinstance(first, tuple) and isinstance(last, tuple):
        return first[0][first[1] : last[2]]
    return as_array(first)


def _are_adjacent(previous: Sequence[Array | Slice], following: Sequence[Array | Slice]) -> bool:
    """Return whether each slice begins where the corresponding previous one ends, in the same memory."""
    if len(previous) != len(following):
        return False
    for a, b in zip(previous, following, strict=True):
        if not isinstance(a, tuple) or not isinstance(b, tuple) or a[0] is not b[0] or a[2] != b[1]:
            return False
    return True


def _value_of_sum(merged: Array | Slice) -> Value:
    """Make a value from a sum."""
    if isinstance(merged, tuple):
        base, start, stop, shape = merged
        return Value(base[start:stop].reshape(shape), None, None, None, _NO_STATES, None, (base, start))
    return Value(merged)


async def _wait_for_update(updater: Updater, installed: InstalledOptimizer, changed: list[NDArray]) -> Value:
    for array in changed:
        await array
    return Value(changed[0]._host(), updater, installed, changed[0])


def _is_ready(array: NDArray) -> bool:
    # Small operations run when they are pushed; waiting raises their errors.
    return array.variable.writer is None and array.variable.failure is None


def _have_same_shapes(state: Any, other: Any) -> bool:
    """Return whether two optimizer states have the same structure and shapes."""
    if isinstance(state, (tuple, list)):
        is_same = type(state) is type(other) and len(state) == len(other)
        return is_same and all(map(_have_same_shapes, state, other))
    return getattr(state, "shape", None) == getattr(other, "shape", None) and (state is None) == (other is None)


_Sum: TypeAlias = tuple[Array, Sequence[Array]]
"""The target of a sum, which may be its first term, and the terms; all 1-dimensional."""


def _shares(sums: Sequence[_Sum], threads: int) -> list[list[_Sum]]:
    """Split sums into about equal shares for threads."""
    share_size = max(-(-sum(total.size for total, _ in sums) // threads), _BLOCK)
    shares: list[list[_Sum]] = [[]]
    room = share_size
    for total, terms in sums:
        start = 0
        while start < total.size:
            stop = min(start + room, total.size)
            shares[-1].append((total[start:stop], [term[start:stop] for term in terms]))
            room -= stop - start
            start = stop
            if not room:
                shares.append([])
                room = share_size
    return [share for share in shares if share]


def _sum_all(sums: Sequence[_Sum]) -> None:
    with np.errstate(all="ignore"):  # an overflow is visible in the result
        for total, (first, *rest) in sums:
            if not rest:
                np.copyto(total, first)
            for start in range(0, total.size if rest else 0, _BLOCK):
                block = slice(start, start + _BLOCK)
                partial_sum = first[block]
                for other in rest:
                    partial_sum = np.add(partial_sum, other[block], out=total[block])


def _writable(array: Array) -> Array:
    return array if array.flags.writeable and array.flags.c_contiguous else np.array(array)


def _empty_like(array: Array) -> Array:
    if not array.size:
        return np.empty_like(array)
    return np.frombuffer(allocate(array.nbytes), np.uint8).view(array.dtype).reshape(array.shape)


def _copy(array: Array) -> Array:
    copy = _empty_like(array)
    np.copyto(copy, array)
    return copy
