"""``mx.operator``: operators of the user's own, written in Python on arrays.

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

``forward`` and ``backward`` may also be coroutine functions (``async def``); they run on the engine's loop.
Either may use arrays as any code does, and wait for what it has computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from flowmx.engine import engine
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import Storage, allocate
from flowmx.ndarray.recording import State
from flowmx.ops.control import custom
from flowmx.ops.registry.operators import Run, lookup, registered

__all__ = [
    "CustomOp", "CustomOpProp", "OperatorArguments", "get_all_registered_operators", "get_operator_arguments",
    "register",
]  # fmt: skip

_WRITTEN = ("out_data", "in_grad", "aux")


class CustomOp:
    """The computation of a custom operator; made by :meth:`CustomOpProp.create_operator`.

    One object serves the forward and the backward pass of a call, or of a node of a bound graph, so what the
    first keeps on ``self`` the second finds there.
    """

    def forward(
        self, is_train: bool, req: list[str], in_data: list[NDArray], out_data: list[NDArray], aux: list[NDArray]
    ) -> Any:
        """Compute ``out_data`` from ``in_data``.

        Args:
            is_train: training mode.
            req: the storing request of each output, for :meth:`assign`.
            in_data: the arguments; they may not be written.
            out_data: the outputs to write.
            aux: the auxiliary states, which may be read and written.
        """

    def backward(
        self, req: list[str], out_grad: list[NDArray], in_data: list[NDArray], out_data: list[NDArray],
        in_grad: list[NDArray], aux: list[NDArray],
    ) -> Any:  # fmt: skip
        """Compute ``in_grad``, the gradients of the arguments, from ``out_grad``, those of the outputs.

        What :meth:`CustomOpProp.declare_backward_dependency` leaves out is None. Gradients that are not
        assigned are 0.
        """

    def assign(self, dst: NDArray, req: str, src: Any) -> None:
        """Store ``src`` in ``dst`` as ``req`` says: ``null`` (not), ``write``, ``inplace`` or ``add``."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src
        elif req != "null":
            raise ValueError(f"assign: req is {req!r}, expected 'null', 'write', 'inplace' or 'add'")


class CustomOpProp:
    """The declaration of a custom operator: its arguments, outputs, shapes and dtypes.

    The parameters of a call reach the constructor of a subclass as text.

    Args:
        need_top_grad: False for an output layer, whose gradient does not depend on those of its outputs.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Names of the arguments."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list[Any], /) -> Any:
        """The shapes of arguments, outputs and (may be left out) auxiliary states.

        Args:
            in_shape: a list for each argument's shape, with 0 where a length is unknown; empty where nothing
                is known.
        """
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any], /) -> Any:
        """The dtypes, likewise: NumPy's types, None where unknown."""
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def infer_storage_type(self, in_stype: list[str], /) -> Any:
        """The storage types (``default``, ``csr``, ``row_sparse``) of arguments, outputs and states, in this order.

        Here all are dense: sparse arguments are made so. Arrays of other types are given to the operator as said.

        Args:
            in_stype: the arguments' storage types.
        """
        return (
            ["default"] * len(in_stype), ["default"] * len(self.list_outputs()),
            ["default"] * len(self.list_auxiliary_states()),
        )  # fmt: skip

    def infer_storage_type_backward(
        self, ograd_stype: list[str], in_stype: list[str], out_stype: list[str], igrad_stype: list[str],
        aux_stype: list[str], /,
    ) -> Any:  # fmt: skip
        """The storage types in the backward pass, in the order of the arguments. Here all are dense.

        Args:
            ograd_stype: those of the outputs' gradients.
            in_stype: of the arguments.
            out_stype: of the outputs.
            igrad_stype: of the arguments' gradients; ``default``.
            aux_stype: of the auxiliary states.
        """
        groups = ograd_stype, in_stype, out_stype, igrad_stype, aux_stype
        return tuple(["default"] * len(each) for each in groups)

    def declare_backward_dependency(self, out_grad: list[int], in_data: list[int], out_data: list[int]) -> list[int]:
        """Select the numbered arrays that the backward pass needs."""
        return [*(out_grad if self.need_top_grad_ else []), *in_data, *out_data]

    def create_operator(self, ctx: Any, in_shapes: list[list[int]], in_dtypes: list[Any], /) -> Any:
        """The object that computes, for arguments of these shapes and dtypes on a device."""
        return CustomOp()


P = TypeVar("P", bound=Callable[..., Any])


