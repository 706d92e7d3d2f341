"""Calls of one operator on one or two arrays, with a cache of the inferred shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.devices import Device
from flowmx.engine import Origin, capture
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation
from flowmx.ndarray import core
from flowmx.ndarray.computations import SHARED_BYTES, bind_once, compute_ufunc
from flowmx.ndarray.core import BaseArray, Storage, invoke, new_handle, record_result
from flowmx.ndarray.recording import state
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Operator
from flowmx.ops.registry.spec import Spec
from flowmx.ops.sparse.shapes import SparseShape

_MAX_CALLS = 1024
"""Calls that a :class:`FastCall` remembers, by shapes and dtypes."""

_fast_calls: WeakSet[FastCall] = WeakSet()


class FastCall:
    """A cached call of an operator on one or two arrays, for calls that a program repeats.

    If shapes and dtypes are the same objects as in the last call, which is usual in loops, nothing is looked up and
    a ufunc is called directly. The last call is stored as one tuple, replaced as a whole, so that several threads may
    use the object.
    """

    __slots__ = ("__weakref__", "_all", "_last", "op")

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.forget()
        _fast_calls.add(self)

    def forget(self) -> None:
        """Clear the cache; the next call infers again."""
        self._last: tuple[Any, ...] = (None,) * 8
        self._all: dict[object, tuple[Any, ...]] = {}

    def __call__(self, x: BaseArray, y: BaseArray | None = None, out: BaseArray | None = None) -> Any:
        """Enqueue the operator. ``out`` may only be ``x`` itself, which is then updated in place."""
        x_shape, x_dtype, y_shape, y_dtype, device, spec, ufunc, number = self._last
        storage = x.storage
        same = x_shape is x.dims and x_dtype is x.element_type and storage.device is device
        if y is None:
            operands: tuple[BaseArray, ...] = (x,)
            reads: tuple[Storage, ...] = (storage,)
        else:
            operands, reads = (x, y), (storage, y.storage)
            same = same and y_shape is y.dims and y_dtype is y.element_type and reads[1].device is device
        mode = state.get()
        if mode.recording and (out is not None or mode.notes is not None):
            return invoke(self.op, operands, out, depth=3)
        if not same:
            key = (
                (x.dims, x.element_type, storage.device)
                if y is None
                else (x.dims, x.element_type, storage.device, y.dims, y.element_type, reads[1].device)
            )
            bound = self._all.get(key)
            if bound is None:
                bound = self._remember(operands, storage.device, key)
            elif bound:
                self._last = bound
            if not bound:
                return invoke(self.op, operands, out, depth=3)
            _, _, _, _, device, spec, ufunc, number = bound
        shape, dtype = spec.shapes[0], spec.dtypes[0]
        if out is None:
            target = Storage(device, shape, dtype)
            out = new_handle(x.__class__)
            out.storage = target
            out.dims = shape
            out.element_type = dtype
            nbytes = spec.nbytes
        elif out.dims == shape and out.element_type == dtype and type(ufunc) is not FunctionType:
            target, nbytes = storage, 0
        else:
            return invoke(self.op, operands, out, depth=3)
        origin: Origin | None = None
        if nbytes and spec.light and engine.run_light(
            device.compute, reads, compute_ufunc, ufunc, operands, number, out
        ):  # fmt: skip
            target.version = 1
        else:
            origin = capture(3)
            arguments = (ufunc, operands, number, out)
            work = Operation(
                compute_ufunc, arguments, reads, (target,), device.compute, self.op.name, origin, nbytes, spec.light
            )
            work.short = spec.short
            engine.enqueue(work)
        if mode.recording and (x.history is not None or y is not None):
            record_result(self.op.name, spec.gradient, x, y, out, origin or capture(3), spec.rules)
        return out

    def _remember(self, operands: tuple[BaseArray, ...], device: Device, key: object) -> tuple[object, ...]:
        """Bind calls with these shapes and dtypes, and cache the result; an empty tuple if there is no fast path."""
        bound = self._bind(operands, device)
        if bound:
            self._last = bound
        make_room(self._all, _MAX_CALLS)
        self._all[key] = bound
        return bound

    def _bind(self, operands: tuple[BaseArray, ...], device: Device) -> tuple[object, ...]:
        if any(isinstance(each.dims, SparseShape) for each in operands):
            return ()
        direct = self.op.as_ufunc(device.xp, operands[0].element_type)
        if any(each.storage.device is not device for each in operands):
            return ()
        casting = core.casting
        if (
            casting is not None
            and casting.targets(self.op, tuple([each.element_type for each in operands])) is not None
        ):
            return ()
        spec = self.op.spec(tuple([each.dims for each in operands]), tuple([each.element_type for each in operands]))
        if direct is None or (spec.nbytes >= SHARED_BYTES and kernel_for(device.kernels, self.op.name) is not None):
            direct = self._bind_kernel(operands, device, spec)
            if direct is None:
                return ()
        first, last = operands[0], operands[-1]
        return (first.dims, first.element_type, last.dims, last.element_type, device, spec, *direct)

    def _bind_kernel(
        self, operands: tuple[BaseArray, ...], device: Device, spec: Spec
    ) -> tuple[Callable[..., Any], Any] | None:  # fmt: skip
        """Return a function, called like a ufunc, that computes these calls; None if they need the general path."""
        plain = spec.is_plain and spec.single and not self.op.traits.mode_matters
        if not plain or device.is_asynchronous or device.xp is not np or self.op.visible_outputs() != 1:
            return None
        ready = bind_once(self.op, spec, device, operands)
        if spec.ready is not ready:
            return None
        _, forward, run, _ = ready

        def call(*inputs: object, out: object) -> None:
            forward(run, inputs, (out,))

        return call, None


def _forget_all() -> None:
    """Clear the caches of all fast calls."""
    for call in list(_fast_calls):
        call.forget()


core.casting_listeners.append(_forget_all)
