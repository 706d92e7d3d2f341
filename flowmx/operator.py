"""``mx.operator``: custom operators, written in Python on arrays.

Example:
    >>> class Square(mx.operator.CustomOp):
    ...     def forward(self, is_train, req, in_data, out_data, aux):
    ...         self.assign(out_data[0], req[0], in_data[0] * in_data[0])
    ...     def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
    ...         self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])
    >>> @mx.operator.register("square")
    ... class SquareProp(mx.operator.CustomOpProp):
    ...     def create_operator(self, ctx, in_shapes, in_dtypes):
    ...         return Square()
    >>> mx.nd.Custom(mx.nd.array([3]), op_type="square").asnumpy()
    array([9.], dtype=float32)

``forward`` and ``backward`` may also be coroutine functions (``async def``), which run on the engine's loop. Both may
use arrays like any code, and wait for results.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from flowmx.engine import engine
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import Storage, allocate
from flowmx.ndarray.recording import State
from flowmx.ops.control import custom
from flowmx.ops.registry.operators import Run, lookup, registered_operators

__all__ = [
    "CustomOp", "CustomOpProp", "OperatorArguments", "get_all_registered_operators", "get_operator_arguments",
    "register",
]  # fmt: skip

_WRITTEN = ("out_data", "in_grad", "aux")


class CustomOp:
    """The computation of a custom operator, created by :meth:`CustomOpProp.create_operator`.

    The same object runs the forward and the backward pass of a call, or of a node of a bound graph, so attributes that
    ``forward`` sets on ``self`` are available in ``backward``.
    """

    def forward(
        self, is_train: bool, req: list[str], in_data: list[NDArray], out_data: list[NDArray], aux: list[NDArray]
    ) -> Any:
        """Compute ``out_data`` from ``in_data``.

        Args:
            is_train: whether training mode is on.
            req: the requests of the outputs, for :meth:`assign`.
            in_data: the arguments, which are read-only.
            out_data: the outputs to write.
            aux: the auxiliary states, which may be read and written.
        """

    def backward(
        self, req: list[str], out_grad: list[NDArray], in_data: list[NDArray], out_data: list[NDArray],
        in_grad: list[NDArray], aux: list[NDArray],
    ) -> Any:  # fmt: skip
        """Compute ``in_grad``, the gradients of the arguments, from ``out_grad``, the gradients of the outputs.

        Arrays that :meth:`CustomOpProp.declare_backward_dependency` does not select are None. Gradients that are not
        assigned are 0.
        """

    def assign(self, dst: NDArray, req: str, src: Any) -> None:
        """Store ``src`` in ``dst`` by the request ``req``: ``null`` (do nothing), ``write``, ``inplace`` or ``add``."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src
        elif req != "null":
            raise ValueError(f"assign: req is {req!r}, expected 'null', 'write', 'inplace' or 'add'")


class CustomOpProp:
    """The declaration of a custom operator: its arguments, outputs, shapes and dtypes.

    The constructor of a subclass receives the parameters of a call as text.

    Args:
        need_top_grad: False for an output layer, whose gradient does not depend on the gradients of its outputs.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Return the names of the arguments."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list[Any], /) -> Any:
        """Return the shapes of arguments, outputs and (optionally) auxiliary states.

        Args:
            in_shape: the shapes of the arguments as lists, with 0 for unknown lengths; empty for unknown shapes.
        """
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any], /) -> Any:
        """Return the dtypes of arguments, outputs and auxiliary states as NumPy types; None if unknown."""
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def infer_storage_type(self, in_stype: list[str], /) -> Any:
        """Return the storage types (``default``, ``csr``, ``row_sparse``) of arguments, outputs and states.

        By default all are dense, and sparse arguments are converted. Otherwise the operator receives arrays of the
        returned types.

        Args:
            in_stype: storage types of the arguments.
        """
        return (
            ["default"] * len(in_stype), ["default"] * len(self.list_outputs()),
            ["default"] * len(self.list_auxiliary_states()),
        )  # fmt: skip

    def infer_storage_type_backward(
        self, ograd_stype: list[str], in_stype: list[str], out_stype: list[str], igrad_stype: list[str],
        aux_stype: list[str], /,
    ) -> Any:  # fmt: skip
        """Return the storage types in the backward pass, in the order of the arguments. By default all are dense.

        Args:
            ograd_stype: storage types of the gradients of the outputs.
            in_stype: storage types of the arguments.
            out_stype: storage types of the outputs.
            igrad_stype: storage types of the gradients of the arguments; ``default``.
            aux_stype: storage types of the auxiliary states.
        """
        groups = ograd_stype, in_stype, out_stype, igrad_stype, aux_stype
        return tuple(["default"] * len(group) for group in groups)

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Select the indices of the arrays that the backward pass needs."""
        return [*(out_grad if self.need_top_grad_ else []), *in_data, *out_data]

    def create_operator(self, ctx: Any, in_shapes: list[list[int]], in_dtypes: list[Any], /) -> Any:
        """Create the object that computes the operator, for arguments of these shapes and dtypes on a device."""
        return CustomOp()


P = TypeVar("P", bound=Callable[..., Any])


