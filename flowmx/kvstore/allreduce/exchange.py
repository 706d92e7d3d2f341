"""The exchange of all gradients of a step over devices: buckets, in the order in which a backward pass fills them.

A stream does what was launched in its order, so what is launched first must be there first: the last layers' buckets
go before those of the first layers, and nothing waits on the streams between devices but for gradients. Updates, and
what they send back, are enqueued after all sums, the first layers before the others, since the next forward pass
begins with these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from flowmx import autograd, optimizer, settings
from flowmx.devices import Device
from flowmx.kvstore.allreduce.buckets import devices_of, divide, joined, piece, split
from flowmx.kvstore.allreduce.communicator import Communicator, empty_on
from flowmx.kvstore.keys import Key
from flowmx.ndarray import NDArray
from flowmx.ndarray.array import copy_into

__all__ = ["Part", "exchange", "fits"]

Updater = Callable[[Any, Any, Any], Any]


class Part(NamedTuple):
    """The arrays of one key in an exchange.

    Attributes:
        key: the key.
        stored: its value, on one of the devices.
        values: what is summed, each on another device.
        targets: where the new value goes, each on another device.
    """

    key: Key
    stored: NDArray
    values: Sequence[NDArray]
    targets: Sequence[NDArray]

    def devices(self) -> tuple[Device, ...]:
        """All devices of its arrays, the value's first."""
        return devices_of([self.stored, *self.values, *self.targets])

    def kind(self) -> Hashable:
        """Key that all parts of a bucket share: the dtype, and the devices of stored values, values and targets."""
        return self.stored._dtype, devices_of([self.stored]), devices_of(self.values), devices_of(self.targets)


class Sum(NamedTuple):
    """A bucket whose sums are enqueued: one on the value's device for an updater, or one on each device."""

    parts: Sequence[Part]
    totals: Sequence[NDArray]


def fits(part: Part) -> bool:
    """Tell whether a key can be summed across devices: several asynchronous ones, each once, and one dtype."""
    arrays = (part.stored, *part.values, *part.targets)
    return (
        len(part.values) > 1
        and part.stored.size > 0
        and all(len(set(devices_of(each))) == len(each) for each in (part.values, part.targets))
        and all(each._dtype == part.stored._dtype and each._storage.device.is_asynchronous for each in arrays)
    )


def exchange(parts: Sequence[Part], updater: Updater | None, communicator: Communicator) -> None:
    """Enqueue that values become the sums of what came for them, or are updated by these, and go to their targets.

    Args:
        parts: the keys, in the order in which a forward pass uses them, for all of which :func:`fits` holds.
        updater: of key, sum and value; None replaces the value.
        communicator: what brings arrays together.
    """
    backwards = list(reversed(parts))
    sizes = [part.stored.size * part.stored._dtype.itemsize for part in backwards]
    limit = settings.get().kvstore_reduce_bucket_size * 1024
    with autograd.pause():
        sums = [
            _summed([backwards[place] for place in bucket], updater, communicator)
            for bucket in divide(sizes, [part.kind() for part in backwards], limit)
        ]
        for priority, each in enumerate(reversed(sums)):
            if updater is None:
                _hand_out(each, -priority)
            else:
                _update(each, updater, communicator, -priority)


def _summed(parts: Sequence[Part], updater: Updater | None, communicator: Communicator) -> Sum:
    """Enqueue the sum of a bucket."""
    places, root = devices_of(parts[0].values), parts[0].stored._storage.device
    sources = []
    for index, place in enumerate(places):
        copying = place.copy_actor(next(each for each in places if each is not place))
        sources.append(joined([part.values[index] for part in parts], copying))
    if updater is not None:
        return Sum(parts, [communicator.reduce(sources, root)])
    wanted = dict.fromkeys([root, *devices_of(parts[0].targets)])
    return Sum(parts, communicator.all_reduce(sources, list(wanted)))


def _hand_out(done: Sum, priority: int) -> None:
    """Enqueue that values and targets are the sums."""
    for total in done.totals:
        place = total._storage.device
        split(total, [_there(part, [part.stored, *part.targets], place) for part in done.parts], priority)


def _update(done: Sum, updater: Updater, communicator: Communicator, priority: int) -> None:
    """Enqueue that values are updated by the sums, and go to their targets."""
    parts, (total,) = done
    parts = parts[::-1]  # as a forward pass uses them
    sums, start = [], total.size
    for part in parts:
        start -= part.stored.size
        sums.append(piece(total, start, part.stored._shape))
    values = [part.stored for part in parts]
    if isinstance(updater, optimizer.Updater):
        updater([part.key for part in parts], sums, values)
    else:
        for part, each in zip(parts, sums, strict=True):
            updater(part.key, each, part.stored)
    _send(parts, communicator, priority)


def _send(parts: Sequence[Part], communicator: Communicator, priority: int) -> None:
    """Enqueue that targets get the values, which are all on one device."""
    root = parts[0].stored._storage.device
    for part in parts:
        for near in _there(part, part.targets, root):
            if near is not part.stored:
                copy_into(part.stored, near, priority)
    far = [place for place in devices_of(parts[0].targets) if place is not root]
    if not far:
        return
    alone = [each for place in far for each in _there(parts[0], parts[0].targets, place)]
    if len(parts) == 1 and all(each._view is None for each in alone):
        communicator.broadcast(parts[0].stored, alone, priority)
        return
    whole = joined([part.stored for part in parts], root.compute, priority)
    arrived = [empty_on(place, whole.size, whole._dtype) for place in far]
    communicator.broadcast(whole, arrived, priority)
    for place, each in zip(far, arrived, strict=True):
        split(each, [_there(part, part.targets, place) for part in parts], priority)


def _there(part: Part, arrays: Sequence[NDArray], place: Device) -> list[NDArray]:
    """Those of a part's arrays that are on a device, each once."""
    found = {id(each): each for each in arrays if each._storage.device is place}
    return list(found.values())
