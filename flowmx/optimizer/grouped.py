"""Updates of several weights as one operation of the engine: what an operation costs is paid once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from flowmx.errors import DeviceError
from flowmx.ndarray import NDArray
from flowmx.ndarray.bulk import MOST_WEIGHT
from flowmx.ndarray.core import BaseArray, forward_of, invoke, push_on, refuse_in_place, run_on
from flowmx.ndarray.host import bring
from flowmx.ndarray.recording import state as recording
from flowmx.ops.optimizers.updates import One, update, update_many, updates_together
from flowmx.ops.optimizers.updates import Update as RuleOperator
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import LIGHT_BYTES, Operator, Run, lookup
from flowmx.ops.sparse.shapes import SparseShape

Forward = Callable[..., None]


class PreparedUpdate(NamedTuple):
    """A computation, its inputs and its output; and what it computes."""

    forward: Forward
    inputs: Sequence[BaseArray]
    out: BaseArray
    op: Any
    mixed: bool


class Update(NamedTuple):
    """The update of one weight.

    Attributes:
        op: the update operator.
        weight: the weight.
        grad: its gradient.
        states: the arrays that the operator updates besides the weights, in its order.
        master: a float32 copy to update in place of the weight, for operators of one dtype.
    """

    op: Operator
    weight: NDArray
    grad: NDArray
    states: tuple[NDArray, ...]
    master: NDArray | None = None


@lru_cache(1024)
def operator_of(name: str, parameters: tuple[tuple[str, Any], ...]) -> Operator:
    """An update operator with its parameters."""
    return lookup(name).create(**dict(parameters))


_LIGHT_BYTES = LIGHT_BYTES << 1
"""Bytes that updates may touch and still run at their push, once they have run: to hand them to a worker costs more."""


class Group(NamedTuple):
    """Updates of weights that were pushed together: what follows from their arrays, for the next push of the same.

    Attributes:
        updates: those.
        arrays: for each its arrays, as its operator takes them.
        storages: for each the memory of its arrays.
        reads, writes: the variables of all together.
        touched: the number of bytes, about.
    """

    updates: Sequence[Update]
    arrays: Sequence[Sequence[BaseArray]]
    storages: Sequence[Sequence[Any]]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    touched: int

    def is_of(self, updates: Sequence[Update]) -> bool:
        """Tell whether updates are of the same arrays, by operators of the same kind."""
        if len(updates) != len(self.updates) or recording.get().recording:
            return False
        for new, old, arrays, storages in zip(updates, self.updates, self.arrays, self.storages, strict=True):
            if new.weight is not old.weight or new.grad is not old.grad or new.master is not old.master:
                return False
            if type(new.op) is not type(old.op) or len(new.states) != len(old.states):
                return False
            for state, before in zip(new.states, old.states, strict=True):
                if state is not before:
                    return False
            for array, storage in zip(arrays, storages, strict=True):
                if array._storage is not storage:
                    return False
        return True


def push(updates: Sequence[Update], known: Group | None = None) -> Group | None:
    """Enqueue updates of weights of one device, in this order; returns what the next push of the same is to be given.

    Args:
        updates: those.
        known: what an earlier push returned; it is looked at whether it still holds.

    Raises:
        ShapeError, TypeInferenceError, DeviceError: arrays of an update do not belong together.
        AutogradError: a weight is part of what is being recorded.
    """
    is_known = known is not None and known.is_of(updates)
    if not is_known:
        if any(_is_sparse(each) for each in updates):
            for each in filter(_is_sparse, updates):
                _push_sparse(each)
            updates = [each for each in updates if not _is_sparse(each)]
            if not updates:
                return None
        known = _group(updates)
    assert known is not None
    device = updates[0].weight._storage.device
    steps = []
    for each, arrays in zip(updates, known.arrays, strict=True):
        forward = (_plain if each.master is None else _mixed)(each.op, device)
        steps.append(PreparedUpdate(forward, arrays, each.weight, each.op, each.master is not None))
    # What may have to be compiled first must not run on a thread that runs an event loop.
    light = known.touched <= (_LIGHT_BYTES if is_known else LIGHT_BYTES)
    short, run = is_known and known.touched <= MOST_WEIGHT, run_on(device, False)
    push_on(device, _compute, (run, steps), known.reads, known.writes, updates[0].op.name, light, depth=4, short=short)
    return known


def _group(updates: Sequence[Update]) -> Group:
    """Check updates of weights of one device, and find what they read and write."""
    device = updates[0].weight._storage.device
    found, touched, read, written = [], 0, {}, {}
    for each in updates:
        arrays, nbytes = _checked(each, device)
        found.append(arrays)
        touched += nbytes
        read.update(dict.fromkeys([array._storage for array in arrays]))
        written.update(dict.fromkeys([array._storage for array in (each.weight, *arrays[2:])]))
    storages = [[array._storage for array in arrays] for arrays in found]
    # A gradient that was copied or brought from elsewhere is another one each time.
    kept = [
        each if arrays[1] is each.grad else each._replace(grad=_NONE)
        for each, arrays in zip(updates, found, strict=True)
    ]
    return Group(kept, found, storages, tuple(read), tuple(written), touched)


_NONE: Any = object()


def _is_sparse(update: Update) -> bool:
    """Tell whether an array of an update is sparse."""
    return any(isinstance(array._shape, SparseShape) for array in (update.weight, update.grad, *update.states))


def _push_sparse(update: Update) -> None:
    """Enqueue an update with sparse arrays, by its operator's way for them."""
    op, weight, grad, states, master = update
    target = weight if master is None else master
    if grad._storage.device is not weight._storage.device:
        grad = grad.as_in_context(weight.context)
    if grad._dtype != target._dtype:
        grad = grad.astype(target._dtype)
    invoke(op, [target, grad, *states], target, None, 4)
    if master is not None:
        master.copyto(weight)