def register(reg_name: str) -> Callable[[P], P]:
    """Register a subclass of :class:`CustomOpProp`, as ``Custom(..., op_type=reg_name)``; a later one takes over."""

    def registering(prop_cls: P) -> P:
        custom.properties[reg_name] = prop_cls
        return prop_cls

    return registering


def get_all_registered_operators() -> list[str]:
    """The names of all operators that are built in."""
    return sorted(name for name, cls in registered().items() if not cls.traits.hidden)


class OperatorArguments(NamedTuple):
    """The arguments of an operator: how many, their names, and their types in words."""

    narg: int
    names: list[str]
    types: list[str]


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """The inputs and parameters of an operator.

    Raises:
        AttributeError: there is no such operator.
    """
    cls = lookup(op_name)
    inputs = ["data"] if cls.variadic else [*cls.arguments, *cls.auxiliary]
    names = [*inputs, *cls.parameters]
    types = ["NDArray-or-Symbol"] * len(inputs) + [each.describe() for each in cls.parameters.values()]
    return OperatorArguments(len(names), names, types)


class _Lent:
    """Arrays lent to user code: handles of their own on memory that an operation holds.

    What is pushed on them waits for nothing outside, and the operation waits for it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._storages: list[Storage] = []
        self._apart: list[tuple[Any, Any]] = []
        self._sparse: list[tuple[custom.SparseValue, NDArray]] = []

    def array(self, raw: Any, written: bool) -> NDArray | None:
        """An array over this memory, or over a copy where that does not lie in one piece."""
        if raw is None:
            return None
        if isinstance(raw, custom.SparseValue):
            return self._sparse_array(raw, written)
        memory = raw
        if not raw.flags.c_contiguous:
            memory = self._run.xp.array(raw, order="C")
            if written:
                self._apart.append((raw, memory))
        elif not written and hasattr(raw.flags, "writeable"):
            memory = raw.view()
            memory.flags.writeable = False
        made = allocate(self._run.device, raw.shape, raw.dtype, memory)
        self._storages.append(made.variable)
        return cast("NDArray", made)

    def _sparse_array(self, value: custom.SparseValue, written: bool) -> NDArray:
        from flowmx.ndarray.sparse.arrays import allocated  # which few programs need

        content = value.content
        if not written:
            data = content.data.view()
            data.flags.writeable = False
            content = content._replace(data=data)
        made = allocated(value.stype, self._run.device, value.shape, value.dtype, content)
        self._storages.append(made.variable)
        if written:
            self._sparse.append((value, made))
        return made

    def wait(self) -> None:
        """Wait for what was pushed on the arrays."""
        for storage in self._storages:
            for op in list(storage.pending()):
                engine.wait(op)
            if storage.marks is not None:
                storage.marks.finish_reads()

    async def wait_async(self) -> None:
        """The awaited form of :meth:`wait`."""
        for storage in self._storages:
            for op in list(storage.pending()):
                await _Until(op)
            if storage.marks is not None:  # a device: launched, and to be waited for
                await asyncio.get_running_loop().run_in_executor(None, storage.marks.finish_reads)
                storage.marks.finish_reads()  # done: this thread is to know it too

    def close(self) -> None:
        """Raise what failed inside, and bring the results where they belong."""
        for storage in self._storages:
            if storage.failure is not None:
                storage.failure.throw()
        for raw, memory in self._apart:
            raw[...] = memory
        for value, array in self._sparse:
            value.content = array._read()


class _Until:
    def __init__(self, op: Any) -> None:
        self._op = op

    def __await__(self) -> Any:
        return engine.wait_async(self._op)


def _run_user_code(
    method: Callable[..., Any], run: Run, groups: Mapping[str, Sequence[Any]], extra: Mapping[str, Any]
) -> Awaitable[None] | None:
    """Call a method of a CustomOp (see :data:`flowmx.ops.control.custom.runner`)."""
    lent = _Lent(run)
    given = {name: [lent.array(raw, name in _WRITTEN) for raw in group] for name, group in groups.items()}
    token = recording.state.set(State(False, run.train))
    try:
        with run.device.context:
            result = method(**given, **extra)
    finally:
        recording.state.reset(token)
        lent.wait()
    if isinstance(result, Awaitable):
        return _run_coroutine(result, lent, run)
    lent.close()
    return None


async def _run_coroutine(result: Awaitable[Any], lent: _Lent, run: Run) -> None:
    recording.state.set(State(False, run.train))  # for this operation's own context, and so for good
    try:
        with run.device.context, raised_as_mxnet(Exception):
            await result
    finally:
        await lent.wait_async()
    lent.close()


custom.runner = _run_user_code
