"""Sums over devices, as operations of the engine.

Sums are added in the order of the devices, element by element, however they are cut and wherever they run: results
are the same bits as those of ``((a + b) + c) + ...`` on one device.

A big array is cut into pieces which several actors add up at the same time (the devices themselves, or threads of
their own for the CPU): each piece is gathered and added in one place, which moves as few bytes as a ring does and,
unlike a ring or a tree, keeps the order. Pieces write the same arrays, so they may not all declare that. An operation
before them declares all that is read and written and makes the arrays; each piece then reads and writes a variable
of its own, and an operation after them declares the writes again and waits for the pieces.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx import autograd, settings
from flowmx.devices import CPUDevice, Device, threads
from flowmx.engine import Actor, Operation, ThreadActor, Variable, capture
from flowmx.engine.runtime import engine
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import copy_into
from flowmx.ndarray.core import BaseArray, Storage, View, allocate
from flowmx.ops.registry.operators import LIGHT_BYTES

_BLOCK = 1 << 18
"""Bytes of each array that are added up before the next ones: what was just summed is copied on out of a cache."""


@functools.cache
def _adders(count: int) -> ThreadActor:
    return ThreadActor(f"kvstore x{count}", slots=count)


def cpu_lanes() -> list[Actor]:
    """The actor that sums on the CPU apart from the devices, once for each of its threads."""
    count = min(settings.get().kvstore_reduction_nthreads, threads.cores())
    return [_adders(count)] * count


def device_lanes(sources: Sequence[BaseArray]) -> list[Actor]:
    """The compute actors of the arrays' devices, each once."""
    return list(dict.fromkeys(each._storage.device.compute for each in sources))


def reads_directly(device: Device, other: Device) -> bool:
    """Tell whether operations of a device can read arrays of the other one; all CPU devices share their memory."""
    return device is other or (isinstance(device, CPUDevice) and isinstance(other, CPUDevice))


def brought(sources: Sequence[BaseArray], device: Device, priority: int) -> list[BaseArray]:
    """The arrays as operations of a device can read them: themselves, or enqueued copies."""
    found: list[BaseArray] = []
    for source in sources:
        target = source
        if not reads_directly(device, source._storage.device):
            target = allocate(device, source._shape, source._dtype)
            copy_into(source, target, priority)
        found.append(target)
    return found


def add_up(sources: Sequence[BaseArray], targets: Sequence[BaseArray], lanes: Sequence[Actor], priority: int) -> None:
    """Enqueue that each target becomes the sum of the sources.

    Args:
        sources: arrays of one shape and dtype, in the order to add them in.
        targets: arrays like them. The first is none of the sources; the others may be.
        lanes: the actors to share a big array; a small one is the first one's.
        priority: higher is summed earlier among what is ready.
    """
    size = math.prod(targets[0]._shape)
    nbytes = targets[0]._dtype.itemsize * size
    reads, writes = _tags(sources, targets)
    if size >= settings.get().kvstore_bigarray_bound and len(lanes) > 1:
        _add_in_pieces(sources, targets, lanes, priority, reads, writes)
    else:
        light = nbytes * (len(sources) + len(targets)) <= LIGHT_BYTES
        _push(lanes[0], _add_piece, (sources, targets, 0, 1), reads, writes, priority, light)


def is_spread(sources: Sequence[BaseArray]) -> bool:
    """Tell whether these are big arrays on devices that can not read each other's memory."""
    device = sources[0]._storage.device
    size = math.prod(sources[0]._shape)
    return size >= settings.get().kvstore_bigarray_bound and not all(
        reads_directly(device, each._storage.device) for each in sources
    )


