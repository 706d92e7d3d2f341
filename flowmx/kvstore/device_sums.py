"""Sums over devices, as operations of the engine.

Arrays are added in the order of the devices, element by element, wherever a sum runs: results are bit-identical to
``((a + b) + c) + ...`` on one device.

A big array is cut into pieces that several actors add up concurrently (the devices themselves, or dedicated threads
for the CPU). Each piece is gathered and added in one place: that moves as few bytes as a ring does and, unlike a ring
or a tree, keeps the order. Pieces write the same arrays, so they cannot all declare those writes. A first operation
declares all reads and writes and allocates the arrays; each piece reads and writes a separate variable; a last
operation declares the writes again and waits for the pieces.
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
from flowmx.ndarray.copies import copy_into
from flowmx.ndarray.core import BaseArray, Storage, View, allocate
from flowmx.ops.registry.operators import LIGHT_BYTES

_BLOCK = 1 << 18
"""Bytes of each array that are summed at a time: copies of the sum then read it from the cache."""


@functools.cache
def _adders(count: int) -> ThreadActor:
    return ThreadActor(f"kvstore x{count}", slots=count)


def cpu_lanes() -> list[Actor]:
    """Return the actor that sums on the CPU separately from the devices, repeated once for each of its threads."""
    count = min(settings.get().kvstore_reduction_nthreads, threads.cores())
    return [_adders(count)] * count


def device_lanes(sources: Sequence[BaseArray]) -> list[Actor]:
    """Return the compute actors of the arrays' devices, without repeats."""
    return list(dict.fromkeys(array.storage.device.compute for array in sources))


def reads_directly(device: Device, other: Device) -> bool:
    """Return whether operations of a device can read arrays of the other one; all CPU devices share their memory."""
    return device is other or (isinstance(device, CPUDevice) and isinstance(other, CPUDevice))


def local_copies(sources: Sequence[BaseArray], device: Device, priority: int) -> list[BaseArray]:
    """Return arrays that operations of a device can read: the sources themselves, or enqueued copies."""
    arrays: list[BaseArray] = []
    for source in sources:
        target = source
        if not reads_directly(device, source.storage.device):
            target = allocate(device, source.dims, source.element_type)
            copy_into(source, target, priority)
        arrays.append(target)
    return arrays


def add_up(sources: Sequence[BaseArray], targets: Sequence[BaseArray], lanes: Sequence[Actor], priority: int) -> None:
    """Enqueue a sum of the sources into each target.

    Args:
        sources: arrays of the same shape and dtype, in the order to add them in.
        targets: arrays of the same shape and dtype. The first must not be a source; the others may be.
        lanes: the actors that share a big array; the first one sums a small array alone.
        priority: operations with higher priority run first among those that are ready.
    """
    size = math.prod(targets[0].dims)
    nbytes = targets[0].element_type.itemsize * size
    reads, writes = _tags(sources, targets)
    if size >= settings.get().kvstore_bigarray_bound and len(lanes) > 1:
        _add_in_pieces(sources, targets, lanes, priority, reads, writes)
    else:
        light = nbytes * (len(sources) + len(targets)) <= LIGHT_BYTES
        _push(lanes[0], _add_piece, (sources, targets, 0, 1), reads, writes, priority, light)


def is_spread(sources: Sequence[BaseArray]) -> bool:
    """Return whether these are big arrays on devices that cannot read each other's memory."""
    device = sources[0].storage.device
    size = math.prod(sources[0].dims)
    return size >= settings.get().kvstore_bigarray_bound and not all(
        reads_directly(device, array.storage.device) for array in sources
    )


