"""Storage of a server: values as NumPy arrays, summed by several threads, and optimizers that update them.

A value is updated in place, unless somebody still reads it: an answer that is on its way to a worker holds a *lease* on
the memory, and an update that finds one makes a copy first.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flowmx import ndarray as nd
from flowmx import settings
from flowmx.comm.buffers import fresh
from flowmx.comm.frames import Tensor
from flowmx.kvstore.rows import ByRows
from flowmx.kvstore.shards import Key
from flowmx.ndarray import NDArray
from flowmx.optimizer import states as states_file
from flowmx.optimizer.base import from_config
from flowmx.optimizer.updater import Updater, arrays_in

__all__ = ["SMALL", "Array", "Slice", "States", "Store", "Value", "as_array", "join", "name_of", "owned", "shape_of"]

Array: TypeAlias = npt.NDArray[Any]

Slice: TypeAlias = tuple[Array, int, int, tuple[int, ...]]
"""An array within a longer one of one dimension: that, where it begins and ends there, and its shape."""


def as_array(found: Array | Slice) -> Array:
    """The array that a slice stands for; any other is itself."""
    if isinstance(found, tuple):
        base, start, stop, shape = found
        return base[start:stop].reshape(shape)
    return found


def shape_of(found: Array | Slice) -> tuple[int, ...]:
    """The shape of an array, or of the one that a slice stands for."""
    return found[3] if isinstance(found, tuple) else found.shape


def join(found: Sequence[Array | Slice]) -> Array:
    """Arrays, one after the other, as one of one dimension; where they lie like that already it is no copy."""
    pieces = [each for each in found if isinstance(each, tuple)]
    follow = all(a[0] is b[0] and a[2] == b[1] for a, b in pairwise(pieces))
    if pieces and follow and len(pieces) == len(found):
        return pieces[0][0][pieces[0][1] : pieces[-1][2]]
    return np.concatenate([as_array(each).reshape(-1) for each in found])


def owned(array: Array | ByRows) -> Array | ByRows:
    """The array, or a copy of one that lies in a worker's memory, which is read-only."""
    if isinstance(array, ByRows):
        return array
    return array if array.flags.writeable else _copied(array)


SMALL = 64 << 10
"""Bytes up to which a sum is made at once, on the event loop: it takes less than a hop to a thread."""

_AT_ONCE = 1 << 18
"""Elements up to which many sums are made at once."""

_BLOCK = 1 << 16
"""Elements that are summed over all workers before the next: they stay in the cache."""


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """NumPy's name of a dtype, which NumPy itself takes microseconds to find."""
    return dtype.name


class States(bytes):
    """The states of a part's optimizer, as ``Updater.get_states`` gives them."""

    def check(self) -> States:
        """Check and return them.

        Raises:
            StatesFormatError: they are something else, or damaged.
        """
        states_file.loads(self)
        return self


_NO_STATES = States()


@dataclass(slots=True)
class Value:
    """The content of a part.

    Attributes:
        array: C-contiguous; nobody but the store writes to it.
        updater: the optimizer and its states, once there was an update.
        version: of the configuration that the updater was made from.
        weight: the array as the optimizer takes it.
        states: those that wait for the updater to be made.
        read: what everybody holds who reads the array's memory.
        lies: the array of one dimension that it is part of, if it is, and where it begins there.
    """

    array: Array
    updater: Updater | None = None
    version: int = 0
    weight: NDArray | None = None
    states: States = _NO_STATES
    read: weakref.ref[Array] | None = None
    lies: tuple[Array, int] | None = None

    def place(self) -> tuple[Array, int]:
        """An array of one dimension that has the value, and where it begins there."""
        if self.lies is None:
            self.lies = self.array.reshape(-1), 0
        return self.lies

    def lease(self) -> Tensor:
        """The array as a tensor whose content stays as it is for as long as the tensor is referenced."""
        view = None if self.read is None else self.read()
        if view is None:
            flat = self.array.reshape(-1).view(np.uint8)
            view = np.frombuffer(flat, np.uint8) if flat.size else np.empty(0, np.uint8)
            self.read = weakref.ref(view)
        return Tensor(name_of(self.array.dtype), self.array.shape, view.data)

    def is_leased(self) -> bool:
        """True while an answer still reads the array."""
        return self.read is not None and self.read() is not None

    def rows(self, ids: Array) -> Array:
        """A copy of some rows.

        Raises:
            ValueError: there are no such rows.
        """
        if not self.array.ndim or ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(
                f"row ids must be a list of ints for an array with rows; these are {ids.dtype} {ids.shape} "
                f"for an array of shape {self.array.shape}"
            )
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.array):
            raise ValueError(f"row ids from {ids.min()} to {ids.max()} of an array that has {len(self.array)} rows")
        return self.array[ids]

    def get_states(self) -> States:
        """The optimizer's states; empty where there are none."""
        return self.states if self.updater is None else States(self.updater.get_states())