def _checked(update: Update, device: Any) -> tuple[list[NDArray], int]:
    """The arrays of an update as its operator takes them, and how many bytes it touches, about."""
    op, weight, grad, states, master = update
    shared = (weight, *states) if master is None else (weight, *states, master)
    if grad._storage.device is not device:
        grad = cast("NDArray", bring(op.name, "grad", grad, weight.context))
    for array in shared:
        if array._storage.device is not device:
            raise DeviceError(
                f"{op.name}: the weight is on {device} and another array on {array._storage.device}: bring them "
                "together with as_in_context"
            )
    if any(grad._storage is array._storage for array in shared):
        grad = grad.copy()
    if recording.get().recording:
        refuse_in_place(weight, op.name)
    arrays = [weight, grad, *states]
    shapes = tuple([array._shape for array in arrays])
    dtypes = tuple([array._dtype for array in arrays]) if master is None else (FLOAT32,) * len(arrays)
    spec = op.spec(shapes, dtypes)
    return (arrays if master is None else [*arrays, master]), spec.nbytes * (len(arrays) + 1)


def _plain(op: Operator, device: Any) -> Forward:
    known: tuple[Any, Forward] | None = op.__dict__.get("_forward")
    if known is None or known[0] is not device:
        known = (device, forward_of(op, device))
        object.__setattr__(op, "_forward", known)
    return known[1]


def _mixed(op: Operator, device: Any) -> Forward:
    def forward(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        update(run, cast("Any", op).rule, op, True, inputs, outputs[0])

    timed: Forward = device.timed(op, forward)
    return timed


def _compute(run: Run, steps: Sequence[PreparedUpdate]) -> None:
    if updates_together(run.device.kernels) and run.device.has_numerics:
        _compute_together(run, steps)
        return
    for forward, inputs, out, _, _ in steps:
        arrays = [each._storage.array if each._view is None else each._read() for each in inputs]
        forward(run, arrays, [out._written() if out is not inputs[0] else arrays[0]])


def _compute_together(run: Run, steps: Sequence[PreparedUpdate]) -> None:
    """By rules, where the device updates the weights of a rule all at once; operators of another kind by themselves."""
    ones = []
    for forward, inputs, out, op, mixed in steps:
        arrays, target = [each._read() for each in inputs], out._written()
        if isinstance(op, RuleOperator) and type(op).forward is RuleOperator.forward:
            ones.append(One(op.rule, op, mixed or op.mixed, arrays, target))
        else:
            forward(run, arrays, [target])
    update_many(run, ones)
