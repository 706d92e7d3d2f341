"""Operator calls with sparse arrays: by a sparse implementation, or on dense copies.

A call is one operation of the engine, like dense calls. The size of a sparse result is known only when it has been
computed, so its whole content is one engine variable.
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
from flowmx.late_binding import late
from flowmx.ndarray import core, views
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.computations import run_on
from flowmx.ndarray.core import BaseArray, allocate, record, record_written
from flowmx.ndarray.recording import state
from flowmx.ndarray.sparse.arrays import BaseSparseNDArray, allocate_sparse
from flowmx.ops.control.custom import UserOperator, detach
from flowmx.ops.registry.operators import Array, Operator, Run, lookup
from flowmx.ops.sparse.content import Content, Rows, copy_content
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, find_kernel
from flowmx.ops.sparse.optimizer_updates import store_all_rows
from flowmx.ops.sparse.shapes import stype_of
from flowmx.ops.sparse.unary import content_stype, convert

_warned: set[tuple[str, int]] = set()
"""The user's lines that a :class:`StorageFallbackWarning` was issued for."""


def invoke(op: Operator, inputs: Sequence[BaseArray], out: Any, device: Device | None, depth: int) -> Any:
    """Enqueue an operator with sparse inputs or outputs; see ``core.invoke``.

    Raises:
        NotImplementedError: the arrays are on an asynchronous device.
    """
    mode = state.get()
    if mode.notes is not None:
        mode.notes.refuse()
    targets: list[BaseArray] = [] if out is None else [out] if isinstance(out, BaseArray) else list(out)
    inputs = _together(op, inputs, targets)
    where = _device(op, [*inputs, *targets], device)
    stypes = tuple([stype_of(each.dims) for each in inputs])
    in_place = bool(targets and inputs) and targets[0].storage is inputs[0].storage
    is_sparse = op.traits.sparse or any(each != "default" for each in stypes)
    kernel = find_kernel(Call(op, stypes, tuple([each.dims for each in inputs]), in_place)) if is_sparse else None
    if kernel is None:
        return _call_dense(op, inputs, targets, out, where, depth)
    if kernel.makes_dense and set(stypes) != {"default"}:
        _warn(op, stypes)
    forms = _forms(op, inputs)
    for each, (shape, _) in zip(targets, forms, strict=False):
        if tuple(each.dims) != shape:
            raise ShapeError(f"{op.name}: out has shape {tuple(each.dims)}, expected {shape}")
        if mode.recording:
            views.refuse_write(each, op.name, any(other.tape_entry is not None for other in inputs))
    outputs = [_new(stype, where, *form) for stype, form in zip(kernel.stypes, forms, strict=True)]
    outputs[: len(targets)] = targets
    moved = [inputs[position].storage for position in op.updates]
    written: tuple[Variable, ...] = (*[each.storage for each in outputs], *moved)
    if op.traits.uses_random:
        written += (where.generator,)
    origin = capture(depth)
    arguments = (kernel, run_on(where, mode.training), op.updates, inputs, outputs)
    reads = tuple([each.storage for each in inputs])
    reads += tuple([each.storage for each in targets if each.strided_view is not None])
    work = Operation(_compute, arguments, reads, written, where.compute, op.name, origin)
    if isinstance(op, UserOperator):
        detach(work, op.is_coroutine(where, inputs))
    engine.enqueue(work)
    if mode.recording:
        gradient = None if op.traits.no_gradient else kernel.gradient or op.gradient
        if targets:
            record_written(op.name, gradient, inputs, outputs, targets, len(outputs), origin)
        else:
            record(op.name, gradient, inputs, outputs, len(outputs), origin)
    return outputs[0] if len(outputs) == 1 else outputs


def _compute(
    kernel: SparseKernel, run: Run, updates: Sequence[int], inputs: Sequence[BaseArray], outputs: Sequence[BaseArray]
) -> Awaitable[None] | None:
    targets = outputs
    if kernel.returns_states:
        targets = [*outputs, *[inputs[position] for position in updates]]
    elif updates:
        for position in (*updates, 0):
            _expand_rows(inputs[position])
    results = kernel.compute(run, *[each.raw() for each in inputs])
    if isinstance(results, Awaitable):
        return _put_later(targets, results)
    _put_all(targets, results if isinstance(results, list) else [results])
    return None


def _put_all(targets: Sequence[BaseArray], results: Sequence[AnyContent]) -> None:
    for target, result in zip(targets, results, strict=True):
        put(target, result)


async def _put_later(targets: Sequence[BaseArray], results: Awaitable[list[AnyContent]]) -> None:
    _put_all(targets, await results)


def _expand_rows(array: BaseArray) -> None:
    """Expand an array that an update changes, so that all its rows are stored at their numbers."""
    content = array.raw()
    if isinstance(content, Rows):
        array.storage.array = store_all_rows(content, array.dims)


def put(target: BaseArray, result: AnyContent) -> None:
    """Store a result in an array, converted to its storage type and dtype (inside an operation)."""
    storage, stype = target.storage, stype_of(target.dims)
    if content_stype(result) != stype:
        result = convert(result, stype, target.dims)
    if stype != "default":
        content = cast("Content", result)
        storage.array = (
            content if content.data.dtype == target.element_type else copy_content(content, target.element_type)
        )
        return
    dense = cast("Array", result)
    if storage.array is None and target.strided_view is None:
        storage.array = np.ascontiguousarray(dense, target.element_type).reshape(target.dims)
    else:
        memory = target.raw_for_writing()
        if memory is not dense:
            memory[...] = dense