class Store:
    """Sums and updates.

    Args:
        threads: that sum big arrays; by default ``FLOWMX_KVSTORE_REDUCTION_NTHREADS``.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = settings.get().kvstore_reduction_nthreads if threads is None else threads
        self.pool = ThreadPoolExecutor(self.threads, "flowmx-kvserver")
        self._config: Mapping[str, Any] | None = None
        self._version = 0
        self._quiet = contextvars.Context()  # what overflows shows as such
        self._quiet.run(np.seterr, all="ignore")

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def use(self, config: Mapping[str, Any] | None) -> None:
        """Set the optimizer, by its ``Optimizer.get_config`` (None: sums replace values).

        Raises:
            ValueError: it does not describe any optimizer that exists here.
        """
        if config is not None:
            check_optimizer(config)
        if config != self._config:
            self._config = config
            self._version += 1

    @property
    def updates(self) -> bool:
        """True if an optimizer is set."""
        return self._config is not None

    def is_small(self, gradients: Sequence[Array]) -> bool:
        """Tell whether computing a sum takes less time than waking a thread."""
        alone = len(gradients) == 1 and gradients[0].flags.writeable
        return alone or gradients[0].nbytes <= SMALL

    def merge_now(self, gradients: Sequence[Array]) -> Array:
        """The sum of gradients in this order, made in the memory of the first unless that is a worker's."""
        first, *rest = gradients
        total = first if first.flags.writeable else _copied(first)
        for gradient in rest:
            self._quiet.run(np.add, total, gradient, total)
        return total

    def are_small(self, gradients: Sequence[Sequence[Array | Slice]]) -> bool:
        """Tell whether the sums of many parts are small enough to be computed at once, in the calling thread."""
        return sum([_size(found[0]) for found in gradients]) <= _AT_ONCE

    def merge_all(self, gradients: Sequence[Sequence[Array | Slice]]) -> list[Array | Slice]:
        """As :meth:`merge_now` for many parts; slices that follow each other for all workers are summed at once."""
        first = 0
        for part in range(1, len(gradients) + 1):
            if part == len(gradients) or not _follow(gradients[part - 1], gradients[part]):
                self.merge_now([_span(*ends) for ends in zip(gradients[first], gradients[part - 1], strict=True)])
                first = part
        return [found[0] for found in gradients]

    async def merge(self, gradients: Sequence[Sequence[Array]]) -> list[Array]:
        """As :meth:`merge_now` for each of many parts, by threads.

        Elements are independent, so that any number of threads comes to the same bits.
        """
        totals = [found[0] if found[0].flags.writeable else _like(found[0]) for found in gradients]
        sums = [
            (total.reshape(-1), [each.reshape(-1) for each in found])
            for total, found in zip(totals, gradients, strict=True)
        ]
        loop = asyncio.get_running_loop()
        shares = _shares(sums, self.threads)
        await asyncio.gather(*[loop.run_in_executor(self.pool, _sum_all, share) for share in shares])
        return totals

    def update(self, key: Key, value: Value, merged: Any) -> Value | Coroutine[Any, Any, Value]:
        """The value after an update, or a coroutine for it where it takes longer; the given one is used up.

        Without an optimizer this is the sum of what was pushed, as in MXNet.

        Raises:
            Exception: what the optimizer raises.
        """
        if isinstance(merged, States):
            return Value(value.array, weight=value.weight, states=merged, read=value.read)
        if isinstance(merged, ByRows) and (self._config is None or 0 in merged.shape):
            merged = merged.dense()
        if self._config is None:
            return _replaced(merged)
        if value.updater is None or value.version != self._version:
            value.updater, value.version = self._make_updater(key, value), self._version
        weight = value.weight
        if weight is None or value.is_leased():
            weight = nd.from_numpy(_copied(value.array))
        if isinstance(merged, ByRows) and not value.updater.optimizer.by_rows:
            merged = merged.dense()
        value.updater(key, _gradient(merged), weight)
        changed = [weight, *arrays_in(list(value.updater.states.values()))]
        if all(map(_is_there, changed)):
            return Value(weight._host(), value.updater, self._version, weight)
        return _when_updated(value.updater, self._version, changed)

    def replace(self, merged: Sequence[Array | Slice]) -> list[Value] | None:
        """The values of many parts where sums take their place; None where there is an optimizer."""
        return None if self._config is not None else [_replaced(each) for each in merged]

    def _make_updater(self, key: Key, value: Value) -> Updater:
        """The updater of the current configuration; it continues from the present states where these fit."""
        # A part has an updater of its own, so that its counts are the same whatever other parts are on the server.
        assert self._config is not None
        made, before = Updater(from_config(self._config)), value.updater
        if before is None and value.states:
            made.set_states(value.states)
        elif before is not None and type(before.optimizer) is type(made.optimizer):
            made.states = before.states
            made.optimizer.set_progress(before.optimizer.progress())
        if key in made.states:
            wanted = made.optimizer.create_state_multi_precision(key, nd.from_numpy(_copied(value.array)))
            made.states = made.states if _alike(made.states[key], wanted) else {}
        return made


