"""Updates of several weights as one engine operation, to pay an operation's overhead once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple, cast

from flowmx.errors import DeviceError
from flowmx.ndarray import NDArray
from flowmx.ndarray.backward_bulks import MAX_WEIGHT
from flowmx.ndarray.computations import forward_of, run_on
from flowmx.ndarray.core import BaseArray, invoke, push_on, refuse_in_place
from flowmx.ndarray.mixed_devices import copy_to_device_of_call
from flowmx.ndarray.recording import state as recording
from flowmx.ops.optimizers.updates import Update as RuleOperator
from flowmx.ops.optimizers.updates import WeightUpdate, has_batched_update, update, update_many
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import LIGHT_BYTES, Operator, Run, lookup
from flowmx.ops.sparse.shapes import SparseShape
from flowmx.optimizer.native_updates import NativeUpdates, PreparedUpdate

Forward = Callable[..., None]


class Update(NamedTuple):
    """The update of one weight.

    Attributes:
        op: the update operator.
        weight: the weight.
        grad: its gradient.
        states: the arrays that the operator updates besides the weight, in its order.
        master: a float32 copy to update instead of the weight, for operators whose inputs have the same dtype.
    """

    op: Operator
    weight: NDArray
    grad: NDArray
    states: tuple[NDArray, ...]
    master: NDArray | None = None


@lru_cache(1024)
def find_operator(name: str, parameters: tuple[tuple[str, Any], ...]) -> Operator:
    """Return an update operator with these parameters."""
    return lookup(name).create(**dict(parameters))


_LIGHT_BYTES = LIGHT_BYTES << 1
"""Maximum bytes of repeated updates that run in ``push``: handing them to a worker would cost more."""


class Group(NamedTuple):
    """Updates that were pushed together, with facts derived from their arrays, for the next push of the same updates.

    Attributes:
        updates: the updates.
        arrays: the arrays of each update, in its operator's order.
        storages: the memory of all arrays.
        parts: the kinds of operators, and the arrays as they were passed.
        reads, writes: the variables of all updates.
        touched_bytes: the approximate number of bytes read and written.
        native: their native call, or None.
        prepared: the last operators, and their computations.
    """

    updates: Sequence[Update]
    arrays: Sequence[Sequence[BaseArray]]
    storages: Sequence[Any]
    parts: Sequence[Any]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    touched_bytes: int
    native: NativeUpdates | None
    prepared: list[Any]

    def matches(self, updates: Sequence[Update]) -> bool:
        """Return whether updates have the same arrays and operators of the same kinds."""
        if len(updates) != len(self.updates) or recording.get().recording:
            return False
        parts = _parts(updates)
        if len(parts) != len(self.parts) or not all(map(is_, parts, self.parts)):
            return False
        return self._has_same_storages()

    def _has_same_storages(self) -> bool:
        storages = [array.storage for arrays in self.arrays for array in arrays]
        return all(map(is_, storages, self.storages))

    def can_repeat(self, count: int) -> bool:
        """Return whether :meth:`repeat` pushes that many updates again, if all have operators of the same kind."""
        is_complete = self.native is not None and len(self.updates) == count
        return is_complete and all(update.grad is not _NO_GRADIENT for update in self.updates)

    def repeat(self, op: Operator) -> bool:
        """Push the updates again, all with this operator; return False if their arrays must be checked first."""
        if recording.get().recording or not self._has_same_storages():
            return False
        _push(self.arrays[0][0].storage.device, [op] * len(self.arrays), self, True)
        return True


def _parts(updates: Sequence[Update]) -> list[Any]:
    """Return what two pushes of the same updates have in common: the kinds of operators, and the arrays."""
    parts: list[object] = []
    for op, weight, grad, states, master in updates:
        parts += (type(op), weight, grad, master, *states)
    return parts


def push(updates: Sequence[Update], group: Group | None = None) -> Group | None:
    """Enqueue updates of weights of one device, in this order; return the group for the next push of the same updates.

    Args:
        updates: the updates.
        group: the result of an earlier push; used if it still matches.

    Raises:
        ShapeError, TypeInferenceError, DeviceError: the arrays of an update do not match.
        AutogradError: a weight is part of the current recording.
    """
    is_known = group is not None and group.matches(updates)
    if not is_known:
        if any(_is_sparse(item) for item in updates):
            for item in filter(_is_sparse, updates):
                _push_sparse(item)
            updates = [item for item in updates if not _is_sparse(item)]
            if not updates:
                return None
        group = _group(updates)
    assert group is not None
    device = updates[0].weight.storage.device
    _push(device, [item.op for item in updates], group, is_known)
    return group


def _push(device: Any, ops: Sequence[Operator], group: Group, is_known: bool) -> None:
    # A first run may have to compile, which must not happen on the thread of an event loop.
    light = group.touched_bytes <= (_LIGHT_BYTES if is_known else LIGHT_BYTES)
    push_on(
        device,
        _compute,
        (run_on(device, False), ops, group, group.native if is_known else None),
        group.reads,
        group.writes,
        ops[0].name,
        light,
        depth=5,
        short=is_known and group.touched_bytes <= MAX_WEIGHT,
    )


def _steps(ops: Sequence[Operator], group: Group, device: Any) -> Sequence[PreparedUpdate]:
    """Return the computations of updates by these operators, those of the last push if they are the same."""
    last = group.prepared
    if last and last[0] is device and all(map(is_, ops, last[1])):
        steps: Sequence[PreparedUpdate] = last[2]
        return steps
    steps = []
    for op, item, arrays in zip(ops, group.updates, group.arrays, strict=True):
        forward = (_forward if item.master is None else _mixed_forward)(op, device)
        steps.append(PreparedUpdate(forward, arrays, item.weight, op, item.master is not None))
    group.prepared[:] = device, ops, steps
    return steps


def _group(updates: Sequence[Update]) -> Group:
    """Check updates of weights of one device, and collect the variables that they read and write."""
    device = updates[0].weight.storage.device
    array_lists, touched_bytes, reads, writes = [], 0, {}, {}
    for item in updates:
        arrays, nbytes = _check(item, device)
        array_lists.append(arrays)
        touched_bytes += nbytes
        reads.update(dict.fromkeys([array.storage for array in arrays]))
        writes.update(dict.fromkeys([array.storage for array in (item.weight, *arrays[2:])]))
    storages = [array.storage for arrays in array_lists for array in arrays]
    # A gradient that was copied, or moved from another device, is a new array each time.
    reusable_updates = [
        item if arrays[1] is item.grad else item._replace(grad=_NO_GRADIENT)
        for item, arrays in zip(updates, array_lists, strict=True)
    ]
    is_plain = all(item.master is None for item in updates) and not any(
        array.strided_view for arrays in array_lists for array in arrays
    )
    return Group(
        reusable_updates, array_lists, storages, _parts(reusable_updates), tuple(reads), tuple(writes), touched_bytes,
        NativeUpdates() if is_plain else None, [],
    )  # fmt: skip


_NO_GRADIENT: Any = object()
"""Stands for a gradient that no later update can have."""


def _is_sparse(update: Update) -> bool:
    """Return whether an array of an update is sparse."""
    return any(isinstance(array.dims, SparseShape) for array in (update.weight, update.grad, *update.states))


def _push_sparse(update: Update) -> None:
    """Enqueue an update with sparse arrays, with its operator's sparse implementation."""
    op, weight, grad, states, master = update
    target = weight if master is None else master
    if grad.storage.device is not weight.storage.device:
        grad = grad.as_in_context(weight.context)
    if grad.element_type != target.element_type:
        grad = grad.astype(target.element_type)
    invoke(op, [target, grad, *states], target, None, 4)
    if master is not None:
        master.copyto(weight)


