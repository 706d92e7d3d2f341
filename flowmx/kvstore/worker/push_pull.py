"""The values of a distributed store: pushes and pulls as operations of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from flowmx import optimizer as opt
from flowmx import program
from flowmx.devices import CPUDevice, cpu
from flowmx.engine import Handle, Variable, capture
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError, ShapeError
from flowmx.kvstore import sparse_sums
from flowmx.kvstore.keys import Key, group_by_key, pair_row_ids
from flowmx.kvstore.local import KVStore, Slot
from flowmx.kvstore.shards import Layout
from flowmx.kvstore.spaces import PLAIN, qualify, suffix
from flowmx.kvstore.worker.actor import Deferred
from flowmx.kvstore.worker.coalescing import Groups
from flowmx.kvstore.worker.family import Family
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import Exchange
from flowmx.kvstore.worker.push_compression import Packing, pack_rows
from flowmx.kvstore.worker.push_order import PushRecord
from flowmx.kvstore.worker.session import Session
from flowmx.kvstore.worker.step_tracker import StepTracker
from flowmx.kvstore.worker.transfers import SMALL, Transfers, check_dtype, nbytes_of
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import dtype_of
from flowmx.ndarray.copies import copy_into
from flowmx.ndarray.core import BaseArray
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["DistValues"]

log = logging.getLogger("flowmx.kvstore")

_warned: set[tuple[str, int]] = set()
"""The user's source lines for which a warning about sparse values was issued."""