def add_over(sources: Sequence[NDArray], target: NDArray, priority: int) -> None:
    """Enqueue a sum over devices with separate memory: each gathers a piece from all others and adds it up.

    Args:
        sources: arrays of the same shape and dtype, in the order to add them in.
        target: an array of the same shape and dtype, on any of the devices, not one of the sources.
        priority: operations with higher priority run first among those that are ready.
    """
    devices = list(dict.fromkeys(source.storage.device for source in sources))
    size = math.prod(target.dims)
    with autograd.pause():  # slices share memory and must not be recorded
        flat_target, flat = target.reshape(-1), [source.reshape(-1) for source in sources]
        for index, device in enumerate(devices):
            part = slice(size * index // len(devices), size * (index + 1) // len(devices))
            local = local_copies([source[part] for source in flat], device, priority)
            total = allocate(device, local[0].dims, local[0].element_type)
            add_up(local, [total], [device.compute], priority)
            copy_into(total, flat_target[part], priority)


def may_join(sources: Sequence[BaseArray], targets: Sequence[BaseArray]) -> bool:
    """Return whether :func:`add_up` may write these targets: one dtype, accessible, no partial overlap."""
    views: dict[Storage, set[View | None]] = {}
    for array in (*sources, *targets):
        views.setdefault(array.storage, set()).add(array.strided_view)
    return all(
        array.element_type == sources[0].element_type
        and all(reads_directly(array.storage.device, source.storage.device) for source in sources)
        and len(views[array.storage]) == 1
        for array in targets
    )


def _tags(sources: Sequence[BaseArray], targets: Sequence[BaseArray]) -> tuple[tuple[Variable, ...], ...]:
    writes = tuple(dict.fromkeys(array.storage for array in targets))
    parts = [array for array in targets if array.strided_view is not None]  # elements outside a view must survive
    return tuple(dict.fromkeys(array.storage for array in (*sources, *parts))), writes


def _add_in_pieces(
    sources: Sequence[BaseArray], targets: Sequence[BaseArray], lanes: Sequence[Actor], priority: int,
    reads: tuple[Variable, ...], writes: tuple[Variable, ...],
) -> None:  # fmt: skip
    pieces = tuple(Variable(f"piece {index}") for index in range(len(lanes)))
    _push(lanes[0], _allocate, (targets,), reads, (*writes, *pieces), priority, light=True)
    others = tuple(variable for variable in reads if variable not in writes)
    for index, (lane, piece) in enumerate(zip(lanes, pieces, strict=True)):
        arguments = (sources, targets, index, len(pieces))
        _push(lane, _add_piece, arguments, (*others, piece), (piece,), priority)
    _push(lanes[0], _wait_for_pieces, (), pieces, writes, priority, light=True)


def _push(
    actor: Actor, function: Callable[..., object], arguments: tuple[object, ...], reads: tuple[Variable, ...],
    writes: tuple[Variable, ...], priority: int, light: bool = False,
) -> None:  # fmt: skip
    op = Operation(function, arguments, reads, writes, actor, "kvstore sum", capture(), 0, light)
    op.priority = priority
    engine.enqueue(op)


def _wait_for_pieces() -> None:
    """Do nothing: the last operation of a sum in pieces, which waits for all pieces."""


def _allocate(targets: Sequence[BaseArray]) -> None:
    for target in targets:
        target.raw_for_writing()


def _add_piece(sources: Sequence[BaseArray], targets: Sequence[BaseArray], piece: int, pieces: int) -> None:
    """Add up one of `pieces` equal pieces of the arrays."""
    inputs, outputs = [array.raw() for array in sources], [array.raw_for_writing() for array in targets]
    if not all(array.flags.c_contiguous for array in (*inputs, *outputs)):
        if piece == 0:  # not contiguous: one operation adds everything
            _add(inputs, outputs)
        return
    inputs, outputs = [array.reshape(-1) for array in inputs], [array.reshape(-1) for array in outputs]
    size = outputs[0].size
    step = max(1, _BLOCK // outputs[0].itemsize)
    stop = size * (piece + 1) // pieces
    for begin in range(size * piece // pieces, stop, step):
        block = slice(begin, min(begin + step, stop))
        _add([array[block] for array in inputs], [array[block] for array in outputs])


def _add(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    total = outputs[0]
    if len(inputs) == 1:
        total[...] = inputs[0]
    else:
        np.add(inputs[0], inputs[1], out=total)
    for array in inputs[2:]:
        np.add(total, array, out=total)
    for array in outputs[1:]:
        array[...] = total


def pull_rows(key: object, source: NDArray, ids: NDArray, target: NDArray, priority: int) -> None:
    """Enqueue a copy of the selected rows of a source into a target, with zeros in its other rows."""
    device = target.storage.device
    local, rows = local_copies([source, ids], device, priority)
    reads, writes = _tags([local, rows], [target])
    _push(device.compute, _take_rows, (key, local, rows, target), reads, writes, priority)


def _take_rows(key: object, source: BaseArray, ids: BaseArray, target: BaseArray) -> None:
    rows = ids.raw().astype(np.int64).reshape(-1)
    count = source.dims[0]
    out_of_range = rows[(rows < 0) | (rows >= count)]
    if out_of_range.size:
        raise IndexError(
            f"row_sparse_pull: row id {int(out_of_range[0])} for key {key!r} is out of range: it has {count} rows, "
            "from 0"
        )
    content, result = source.raw(), target.raw_for_writing()
    selection = content[rows]  # copied before the write: source and target may be the same array
    result[...] = 0
    result[rows] = selection
