"""Calls of operators where sparse storage is concerned: by the operator's way, or on arrays made dense.

A call is one operation of the engine, as elsewhere. How much a sparse result stores is known only when it has run, so
its content, whatever it consists of, is one variable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import numpy as np

from flowmx import devices, settings
from flowmx.devices import Device
from flowmx.engine import capture
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.errors import ShapeError, StorageFallbackWarning
from flowmx.ndarray import core, views
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import BaseArray, allocate, record, record_written, run_on
from flowmx.ndarray.recording import state
from flowmx.ndarray.sparse.arrays import BaseSparseNDArray, allocated
from flowmx.ops.control.custom import UserOperator, detach
from flowmx.ops.registry.operators import Operator, Run, lookup
from flowmx.ops.sparse.content import Content, Rows, copied
from flowmx.ops.sparse.elementwise import converted, kind_of
from flowmx.ops.sparse.shapes import stype_of
from flowmx.ops.sparse.updates import complete
from flowmx.ops.sparse.ways import Call, Raw, Way, find

_warned: set[tuple[str, int]] = set()
"""The user's lines that were warned of, since sparse arrays are made dense there."""


def invoke(op: Operator, inputs: Sequence[BaseArray], out: Any, device: Device | None, depth: int) -> Any:
    """Enqueue an operator on arrays some of which are sparse, or that makes sparse ones; see ``core.invoke``.

    Raises:
        NotImplementedError: they live on a device that computes asynchronously.
    """
    mode = state.get()
    if mode.notes is not None:
        mode.notes.refuse()
    given: list[BaseArray] = [] if out is None else [out] if isinstance(out, BaseArray) else list(out)
    inputs = _together(op, inputs, given)
    where = _device(op, [*inputs, *given], device)
    stypes = tuple([stype_of(each._shape) for each in inputs])
    in_place = bool(given and inputs) and given[0]._storage is inputs[0]._storage
    concerned = op.traits.sparse or any(each != "default" for each in stypes)
    way = find(Call(op, stypes, tuple([each._shape for each in inputs]), in_place)) if concerned else None
    if way is None:
        return _by_dense(op, inputs, given, out, where, depth)
    if way.makes_dense and set(stypes) != {"default"}:
        _warn(op, stypes)
    forms = _forms(op, inputs)
    for each, (shape, _) in zip(given, forms, strict=False):
        if tuple(each._shape) != shape:
            raise ShapeError(f"{op.name}: out has shape {tuple(each._shape)}, expected {shape}")
        if mode.recording:
            views.refuse_write(each, op.name, any(other._entry is not None for other in inputs))
    made = [_new(stype, where, *form) for stype, form in zip(way.stypes, forms, strict=True)]
    made[: len(given)] = given
    moved = [inputs[position]._storage for position in op.updates]
    written: tuple[Variable, ...] = (*[each._storage for each in made], *moved)
    if op.traits.uses_random:
        written += (where.generator,)
    origin = capture(depth)
    arguments = (way, run_on(where, mode.training), op.updates, inputs, made)
    reads = tuple([each._storage for each in inputs])
    reads += tuple([each._storage for each in given if each._view is not None])
    work = Operation(_compute, arguments, reads, written, where.compute, op.name, origin)
    if isinstance(op, UserOperator):
        detach(work, op.is_coroutine(where, inputs))
    engine.enqueue(work)
    if mode.recording:
        gradient = None if op.traits.no_gradient else way.gradient or op.gradient
        if given:
            record_written(op.name, gradient, inputs, made, given, len(made), origin)
        else:
            record(op.name, gradient, inputs, made, len(made), origin)
    return made[0] if len(made) == 1 else made


def _compute(
    way: Way, run: Run, updates: Sequence[int], inputs: Sequence[BaseArray], made: Sequence[BaseArray]
) -> Awaitable[None] | None:
    targets = made
    if way.moves:
        targets = [*made, *[inputs[position] for position in updates]]
    elif updates:
        for position in (*updates, 0):
            _complete(inputs[position])
    results = way.compute(run, *[each._read() for each in inputs])
    if isinstance(results, Awaitable):
        return _put_later(targets, results)
    _put_all(targets, results if isinstance(results, list) else [results])
    return None


def _put_all(targets: Sequence[BaseArray], results: Sequence[Raw]) -> None:
    for target, result in zip(targets, results, strict=True):
        put(target, result)


async def _put_later(targets: Sequence[BaseArray], results: Awaitable[list[Raw]]) -> None:
    _put_all(targets, await results)


def _complete(array: BaseArray) -> None:
    """Store all rows of what an update changes, each at its number."""
    content = array._read()
    if isinstance(content, Rows):
        array._storage.array = complete(content, array._shape)


def put(target: BaseArray, made: Raw) -> None:
    """Make a computed content that of an array, in the array's storage type and dtype (inside an operation)."""
    storage, stype = target._storage, stype_of(target._shape)
    if kind_of(made) != stype:
        made = converted(made, stype, target._shape)
    if stype != "default":
        content = cast("Content", made)
        storage.array = content if content.data.dtype == target._dtype else copied(content, target._dtype)
        return
    dense = cast("np.ndarray[Any, Any]", made)
    if storage.array is None and target._view is None:
        storage.array = np.ascontiguousarray(dense, target._dtype).reshape(target._shape)
    else:
        memory = target._written()
        if memory is not dense:
            memory[...] = dense