class DistValues(KVStore):
    """Values by key, stored on the servers of a job.

    Args:
        name: the name that the store was created with.
        session: the session in the job.
        family: this process's stores of the same job; by default a new family, of this store alone.
        space: the key space.
    """

    _is_remote = True

    def __init__(self, name: str, session: Session, family: Family | None = None, space: str = PLAIN) -> None:
        super().__init__(name)
        self._family = Family() if family is None else family
        self._family.stores.append(self)
        self._space = space
        self._names: Sequence[str] = ()
        self._lock = self._family.lock
        self._on_devices = "device" in name
        self._session = session
        self._layout = Layout(session.servers)
        self._entries: dict[Key, KeyState] = {}
        self._control = self._family.control
        self._inits = Variable("kvstore inits")
        """Written by every init: workers wait for each other in an init, so all must run inits in the same order."""
        self._groups = Groups(self._family.group_numbers)
        self._transfers = Transfers(session.submit, session.windows)
        self._call_count = 0
        self._config_call = 0
        """The number of the last call of :meth:`set_optimizer`."""
        self._has_pushed = False
        self._is_late = False
        self._has_read_step = False
        self._step = StepTracker()
        self._packing: Packing | None = None
        self._optimizer: opt.Optimizer | None = None
        self._config: dict[str, Any] | None = None

    # -- identity --------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._session.node.rank

    @property
    def num_workers(self) -> int:
        """The number of worker slots of the job, filled or not; gradients and data are divided by it."""
        return max(sum(member.role == "worker" for member in self._session.node.view.members), 1)

    @property
    def _is_synchronous(self) -> bool:
        return self._session.mode[0] == "sync"

    @property
    def step(self) -> int:
        """The number of completed pushes of each pushed key: the steps of a synchronous job.

        A worker that restarts in a running synchronous job resumes from this step, once its keys are initialized.
        """
        self._has_read_step = True
        entries = list(self._entries.values()) or self._family.entries()
        for entry in entries:
            engine.wait_variable(entry.order)
        return _completed_pushes(entries)

    def _steps(self) -> int:
        return _completed_pushes(self._entries.values())

    # -- values ----------------------------------------------------------------------------------------

    def init(self, key: object, value: object) -> None:
        """Initialize keys with the values of the worker of rank 0; each key once, on all workers in the same order.

        Args:
            key: an int or a str, or a list of them: all keys of a store have the same type.
            value: an array, or a list with one array per key.

        Raises:
            KVStoreError: a key already exists, is an int among str keys or the reverse, or has several values.
        """
        with self._lock:
            self._session.check()
            values_by_key = {
                name: self._dense("init", name, values) for name, values in group_by_key("init", key, value).items()
            }
            for name, values in values_by_key.items():
                if len(values) != 1:
                    raise KVStoreError(f"init: got {len(values)} values for key {name!r}, expected one")
                self._start(name, empty(values[0].shape, cpu(), dtype_of(values[0])))
            arrays = {name: values[0] for name, values in values_by_key.items()}
            keep_whole = self._optimizer is not None and self._optimizer.whole_array
            wire_keys = {name: qualify(self._space, name) for name in arrays}
            self._layout.add({wire_keys[name]: array.shape for name, array in arrays.items()}, whole=keep_whole)
            entries = [
                KeyState(name, array.shape, dtype_of(array), self._layout[wire_keys[name]])
                for name, array in arrays.items()
            ]
            self._entries.update((entry.key, entry) for entry in entries)
            self._session.names.update(
                (wire_keys[key], self._names[key]) for key in arrays if type(key) is int and key < len(self._names)
            )
            self._call_count += 1
            self._is_late |= self._session.node.is_past(f"init {self._call_count}{suffix(self._space)}")
            local_arrays = [array.as_in_context(cpu()) for array in arrays.values()]
            reads = (*(array.storage for array in local_arrays), self._control)
            orders = (*(entry.order for entry in entries), self._inits)
            self._enqueue("kvstore init", self._begin_init, (entries, local_arrays, self._call_count), reads, orders)

    def broadcast(self, key: object, value: object, out: object, priority: int = 0) -> None:
        with self._lock:
            self.init(key, value)
            entries = [self._entries[name] for name in group_by_key("broadcast", key, value)]
            orders = tuple(entry.order for entry in entries)
            self._enqueue("kvstore broadcast", self._check_untouched, (entries,), (), orders)
            self.pull(key, out, priority)

    def push(self, key: object, value: object, priority: int = 0) -> None:
        with self._lock:
            self._session.check()
            pairs = self._sources("push", key, value)
            entries = [self._entries[slot.key] for slot, _ in pairs]
            self._track_step(entries)
            records = self._record_pushes(entries)
            sources = [self._prepare(slot, values, priority) for slot, values in pairs]
            singles, groups = self._groups.divide(entries, map(_can_join_group, entries, sources))
            exchange = Exchange(sum(len(entries[position].shards) for position in singles) + len(groups))
            variables: list[Variable] = [entry.order for entry in entries]
            for group, positions in groups:
                group_sources = [sources[position] for position in positions]
                reads, writes = _variables(group_sources), tuple(entry.order for entry in group.entries)
                arguments: tuple[Any, ...] = (group, group_sources, exchange, priority)
                if records:
                    arguments, reads = (
                        (*arguments, tuple(records[position] for position in positions)),
                        (*reads, self._inits),
                    )
                light = group.shard.nbytes <= SMALL
                self._enqueue("kvstore push", self._transfers.push_group, arguments, reads, writes, priority, light)
            for position in singles:
                entry, source = entries[position], sources[position]
                arguments, reads = (entry, source, exchange, priority), (source.variable,)
                if records:
                    arguments, reads = (*arguments, (records[position],)), (*reads, self._inits)
                light = nbytes_of(source) <= SMALL
                self._enqueue("kvstore push", self._transfers.push, arguments, reads, (entry.order,), priority, light)
                if not light:
                    variables.append(source.variable)
            # The gradients must not change until they have arrived: they may have to be sent again.
            self._enqueue("kvstore push", lambda: exchange, (), tuple(variables), (), priority)

    def pull(self, key: object, out: object = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        with self._lock:
            self._session.check()
            pairs = [pair for pair in self._pull_targets(key, out, ignore_sparse) if pair[1]]
            entries, targets = [self._entries[slot.key] for slot, _ in pairs], [arrays for _, arrays in pairs]
            singles, groups = self._groups.divide(entries, map(_are_in_host_memory, targets))
            for group, positions in groups:
                orders = tuple(entry.order for entry in group.entries)
                group_targets = [targets[position] for position in positions]
                reads, writes = (*orders, *_partly_written(group_targets)), _written_variables(group_targets)
                arguments = (group, group_targets, priority)
                self._enqueue("kvstore pull", self._transfers.pull_group, arguments, reads, writes, priority)
            for position in singles:
                self._pull(*pairs[position], priority)

    def pushpull(self, key: object, value: object, out: object = None, priority: int = 0) -> None:
        with self._lock:
            self._session.check()
            source_pairs = self._sources("pushpull", key, value)
            target_pairs = self._targets("pushpull", key, value if out is None else out)
            entries, targets = (
                [self._entries[slot.key] for slot, _ in source_pairs],
                [arrays for _, arrays in target_pairs],
            )
            self._track_step(entries)
            records = self._record_pushes(entries)
            sources = [self._prepare(slot, values, priority) for slot, values in source_pairs]
            fits = (
                _can_join_group(*pair) and _are_in_host_memory(target_arrays)
                for *pair, target_arrays in zip(entries, sources, targets, strict=True)
            )
            singles, groups = self._groups.divide(entries, fits)
            for group, positions in groups:
                values = [sources[position] for position in positions]
                group_targets = [targets[position] for position in positions]
                reads = (*_variables(values), *_partly_written(group_targets))
                writes = (*(entry.order for entry in group.entries), *_written_variables(group_targets))
                arguments: tuple[Any, ...] = (group, values, group_targets, priority)
                if records:
                    arguments, reads = (
                        (*arguments, tuple(records[position] for position in positions)),
                        (*reads, self._inits),
                    )
                self._enqueue("kvstore pushpull", self._transfers.pushpull_group, arguments, reads, writes, priority)
            for position in singles:
                self._pushpull(
                    target_pairs[position][0],
                    sources[position],
                    targets[position],
                    priority,
                    records[position : position + 1],
                )

    def _sources(self, call: str, key: object, value: object) -> list[tuple[Slot, list[NDArray]]]:
        return [
            (slot, values if self._is_sent_by_rows(slot, values) else self._dense(call, slot.key, values))
            for slot, values in super()._sources(call, key, value)
        ]

    def _is_sent_by_rows(self, slot: Slot, values: list[NDArray]) -> bool:
        """Return whether only the stored rows of a pushed value are sent."""
        return (
            self._packing is None
            and all(array.stype == "row_sparse" for array in values)
            and self._entries[slot.key].has_rows
        )

    def _targets(self, call: str, key: object, out: object) -> list[tuple[Slot, list[NDArray]]]:
        pairs = super()._targets(call, key, out)
        stypes = ("default", "row_sparse") if call == "row_sparse_pull" else ("default",)
        for slot, arrays in pairs:
            for array in arrays:
                if array.stype not in stypes:
                    raise NotImplementedError(
                        f"{call}: the array for key {slot.key!r} is {array.stype}, and a store of type {self.type!r} "
                        f"writes into {' and '.join(stypes)} arrays: pull rows with row_sparse_pull, or pull into a "
                        "dense array and convert it with tostype"
                    )
        return pairs

    def _dense(self, call: str, key: Key, values: list[NDArray]) -> list[NDArray]:
        """Return the arrays of a key, converted to dense arrays for sending."""
        if not any(isinstance(array.dims, SparseShape) for array in values):
            return values
        if call != "init":
            warn_user(
                f"{call}: a store of type {self.type!r} sends the sparse values of key {key!r} as dense ones, which is "
                "correct but not faster",
                _warned,
            )
        return [array.tostype("default") for array in values]

    def _record_pushes(self, entries: Sequence[KeyState]) -> list[PushRecord]:
        """Record the order of pushes, if the optimizer needs it."""
        order = self._transfers.order
        return [order.record(entry.key) for entry in entries] if order.active else []

    def _check_start(self) -> None:
        """Warn, before the first push, if the program starts from the beginning in a running job."""
        if self._is_late and not self._family.fits and not self._has_read_step:
            log.warning(
                "this worker has joined a running job, and its program has not read the position of the job: it would "
                "continue alone after the others have ended. checkpoint.Run, Module.fit and Estimator.fit read it; a "
                "custom loop must start at kv.step"
            )

    def _track_step(self, entries: Sequence[KeyState]) -> None:
        """Record the keys that are about to be pushed; at the beginning of a step, a SIGTERM ends the program here."""
        if not self._has_pushed:
            self._has_pushed = True
            self._check_start()
        keys = [entry.key for entry in entries]
        if program.is_terminating() and not program.is_shutdown_deferred() and self._step.begins(keys):
            program.shut_down()
        self._step.push(keys)

    def row_sparse_pull(self, key: object, out: object = None, priority: int = 0, row_ids: object = None) -> None:
        if row_ids is None:
            raise KVStoreError("row_sparse_pull: row_ids is missing: pass an NDArray of row numbers, or a list of them")
        with self._lock:
            self._session.check()
            target_pairs = self._targets("row_sparse_pull", key, out)
            ids = pair_row_ids("row_sparse_pull", key, row_ids, {slot.key: targets for slot, targets in target_pairs})
            for slot, targets in target_pairs:
                if not slot.value.shape:
                    raise ShapeError(f"row_sparse_pull: the value of key {slot.key!r} is a scalar, expected rows")
                for target, rows in zip(targets, ids[slot.key], strict=True):
                    self._pull_rows(slot, target, rows.as_in_context(cpu()), priority)

    def _check_untouched(self, entries: Sequence[KeyState]) -> None:
        """Check that a worker that joined late gets parameters, not sums of gradients."""
        changed = [entry.key for entry in entries if any(entry.numbers)]
        if changed and self._optimizer is None:
            raise KVStoreError(
                f"broadcast: key {changed[0]!r} has a sum of gradients, and only other workers have the parameters: "
                "a worker can join late only if the kvstore updates them (update_on_kvstore)"
            )

    # -- implementation --------------------------------------------------------------------------------

    def _share(self, key: Key, arrays: list[NDArray]) -> None:
        if key not in self._entries:
            self.init(key, arrays[0])
        self.pull(key, arrays)

    def _move(self, slot: Slot, gradient: NDArray) -> None:
        """Do nothing: the servers store the values."""

    def _prepare(self, slot: Slot, values: list[NDArray], priority: int) -> Any:
        """Return the data to send for the values of all devices: a host array, or a compressed gradient."""
        if sparse_sums.involves_sparse(values[0]):
            entry, total = self._entries[slot.key], sparse_sums.total(values, cpu())
            check_dtype(entry, total)
            return pack_rows(entry, total, priority)
        source = values[0]
        if len(values) > 1 or not isinstance(source.storage.device, CPUDevice):
            source = self._merge(slot, values, priority)
        if self._packing is None:
            return source
        return self._packing.pack(self._entries[slot.key], source, priority)

    def _receiver(self, slot: Slot, targets: Sequence[NDArray]) -> NDArray:
        """Return the array for the response: one of the targets, if possible."""
        dtype = dtype_of(slot.value)
        for target in targets:
            if sparse_sums.involves_sparse(target):
                return target
            if (
                target.strided_view is None
                and dtype_of(target) == dtype
                and isinstance(target.storage.device, CPUDevice)
            ):
                return target
        return slot.value

    def _copy_to_others(self, target: NDArray, targets: Sequence[NDArray], priority: int) -> None:
        for other in targets:
            if other is not target:
                copy_into(target, other, priority)

    def _pushpull(
        self, slot: Slot, source: Any, targets: Sequence[NDArray], priority: int, records: Sequence[PushRecord]
    ) -> None:  # fmt: skip
        entry, target = self._entries[slot.key], self._receiver(slot, targets)
        arguments: tuple[Any, ...] = (entry, source, target, priority)
        reads: tuple[Variable, ...] = (source.variable,)
        writes = (entry.order, target.storage)
        if records:
            arguments, reads = (*arguments, tuple(records)), (*reads, self._inits)
        self._enqueue("kvstore pushpull", self._transfers.pushpull, arguments, reads, writes, priority)
        self._copy_to_others(target, targets, priority)

    def _pull(self, slot: Slot, targets: Sequence[NDArray], priority: int) -> None:
        entry, target = self._entries[slot.key], self._receiver(slot, targets)
        arguments = (entry, target, priority)
        self._enqueue("kvstore pull", self._transfers.pull, arguments, (entry.order,), (target.storage,), priority)
        self._copy_to_others(target, targets, priority)

    def _pull_rows(self, slot: Slot, target: NDArray, rows: NDArray, priority: int) -> None:
        entry, receiver = self._entries[slot.key], self._receiver(slot, [target])
        arguments, reads = (entry, receiver, rows, priority), (entry.order, rows.storage)
        self._enqueue(
            "kvstore row_sparse_pull", self._transfers.pull_rows, arguments, reads, (receiver.storage,), priority
        )
        self._copy_to_others(receiver, [target], priority)

    def _enqueue(
        self, name: str, function: Callable[..., object], arguments: tuple[object, ...], reads: tuple[Variable, ...],
        writes: tuple[Variable, ...], priority: int = 0, light: bool = False,
    ) -> Handle[Any]:  # fmt: skip
        op: Handle[Any] = Handle(function, arguments, reads, writes, self._session.actor, name, capture(), 0, light)
        op.priority, op.bulkable = priority, False
        engine.enqueue(op)
        return op

    def _enqueue_for_all_keys(
        self, name: str, work: Callable[..., Coroutine[Any, Any, Any]] | None, arguments: tuple[object, ...]
    ) -> Handle[Any]:
        """Enqueue an operation that runs after everything pushed so far, and before everything pushed later."""
        orders = tuple(entry.order for entry in self._family.entries())
        if work is None:
            return self._enqueue(name, lambda: None, (), (*orders, self._control), ())
        session = self._session
        begin = lambda: session.spawn(lambda: work(*arguments))  # noqa: E731
        return self._enqueue(name, begin, (), (), (*orders, self._control))

    def _begin_init(self, entries: list[KeyState], arrays: list[NDArray], number: int) -> Deferred:
        values = [array.raw() for array in arrays]
        barrier, facts = f"init {number}{suffix(self._space)}", self._family.facts()

        async def init() -> None:
            await self._session.init(entries, values, barrier, facts)
            self._transfers.order.add({entry.key: entry.count for entry in entries})

        return self._session.spawn(init)


def _completed_pushes(entries: Iterable[KeyState]) -> int:
    """Return the minimum number of pushes among the keys that were pushed."""
    return min((min(entry.numbers) for entry in entries if any(entry.numbers)), default=0)


def _can_join_group(entry: KeyState, source: object) -> bool:
    """Return whether a pushed value may be joined with those of other small keys: an array of the key's dtype."""
    return isinstance(source, BaseArray) and source.element_type == entry.dtype


def _are_in_host_memory(targets: Sequence[BaseArray]) -> bool:
    """Return whether all arrays are in host memory, where received values can be written directly."""
    return all(isinstance(target.storage.device, CPUDevice) for target in targets)


def _variables(arrays: Sequence[BaseArray]) -> tuple[Variable, ...]:
    return tuple(dict.fromkeys(array.storage for array in arrays))


def _written_variables(targets: Sequence[Sequence[BaseArray]]) -> tuple[Variable, ...]:
    return tuple(dict.fromkeys(array.storage for arrays in targets for array in arrays))


def _partly_written(targets: Sequence[Sequence[BaseArray]]) -> tuple[Variable, ...]:
    """Return the memory of views; it is also read, since the elements outside the views must survive."""
    return tuple({array.storage: None for arrays in targets for array in arrays if array.strided_view is not None})
