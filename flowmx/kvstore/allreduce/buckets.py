"""Buckets: small arrays of one kind that are exchanged as one; joining and splitting of arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from flowmx.devices import Device
from flowmx.engine import Actor
from flowmx.kvstore.allreduce.communicator import Moves, empty_on, enqueue
from flowmx.ndarray import NDArray

__all__ = ["divide", "joined", "piece", "split"]


def divide(sizes: Sequence[int], kinds: Sequence[Hashable], limit: int) -> list[list[int]]:
    """Divide arrays into buckets, in the order in which a bucket is complete.

    Args:
        sizes: their bytes, in the order in which they will be there.
        kinds: what arrays of a bucket have in common.
        limit: most bytes of a bucket; one that has more by itself is alone.

    Returns:
        The positions in each bucket.

    Example:
        >>> divide([10, 10, 99, 10], ["a", "a", "b", "a"], 20)
        [[0, 1], [2], [3]]
    """
    found: list[list[int]] = []
    filling: dict[Hashable, tuple[list[int], int]] = {}
    for place, (nbytes, kind) in enumerate(zip(sizes, kinds, strict=True)):
        bucket, filled = filling.get(kind, ([], 0))
        if not bucket or filled + nbytes > limit:
            bucket, filled = [], 0
            found.append(bucket)
        bucket.append(place)
        filling[kind] = bucket, filled + nbytes
    return sorted(found, key=lambda bucket: bucket[-1])


def joined(arrays: Sequence[NDArray], actor: Actor, priority: int = 0) -> NDArray:
    """Enqueue a flat array of what arrays of one device hold; one that is alone is looked at where it is."""
    if len(arrays) == 1:
        return arrays[0]
    device = arrays[0]._storage.device
    whole = empty_on(device, sum(each.size for each in arrays), arrays[0]._dtype)
    enqueue(_join, (list(arrays), whole), arrays, [whole], actor, "kvstore join", priority)
    return whole


def split(whole: NDArray, targets: Sequence[Sequence[NDArray]], priority: int = 0) -> None:
    """Enqueue that arrays on a flat array's device get its pieces, one after the other.

    Args:
        whole: the flat array.
        targets: for each piece, where it goes to: several arrays of one shape.
        priority: higher is done earlier among what is ready.
    """
    arrays = [each for several in targets for each in several]
    starts = [start for start, several in zip(_starts(targets), targets, strict=True) for _ in several]
    enqueue(_split, (whole, starts, arrays), [whole], arrays, whole._storage.device.compute, "kvstore split", priority)


def piece(whole: NDArray, start: int, shape: tuple[int, ...]) -> NDArray:
    """A piece of a flat array as an array of this shape, in the same memory."""
    size = 1
    for length in shape:
        size *= length
    return whole.reshape(-1)[start : start + size].reshape(shape)


def devices_of(arrays: Iterable[NDArray]) -> tuple[Device, ...]:
    """The device of each array, in their order."""
    return tuple([each._storage.device for each in arrays])


def _starts(targets: Sequence[Sequence[NDArray]]) -> list[int]:
    starts = [0]
    for several in targets:
        starts.append(starts[-1] + several[0].size)
    return starts[:-1]


# -- operations ----------------------------------------------------------------------------------------------


def _join(arrays: Sequence[NDArray], whole: NDArray) -> None:
    flat = [each._read().reshape(-1) for each in arrays]
    whole._storage.device.xp.concatenate(flat, out=whole._written())


def _split(whole: NDArray, starts: Sequence[int], arrays: Sequence[NDArray]) -> None:
    given = whole._read().reshape(-1)
    for start, each in zip(starts, arrays, strict=True):
        each._storage.device.copy(given[start : start + each.size].reshape(each._shape), each._written())


def _moved_to_join(arrays: Sequence[NDArray], whole: NDArray) -> Moves:
    return [("here", 2 * whole.size * whole._dtype.itemsize)]


def _moved_to_split(whole: NDArray, starts: Sequence[int], arrays: Sequence[NDArray]) -> Moves:
    return [("here", 2 * each.size * each._dtype.itemsize) for each in arrays]


_join.moves = _moved_to_join  # type: ignore[attr-defined]
_split.moves = _moved_to_split  # type: ignore[attr-defined]