def _new(stype: str, device: Device, shape: tuple[int, ...], dtype: Any) -> BaseArray:
    return allocate(device, shape, dtype) if stype == "default" else allocated(stype, device, shape, dtype)


def _forms(op: Operator, inputs: Sequence[BaseArray]) -> list[tuple[tuple[int, ...], Any]]:
    """The shapes and dtypes of the outputs."""
    if op.name == "cast_storage":
        return [(tuple(inputs[0]._shape), inputs[0]._dtype)]
    spec = op.spec(tuple([tuple(each._shape) for each in inputs]), tuple([each._dtype for each in inputs]))
    return [*zip(spec.shapes, spec.dtypes, strict=True)]


def _together(op: Operator, inputs: Sequence[BaseArray], given: Sequence[BaseArray]) -> Sequence[BaseArray]:
    if len({each._storage.device for each in (*inputs, *given)}) < 2:
        return inputs
    from flowmx.ndarray.host import together

    return together(op, inputs, given[0] if given else None) if inputs else inputs


def _device(op: Operator, arrays: Sequence[BaseArray], device: Device | None) -> Device:
    where = arrays[0]._storage.device if arrays else device or devices.get(devices.current_context())
    if where.is_asynchronous:
        raise NotImplementedError(f"{op.name}: sparse arrays are computed on the CPU alone; these are on {where}")
    return where


# -- falling back ------------------------------------------------------------------------------------------


def _by_dense(
    op: Operator, inputs: Sequence[BaseArray], given: list[BaseArray], out: Any, device: Device, depth: int
) -> Any:
    """Call an operator on arrays made dense; sparse outputs and states are made of its results."""
    arrays = [*inputs, *given] if inputs else []  # what is made of nothing is made dense in any case
    if any(isinstance(each, BaseSparseNDArray) for each in arrays):
        _warn(op, tuple([stype_of(each._shape) for each in inputs]))
    dense = [to_dense(each) for each in inputs]
    if any(isinstance(each, BaseSparseNDArray) for each in given):
        made = core.invoke(op, dense, None, device, depth + 1)
        results = [made] if isinstance(made, BaseArray) else made
        for result, target in zip(results, given, strict=False):
            copy(result, target, op.name)
        made = out
    elif op.traits.sparse:
        raise NotImplementedError(f"{op.name}: {op} has no way for these storage types")
    else:
        made = core.invoke(op, dense, out, device, depth + 1)
    for position in op.moved_inputs(state.get().training):
        if inputs[position] is not dense[position]:
            copy(dense[position], inputs[position], op.name)
    return made


def to_dense(array: BaseArray) -> BaseArray:
    """The array, made dense if it is not; recorded."""
    if not isinstance(array, BaseSparseNDArray):
        return array
    return cast("BaseArray", core.invoke(lookup("cast_storage").create(stype="default"), [array]))


def _warn(op: Operator, stypes: Sequence[str]) -> None:
    if settings.get().storage_fallback_log_verbose:
        warn_user(
            f"{op.name}: it has no way for arrays of storage types {', '.join(stypes)}, so sparse ones are made "
            "dense for it: this takes the memory of the dense arrays, and the result is right; "
            "FLOWMX_STORAGE_FALLBACK_LOG_VERBOSE=0 silences this",
            _warned,
            StorageFallbackWarning,
        )


# -- copies ------------------------------------------------------------------------------------------------


def copy(source: BaseArray, target: BaseArray, name: str = "copyto") -> None:
    """Enqueue that an array takes the content of another one of its shape, each of any storage type and device.

    Raises:
        ShapeError: the shapes differ.
    """
    if tuple(source._shape) != tuple(target._shape):
        raise ShapeError(f"{name}: target has shape {tuple(target._shape)}, expected {tuple(source._shape)}")
    if state.get().recording:
        from flowmx.ndarray import writing

        writing.record_copy(source, target)
    here, there = source._storage.device, target._storage.device
    _device(lookup("_copyto").create(), [source, target], None)
    actor = there.compute if here is there else there.copy_actor(here)
    reads = (source._storage, target._storage) if target._view is not None else (source._storage,)
    core.push_on(there, _copy, (source, target), reads, (target._storage,), name, actor=actor, depth=4)


def _copy(source: BaseArray, target: BaseArray) -> None:
    content = source._read()
    if isinstance(content, np.ndarray) and stype_of(target._shape) == "default":
        target._written()[...] = content
    else:
        put(target, converted(content, stype_of(target._shape), target._shape))


def compute(
    device: Device, name: str, function: Callable[..., Raw], inputs: Sequence[NDArray], made: BaseArray
) -> None:
    """Enqueue a function of contents that gives the content of an array; it is not recorded."""
    reads = tuple([each._storage for each in inputs])
    core.push_on(device, _apply, (function, inputs, made), reads, (made._storage,), name, depth=4)


def _apply(function: Callable[..., Raw], inputs: Sequence[NDArray], made: BaseArray) -> None:
    put(made, function(*[each._read() for each in inputs]))