def _new(stype: str, device: Device, shape: tuple[int, ...], dtype: Any) -> BaseArray:
    return allocate(device, shape, dtype) if stype == "default" else allocate_sparse(stype, device, shape, dtype)


def _forms(op: Operator, inputs: Sequence[BaseArray]) -> list[tuple[tuple[int, ...], Any]]:
    """Return the shapes and dtypes of the outputs."""
    if op.name == "cast_storage":
        return [(tuple(inputs[0].dims), inputs[0].element_type)]
    spec = op.spec(tuple([tuple(each.dims) for each in inputs]), tuple([each.element_type for each in inputs]))
    return [*zip(spec.shapes, spec.dtypes, strict=True)]


def _together(op: Operator, inputs: Sequence[BaseArray], targets: Sequence[BaseArray]) -> Sequence[BaseArray]:
    if len({each.storage.device for each in (*inputs, *targets)}) < 2:
        return inputs
    return (
        late("ndarray.mixed_devices").copy_to_one_device(op, inputs, targets[0] if targets else None)
        if inputs
        else inputs
    )


def _device(op: Operator, arrays: Sequence[BaseArray], device: Device | None) -> Device:
    where = arrays[0].storage.device if arrays else device or devices.get(devices.current_context())
    if where.is_asynchronous:
        raise NotImplementedError(f"{op.name}: sparse arrays are supported only on the CPU; these are on {where}")
    return where


# -- falling back ------------------------------------------------------------------------------------------


def _call_dense(
    op: Operator, inputs: Sequence[BaseArray], targets: list[BaseArray], out: Any, device: Device, depth: int
) -> Any:
    """Call an operator on arrays made dense, and convert results to sparse outputs and states."""
    arrays = [*inputs, *targets] if inputs else []  # no warning for operators without inputs
    if any(isinstance(each, BaseSparseNDArray) for each in arrays):
        _warn(op, tuple([stype_of(each.dims) for each in inputs]))
    dense = [to_dense(each) for each in inputs]
    if any(isinstance(each, BaseSparseNDArray) for each in targets):
        result = core.invoke(op, dense, None, device, depth + 1)
        results = [result] if isinstance(result, BaseArray) else result
        for output, target in zip(results, targets, strict=False):
            copy(output, target, op.name)
        result = out
    elif op.traits.sparse:
        raise NotImplementedError(f"{op.name}: {op} does not support these storage types")
    else:
        result = core.invoke(op, dense, out, device, depth + 1)
    for position in op.updated_inputs(state.get().training):
        if inputs[position] is not dense[position]:
            copy(dense[position], inputs[position], op.name)
    return result


def to_dense(array: BaseArray) -> BaseArray:
    """Return the array, converted to dense if it is sparse; the conversion is recorded."""
    if not isinstance(array, BaseSparseNDArray):
        return array
    return cast("BaseArray", core.invoke(lookup("cast_storage").create(stype="default"), [array]))


def _warn(op: Operator, stypes: Sequence[str]) -> None:
    if settings.get().storage_fallback_log_verbose:
        warn_user(
            f"{op.name}: no implementation for storage types {', '.join(stypes)}, so sparse arrays are made dense: "
            "the result is correct, but needs the memory of the dense arrays; "
            "set FLOWMX_STORAGE_FALLBACK_LOG_VERBOSE=0 to silence this warning",
            _warned,
            StorageFallbackWarning,
        )


# -- copies ------------------------------------------------------------------------------------------------


def copy(source: BaseArray, target: BaseArray, name: str = "copyto") -> None:
    """Enqueue a copy between arrays of the same shape and of any storage types and devices.

    Raises:
        ShapeError: the shapes differ.
    """
    if tuple(source.dims) != tuple(target.dims):
        raise ShapeError(f"{name}: target has shape {tuple(target.dims)}, expected {tuple(source.dims)}")
    if state.get().recording:
        late("ndarray.recorded_writes").record_copy(source, target)
    here, there = source.storage.device, target.storage.device
    _device(lookup("_copyto").create(), [source, target], None)
    actor = there.compute if here is there else there.copy_actor(here)
    reads = (source.storage, target.storage) if target.strided_view is not None else (source.storage,)
    core.push_on(there, _copy, (source, target), reads, (target.storage,), name, actor=actor, depth=4)


def _copy(source: BaseArray, target: BaseArray) -> None:
    content = source.raw()
    if isinstance(content, np.ndarray) and stype_of(target.dims) == "default":
        target.raw_for_writing()[...] = content
    else:
        put(target, convert(content, stype_of(target.dims), target.dims))


def compute(
    device: Device, name: str, function: Callable[..., AnyContent], inputs: Sequence[NDArray], target: BaseArray
) -> None:
    """Enqueue a function that computes an array's content from those of others; it is not recorded."""
    reads = tuple([each.storage for each in inputs])
    core.push_on(device, _apply, (function, inputs, target), reads, (target.storage,), name, depth=4)


def _apply(function: Callable[..., AnyContent], inputs: Sequence[NDArray], target: BaseArray) -> None:
    put(target, function(*[each.raw() for each in inputs]))
