"""The computations of operators on the memory of arrays, bound to shapes, dtypes and a device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices import Device
from flowmx.late_binding import late
from flowmx.ops.registry.kernels import compiling, kernel_for
from flowmx.ops.registry.operators import Form, Operator, Run
from flowmx.ops.registry.spec import Spec

if TYPE_CHECKING:
    from flowmx.ndarray.core import BaseArray

SHARED_BYTES = 1 << 18
"""Result size in bytes from which a kernel on several cores is faster than a ufunc on one."""


def compute(forward: Callable[..., object], run: Run, inputs: Sequence[BaseArray], outputs: Sequence[BaseArray]) -> Any:
    """Run an operator's forward on its arrays; returns None, or an awaitable."""
    sources: list[object] = []
    targets: list[object] = []
    for each in inputs:
        sources.append(each.storage.array if each.strided_view is None else each.raw())
    for each in outputs:
        storage = each.storage
        array = storage.array
        if array is None:
            array = storage.array = storage.device.allocate(storage.shape, storage.dtype)
        targets.append(array if each.strided_view is None else each.raw())
    return forward(run, sources, targets)


def compute_into_copy(
    forward: Callable[..., Any], run: Run, inputs: Sequence[BaseArray], outputs: Sequence[BaseArray]
) -> Any:
    """Like :func:`compute`, for outputs that share memory with inputs: the results are temporary, then copied."""
    targets = [each.raw_for_writing() for each in outputs]
    results = [run.device.allocate(each.dims, each.element_type) for each in outputs]
    pending = forward(run, [each.raw() for each in inputs], results)
    if pending is not None:
        return _store_after(pending, targets, results)
    for target, result in zip(targets, results, strict=True):
        target[...] = result
    return None


async def _store_after(pending: Awaitable[None], targets: Sequence[Any], results: Sequence[Any]) -> None:
    await pending
    for target, result in zip(targets, results, strict=True):
        target[...] = result


_runs: dict[tuple[Device, bool], Run] = {}


def run_on(device: Device, train: bool) -> Run:
    """Return the (cached) Run of a device and mode."""
    run = _runs.get((device, train))
    if run is None:
        run = _runs[device, train] = Run(device, train)
    return run


def forward_of(op: Operator, device: Device) -> Callable[..., None]:
    """Return an operator's computation on a device: its kernel if there is one, else its forward."""
    kernel = kernel_for(device.kernels, op.name)
    if kernel is None:
        return device.timed(op, op.forward)
    compute = kernel.compute

    def call(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        compute(op, run, inputs, outputs)

    return device.timed(op, call)


def forward_of_call(op: Operator, spec: Spec, device: Device, forms: Sequence[Form]) -> Callable[..., Any]:
    """Return an operator's computation for fixed shapes and dtypes, with all decisions made beforehand."""
    if not spec.nbytes and not op.writes_inputs():
        return _compute_nothing
    direct = op.as_ufunc(device.xp, forms[0][1]) if forms and spec.nbytes < SHARED_BYTES else None
    if direct is not None:
        ufunc, number = direct

        # Drop the ufunc's result: it is not an awaitable.
        def call_ufunc(run: Run, inputs: Sequence[object], outputs: Sequence[object]) -> None:
            ufunc(*inputs, out=outputs[0])

        def call_with_number(run: Run, inputs: Sequence[object], outputs: Sequence[object]) -> None:
            ufunc(inputs[0], number, out=outputs[0])

        return call_ufunc if number is None else call_with_number
    kernel, outputs_of = kernel_for(device.kernels, op.name), tuple(zip(spec.shapes, spec.dtypes, strict=True))
    if kernel is None:
        bound = op.bound(device.xp, forms, outputs_of)
    else:
        bound = None if kernel.bind is None else kernel.bind(op, forms, outputs_of)
    return forward_of(op, device) if bound is None else device.timed(op, bound)


BoundCall = tuple[Device, Callable[..., Any], Run, Run]
"""A bound computation: device, function, and the Runs for prediction and for training."""


def bind_once(op: Operator, spec: Spec, device: Device, inputs: Sequence[BaseArray]) -> BoundCall:
    """Bind the computation of calls with one spec, and cache it in the spec.

    On an event loop, while the kernel is still being compiled, the result is not cached: such a call must not run when
    it is pushed, since the fallback would run, which rounds differently. A worker waits for the kernel.
    """
    ready: BoundCall | None = spec.ready
    if ready is None or ready[0] is not device:
        forms = tuple([(each.dims, each.element_type) for each in inputs])
        compiling.missed = False
        forward = forward_of_call(op, spec, device, forms)
        if spec.light and _records_calls(op, device):
            flops = op.cost([shape for shape, _ in forms], spec.shapes)[0]
            forward = late("ops.kernels.recorded_calls").RecordedCall(forward, op, flops)
        ready = device, forward, run_on(device, False), run_on(device, True)
        if not compiling.missed:
            spec.ready = ready
    return ready


def _records_calls(op: Operator, device: Device) -> bool:
    """Return whether repeated calls of an operator are recorded."""
    kernel = kernel_for(device.kernels, op.name)
    is_pure = not (op.traits.mode_matters or op.traits.uses_random or op.writes_inputs())
    if kernel is None or not kernel.records_calls or not is_pure:
        return False
    return bool(late("ops.kernels.native_steps").can_run_natively(device))


def _compute_nothing(run: Run, inputs: Sequence[object], outputs: Sequence[object]) -> None:
    """Compute outputs without elements."""


def compute_ufunc(
    ufunc: Callable[..., object], operands: tuple[BaseArray, ...], number: object, result: BaseArray
) -> None:
    """Call a ufunc once, into the result's memory."""
    storage = result.storage
    array = storage.array
    if array is None:
        array = storage.array = storage.device.allocate(storage.shape, storage.dtype)
    if result.strided_view is not None:
        array = result.raw()
    x = operands[0]
    content = x.storage.array if x.strided_view is None else x.raw()
    if number is not None:
        ufunc(content, number, out=array)
    elif len(operands) == 2:
        y = operands[1]
        ufunc(content, y.storage.array if y.strided_view is None else y.raw(), out=array)
    else:
        ufunc(content, out=array)
