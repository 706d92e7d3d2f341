"""Buckets: small arrays of one kind that are exchanged as one array; joining and splitting them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from flowmx.devices import Device
from flowmx.devices.launch_traits import LaunchTraits, Moves, set_launch_traits
from flowmx.engine import Actor
from flowmx.kvstore.allreduce.communicator import empty_on, enqueue
from flowmx.ndarray import NDArray

__all__ = ["divide", "join", "piece", "split"]


def divide(sizes: Sequence[int], kinds: Sequence[Hashable], limit: int) -> list[list[int]]:
    """Divide arrays into buckets, in the order in which buckets become complete.

    Args:
        sizes: the sizes of the arrays in bytes, in the order in which they will be ready.
        kinds: the kinds of the arrays; a bucket has arrays of one kind.
        limit: maximum size of a bucket in bytes (``FLOWMX_KVSTORE_REDUCE_BUCKET_SIZE``); bigger arrays are alone.

    Returns:
        The positions in each bucket.

    Example:
        >>> divide([10, 10, 99, 10], ["a", "a", "b", "a"], 20)
        [[0, 1], [2], [3]]
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, tuple[list[int], int]] = {}
    for position, (nbytes, kind) in enumerate(zip(sizes, kinds, strict=True)):
        bucket, filled = open_buckets.get(kind, ([], 0))
        if not bucket or filled + nbytes > limit:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(position)
        open_buckets[kind] = bucket, filled + nbytes
    return sorted(buckets, key=lambda bucket: bucket[-1])


def join(arrays: Sequence[NDArray], actor: Actor, priority: int = 0) -> NDArray:
    """Enqueue joining arrays of one device into a flat array; return a single array itself."""
    if len(arrays) == 1:
        return arrays[0]
    device = arrays[0].storage.device
    joined = empty_on(device, sum(array.size for array in arrays), arrays[0].element_type)
    enqueue(_join_op, (list(arrays), joined), arrays, [joined], actor, "kvstore join", priority)
    return joined


def split(joined: NDArray, targets: Sequence[Sequence[NDArray]], priority: int = 0) -> None:
    """Enqueue splitting a flat array into its consecutive pieces, on the same device.

    Args:
        joined: the flat array.
        targets: the targets of each piece: one or more arrays of the same shape.
        priority: operations with higher priority run first among those that are ready.
    """
    arrays = [array for copies in targets for array in copies]
    starts = [start for start, copies in zip(_starts(targets), targets, strict=True) for _ in copies]
    enqueue(
        _split_op, (joined, starts, arrays), [joined], arrays, joined.storage.device.compute, "kvstore split", priority
    )


def piece(joined: NDArray, start: int, shape: tuple[int, ...]) -> NDArray:
    """Return a view of a piece of a flat array, with this shape."""
    size = 1
    for length in shape:
        size *= length
    return joined.reshape(-1)[start : start + size].reshape(shape)


def devices_of(arrays: Iterable[NDArray]) -> tuple[Device, ...]:
    """Return the devices of arrays, in their order."""
    return tuple([array.storage.device for array in arrays])


def _starts(targets: Sequence[Sequence[NDArray]]) -> list[int]:
    starts = [0]
    for copies in targets:
        starts.append(starts[-1] + copies[0].size)
    return starts[:-1]


# -- operations ----------------------------------------------------------------------------------------------


def _join_op(arrays: Sequence[NDArray], joined: NDArray) -> None:
    parts = [array.raw().reshape(-1) for array in arrays]
    joined.storage.device.xp.concatenate(parts, out=joined.raw_for_writing())


def _split_op(joined: NDArray, starts: Sequence[int], arrays: Sequence[NDArray]) -> None:
    parts = joined.raw().reshape(-1)
    for start, array in zip(starts, arrays, strict=True):
        array.storage.device.copy(parts[start : start + array.size].reshape(array.dims), array.raw_for_writing())


def _bytes_of_join(arrays: Sequence[NDArray], joined: NDArray) -> Moves:
    return [("here", 2 * joined.size * joined.element_type.itemsize)]


def _bytes_of_split(joined: NDArray, starts: Sequence[int], arrays: Sequence[NDArray]) -> Moves:
    return [("here", 2 * array.size * array.element_type.itemsize) for array in arrays]


set_launch_traits(_join_op, LaunchTraits(moves=_bytes_of_join))
set_launch_traits(_split_op, LaunchTraits(moves=_bytes_of_split))
