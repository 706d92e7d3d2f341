"""The store of one process: sums over its devices, on the CPU (``local``) or on the devices (``device``)."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from flowmx import forks
from flowmx import optimizer as opt
from flowmx.devices import CPUDevice, cpu
from flowmx.engine import Actor
from flowmx.engine.loops import blocks_in_ordinary_code
from flowmx.engine.origin import warn_user
from flowmx.errors import KVStoreError, ShapeError, TypeInferenceError
from flowmx.kvstore import allreduce, compression, device_sums, sparse_sums
from flowmx.kvstore.base import KVStoreBase, capable, registry
from flowmx.kvstore.error_feedback import Feedback
from flowmx.kvstore.keys import Key, group_by_key, pair_row_ids
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import dtype_of
from flowmx.ndarray.copies import copy_into
from flowmx.ndarray.core import refuse_in_place
from flowmx.ndarray.recording import state
from flowmx.ops.registry.dtypes import name_of
from flowmx.optimizer.updater import arrays_in
from flowmx.overrides import is_replaced
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.serialization.suffixes import check_states_suffix

__all__ = ["KVStore"]

_ON_CPU = ("local", "local_update_cpu", "local_allreduce_cpu")
_ON_DEVICES = ("device", "local_allreduce_device", "nccl")
_warned: set[tuple[str, int]] = set()
"""The user's source lines for which a warning was issued."""


class Slot:
    """The state of one key in a store.

    Attributes:
        key: the key.
        value: the value.
        merged: the buffer for the sum that is passed to an updater.
        feedback: the residuals of compression.
    """

    def __init__(self, key: Key, value: NDArray) -> None:
        self.key = key
        self.value = value
        self.merged: NDArray | None = None
        self.feedback: Feedback | None = None


