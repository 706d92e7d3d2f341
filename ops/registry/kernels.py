"""The table of kernels: faster forwards of operators, by device type."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run, lookup
from flowmx.ops.registry.parameters import Shape

PLANNED = 1 << 10
"""Workspaces of at least this many bytes are planned by bound graphs; kernels allocate smaller ones themselves."""

_loaders: dict[str, Callable[[], object]] = {}


class ArrayLayout(NamedTuple):
    """The layout of an array in memory; strides are counted in elements."""

    shape: Shape
    strides: Shape
    dtype: DType


class TiedForward(Protocol):
    """A forward for one step of a bound graph, which may cache objects made for the arrays of its last run."""

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""

    stale: bool | None
    """None at first. The caller sets it to True whenever the arrays in its argument lists change."""
    only_native: bool
    """See :class:`Kernel`."""

    def use(self, memory: Array | None) -> None:
        """Set the workspace of later calls (None: the forward allocates one)."""


Compute = Callable[[Any, Run, Sequence[Array], Sequence[Array]], None]
Workspace = Callable[[Any, Sequence[ArrayLayout], Sequence[ArrayLayout]], int]
Tie = Callable[[Any, bool], TiedForward]
PackedSize = Callable[[Any, Shape, DType], "int | None"]
ContentKey = Callable[[Any, "DType | None"], "Hashable | None"]
Takes = Callable[[Any, DType], bool]
Bind = Callable[[Any, Sequence[Form], Sequence[Form]], "Bound | None"]
TryCompute = Callable[[Any, Any, Sequence[Array], Sequence[Array]], bool]
ComputeFunction = TypeVar("ComputeFunction", bound=Callable[..., None])


class Kernel:
    """A faster forward of an operator for one device type.

    The decorator :func:`kernel` makes one from functions. A subclass defines them as methods, and
    :func:`register_kernel` registers its instance. Everything except ``compute`` is optional.

    Attributes:
        compute: ``compute(operator, run, inputs, outputs)``: compute into the outputs.
        bind: ``bind(operator, inputs, outputs)``: return a specialized forward for arrays of these shapes and dtypes,
            or None.
        takes: ``takes(operator, dtype)``: return whether the kernel supports 16-bit elements without conversion.
        workspace: ``workspace(operator, inputs, outputs)``: return the workspace size in bytes for arrays of these
            :class:`ArrayLayout` layouts.
        tie: ``tie(operator, predicts)``: return a :class:`TiedForward` for one step of a bound graph, which may
            also train unless it predicts; its ``use(memory)`` sets the workspace.
        packed_size: ``packed_size(operator, data_shape, dtype)``: return the elements of a packed copy of a layer's
            weight, or None if packing does not help.
        content_key: ``content_key(operator, dtype)``: return a key, or None, for a kernel whose results depend on
            less than the operator's parameters: operators with equal keys compute equal results from equal inputs.
        try_compute: ``try_compute(xp, parameters, inputs, outputs)``: compute with the parameters of any object;
            return False, without effect, if the fallback must run.
        only_native: whether ``compute`` touches arrays only in native calls, once it makes any. A bound graph may then
            record these calls.
        records_calls: whether a single call is recorded after some calls of its form, since preparing it takes longer
            than a native run. The function that ``bind`` returns must then satisfy ``only_native``.
    """

    compute: Compute
    bind: Bind | None = None
    takes: Takes | None = None
    workspace: Workspace | None = None
    tie: Tie | None = None
    packed_size: PackedSize | None = None
    content_key: ContentKey | None = None
    try_compute: TryCompute | None = None
    only_native: bool = False
    records_calls: bool = False


class FunctionKernel(Kernel):
    """A kernel made from functions."""

    def __init__(
        self, compute: Compute, bind: Bind | None = None, takes: Takes | None = None, only_native: bool = False,
        content_key: ContentKey | None = None,
    ) -> None:  # fmt: skip
        self.only_native = only_native
        self.content_key = content_key
        self.compute = compute
        self.bind = bind
        self.takes = takes


_kernels: dict[tuple[str, str], Kernel] = {}


class Compiling(threading.local):
    """A thread-local flag for event-loop threads, which must not wait for a kernel's compilation.

    Attributes:
        missed: set to True when a kernel was still being compiled; the caller resets it first.
    """

    missed = False


compiling = Compiling()


def kernel(
    device_type: str, name: str, *, bind: Bind | None = None, takes: Takes | None = None, only_native: bool = False
) -> Callable[[ComputeFunction], ComputeFunction]:
    """Register a function ``compute(operator, run, inputs, outputs)`` as an operator's kernel for a device type.

    Args:
        device_type: the device type.
        name: the operator's name.
        bind: see :class:`Kernel`.
        takes: see :class:`Kernel`.
        only_native: see :class:`Kernel`.
    """

    def register(compute: ComputeFunction) -> ComputeFunction:
        register_kernel(device_type, name, FunctionKernel(compute, bind, takes, only_native))
        return compute

    return register


def register_kernel(device_type: str, name: str, operator_kernel: Kernel) -> None:
    """Register an operator's kernel for a device type."""
    _kernels[device_type, lookup(name).name] = operator_kernel


def kernel_for(device_type: str, name: str) -> Kernel | None:
    """Return the kernel of an operator, or None."""
    operator_kernel = _kernels.get((device_type, name))
    if operator_kernel is None and device_type in _loaders:
        load_kernels(device_type)
        return _kernels.get((device_type, name))
    return operator_kernel


def compute_operator(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute an operator, by the device's kernel if there is one."""
    operator_kernel = kernel_for(run.device.kernels, op.name)
    if operator_kernel is None:
        op.forward(run, inputs, outputs)
    else:
        operator_kernel.compute(op, run, inputs, outputs)


def workspace_of(device_type: str, op: Operator) -> Workspace | None:
    """Return the function that computes the bytes of workspace of an operator's kernel, or None."""
    operator_kernel = kernel_for(device_type, op.name)
    return None if operator_kernel is None else operator_kernel.workspace


def packed_size(device_type: str, op: Operator, data: Shape, dtype: DType) -> int | None:
    """Return the elements of a layer's packed weight for data of a shape; None if packing does not help."""
    operator_kernel = kernel_for(device_type, op.name)
    compute = None if operator_kernel is None else operator_kernel.packed_size
    return None if compute is None else compute(op, data, dtype)


def tied_forward(device_type: str, op: Operator, predicts: bool = False) -> TiedForward | None:
    """Return a forward of an operator's kernel for one step of a bound graph; None if the kernel offers none.

    Args:
        device_type: the device type.
        op: the operator.
        predicts: whether the graph only predicts: its results need not be those of training, bit for bit.
    """
    operator_kernel = kernel_for(device_type, op.name)
    tie = None if operator_kernel is None else operator_kernel.tie
    return None if tie is None else tie(op, predicts)


def load_kernels(device_type: str) -> None:
    """Register a device type's kernels, if they are not registered yet."""
    load = _loaders.get(device_type)
    if load is not None:
        load()  # removed only afterwards: other threads wait here until all kernels are registered
        _loaders.pop(device_type, None)


def load_at_first_use(device_type: str, load: Callable[[], object]) -> None:
    """Set the function that registers a device type's kernels, which is called when the first one is looked up."""
    _loaders[device_type] = load