def add_over(sources: Sequence[NDArray], target: NDArray, priority: int) -> None:
    """Enqueue a sum over devices with memory of their own: each gathers a piece from all others and adds it up.

    Args:
        sources: arrays of one shape and dtype, in the order to add them in.
        target: an array like them, on any of the devices, and none of the sources.
        priority: higher is done earlier among what is ready.
    """
    places = list(dict.fromkeys(each._storage.device for each in sources))
    size = math.prod(target._shape)
    with autograd.pause():  # slices share memory, and are no part of what is recorded
        whole, flat = target.reshape(-1), [each.reshape(-1) for each in sources]
        for index, place in enumerate(places):
            part = slice(size * index // len(places), size * (index + 1) // len(places))
            near = brought([each[part] for each in flat], place, priority)
            total = allocate(place, near[0]._shape, near[0]._dtype)
            add_up(near, [total], [place.compute], priority)
            copy_into(total, whole[part], priority)


def may_join(sources: Sequence[BaseArray], targets: Sequence[BaseArray]) -> bool:
    """Tell whether :func:`add_up` may write these targets: one dtype, accessible, no partial overlap."""
    views: dict[Storage, set[View | None]] = {}
    for each in (*sources, *targets):
        views.setdefault(each._storage, set()).add(each._view)
    return all(
        each._dtype == sources[0]._dtype
        and all(reads_directly(each._storage.device, source._storage.device) for source in sources)
        and len(views[each._storage]) == 1
        for each in targets
    )


def _tags(sources: Sequence[BaseArray], targets: Sequence[BaseArray]) -> tuple[tuple[Variable, ...], ...]:
    writes = tuple(dict.fromkeys(each._storage for each in targets))
    parts = [each for each in targets if each._view is not None]  # what a view leaves out must survive
    return tuple(dict.fromkeys(each._storage for each in (*sources, *parts))), writes


def _add_in_pieces(
    sources: Sequence[BaseArray], targets: Sequence[BaseArray], lanes: Sequence[Actor], priority: int,
    reads: tuple[Variable, ...], writes: tuple[Variable, ...],
) -> None:  # fmt: skip
    pieces = tuple(Variable(f"piece {index}") for index in range(len(lanes)))
    _push(lanes[0], _make, (targets,), reads, (*writes, *pieces), priority, light=True)
    others = tuple(each for each in reads if each not in writes)
    for index, (lane, piece) in enumerate(zip(lanes, pieces, strict=True)):
        arguments = (sources, targets, index, len(pieces))
        _push(lane, _add_piece, arguments, (*others, piece), (piece,), priority)
    _push(lanes[0], _nothing, (), pieces, writes, priority, light=True)


def _push(
    actor: Actor, function: Callable[..., Any], arguments: tuple[Any, ...], reads: tuple[Variable, ...],
    writes: tuple[Variable, ...], priority: int, light: bool = False,
) -> None:  # fmt: skip
    op = Operation(function, arguments, reads, writes, actor, "kvstore sum", capture(), 0, light)
    op.priority = priority
    engine.enqueue(op)


def _nothing() -> None:
    """End a sum in pieces: an operation without work that waits for all pieces."""


def _make(targets: Sequence[BaseArray]) -> None:
    for each in targets:
        each._written()


def _add_piece(sources: Sequence[BaseArray], targets: Sequence[BaseArray], piece: int, pieces: int) -> None:
    """Add up one of the equal pieces that arrays are cut into."""
    given, results = [each._read() for each in sources], [each._written() for each in targets]
    if not all(each.flags.c_contiguous for each in (*given, *results)):
        if piece == 0:  # memory in another order: all at once
            _add(given, results)
        return
    given, results = [each.reshape(-1) for each in given], [each.reshape(-1) for each in results]
    size = results[0].size
    step = max(1, _BLOCK // results[0].itemsize)
    stop = size * (piece + 1) // pieces
    for begin in range(size * piece // pieces, stop, step):
        block = slice(begin, min(begin + step, stop))
        _add([each[block] for each in given], [each[block] for each in results])


def _add(given: Sequence[Any], results: Sequence[Any]) -> None:
    total = results[0]
    if len(given) == 1:
        total[...] = given[0]
    else:
        np.add(given[0], given[1], out=total)
    for each in given[2:]:
        np.add(total, each, out=total)
    for each in results[1:]:
        each[...] = total


def rows_into(key: Any, source: NDArray, ids: NDArray, target: NDArray, priority: int) -> None:
    """Enqueue that a target gets the rows of a source that are named, and zeros in the others."""
    device = target._storage.device
    here, rows = brought([source, ids], device, priority)
    reads, writes = _tags([here, rows], [target])
    _push(device.compute, _take_rows, (key, here, rows, target), reads, writes, priority)


def _take_rows(key: Any, source: BaseArray, ids: BaseArray, target: BaseArray) -> None:
    rows = ids._read().astype(np.int64).reshape(-1)
    count = source._shape[0]
    wrong = rows[(rows < 0) | (rows >= count)]
    if wrong.size:
        raise IndexError(f"row_sparse_pull: row id {int(wrong[0])} for key {key!r}, which has {count} rows, from 0")
    content, result = source._read(), target._written()
    chosen = content[rows]  # before anything is written: it may be the same array
    result[...] = 0
    result[rows] = chosen