@registry.alias(*_ON_CPU, *_ON_DEVICES)
class KVStore(KVStoreBase):
    """Values by key, to which devices push and from which they pull (``mx.kv.create`` makes it).

    A push sums the values of all devices, in their order, and the sum becomes the key's value; with an updater, or an
    optimizer, the sum updates the value instead. Every call enqueues its work and returns at once: a push waits only
    for its arrays, so it overlaps with the rest of a backward pass.

    Example:
        >>> kv = mx.kv.create("local")
        >>> kv.init(3, mx.nd.ones(2))
        >>> kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
        >>> kv.push(3, [mx.nd.ones(2, ctx=mx.cpu(0)), mx.nd.ones(2, ctx=mx.cpu(1))])
        >>> weight = mx.nd.empty(2)
        >>> kv.pull(3, out=weight)
        >>> weight.asnumpy()
        array([0.8, 0.8], dtype=float32)
    """

    def __init__(self, name: str = "local") -> None:
        self._type = name
        self._on_devices = name in _ON_DEVICES
        self._slots: dict[Key, Slot] = {}
        self._updater: Callable[[Any, Any, Any], Any] | None = None
        self._compression: compression.Compression | None = None
        self._nccl = allreduce.nccl.library() if name == "nccl" else None
        self._peers = allreduce.PeerCommunicator()
        self._nccl_communicator: allreduce.NcclCommunicator | None = None
        self._lock = forks.lock()
        """Held while the operations of a push are enqueued, so that pushes of other threads do not interleave."""
        self._update_lock = forks.lock()

    @classmethod
    def open(cls, name: str, **options: object) -> KVStore:
        store = cls(name, **options)
        if name == "nccl" and store._nccl is None:
            warn_user(
                "create: NCCL is not available, so the kvstore 'nccl' sums on the devices, as 'device' does", _warned
            )
        return store

    # -- identity --------------------------------------------------------------------------------------

    @property
    def type(self) -> str:
        return self._type

    @property
    def rank(self) -> int:
        return 0

    @property
    def num_workers(self) -> int:
        return 1

    @staticmethod
    def is_capable(capability: str) -> bool:
        return capable(capability, True)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type!r} of {len(self._slots)} keys>"

    # -- values ----------------------------------------------------------------------------------------

    def init(self, key: object, value: object) -> None:
        """Initialize keys with copies of values; each key only once.

        Args:
            key: an int or a str, or a list of them: all keys of a store have the same type.
            value: an array, or a list with one array per key.

        Raises:
            KVStoreError: a key already exists, is an int among str keys or the reverse, or has several values.
        """
        with self._lock:
            for name, values in group_by_key("init", key, value).items():
                if len(values) != 1:
                    raise KVStoreError(f"init: got {len(values)} values for key {name!r}, expected one")
                self._start(name, self._copy(values[0]))

    def push(self, key: object, value: object, priority: int = 0) -> None:
        """Enqueue the sum of values over devices, which becomes the key's value or updates it.

        Args:
            key: a key, or a list of keys.
            value: an array, or a list with one array per device; for a list of keys, a list of such values.
            priority: operations with higher priority run first among those that are ready.

        Raises:
            KVStoreError: a key was not initialized by :meth:`init`.
            ShapeError, TypeInferenceError: the values do not match the key's value, or each other.
        """
        with self._lock:
            for slot, values in self._sources("push", key, value):
                self._push(slot, self._compress(slot, values, priority), priority)

    def pull(self, key: object, out: object = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Enqueue copies of values, as of the last push, into arrays on any devices.

        Args:
            key: a key, or a list of keys.
            out: an array, or a list of arrays; for a list of keys, a list of such values. Values are cast to the
                dtype of the array.
            priority: operations with higher priority run first among those that are ready.
            ignore_sparse: skip sparse arrays, with a warning: use :meth:`row_sparse_pull` for them.

        Raises:
            KVStoreError: a key was not initialized by :meth:`init`, or ``out`` is missing.
            ShapeError: the shape of an array differs from the value's.
        """
        with self._lock:
            for slot, targets in self._pull_targets(key, out, ignore_sparse):
                self._pull(slot, targets, priority)

    def pushpull(self, key: object, value: object, out: object = None, priority: int = 0) -> None:
        """:meth:`push` and :meth:`pull` in one.

        Args:
            key: a key, or a list of keys.
            value: as for :meth:`push`.
            out: as for :meth:`pull`; by default, the arrays of ``value``.
            priority: operations with higher priority run first among those that are ready.
        """
        with self._lock:
            source_pairs = self._sources("pushpull", key, value)
            target_pairs = self._targets("pushpull", key, value if out is None else out)
            if _shares_between_keys(source_pairs, target_pairs):  # compute all sums before writing any target
                for slot, pushes in source_pairs:
                    self._push(slot, self._compress(slot, pushes, priority), priority)
                for slot, targets in target_pairs:
                    self._pull(slot, targets, priority)
                return
            for (slot, pushes), (_, targets) in zip(source_pairs, target_pairs, strict=True):
                values = self._compress(slot, pushes, priority)
                if self._updater is None and sparse_sums.involves_sparse(slot.value, values, targets):
                    sparse_sums.add_up(values, [*targets, slot.value])
                elif self._updater is None and self._can_join(slot, values, targets):
                    self._sum(values, [slot.value, *targets], priority)
                else:
                    self._push(slot, values, priority)
                    self._pull(slot, targets, priority)

    def broadcast(self, key: object, value: object, out: object, priority: int = 0) -> None:
        """:meth:`init` and :meth:`pull` in one: all workers get the value of the worker with rank 0.

        Args:
            key: a key, or a list of keys.
            value: as for :meth:`init`.
            out: as for :meth:`pull`.
            priority: operations with higher priority run first among those that are ready.
        """
        with self._lock:
            self.init(key, value)
            self.pull(key, out, priority)

    def row_sparse_pull(self, key: object, out: object = None, priority: int = 0, row_ids: object = None) -> None:
        """Enqueue copies of selected rows: ``out`` gets these rows of the value, and zeros in all others.

        Args:
            key: a key, or a list of keys.
            out: arrays of the value's shape, as for :meth:`pull`.
            priority: operations with higher priority run first among those that are ready.
            row_ids: arrays of row numbers, in any order, with repeats: one for all arrays of a key's ``out``, or
                a list with one per array.

        Raises:
            KVStoreError: as for :meth:`pull`, or the row ids do not match ``out``.
            IndexError: raised when ``out`` is read: a row number is out of range.
        """
        if row_ids is None:
            raise KVStoreError("row_sparse_pull: row_ids is missing: pass an NDArray of row numbers, or a list of them")
        with self._lock:
            target_pairs = self._targets("row_sparse_pull", key, out)
            ids = pair_row_ids("row_sparse_pull", key, row_ids, {slot.key: targets for slot, targets in target_pairs})
            for slot, targets in target_pairs:
                if not slot.value.shape:
                    raise ShapeError(f"row_sparse_pull: the value of key {slot.key!r} is a scalar, expected rows")
                for target, rows in zip(targets, ids[slot.key], strict=True):
                    pull_rows = (
                        sparse_sums.pull_rows
                        if sparse_sums.involves_sparse(slot.value, [target])
                        else device_sums.pull_rows
                    )
                    pull_rows(slot.key, slot.value, rows, target, priority)

    # -- updating --------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Any, Any, Any], Any] | None) -> None:
        """Set the function ``updater(key, merged, stored)`` that pushes call; it changes the array ``stored`` in place.

        :meth:`push` calls it with arrays that may still be pending. With None, pushes replace values again.

        Example:
            >>> def add_half(key, merged, stored):
            ...     stored += merged / 2
            >>> kv.set_updater(add_half)
        """
        if updater is not None and not callable(updater):
            raise TypeError(f"set_updater: updater is {updater!r}, expected a function of key, merged and stored")
        self._updater = updater

    def _set_updater(self, updater: Callable[[Any, Any, Any], Any] | None) -> None:
        """MXNet's name of :meth:`set_updater`."""
        self.set_updater(updater)

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Set the optimizer that updates values; pushes are its gradients.

        Raises:
            TypeError: `optimizer` is not an optimizer.
        """
        if not isinstance(optimizer, opt.Optimizer):
            raise TypeError(f"set_optimizer: optimizer is {optimizer!r}, expected an mx.optimizer.Optimizer")
        self._set_updater(opt.get_updater(optimizer))

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compress the gradients that devices push; each device adds its residual to its next push.

        The devices of one process gain nothing from it: use it to test the effect of compression on training before a
        distributed run.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, ``{"type": "fp16"}`` or ``{"type": "bf16"}``.

        Raises:
            KVStoreError: the store sums on the CPU, where devices send nothing.
            ParameterError: the type or threshold is invalid.
        """
        if not self._on_devices:
            raise KVStoreError(
                f"set_gradient_compression: a kvstore of type {self.type!r} has nothing to compress: use 'device'"
            )
        self._compression = compression.create(compression_params)
        for slot in self._slots.values():
            slot.feedback = None

    async def ready(self) -> None:
        """Wait for all values and the optimizer's states, so that saving does not block."""
        with self._lock:
            arrays = [slot.value for slot in self._slots.values()]
        if isinstance(self._updater, opt.Updater):
            arrays += arrays_in(list(self._updater.states.values()))
        for array in arrays:
            await array

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the optimizer's states; blocks until they are on disk (await :meth:`ready` first in a coroutine).

        Args:
            fname: the file.
            dump_optimizer: also save the optimizer itself.

        Raises:
            KVStoreError: the store has no optimizer.
        """
        check_states_suffix(fname)
        replace_file(fname, [self._require_updater("save_optimizer_states").get_states(dump_optimizer)])

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load optimizer states that :meth:`save_optimizer_states` saved.

        Raises:
            KVStoreError: the store has no optimizer.
            StatesFormatError: the file has a different format, or is damaged.
            OSError: the file cannot be read.
        """
        self._require_updater("load_optimizer_states").set_states(read_whole(fname))

    # -- workers ---------------------------------------------------------------------------------------

    @blocks_in_ordinary_code
    async def barrier(self) -> None:
        """Wait until every worker has reached the barrier; a store of one process returns at once."""

    def _barrier(self) -> None:
        """MXNet's blocking name of :meth:`barrier`."""

    # -- implementation --------------------------------------------------------------------------------

    def _claim(self, names: Sequence[str], by_name: bool) -> KVStore:
        if not self._is_claimed and not self._slots:
            self._is_claimed = True
            return self
        store = copy.copy(self)
        store._slots, store._updater, store._lock = {}, None, forks.lock()
        return store

    _is_claimed = False

    def _share(self, key: Key, arrays: list[NDArray]) -> None:
        """Initialize a key whose value is the first of these arrays itself, not a copy, if it can stay on its device.

        This saves a copy, and the next update does not discard what the user has written to that array.
        """
        if key not in self._slots and self._is_overridden("broadcast", "init"):
            self.broadcast(key, arrays[0], out=arrays)
            return
        with self._lock:
            value = arrays[0] if self._may_stay(arrays[0]) else self._copy(arrays[0])
            if key in self._slots:
                self._slots[key].value = value
            else:
                self._start(key, value)
            self._pull(self._slots[key], arrays, 0)

    def _exchange(self, keys: Sequence[object], values: Sequence[object], outs: Sequence[object]) -> None:
        if not self._on_devices or self._compression is not None or self._is_overridden("push", "pull", "pushpull"):
            super()._exchange(keys, values, outs)
            return
        with self._lock:
            source_pairs = self._sources("pushpull", list(keys), list(values))
            target_pairs = self._targets("pushpull", list(keys), list(outs))
            parts = [
                allreduce.Part(slot.key, slot.value, pushes, targets)
                for (slot, pushes), (_, targets) in zip(source_pairs, target_pairs, strict=True)
            ]
            is_joint = [
                not sparse_sums.involves_sparse(part.stored, part.values, part.targets) and allreduce.fits(part)
                for part in parts
            ]
            if any(is_joint):
                joint_parts = list(itertools.compress(parts, is_joint))
                is_function = self._updater is not None and not isinstance(self._updater, opt.Updater)
                allreduce.exchange(
                    joint_parts, self._update if is_function else self._updater, self._communicator(joint_parts)
                )
            for position, part in enumerate(parts):
                if not is_joint[position]:
                    self.pushpull(part.key, list(part.values), out=list(part.targets), priority=-position)

    def _communicator(self, parts: Sequence[allreduce.Part]) -> allreduce.Communicator:
        """Return the communicator for the devices of some keys: NCCL if selected and available, else peer copies."""
        devices = {device for part in parts for device in part.devices()}
        if self._nccl is None or not allreduce.nccl.are_gpus(devices):
            return self._peers
        if self._nccl_communicator is None or not devices <= set(self._nccl_communicator.devices):
            ordered = sorted(devices, key=lambda device: device.context.device_id)
            self._nccl_communicator = allreduce.NcclCommunicator(ordered, self._nccl)
        return self._nccl_communicator

    def _arrays(self) -> list[Any]:
        return [array for slot in self._slots.values() for array in (slot.value, slot.merged) if array is not None]

    def _install(self, updater: Any) -> None:
        if self._is_overridden("set_optimizer"):
            self.set_optimizer(updater.optimizer)
        else:
            self._set_updater(updater)

    def _is_overridden(self, *names: str) -> bool:
        """Return whether a subclass or the user replaced one of these methods; it is then called as in MXNet."""
        return any(is_replaced(self, name, _METHODS[name]) for name in names)

    def _start(self, key: Key, value: NDArray) -> None:
        if key in self._slots:
            raise KVStoreError(f"init: key {key!r} is already initialized, expected each key once")
        for other in self._slots:
            if isinstance(other, str) != isinstance(key, str):
                raise KVStoreError(f"init: key {key!r} follows {other!r}, expected either all int or all str")
            break
        self._slots[key] = Slot(key, value)

    def _copy(self, value: NDArray) -> NDArray:
        """Return a copy of a value on the device where the store keeps it."""
        return value.copyto(value.context if self._may_stay(value) else cpu())

    def _may_stay(self, value: NDArray) -> bool:
        """Return whether a store of this type keeps a value on its current device."""
        return self._on_devices or isinstance(value.storage.device, CPUDevice)

    def _slot(self, call: str, key: Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            initialized = ", ".join(map(repr, list(self._slots)[:5])) or "none"
            raise KVStoreError(f"{call}: unknown key {key!r} (initialized keys: {initialized}): call init() first")
        return slot

    def _resolve(self, call: str, key: object, values: object) -> list[tuple[Slot, list[NDArray]]]:
        """Return the slots of keys with their arrays, after a check of all shapes."""
        pairs = [(self._slot(call, name), arrays) for name, arrays in group_by_key(call, key, values).items()]
        for slot, arrays in pairs:
            shape = slot.value.shape
            for array in arrays:
                if array.shape != shape:
                    raise ShapeError(f"{call}: an array for key {slot.key!r} has shape {array.shape}, expected {shape}")
        return pairs

    def _sources(self, call: str, key: object, value: object) -> list[tuple[Slot, list[NDArray]]]:
        pairs = self._resolve(call, key, value)
        for slot, arrays in pairs:
            if len(arrays) > 1 and len({dtype_of(array) for array in arrays}) > 1:
                names = " and ".join(name_of(dtype) for dtype in dict.fromkeys(map(dtype_of, arrays)))
                raise TypeInferenceError(
                    f"{call}: the arrays for key {slot.key!r} have dtypes {names}, expected one dtype"
                )
            self._move(slot, arrays[0])
        return pairs

    def _targets(self, call: str, key: object, out: object) -> list[tuple[Slot, list[NDArray]]]:
        if out is None:
            raise KVStoreError(f"{call}: out is missing: pass an array to write into, or a list of them")
        pairs = self._resolve(call, key, out)
        if state.get().recording:
            for _, arrays in pairs:
                for array in arrays:
                    refuse_in_place(array, call)
        return pairs

    def _pull_targets(self, key: object, out: object, ignore_sparse: bool) -> list[tuple[Slot, list[NDArray]]]:
        """Return the slots of a pull with the arrays to write into, without the sparse arrays that it skips."""
        if not ignore_sparse:
            return self._targets("pull", key, out)
        pairs = KVStore._targets(self, "pull", key, out)
        if not any(sparse_sums.involves_sparse(target) for _, targets in pairs for target in targets):
            return pairs
        warn_user("pull: sparse arrays were skipped: use row_sparse_pull() with row_ids", _warned)
        return [
            (slot, [target for target in targets if not sparse_sums.involves_sparse(target)]) for slot, targets in pairs
        ]

    def _move(self, slot: Slot, gradient: NDArray) -> None:
        """Move a value to the device of its gradients, if the store sums on devices."""
        if self._on_devices and not device_sums.reads_directly(gradient.storage.device, slot.value.storage.device):
            slot.value = slot.value.copyto(gradient.context)

    def _compress(self, slot: Slot, values: list[NDArray], priority: int) -> list[NDArray]:
        """Return the values to sum: the pushed values, after compression and decompression if compression is on."""
        if self._compression is None or sparse_sums.involves_sparse(slot.value, values):
            return values
        if slot.feedback is None:
            slot.feedback = Feedback(self._compression)
        return slot.feedback.compress_all(slot.key, values, priority)

    def _push(self, slot: Slot, values: list[NDArray], priority: int) -> None:
        if sparse_sums.involves_sparse(slot.value, values):
            if self._updater is None:
                sparse_sums.add_up(values, [slot.value])
            else:
                self._update(slot.key, sparse_sums.total(values, slot.value.context), slot.value)
        elif self._updater is not None:
            merged = self._merge(slot, values, priority)
            slot.merged, buffer = None, slot.merged  # a push of another thread must not use this buffer meanwhile
            self._update(slot.key, merged, slot.value)
            slot.merged = buffer
        elif self._can_join(slot, values, ()):
            self._sum(values, [slot.value], priority)
        else:
            copy_into(self._merge(slot, values, priority), slot.value, priority)

    def _update(self, key: Key, merged: NDArray, stored: NDArray) -> None:
        """Call the updater without the store's lock, since it may be user code; optimizers run one at a time."""
        assert self._updater is not None
        lock: Any = self._lock
        lock_state = lock._release_save()
        try:
            with self._update_lock if isinstance(self._updater, opt.Updater) else nullcontext():
                self._updater(key, merged, stored)
        finally:
            lock._acquire_restore(lock_state)

    def _pull(self, slot: Slot, targets: Sequence[NDArray], priority: int) -> None:
        for target in targets:
            if target is not slot.value and sparse_sums.involves_sparse(slot.value, [target]):
                sparse_sums.copy(slot.value, target)
            elif target is not slot.value:
                copy_into(slot.value, target, priority)

    def _merge(self, slot: Slot, values: list[NDArray], priority: int) -> NDArray:
        """Return the sum of values for an updater, on the device of the stored value."""
        context = slot.value.context
        if len(values) == 1 and values[0].context is context:
            return values[0]
        dtype = dtype_of(values[0])
        if slot.merged is None or slot.merged.context is not context or dtype_of(slot.merged) != dtype:
            slot.merged = empty(slot.value.shape, context, dtype)
        self._sum(values, [slot.merged], priority)
        return slot.merged

    def _sum(self, values: Sequence[NDArray], targets: Sequence[NDArray], priority: int) -> None:
        if self._on_devices and device_sums.is_spread(values):
            device_sums.add_over(values, targets[0], priority)
            return
        sources = device_sums.local_copies(values, targets[0].storage.device, priority)
        device_sums.add_up(sources, targets, self._lanes(sources, targets[0]), priority)

    def _lanes(self, sources: Sequence[Any], target: NDArray) -> list[Actor]:
        if self._on_devices:
            return device_sums.device_lanes([target, *sources])
        return device_sums.cpu_lanes()

    def _can_join(self, slot: Slot, values: Sequence[NDArray], targets: Sequence[NDArray]) -> bool:
        """Return whether the summing operation may write its result directly into the key's value and the targets."""
        is_separate = all(array.storage is not slot.value.storage for array in (*values, *targets))
        return is_separate and device_sums.may_join(values, [slot.value, *targets])

    def _require_updater(self, call: str) -> opt.Updater:
        if not isinstance(self._updater, opt.Updater):
            raise KVStoreError(f"{call}: the store has no optimizer: call set_optimizer() first")
        return self._updater


_METHODS = {name: getattr(KVStore, name) for name in ("broadcast", "init", "pull", "push", "pushpull", "set_optimizer")}


def _shares_between_keys(
    source_pairs: Sequence[tuple[Slot, Sequence[NDArray]]], target_pairs: Sequence[tuple[Slot, Sequence[NDArray]]]
) -> bool:
    """Return whether a target of a key shares memory with a value pushed under another key."""
    if len(source_pairs) == 1:
        return False
    owners = {array.storage: index for index, (_, values) in enumerate(source_pairs) for array in values}
    return sum(len(values) for _, values in source_pairs) > len(owners) or any(
        owners.get(array.storage, index) != index
        for index, (_, targets) in enumerate(target_pairs)
        for array in targets
    )