def _gradient(merged: Array | Slice | ByRows) -> NDArray:
    """A sum as optimizers take it: row_sparse where rows were pushed, so that they may update these alone."""
    if isinstance(merged, ByRows):
        return nd.sparse.row_sparse_array((merged.rows, merged.numbers), merged.shape, dtype=merged.rows.dtype)
    return nd.from_numpy(_writable(as_array(merged)))


def _size(found: Array | Slice) -> int:
    return found[2] - found[1] if isinstance(found, tuple) else found.size


def _span(first: Array | Slice, last: Array | Slice) -> Array:
    """The array from the first slice's start to the last one's end."""
    if first is not last and isinstance(first, tuple) and isinstance(last, tuple):
        return first[0][first[1] : last[2]]
    return as_array(first)


def _follow(before: Sequence[Array | Slice], after: Sequence[Array | Slice]) -> bool:
    """Tell whether each of some ranges begins where the corresponding one before it ends, in the same memory."""
    if len(before) != len(after):
        return False
    for a, b in zip(before, after, strict=True):
        if not isinstance(a, tuple) or not isinstance(b, tuple) or a[0] is not b[0] or a[2] != b[1]:
            return False
    return True


def _replaced(merged: Array | Slice) -> Value:
    """The value that a sum becomes."""
    if isinstance(merged, tuple):
        base, start, stop, shape = merged
        return Value(base[start:stop].reshape(shape), None, 0, None, _NO_STATES, None, (base, start))
    return Value(merged)


async def _when_updated(updater: Updater, version: int, changed: list[NDArray]) -> Value:
    for array in changed:
        await array
    return Value(changed[0]._host(), updater, version, changed[0])


def _is_there(array: NDArray) -> bool:
    # Small operations run at their push; the wait raises what failed.
    return array.variable.writer is None and array.variable.failure is None


def check_optimizer(config: Mapping[str, Any]) -> None:
    """Check that a description makes an optimizer.

    Raises:
        ValueError: it does not; the message says why.
    """
    try:
        made = from_config(config).get_config()
        unknown = [
            f"{name}.{key}" for name in ("attributes", "tables") for key in config[name].keys() - made[name].keys()
        ]
    except Exception as error:
        raise ValueError(f"this describes no optimizer ({type(error).__name__}: {error})") from error
    if unknown:
        raise ValueError(f"this describes no optimizer: it has no {', '.join(sorted(unknown))}")


def _alike(state: Any, other: Any) -> bool:
    """Tell whether two optimizer states have the same structure and shapes."""
    if isinstance(state, (tuple, list)):
        same = type(state) is type(other) and len(state) == len(other)
        return same and all(map(_alike, state, other))
    return getattr(state, "shape", None) == getattr(other, "shape", None) and (state is None) == (other is None)


_Sum: TypeAlias = tuple[Array, Sequence[Array]]
"""The target of a sum, which may be its first term, and the terms; all 1-dimensional."""


def _shares(sums: Sequence[_Sum], threads: int) -> list[list[_Sum]]:
    """Split sums into about equal shares for so many threads."""
    most = max(-(-sum(total.size for total, _ in sums) // threads), _BLOCK)
    shares: list[list[_Sum]] = [[]]
    room = most
    for total, terms in sums:
        start = 0
        while start < total.size:
            stop = min(start + room, total.size)
            shares[-1].append((total[start:stop], [each[start:stop] for each in terms]))
            room -= stop - start
            start = stop
            if not room:
                shares.append([])
                room = most
    return [share for share in shares if share]


def _sum_all(sums: Sequence[_Sum]) -> None:
    with np.errstate(all="ignore"):  # what overflows shows as such
        for total, (first, *rest) in sums:
            if not rest:
                np.copyto(total, first)
            for start in range(0, total.size if rest else 0, _BLOCK):
                block = slice(start, start + _BLOCK)
                so_far = first[block]
                for other in rest:
                    so_far = np.add(so_far, other[block], out=total[block])


def _writable(array: Array) -> Array:
    return array if array.flags.writeable and array.flags.c_contiguous else np.array(array)


def _like(array: Array) -> Array:
    if not array.size:
        return np.empty_like(array)
    return np.frombuffer(fresh(array.nbytes), np.uint8).view(array.dtype).reshape(array.shape)


def _copied(array: Array) -> Array:
    copy = _like(array)
    np.copyto(copy, array)
    return copy
