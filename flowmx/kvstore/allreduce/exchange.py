"""The exchange of all gradients of a step over devices: buckets, in the order in which a backward pass fills them.

A stream runs its operations in launch order, so operations must be launched in the order in which their inputs become
ready: buckets of the last layers come before those of the first layers, and the streams between devices wait only for
gradients. Updates and the copies of new values are enqueued after all sums, the first layers first, since the next
forward pass begins with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from flowmx import autograd, optimizer, settings
from flowmx.devices import Device
from flowmx.kvstore.allreduce.buckets import devices_of, divide, join, piece, split
from flowmx.kvstore.allreduce.communicator import Communicator, empty_on
from flowmx.kvstore.keys import Key
from flowmx.ndarray import NDArray
from flowmx.ndarray.copies import copy_into

__all__ = ["Part", "exchange", "fits"]

Updater = Callable[[Any, Any, Any], Any]


class Part(NamedTuple):
    """The arrays of one key in an exchange.

    Attributes:
        key: the key.
        stored: its value, on one of the devices.
        values: the arrays to sum, on distinct devices.
        targets: the arrays that receive the new value, on distinct devices.
    """

    key: Key
    stored: NDArray
    values: Sequence[NDArray]
    targets: Sequence[NDArray]

    def devices(self) -> tuple[Device, ...]:
        """Return all devices of its arrays, the value's first."""
        return devices_of([self.stored, *self.values, *self.targets])

    def kind(self) -> Hashable:
        """Return the kind of bucket that it fits: the dtype, and the devices of stored value, values and targets."""
        return self.stored.element_type, devices_of([self.stored]), devices_of(self.values), devices_of(self.targets)


class Sum(NamedTuple):
    """A bucket with its enqueued sums: one on the value's device for an updater, or one on each device."""

    parts: Sequence[Part]
    totals: Sequence[NDArray]


def fits(part: Part) -> bool:
    """Return whether a key can be summed over devices: several distinct asynchronous devices, and one dtype."""
    arrays = (part.stored, *part.values, *part.targets)
    return (
        len(part.values) > 1
        and part.stored.size > 0
        and all(len(set(devices_of(group))) == len(group) for group in (part.values, part.targets))
        and all(
            group.element_type == part.stored.element_type and group.storage.device.is_asynchronous for group in arrays
        )
    )


def exchange(parts: Sequence[Part], updater: Updater | None, communicator: Communicator) -> None:
    """Enqueue the sums of all keys, the updates of their values, and copies of the new values to the targets.

    Args:
        parts: the keys, in the order in which a forward pass uses them; :func:`fits` must hold for all.
        updater: called with key, sum and value; None replaces the value by the sum.
        communicator: computes the sums and sends the values.
    """
    backwards = list(reversed(parts))
    sizes = [part.stored.size * part.stored.element_type.itemsize for part in backwards]
    limit = settings.get().kvstore_reduce_bucket_size * 1024
    with autograd.pause():
        sums = [
            _sum_bucket([backwards[position] for position in bucket], updater, communicator)
            for bucket in divide(sizes, [part.kind() for part in backwards], limit)
        ]
        for priority, bucket_sum in enumerate(reversed(sums)):
            if updater is None:
                _distribute(bucket_sum, -priority)
            else:
                _update(bucket_sum, updater, communicator, -priority)


def _sum_bucket(parts: Sequence[Part], updater: Updater | None, communicator: Communicator) -> Sum:
    """Enqueue the sum of a bucket."""
    devices, root = devices_of(parts[0].values), parts[0].stored.storage.device
    sources = []
    for index, device in enumerate(devices):
        copying = device.copy_actor(next(other for other in devices if other is not device))
        sources.append(join([part.values[index] for part in parts], copying))
    if updater is not None:
        return Sum(parts, [communicator.reduce(sources, root)])
    sum_devices = dict.fromkeys([root, *devices_of(parts[0].targets)])
    return Sum(parts, communicator.all_reduce(sources, list(sum_devices)))


def _distribute(bucket: Sum, priority: int) -> None:
    """Enqueue copies of the sums into values and targets."""
    for total in bucket.totals:
        device = total.storage.device
        split(total, [_arrays_on(part, [part.stored, *part.targets], device) for part in bucket.parts], priority)


def _update(bucket: Sum, updater: Updater, communicator: Communicator, priority: int) -> None:
    """Enqueue updates of values by the sums, and copies to their targets."""
    parts, (total,) = bucket
    parts = parts[::-1]  # in the order of the forward pass
    sums, start = [], total.size
    for part in parts:
        start -= part.stored.size
        sums.append(piece(total, start, part.stored.dims))
    values = [part.stored for part in parts]
    if isinstance(updater, optimizer.Updater):
        updater([part.key for part in parts], sums, values)
    else:
        for part, total_piece in zip(parts, sums, strict=True):
            updater(part.key, total_piece, part.stored)
    _send(parts, communicator, priority)


def _send(parts: Sequence[Part], communicator: Communicator, priority: int) -> None:
    """Enqueue copies of values, which are all on one device, into their targets."""
    root = parts[0].stored.storage.device
    for part in parts:
        for local in _arrays_on(part, part.targets, root):
            if local is not part.stored:
                copy_into(part.stored, local, priority)
    remote = [device for device in devices_of(parts[0].targets) if device is not root]
    if not remote:
        return
    remote_targets = [array for device in remote for array in _arrays_on(parts[0], parts[0].targets, device)]
    if len(parts) == 1 and all(array.strided_view is None for array in remote_targets):
        communicator.broadcast(parts[0].stored, remote_targets, priority)
        return
    joined = join([part.stored for part in parts], root.compute, priority)
    copies = [empty_on(device, joined.size, joined.element_type) for device in remote]
    communicator.broadcast(joined, copies, priority)
    for device, array in zip(remote, copies, strict=True):
        split(array, [_arrays_on(part, part.targets, device) for part in parts], priority)


def _arrays_on(part: Part, arrays: Sequence[NDArray], device: Device) -> list[NDArray]:
    """Return the distinct arrays of a part that are on a device."""
    distinct = {id(array): array for array in arrays if array.storage.device is device}
    return list(distinct.values())