def _check(update: Update, device: Any) -> tuple[list[NDArray], int]:
    """Return the arrays of an update in its operator's order, and the approximate bytes it reads and writes."""
    op, weight, grad, states, master = update
    shared = (weight, *states) if master is None else (weight, *states, master)
    if grad.storage.device is not device:
        grad = cast("NDArray", copy_to_device_of_call(op.name, "grad", grad, weight.context))
    for array in shared:
        if array.storage.device is not device:
            raise DeviceError(
                f"{op.name}: the weight is on {device} and another array on {array.storage.device}: move them "
                "to one with as_in_context"
            )
    if any(grad.storage is array.storage for array in shared):
        grad = grad.copy()
    if recording.get().recording:
        refuse_in_place(weight, op.name)
    arrays = [weight, grad, *states]
    shapes = tuple([array.dims for array in arrays])
    dtypes = tuple([array.element_type for array in arrays]) if master is None else (FLOAT32,) * len(arrays)
    spec = op.spec(shapes, dtypes)
    return (arrays if master is None else [*arrays, master]), spec.nbytes * (len(arrays) + 1)


def _forward(op: Operator, device: Any) -> Forward:
    entry: tuple[Any, Forward] | None = op.__dict__.get("_forward")
    if entry is None or entry[0] is not device:
        entry = (device, forward_of(op, device))
        object.__setattr__(op, "_forward", entry)
    return entry[1]


def _mixed_forward(op: Operator, device: Any) -> Forward:
    def forward(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        update(run, cast("Any", op).rule, op, True, inputs, outputs[0])

    timed_forward: Forward = device.timed(op, forward)
    return timed_forward


def _compute(run: Run, ops: Sequence[Operator], group: Group, native: NativeUpdates | None) -> None:
    if native is not None and native.run(run, group.arrays, ops, lambda: _steps(ops, group, run.device)):
        return
    steps = _steps(ops, group, run.device)
    if has_batched_update(run.device.kernels) and run.device.has_numerics:
        _compute_together(run, steps)
        return
    for forward, inputs, out, _, _ in steps:
        arrays = [array.storage.array if array.strided_view is None else array.raw() for array in inputs]
        forward(run, arrays, [out.raw_for_writing() if out is not inputs[0] else arrays[0]])


def _compute_together(run: Run, steps: Sequence[PreparedUpdate]) -> None:
    """Update all weights of a rule at once, on devices that support it; other operators run one by one."""
    weight_updates = []
    for forward, inputs, out, op, mixed in steps:
        arrays, target = [array.raw() for array in inputs], out.raw_for_writing()
        if isinstance(op, RuleOperator) and type(op).forward is RuleOperator.forward:
            weight_updates.append(WeightUpdate(op.rule, op, mixed or op.mixed, arrays, target))
        else:
            forward(run, arrays, [target])
    update_many(run, weight_updates)
