"""The store of one process: sums over its devices, on the CPU (``local``) or on the devices (``device``)."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowmx import optimizer as opt
from flowmx.devices import CPUDevice, cpu
from flowmx.engine import Actor
from flowmx.engine.loops import runs_in_plain_code
from flowmx.engine.origin import warn_user
from flowmx.errors import KVStoreError, ShapeError, TypeInferenceError
from flowmx.kvstore import allreduce, compression, merge, sparse
from flowmx.kvstore.base import KVStoreBase, capable, registry
from flowmx.kvstore.feedback import Feedback
from flowmx.kvstore.keys import Key, grouped, paired
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import copy_into, dtype_of
from flowmx.ndarray.core import refuse_in_place
from flowmx.ndarray.recording import state
from flowmx.ops.registry.dtypes import name_of
from flowmx.optimizer.updater import arrays_in
from flowmx.serialization.atomic import replace_file

__all__ = ["KVStore"]

_ON_CPU = ("local", "local_update_cpu", "local_allreduce_cpu")
_ON_DEVICES = ("device", "local_allreduce_device", "nccl")
_warned: set[tuple[str, int]] = set()
"""The user's lines that were warned of missing NCCL."""


class Slot:
    """The state of one key in a store.

    Attributes:
        key: the key.
        value: the value.
        merged: where values are summed that an updater takes.
        feedback: what compression has left out so far.
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
    optimizer, the value is updated by it. Everything is enqueued and returns at once: a push waits for its arrays
    alone, so that it overlaps with the rest of a backward pass.

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
        self._collectives: allreduce.NcclCommunicator | None = None
        self._lock = threading.RLock()
        """Several operations make one push; another thread's do not come between them."""

    @classmethod
    def open(cls, name: str, **options: Any) -> KVStore:
        made = cls(name, **options)
        if name == "nccl" and made._nccl is None:
            warn_user("create: without NCCL the kvstore 'nccl' is summed on the devices, as 'device' is", _warned)
        return made

    # -- what it is ------------------------------------------------------------------------------------

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

    def init(self, key: Any, value: Any) -> None:
        """Start keys with values, of which the store keeps copies; each key once.

        Args:
            key: an int or a str, or a list of them: all keys of a store are of one kind.
            value: an array, or a list with one for each key.

        Raises:
            KVStoreError: a key is known already, of the other kind, or has several values.
        """
        with self._lock:
            for name, values in grouped("init", key, value).items():
                if len(values) != 1:
                    raise KVStoreError(f"init: {len(values)} values came for key {name!r}, expected one")
                self._start(name, self._kept(values[0]))

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Enqueue the sum of values over devices, which becomes the key's value or updates it.

        Args:
            key: a key, or a list of keys.
            value: an array, or a list with one for each device; for a list of keys, a list of those.
            priority: higher is done earlier among what is ready.

        Raises:
            KVStoreError: a key was not started by :meth:`init`.
            ShapeError, TypeInferenceError: the values do not fit the key's, or each other.
        """
        with self._lock:
            for slot, values in self._sources("push", key, value):
                self._push(slot, self._arriving(slot, values, priority), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Enqueue copies of values, as the last push so far leaves them, into arrays on any devices.

        Args:
            key: a key, or a list of keys.
            out: an array, or a list of them; for a list of keys, a list of those. Another dtype is converted to.
            priority: higher is done earlier among what is ready.
            ignore_sparse: leave sparse arrays as they are, with a warning: :meth:`row_sparse_pull` is for them.

        Raises:
            KVStoreError: a key was not started by :meth:`init`, or ``out`` is missing.
            ShapeError: an array has another shape than the value.
        """
        with self._lock:
            for slot, targets in self._pulled(key, out, ignore_sparse):
                self._pull(slot, targets, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """:meth:`push` and :meth:`pull` in one.

        Args:
            key: a key, or a list of keys.
            value: as for :meth:`push`.
            out: as for :meth:`pull`; None pulls into the values themselves.
            priority: higher is done earlier among what is ready.
        """
        with self._lock:
            pushed = self._sources("pushpull", key, value)
            pulled = self._targets("pushpull", key, value if out is None else out)
            if _shares_between_keys(pushed, pulled):  # all is summed before anything is written
                for slot, given in pushed:
                    self._push(slot, self._arriving(slot, given, priority), priority)
                for slot, targets in pulled:
                    self._pull(slot, targets, priority)
                return
            for (slot, given), (_, targets) in zip(pushed, pulled, strict=True):
                values = self._arriving(slot, given, priority)
                if self._updater is None and sparse.concerned(slot.value, values, targets):
                    sparse.add_up(values, [*targets, slot.value])
                elif self._updater is None and self._joins(slot, values, targets):
                    self._sum(values, [slot.value, *targets], priority)
                else:
                    self._push(slot, values, priority)
                    self._pull(slot, targets, priority)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """:meth:`init` and :meth:`pull` in one: the value of the worker of rank 0 goes to all.

        Args:
            key: a key, or a list of keys.
            value: as for :meth:`init`.
            out: as for :meth:`pull`.
            priority: higher is done earlier among what is ready.
        """
        with self._lock:
            self.init(key, value)
            self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Enqueue copies of chosen rows: ``out`` gets these rows of the value, and zeros in all others.

        Args:
            key: a key, or a list of keys.
            out: arrays of the value's shape, as for :meth:`pull`.
            priority: higher is done earlier among what is ready.
            row_ids: arrays of row numbers, in any order and number of times: one for all of a key's ``out``, or a
                list with one for each.

        Raises:
            KVStoreError: as for :meth:`pull`, or the row ids do not fit ``out``.
            IndexError: when ``out`` is waited for: there is no such row.
        """
        if row_ids is None:
            raise KVStoreError("row_sparse_pull: row_ids is missing: give an NDArray of row numbers, or a list of them")
        with self._lock:
            pulled = self._targets("row_sparse_pull", key, out)
            ids = paired("row_sparse_pull", key, row_ids, {slot.key: targets for slot, targets in pulled})
            for slot, targets in pulled:
                if not slot.value.shape:
                    raise ShapeError(f"row_sparse_pull: the value of key {slot.key!r} has no axes, expected rows")
                for target, rows in zip(targets, ids[slot.key], strict=True):
                    pull_rows = sparse.rows_into if sparse.concerned(slot.value, [target]) else merge.rows_into
                    pull_rows(slot.key, slot.value, rows, target, priority)

    # -- updating --------------------------------------------------------------------------------------

    def set_updater(self, updater: Callable[[Any, Any, Any], Any] | None) -> None:
        """Let pushes call ``updater(key, merged, stored)``, which changes the array ``stored`` in place.

        It is called by :meth:`push` itself, with arrays that may still be computed. None goes back to replacing.

        Example:
            >>> def add_half(key, merged, stored):
            ...     stored += merged / 2
            >>> kv.set_updater(add_half)
        """
        if updater is not None and not callable(updater):
            raise TypeError(f"set_updater: updater is {updater!r}, expected a function of key, merged and stored")
        self._updater = updater

    _set_updater = set_updater

    def set_optimizer(self, optimizer: opt.Optimizer) -> None:
        """Let pushes update values by an optimizer, as gradients.

        Raises:
            TypeError: it is no optimizer.
        """
        if not isinstance(optimizer, opt.Optimizer):
            raise TypeError(f"set_optimizer: optimizer is {optimizer!r}, expected an mx.optimizer.Optimizer")
        self.set_updater(opt.get_updater(optimizer))

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Let devices push gradients in fewer bits; each keeps what they leave out, for its next push.

        The devices of one process gain nothing by it: it is here to see what compression does to training before the
        gradients of several machines take that way.

        Args:
            compression_params: ``{"type": "2bit", "threshold": 0.5}``, ``{"type": "fp16"}`` or ``{"type": "bf16"}``.

        Raises:
            KVStoreError: the store sums on the CPU, where no devices send anything.
            ParameterError: the type or threshold is none that there is.
        """
        if not self._on_devices:
            raise KVStoreError(
                f"set_gradient_compression: a kvstore of type {self.type!r} has nothing to compress: use 'device'"
            )
        self._compression = compression.create(compression_params)
        for slot in self._slots.values():
            slot.feedback = None

    async def ready(self) -> None:
        """Await all values, and the optimizer's states, so that saving does not block."""
        with self._lock:
            arrays = [slot.value for slot in self._slots.values()]
        if isinstance(self._updater, opt.Updater):
            arrays += arrays_in(list(self._updater.states.values()))
        for each in arrays:
            await each

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Save the optimizer's states; blocks until they are on disk (await :meth:`ready` first in a coroutine).

        Args:
            fname: the file.
            dump_optimizer: put the optimizer in too.

        Raises:
            KVStoreError: there is no optimizer.
        """
        replace_file(fname, [self._optimizing("save_optimizer_states").get_states(dump_optimizer)])

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the optimizer's states that :meth:`save_optimizer_states` saved.

        Raises:
            KVStoreError: there is no optimizer.
            StatesFormatError: the file is something else, or damaged.
            OSError: it can not be read.
        """
        self._optimizing("load_optimizer_states").set_states(Path(fname).read_bytes())

    # -- workers ---------------------------------------------------------------------------------------

    @runs_in_plain_code
    async def barrier(self) -> None:
        """Await that every worker has come here; in a store of one process that is at once."""

    def _barrier(self) -> None:
        """MXNet's blocking name of :meth:`barrier`."""

    # -- inside ----------------------------------------------------------------------------------------

    def _share(self, key: Key, arrays: list[NDArray]) -> None:
        """Start a key whose value is the first of these arrays itself, and not a copy of it, if it may stay there.

        Training keeps one copy less so, and what a person writes to that array is not lost at the next update.
        """
        with self._lock:
            value = arrays[0] if self._may_stay(arrays[0]) else self._kept(arrays[0])
            if key in self._slots:
                self._slots[key].value = value
            else:
                self._start(key, value)
            self._pull(self._slots[key], arrays, 0)

    def _exchange(self, keys: Sequence[Any], values: Sequence[Any], outs: Sequence[Any]) -> None:
        if not self._on_devices or self._compression is not None:
            super()._exchange(keys, values, outs)
            return
        with self._lock:
            pushed = self._sources("pushpull", list(keys), list(values))
            pulled = self._targets("pushpull", list(keys), list(outs))
            parts = [
                allreduce.Part(slot.key, slot.value, given, targets)
                for (slot, given), (_, targets) in zip(pushed, pulled, strict=True)
            ]
            together = [
                not sparse.concerned(part.stored, part.values, part.targets) and allreduce.fits(part) for part in parts
            ]
            if any(together):
                fitting = list(itertools.compress(parts, together))
                allreduce.exchange(fitting, self._updater, self._communicator(fitting))
            for place, part in enumerate(parts):
                if not together[place]:
                    self.pushpull(part.key, list(part.values), out=list(part.targets), priority=-place)

    def _communicator(self, parts: Sequence[allreduce.Part]) -> allreduce.Communicator:
        """The communicator for the devices of some keys: NCCL if asked for and available, else copies between peers."""
        places = {device for part in parts for device in part.devices()}
        if self._nccl is None or not allreduce.nccl.are_gpus(places):
            return self._peers
        if self._collectives is None or not places <= set(self._collectives.devices):
            ordered = sorted(places, key=lambda device: device.context.device_id)
            self._collectives = allreduce.NcclCommunicator(ordered, self._nccl)
        return self._collectives

    def _arrays(self) -> list[Any]:
        return [each for slot in self._slots.values() for each in (slot.value, slot.merged) if each is not None]

    def _install(self, updater: Any) -> None:
        self.set_updater(updater)

    def _start(self, key: Key, value: NDArray) -> None:
        if key in self._slots:
            raise KVStoreError(f"init: key {key!r} has been started already, expected each key once")
        for known in self._slots:
            if isinstance(known, str) != isinstance(key, str):
                raise KVStoreError(f"init: key {key!r} came after {known!r}, expected either all int or all str")
            break
        self._slots[key] = Slot(key, value)

    def _kept(self, value: NDArray) -> NDArray:
        """A copy of a value on the device where the store keeps it."""
        return value.copyto(value.context if self._may_stay(value) else cpu())

    def _may_stay(self, value: NDArray) -> bool:
        """Tell whether a store of this type keeps a value on the device that it is on."""
        return self._on_devices or isinstance(value._storage.device, CPUDevice)

    def _slot(self, call: str, key: Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            known = ", ".join(map(repr, list(self._slots)[:5])) or "none"
            raise KVStoreError(f"{call}: there is no key {key!r} (known are {known}): start it with init() first")
        return slot

    def _found(self, call: str, key: Any, given: Any) -> list[tuple[Slot, list[NDArray]]]:
        """The keys with the arrays given for them, once it is certain that all fit."""
        found = [(self._slot(call, name), arrays) for name, arrays in grouped(call, key, given).items()]
        for slot, arrays in found:
            shape = slot.value.shape
            for each in arrays:
                if each.shape != shape:
                    raise ShapeError(
                        f"{call}: for key {slot.key!r} came an array of shape {each.shape}, expected {shape}"
                    )
        return found

    def _sources(self, call: str, key: Any, value: Any) -> list[tuple[Slot, list[NDArray]]]:
        found = self._found(call, key, value)
        for slot, arrays in found:
            if len(arrays) > 1 and len({dtype_of(each) for each in arrays}) > 1:
                names = " and ".join(name_of(kind) for kind in dict.fromkeys(map(dtype_of, arrays)))
                raise TypeInferenceError(f"{call}: for key {slot.key!r} came arrays of {names}, expected one dtype")
            self._move(slot, arrays[0])
        return found

    def _targets(self, call: str, key: Any, out: Any) -> list[tuple[Slot, list[NDArray]]]:
        if out is None:
            raise KVStoreError(f"{call}: out is missing: give an array to write into, or a list of them")
        found = self._found(call, key, out)
        if state.get().recording:
            for _, arrays in found:
                for each in arrays:
                    refuse_in_place(each, call)
        return found

    def _pulled(self, key: Any, out: Any, ignore_sparse: bool) -> list[tuple[Slot, list[NDArray]]]:
        """The keys of a pull with the arrays to write into, without those that are left as they are."""
        if not ignore_sparse:
            return self._targets("pull", key, out)
        found = KVStore._targets(self, "pull", key, out)
        if not any(sparse.concerned(each) for _, targets in found for each in targets):
            return found
        warn_user("pull: sparse arrays were left as they are: use row_sparse_pull() with row_ids", _warned)
        return [(slot, [each for each in targets if not sparse.concerned(each)]) for slot, targets in found]

    def _move(self, slot: Slot, pushed: NDArray) -> None:
        """Move a value to the device of its gradients, if the devices do the sums."""
        if self._on_devices and not merge.reads_directly(pushed._storage.device, slot.value._storage.device):
            slot.value = slot.value.copyto(pushed.context)

    def _arriving(self, slot: Slot, values: list[NDArray], priority: int) -> list[NDArray]:
        """The pushed values as they arrive at the sum: those that compression lets through, if it is on."""
        if self._compression is None or sparse.concerned(slot.value, values):
            return values
        if slot.feedback is None:
            slot.feedback = Feedback(self._compression)
        return slot.feedback.passed(slot.key, values, priority)

    def _push(self, slot: Slot, values: list[NDArray], priority: int) -> None:
        if sparse.concerned(slot.value, values):
            if self._updater is None:
                sparse.add_up(values, [slot.value])
            else:
                self._updater(slot.key, sparse.total(values, slot.value.context), slot.value)
        elif self._updater is not None:
            self._updater(slot.key, self._merged(slot, values, priority), slot.value)
        elif self._joins(slot, values, ()):
            self._sum(values, [slot.value], priority)
        else:
            copy_into(self._merged(slot, values, priority), slot.value, priority)

    def _pull(self, slot: Slot, targets: Sequence[NDArray], priority: int) -> None:
        for each in targets:
            if each is not slot.value and sparse.concerned(slot.value, [each]):
                sparse.copy(slot.value, each)
            elif each is not slot.value:
                copy_into(slot.value, each, priority)

    def _merged(self, slot: Slot, values: list[NDArray], priority: int) -> NDArray:
        """The sum of values, for an updater, on the device of the stored one."""
        context = slot.value.context
        if len(values) == 1 and values[0].context is context:
            return values[0]
        kind = dtype_of(values[0])
        if slot.merged is None or slot.merged.context is not context or dtype_of(slot.merged) != kind:
            slot.merged = empty(slot.value.shape, context, kind)
        self._sum(values, [slot.merged], priority)
        return slot.merged

    def _sum(self, values: Sequence[NDArray], targets: Sequence[NDArray], priority: int) -> None:
        if self._on_devices and merge.is_spread(values):
            merge.add_over(values, targets[0], priority)
            return
        sources = merge.brought(values, targets[0]._storage.device, priority)
        merge.add_up(sources, targets, self._lanes(sources, targets[0]), priority)

    def _lanes(self, sources: Sequence[Any], target: NDArray) -> list[Actor]:
        if self._on_devices:
            return merge.device_lanes([target, *sources])
        return merge.cpu_lanes()

    def _joins(self, slot: Slot, values: Sequence[NDArray], targets: Sequence[NDArray]) -> bool:
        """Tell whether the summing operation may write its result directly into the key's value and the targets."""
        apart = all(each._storage is not slot.value._storage for each in (*values, *targets))
        return apart and merge.may_join(values, [slot.value, *targets])

    def _optimizing(self, call: str) -> opt.Updater:
        if not isinstance(self._updater, opt.Updater):
            raise KVStoreError(f"{call}: the store has no optimizer: call set_optimizer() first")
        return self._updater


def _shares_between_keys(
    pushed: Sequence[tuple[Slot, Sequence[NDArray]]], pulled: Sequence[tuple[Slot, Sequence[NDArray]]]
) -> bool:
    """Tell whether a key's target shares memory with a value that is pushed under another key."""
    if len(pushed) == 1:
        return False
    owners = {each._storage: at for at, (_, values) in enumerate(pushed) for each in values}
    return sum(len(values) for _, values in pushed) > len(owners) or any(
        owners.get(each._storage, at) != at for at, (_, targets) in enumerate(pulled) for each in targets
    )
