"""The values of a store of several machines: what is pushed and pulled, as operations of the engine."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from flowmx import optimizer as opt
from flowmx import program
from flowmx.devices import CPUDevice, cpu
from flowmx.engine import Handle, Variable, capture
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError, ShapeError
from flowmx.kvstore import sparse
from flowmx.kvstore.keys import Key, grouped, paired
from flowmx.kvstore.local import KVStore, Slot
from flowmx.kvstore.shards import Layout
from flowmx.kvstore.worker.actor import Deferred
from flowmx.kvstore.worker.groups import Groups
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import Exchange
from flowmx.kvstore.worker.packing import Packing, by_rows
from flowmx.kvstore.worker.session import Session
from flowmx.kvstore.worker.step import Step
from flowmx.kvstore.worker.transfers import SMALL, Transfers, check_dtype, nbytes_of
from flowmx.ndarray import NDArray, empty
from flowmx.ndarray.array import copy_into, dtype_of
from flowmx.ndarray.core import BaseArray
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["DistValues"]

_told: set[tuple[str, int]] = set()
"""The lines that were warned of sparse values."""


class DistValues(KVStore):
    """Values by key, kept by the servers of a job.

    Args:
        name: the name that the store was created by.
        session: the job.
    """

    _is_remote = True

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(name)
        self._on_devices = "device" in name
        self._session = session
        self._layout = Layout(session.servers)
        self._entries: dict[Key, KeyState] = {}
        self._control = Variable("kvstore")
        self._inits = Variable("kvstore inits")
        """Written by each init: workers wait for each other in one, so all must come to them in the same order."""
        self._groups = Groups()
        self._transfers = Transfers(session.submit, session.windows)
        self._starts = 0
        self._fits = 0
        self._agreements = 0
        self._has_pushed = False
        self._step = Step()
        self._packing: Packing | None = None
        self._optimizer: opt.Optimizer | None = None
        self._configured: dict[str, Any] | None = None

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._session.node.rank

    @property
    def num_workers(self) -> int:
        """Number of worker places in the job, filled or not, by which gradients and data are divided."""
        return max(sum(member.role == "worker" for member in self._session.node.view.members), 1)

    @property
    def _is_synchronous(self) -> bool:
        return self._session.mode[0] == "sync"

    @property
    def step(self) -> int:
        """Number of completed pushes of each key that is pushed at all: the steps of a synchronous job.

        A worker that starts again in the middle of a synchronous job goes on from here, when its keys are started.
        """
        for entry in list(self._entries.values()):
            engine.wait_variable(entry.order)
        return self._steps()

    def _steps(self) -> int:
        return min((min(entry.numbers) for entry in self._entries.values() if any(entry.numbers)), default=0)

    # -- values ----------------------------------------------------------------------------------------

    def init(self, key: Any, value: Any) -> None:
        """Start keys, with the values of the worker of rank 0; each key once, by all workers in the same order.

        Args:
            key: an int or a str, or a list of them: all keys of a store are of one kind.
            value: an array, or a list with one for each key.

        Raises:
            KVStoreError: a key is known already, of the other kind, or has several values.
        """
        with self._lock:
            self._session.check()
            found = {name: self._dense("init", name, values) for name, values in grouped("init", key, value).items()}
            for name, values in found.items():
                if len(values) != 1:
                    raise KVStoreError(f"init: {len(values)} values came for key {name!r}, expected one")
                self._start(name, empty(values[0].shape, cpu(), dtype_of(values[0])))
            arrays = {name: values[0] for name, values in found.items()}
            whole = self._optimizer is not None and self._optimizer.whole_array
            self._layout.add({name: each.shape for name, each in arrays.items()}, whole=whole)
            entries = [KeyState(name, each.shape, dtype_of(each), self._layout[name]) for name, each in arrays.items()]
            self._entries.update((entry.key, entry) for entry in entries)
            self._starts += 1
            here = [each.as_in_context(cpu()) for each in arrays.values()]
            reads = (*(each._storage for each in here), self._control)
            orders = (*(entry.order for entry in entries), self._inits)
            self._operate("kvstore init", self._begin_init, (entries, here, self._starts), reads, orders)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        with self._lock:
            self.init(key, value)
            entries = [self._entries[name] for name in grouped("broadcast", key, value)]
            orders = tuple(entry.order for entry in entries)
            self._operate("kvstore broadcast", self._check_untouched, (entries,), (), orders)
            self.pull(key, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        with self._lock:
            self._session.check()
            found = self._sources("push", key, value)
            entries = [self._entries[slot.key] for slot, _ in found]
            self._note_push(entries)
            sources = [self._outgoing(slot, given, priority) for slot, given in found]
            alone, groups = self._groups.divide(entries, map(_may_join, entries, sources))
            exchange = Exchange(sum(len(entries[at].shards) for at in alone) + len(groups))
            held: list[Variable] = [entry.order for entry in entries]
            for group, places in groups:
                given = [sources[at] for at in places]
                reads, writes = _variables(given), tuple(entry.order for entry in group.entries)
                arguments: tuple[Any, ...] = (group, given, exchange, priority)
                light = group.shard.nbytes <= SMALL
                self._operate("kvstore push", self._transfers.push_group, arguments, reads, writes, priority, light)
            for entry, source in ((entries[at], sources[at]) for at in alone):
                arguments, reads = (entry, source, exchange, priority), (source.variable,)
                light = nbytes_of(source) <= SMALL
                self._operate("kvstore push", self._transfers.push, arguments, reads, (entry.order,), priority, light)
                if not light:
                    held.append(source.variable)
            # The gradients stay as they are until they have arrived: they may have to be sent again.
            self._operate("kvstore push", lambda: exchange, (), tuple(held), (), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        with self._lock:
            self._session.check()
            found = [each for each in self._pulled(key, out, ignore_sparse) if each[1]]
            entries, targets = [self._entries[slot.key] for slot, _ in found], [each for _, each in found]
            alone, groups = self._groups.divide(entries, map(_are_here, targets))
            for group, places in groups:
                orders, taken = tuple(entry.order for entry in group.entries), [targets[at] for at in places]
                reads, writes = (*orders, *_parts_of_others(taken)), _written_by(taken)
                arguments = (group, taken, priority)
                self._operate("kvstore pull", self._transfers.pull_group, arguments, reads, writes, priority)
            for at in alone:
                self._pull(*found[at], priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        with self._lock:
            self._session.check()
            pushed = self._sources("pushpull", key, value)
            pulled = self._targets("pushpull", key, value if out is None else out)
            entries, targets = [self._entries[slot.key] for slot, _ in pushed], [each for _, each in pulled]
            self._note_push(entries)
            sources = [self._outgoing(slot, given, priority) for slot, given in pushed]
            fits = (_may_join(*each) and _are_here(to) for *each, to in zip(entries, sources, targets, strict=True))
            alone, groups = self._groups.divide(entries, fits)
            for group, places in groups:
                given, taken = [sources[at] for at in places], [targets[at] for at in places]
                reads = (*_variables(given), *_parts_of_others(taken))
                writes = (*(entry.order for entry in group.entries), *_written_by(taken))
                arguments: tuple[Any, ...] = (group, given, taken, priority)
                self._operate("kvstore pushpull", self._transfers.pushpull_group, arguments, reads, writes, priority)
            for at in alone:
                self._pushpull(pulled[at][0], sources[at], targets[at], priority)

    def _sources(self, call: str, key: Any, value: Any) -> list[tuple[Slot, list[NDArray]]]:
        return [
            (slot, values if self._travels_by_rows(slot, values) else self._dense(call, slot.key, values))
            for slot, values in super()._sources(call, key, value)
        ]

    def _travels_by_rows(self, slot: Slot, values: list[NDArray]) -> bool:
        """Tell whether only the stored rows of a pushed value are sent."""
        return (
            self._packing is None
            and all(each.stype == "row_sparse" for each in values)
            and self._entries[slot.key].has_rows
        )

    def _targets(self, call: str, key: Any, out: Any) -> list[tuple[Slot, list[NDArray]]]:
        found = super()._targets(call, key, out)
        taken = ("default", "row_sparse") if call == "row_sparse_pull" else ("default",)
        for slot, arrays in found:
            for each in arrays:
                if each.stype not in taken:
                    raise NotImplementedError(
                        f"{call}: for key {slot.key!r} came a {each.stype} array, and a store of type {self.type!r} "
                        f"writes into {' and '.join(taken)} ones: pull rows with row_sparse_pull, or pull into a dense "
                        "array, and make it sparse with tostype"
                    )
        return found

    def _dense(self, call: str, key: Key, values: list[NDArray]) -> list[NDArray]:
        """The arrays of a key as they travel: dense."""
        if not any(isinstance(each._shape, SparseShape) for each in values):
            return values
        if call != "init":
            warn_user(
                f"{call}: a store of type {self.type!r} sends the sparse values of key {key!r} as dense ones, which is "
                "right and takes as long as dense ones",
                _told,
            )
        return [each.tostype("default") for each in values]

    def _note_push(self, entries: Sequence[KeyState]) -> None:
        """Note what is about to be pushed; where that would begin a step, SIGTERM ends the program here."""
        self._has_pushed = True
        keys = [entry.key for entry in entries]
        if program.asked_to_end() and not program.held() and self._step.begins(keys):
            program.leave()
        self._step.push(keys)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        if row_ids is None:
            raise KVStoreError("row_sparse_pull: row_ids is missing: give an NDArray of row numbers, or a list of them")
        with self._lock:
            self._session.check()
            pulled = self._targets("row_sparse_pull", key, out)
            ids = paired("row_sparse_pull", key, row_ids, {slot.key: targets for slot, targets in pulled})
            for slot, targets in pulled:
                if not slot.value.shape:
                    raise ShapeError(f"row_sparse_pull: the value of key {slot.key!r} has no axes, expected rows")
                for target, rows in zip(targets, ids[slot.key], strict=True):
                    self._pull_rows(slot, target, rows.as_in_context(cpu()), priority)

    def _check_untouched(self, entries: Sequence[KeyState]) -> None:
        """Refuse values that are no longer what a worker that joins late expects: its parameters."""
        changed = [entry.key for entry in entries if any(entry.numbers)]
        if changed and self._optimizer is None:
            raise KVStoreError(
                f"broadcast: key {changed[0]!r} holds a sum of gradients already, and the parameters are with the "
                "other workers: a worker can join late only where the kvstore updates them (update_on_kvstore)"
            )

    # -- inside ----------------------------------------------------------------------------------------

    def _share(self, key: Key, arrays: list[NDArray]) -> None:
        if key not in self._entries:
            self.init(key, arrays[0])
        self.pull(key, arrays)

    def _move(self, slot: Slot, pushed: NDArray) -> None:
        """Do nothing: values are kept by the servers."""

    def _outgoing(self, slot: Slot, values: list[NDArray], priority: int) -> Any:
        """The payload for the values of all devices: an array in host memory, or a compressed one."""
        if sparse.concerned(values[0]):
            entry, total = self._entries[slot.key], sparse.total(values, cpu())
            check_dtype(entry, total)
            return by_rows(entry, total, priority)
        source = values[0]
        if len(values) > 1 or not isinstance(source._storage.device, CPUDevice):
            source = self._merged(slot, values, priority)
        if self._packing is None:
            return source
        return self._packing.packed(self._entries[slot.key], source, priority)

    def _arrives(self, slot: Slot, targets: Sequence[NDArray]) -> NDArray:
        """The array that an answer is received in: one of the targets, if possible."""
        kind = dtype_of(slot.value)
        for each in targets:
            if sparse.concerned(each):
                return each
            if each._view is None and dtype_of(each) == kind and isinstance(each._storage.device, CPUDevice):
                return each
        return slot.value

    def _hand_on(self, target: NDArray, targets: Sequence[NDArray], priority: int) -> None:
        for each in targets:
            if each is not target:
                copy_into(target, each, priority)

    def _pushpull(self, slot: Slot, source: Any, targets: Sequence[NDArray], priority: int) -> None:
        entry, target = self._entries[slot.key], self._arrives(slot, targets)
        arguments, reads, writes = (entry, source, target, priority), (source.variable,), (entry.order, target._storage)
        self._operate("kvstore pushpull", self._transfers.pushpull, arguments, reads, writes, priority)
        self._hand_on(target, targets, priority)

    def _pull(self, slot: Slot, targets: Sequence[NDArray], priority: int) -> None:
        entry, target = self._entries[slot.key], self._arrives(slot, targets)
        arguments = (entry, target, priority)
        self._operate("kvstore pull", self._transfers.pull, arguments, (entry.order,), (target._storage,), priority)
        self._hand_on(target, targets, priority)

    def _pull_rows(self, slot: Slot, target: NDArray, rows: NDArray, priority: int) -> None:
        entry, arrives = self._entries[slot.key], self._arrives(slot, [target])
        arguments, reads = (entry, arrives, rows, priority), (entry.order, rows._storage)
        self._operate(
            "kvstore row_sparse_pull", self._transfers.pull_rows, arguments, reads, (arrives._storage,), priority
        )
        self._hand_on(arrives, [target], priority)

    def _operate(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], reads: tuple[Variable, ...],
        writes: tuple[Variable, ...], priority: int = 0, light: bool = False,
    ) -> Handle:  # fmt: skip
        op = Handle(function, arguments, reads, writes, self._session.actor, name, capture(), 0, light)
        op.priority, op.bulkable = priority, False
        engine.enqueue(op)
        return op

    def _control_by(
        self, name: str, work: Callable[..., Coroutine[Any, Any, Any]] | None, arguments: tuple[Any, ...]
    ) -> Handle:
        """Enqueue something that comes after everything pushed so far, and before everything pushed later."""
        orders = tuple(entry.order for entry in self._entries.values())
        if work is None:
            return self._operate(name, lambda: None, (), (*orders, self._control), ())
        session = self._session
        begin = lambda: session.spawn(lambda: work(*arguments))  # noqa: E731
        return self._operate(name, begin, (), (), (*orders, self._control))

    def _begin_init(self, entries: list[KeyState], arrays: list[NDArray], number: int) -> Deferred:
        values = [each._read() for each in arrays]
        return self._session.spawn(lambda: self._session.init(entries, values, f"init {number}"))


def _may_join(entry: KeyState, source: Any) -> bool:
    """Tell whether a pushed value may be joined with those of other small keys: an array of the key's dtype."""
    return isinstance(source, BaseArray) and source._dtype == entry.dtype


def _are_here(targets: Sequence[BaseArray]) -> bool:
    """Tell whether all arrays are in host memory, so that they can be written without a copy by a device."""
    return all(isinstance(each._storage.device, CPUDevice) for each in targets)


def _variables(arrays: Sequence[BaseArray]) -> tuple[Variable, ...]:
    return tuple(dict.fromkeys(each._storage for each in arrays))


def _written_by(targets: Sequence[Sequence[BaseArray]]) -> tuple[Variable, ...]:
    return tuple(dict.fromkeys(each._storage for arrays in targets for each in arrays))


def _parts_of_others(targets: Sequence[Sequence[BaseArray]]) -> tuple[Variable, ...]:
    """The memory of which only a part is written: what a view leaves out must survive."""
    return tuple({each._storage: None for arrays in targets for each in arrays if each._view is not None})