def register(reg_name: str) -> Callable[[P], P]:
    """Register a subclass of :class:`CustomOpProp` for ``Custom(..., op_type=reg_name)``, replacing an earlier one."""

    def decorate(prop_cls: P) -> P:
        custom.properties[reg_name] = prop_cls
        return prop_cls

    return decorate


def get_all_registered_operators() -> list[str]:
    """Return the names of all built-in operators."""
    return sorted(name for name, cls in registered_operators().items() if not cls.traits.hidden)


class OperatorArguments(NamedTuple):
    """The arguments of an operator: their number, names, and descriptions of their types."""

    narg: int
    names: list[str]
    types: list[str]


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """Return the inputs and parameters of an operator.

    Raises:
        AttributeError: the operator does not exist.
    """
    cls = lookup(op_name)
    inputs = ["data"] if cls.variadic else [*cls.arguments, *cls.auxiliary]
    names = [*inputs, *cls.parameters]
    types = ["NDArray-or-Symbol"] * len(inputs) + [parameter.describe() for parameter in cls.parameters.values()]
    return OperatorArguments(len(names), names, types)


class _UserArrays:
    """Arrays for user code: separate handles on the memory of an operation.

    Operations pushed on these arrays do not wait for other operations, and the custom operation waits for them.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._storages: list[Storage] = []
        self._copies: list[tuple[Any, Any]] = []
        self._sparse: list[tuple[custom.SparseValue, NDArray]] = []

    def array(self, raw: Any, written: bool) -> NDArray | None:
        """Return an array on this memory, or on a copy if the memory is not contiguous."""
        if raw is None:
            return None
        if isinstance(raw, custom.SparseValue):
            return self._sparse_array(raw, written)
        memory = raw
        if not raw.flags.c_contiguous:
            memory = self._run.xp.array(raw, order="C")
            if written:
                self._copies.append((raw, memory))
        elif not written and hasattr(raw.flags, "writeable"):
            memory = raw.view()
            memory.flags.writeable = False
        array = allocate(self._run.device, raw.shape, raw.dtype, memory)
        self._storages.append(array.variable)
        return cast("NDArray", array)

    def _sparse_array(self, value: custom.SparseValue, written: bool) -> NDArray:
        from flowmx.ndarray.sparse.arrays import allocate_sparse  # here, because few programs need it

        content = value.content
        if not written:
            data = content.data.view()
            data.flags.writeable = False
            content = content._replace(data=data)
        array = allocate_sparse(value.stype, self._run.device, value.shape, value.dtype, content)
        self._storages.append(array.variable)
        if written:
            self._sparse.append((value, array))
        return array

    def wait(self) -> None:
        """Wait for the operations pushed on the arrays."""
        for storage in self._storages:
            for op in list(storage.pending()):
                engine.wait(op)
            if storage.marks is not None:
                storage.marks.finish_reads()

    async def wait_async(self) -> None:
        """Wait as :meth:`wait` does, without blocking the event loop."""
        for storage in self._storages:
            for op in list(storage.pending()):
                await _Completion(op)
            if storage.marks is not None:  # the work was launched on a device and may still run
                await asyncio.get_running_loop().run_in_executor(None, storage.marks.finish_reads)
                storage.marks.finish_reads()  # it has completed; update this thread's state

    def close(self) -> None:
        """Raise the errors of the operations, and copy results back to their memory."""
        for storage in self._storages:
            if storage.failure is not None:
                storage.failure.throw()
        for raw, memory in self._copies:
            raw[...] = memory
        for value, array in self._sparse:
            value.content = array.raw()


class _Completion:
    """An awaitable that waits for an operation."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def __await__(self) -> Any:
        return engine.wait_async(self._op)


def _run_user_code(
    method: Callable[..., Any], run: Run, groups: Mapping[str, Sequence[Any]], extra: Mapping[str, Any]
) -> Awaitable[None] | None:
    """Call a method of a CustomOp (see :data:`flowmx.ops.control.custom.runner`)."""
    user_arrays = _UserArrays(run)
    arrays = {name: [user_arrays.array(raw, name in _WRITTEN) for raw in group] for name, group in groups.items()}
    token = recording.state.set(State(False, run.train))
    try:
        with run.device.context:
            result = method(**arrays, **extra)
    finally:
        recording.state.reset(token)
        user_arrays.wait()
    if result is not None and (isinstance(result, NDArray) or not isinstance(result, Awaitable)):
        _warn_ignored(method, result)
    if isinstance(result, Awaitable):
        return _run_coroutine(result, user_arrays, run)
    user_arrays.close()
    return None


def _warn_ignored(method: Callable[..., Any], result: object) -> None:
    """Warn about a result that is returned instead of assigned, at the line of the method."""
    code = getattr(method, "__code__", None)
    if code is not None:
        text = (
            f"{method.__qualname__} returned a {type(result).__name__}, which is ignored: write results with "
            "self.assign(out_data[0], req[0], value), or in_grad in backward"
        )
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


async def _run_coroutine(result: Awaitable[Any], user_arrays: _UserArrays, run: Run) -> None:
    recording.state.set(State(False, run.train))  # never reset: the context belongs to this operation
    try:
        with run.device.context, raised_as_mxnet(Exception):
            await result
    finally:
        await user_arrays.wait_async()
    user_arrays.close()


custom.runner = _run_user_code
