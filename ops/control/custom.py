"""The operator ``Custom``: user code in Python on arrays.

The user registers a *property* (:class:`flowmx.operator.CustomOpProp`). It describes the inputs and outputs of the
operator, and creates the object that computes: one for each call, or for each node of a bound graph. The arguments of
its ``forward`` and ``backward`` are new arrays that share memory with the operation's arrays. Operations on them do not
wait for the custom operation, which completes after all of them. ``flowmx/operator.py`` implements this, since
operators do not depend on NDArray.

User code may wait for any operation that does not depend on it. So an operation with user code runs on separate
threads, with one more thread for each that waits (:data:`actor`), or, if it is a coroutine, on the engine's loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from flowmx import forks
from flowmx.devices.streams import wait_for_values
from flowmx.engine import Operation, ThreadActor, engine, push, runs_user_code
from flowmx.engine.waiting import current
from flowmx.errors import ParameterError, ShapeError, TypeInferenceError, as_mxnet_error, raised_as_mxnet
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, merge, operator, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors, as_list
from flowmx.ops.registry.traits import Precision
from flowmx.suggestions import did_you_mean

Groups = Mapping[str, Sequence[Array | None]]
Runner = Callable[[Callable[..., Any], Run, Groups, Mapping[str, Any]], Awaitable[None] | None]

properties: dict[str, Callable[..., Any]] = {}
"""For each ``op_type``, the function that creates its property from keyword arguments (strings)."""
runner: Runner | None = None
"""Called with a user's method and arrays; returns an awaitable, or None once done. Set by ``flowmx.operator``."""

current_operator: ContextVar[str] = ContextVar("flowmx_custom_operator", default="")
"""The name of the custom operator whose code is running."""

on_call: Callable[[str, float, float], None] | None = None
"""Called with an operator's name and the start and end time of its method; set by the profiler."""


class SparseValue:
    """A sparse array that user code reads or writes.

    Attributes:
        content: the stored elements (``ops/sparse/content.py``); user code replaces it to write the array.
        stype: the storage type.
        shape: the shape.
        dtype: the dtype.
    """

    __slots__ = ("content", "dtype", "shape", "stype")

    def __init__(self, content: Any, stype: str, shape: Shape, dtype: DType) -> None:
        self.content, self.stype, self.shape, self.dtype = content, stype, shape, dtype


STYPES = ("default", "row_sparse", "csr")


class _UserActor(ThreadActor):
    """The threads of user code. Other threads must not run its operations, since their own work could wait for them."""

    accepts_help = False

    def is_idle(self) -> bool:
        """Return False: operations with user code never run when pushed."""
        return False


actor = _UserActor("user code", slots=16)


def detach(work: Operation, coroutine: bool = False) -> None:
    """Prepare an operation with user code before its push: set its context and its actor."""
    work.is_coroutine = coroutine
    runs_user_code(work)
    if coroutine:
        work.actor = engine.network
    elif engine.kind != "NaiveEngine":  # the NaiveEngine runs it when pushed
        work.actor = actor


class _InstanceCache:
    """The user's operator object: created once, and reused by the backward pass."""

    def __init__(self, prop: Any) -> None:
        self._prop = prop
        self._instance: Any = None
        self._lock = forks.lock()

    def get(self, device: Any, inputs: Sequence[Any]) -> Any:
        with self._lock:
            if self._instance is None:
                with device.context:
                    self._instance = self._prop.create_operator(
                        device.context, [list(array.shape) for array in inputs],
                        [np.dtype(array.dtype).type for array in inputs],
                    )  # fmt: skip
            return self._instance


class UserOperator(Operator, detached=True, heavy=True):
    """Base of the forward and the backward operator: run one of the user's methods."""

    @property
    def user_name(self) -> str:
        """The name that the user gave to the operator."""
        raise NotImplementedError

    def method(self, device: object, memo: dict[object, Any] | None, inputs: Sequence[object]) -> Callable[..., Any]:
        """Return the user's method to call for these inputs."""
        raise NotImplementedError

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        """Return the arrays by the names of the method's arguments."""
        raise NotImplementedError

    def begin(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> Awaitable[None] | None:
        """Call the method; return an awaitable, or None if it has completed."""
        assert runner is not None
        extra = self.extra(run)
        token, start = current_operator.set(self.user_name), perf_counter()
        try:
            with raised_as_mxnet(Exception):
                return runner(self.method(run.device, run.memo, inputs), run, self.groups(inputs, outputs), extra)
        finally:
            current_operator.reset(token)
            if on_call is not None:
                on_call(self.user_name, start, perf_counter())

    def extra(self, run: Run) -> dict[str, Any]:
        """Return the arguments of the method that are not arrays."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        pending = self.begin(run, inputs, outputs)
        if pending is not None:
            await_on_loop(self.name, pending)

    def is_coroutine(self, device: object, inputs: Sequence[object]) -> bool:
        """Return whether the user's method is a coroutine function."""
        return inspect.iscoroutinefunction(self.method(device, None, inputs))

    def storage_types(self, stypes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the storage types of the method's inputs and outputs, for inputs of these storage types."""
        raise NotImplementedError

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        device = inputs[0].variable.device if inputs else work.arguments[1].device
        coroutine = self.is_coroutine(device, inputs)
        if coroutine:
            work.arguments = (self.begin, *work.arguments[1:])
        detach(work, coroutine)


def await_on_loop(name: str, pending: Awaitable[None]) -> None:
    """Run an awaitable on the engine's loop, and wait for it in this thread."""
    outer = current.get()

    async def body() -> None:
        if outer is not None:
            wait_for_values(outer)
        await pending

    push(body, name=name).wait()


@operator("Custom")
class Custom(UserOperator, open_ended=True, precision=Precision.FLOAT32):
    """A custom operator, registered with :func:`flowmx.operator.register`.

    Pass the inputs by position, in the order of the property's ``list_arguments`` and then ``list_auxiliary_states``,
    or by name. All other parameters are passed to the property's constructor as strings.
    """

    arguments = ()
    input_docs = describe(data="shapes and dtypes that the property's infer_shape and infer_type accept")
    output_doc = "Shapes and dtypes that the property's infer_shape and infer_type return"
    op_type: str = required("The name under which the operator's property is registered.")

    @property
    def user_name(self) -> str:
        return self.op_type

    prop: ClassVar[Any]
    texts: ClassVar[dict[str, str]]
    instances: ClassVar[_InstanceCache]

    @classmethod
    def create(cls, /, **parameters: object) -> Operator:
        """Create an operator; each has its own state, so none is shared.

        Raises:
            ParameterError: no property is registered under ``op_type``.
        """
        texts = {name: str(value) for name, value in parameters.items()}
        op_type = texts.pop("op_type", "")
        factory = properties.get(op_type)
        if factory is None:
            raise ParameterError(
                f"Custom: parameter op_type is {op_type!r}, which is not registered"
                f"{did_you_mean(op_type, properties)} (register a CustomOpProp with mx.operator.register)"
            )
        op = cls(op_type=op_type)
        prop = factory(**texts)
        count = len(prop.list_arguments())
        auxiliary = tuple(prop.list_auxiliary_states())
        attributes = {
            "prop": prop, "texts": texts, "instances": _InstanceCache(prop), "auxiliary": auxiliary, "_specs": {},
            "updates": tuple(range(count, count + len(auxiliary))),
        }  # fmt: skip
        for name, value in attributes.items():
            object.__setattr__(op, name, value)
        dense = ("default",) * (2 * len(op.outputs()) + count), ("default",) * len(auxiliary)
        forward = _returns_sparse(lambda: op.storage_types(("default",) * (count + len(auxiliary))))
        backward = _returns_sparse(lambda: op.gradient_types(*dense))
        if forward or backward:
            op.with_traits(sparse=True)
        return op

    def attributes(self) -> dict[str, str]:
        return {"op_type": self.op_type, **self.texts}

    def inputs(self) -> tuple[str, ...]:
        return tuple(self.prop.list_arguments())

    def outputs(self) -> tuple[str, ...]:
        return tuple(self.prop.list_outputs())

    # -- inference -------------------------------------------------------------------------------------

    def _call_hook(self, hook: str, values: Sequence[object], is_complete: bool) -> list[list[Any]] | None:
        """Call an inference hook; return lists for arguments, outputs and states, or None if it needs more inputs."""
        try:
            result = getattr(self.prop, hook)(list(values))
        except Exception as exception:  # user code
            if is_complete:
                raise as_mxnet_error(exception) from exception.__cause__
            return None
        try:
            lists = [list(entries) for entries in result]
        except TypeError:
            raise TypeInferenceError(
                f"Custom: {hook} of {self.op_type!r} returned {result!r}, expected two or three lists, for arguments, "
                "outputs and auxiliary states"
            ) from None
        lists += [[]] * (3 - len(lists))
        expected = [len(self.inputs()), len(self.outputs()), len(self.auxiliary)]
        if [len(entries) for entries in lists] != expected:
            error = ShapeError if hook == "infer_shape" else TypeInferenceError
            raise error(
                f"Custom: {hook} of {self.op_type!r} returned {' + '.join(str(len(entries)) for entries in lists)} "
                f"entries, expected {' + '.join(map(str, expected))} (arguments + outputs + auxiliary states)"
            )
        return lists

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.inputs())
        is_complete = all(shape is not None and -1 not in shape for shape in shapes[:count])
        lists = [[] if shape is None else [max(length, 0) for length in shape] for shape in shapes[:count]]
        completed = self._call_hook("infer_shape", lists, is_complete)
        if completed is None:
            return shapes, [None] * len(self.outputs())

        def parse(shape: Any) -> ShapeOrNone:
            lengths = tuple(int(length) for length in shape)
            if not is_complete:
                lengths = tuple(length if length > 0 else -1 for length in lengths)
            return lengths if lengths or is_complete else None

        arguments = []
        for name, before, after in zip(self.inputs(), shapes, map(parse, completed[0]), strict=False):
            merged = merge(before, after)
            if merged is False:
                raise ShapeError(f"Custom({self.op_type}): input {name} has shape {before}, expected {after}")
            arguments.append(merged)
        return [*arguments, *map(parse, completed[2])], [*map(parse, completed[1])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        argument_dtypes = dtypes[: len(self.inputs())]
        types = [None if dtype is None else dtype.type for dtype in argument_dtypes]
        completed = self._call_hook("infer_type", types, None not in argument_dtypes)
        if completed is None:
            return dtypes, [None] * len(self.outputs())
        arguments, outputs, auxiliary = [[None if t is None else as_dtype(t) for t in group] for group in completed]
        return [*arguments, *auxiliary], outputs

    def storage_types(self, stypes: Sequence[str]) -> tuple[list[str], list[str]]:
        count, auxiliary = len(self.inputs()), len(self.auxiliary)
        hook = getattr(self.prop, "infer_storage_type", None)
        if hook is None:
            return ["default"] * len(stypes), ["default"] * len(self.outputs())
        lists = _parse_lists(f"infer_storage_type of {self.op_type!r}", hook(list(stypes[:count])), 2)
        lists += [["default"] * auxiliary] * (3 - len(lists))
        _check_storage(f"infer_storage_type of {self.op_type!r}", lists, [count, len(self.outputs()), auxiliary])
        return [*lists[0], *lists[2]], lists[1]

    def gradient_types(self, stypes: Sequence[str], states: Sequence[str]) -> list[list[str]]:
        """Return the storage types in the backward pass: five lists, as returned by the property's hook.

        Args:
            stypes: the storage types of the outputs' gradients, the inputs and the outputs.
            states: the storage types of the auxiliary states.
        """
        n_out, n_in = len(self.outputs()), len(self.inputs())
        lengths = [n_out, n_in, n_out, n_in, len(states)]
        parts = (
            stypes[:n_out],
            stypes[n_out : n_out + n_in],
            stypes[n_out + n_in :],
            ["default"] * n_in,
            states,
        )
        hook = getattr(self.prop, "infer_storage_type_backward", None)
        if hook is None:
            return [["default"] * length for length in lengths]
        hook_name = f"infer_storage_type_backward of {self.op_type!r}"
        lists = _parse_lists(hook_name, hook(*map(list, parts)), 4)
        lists += [["default"] * len(states)] * (5 - len(lists))
        _check_storage(hook_name, lists, lengths)
        return lists

    # -- computing -------------------------------------------------------------------------------------

    def instance(self, device: object, memo: dict[object, Any] | None, inputs: Sequence[object]) -> Any:
        """Return the user's operator object: one for each call, or for each bound graph (which has a ``memo``)."""
        cache = self.instances if memo is None else memo.setdefault((self, "instances"), _InstanceCache(self.prop))
        return cache.get(device, inputs[: len(self.inputs())])

    def method(self, device: object, memo: dict[object, Any] | None, inputs: Sequence[object]) -> Callable[..., Any]:
        forward: Callable[..., Any] = self.instance(device, memo, inputs).forward
        return forward

    def extra(self, run: Run) -> dict[str, Any]:
        return {"is_train": run.train, "req": ["write"] * len(self.outputs())}

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        count = len(self.inputs())
        return {"in_data": inputs[:count], "out_data": outputs, "aux": inputs[count:]}

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        n_in, n_out = len(self.inputs()), len(self.outputs())
        ids = list(range(2 * n_out + n_in))
        parts = ids[:n_out], ids[n_out : n_out + n_in], ids[n_out + n_in :]
        dependencies = sorted(set(self.prop.declare_backward_dependency(*map(list, parts))))
        sources = [heads, inputs, outputs]
        starts = (0, n_out, n_out + n_in)
        arrays = []
        for number in dependencies:
            part = sum(number >= start for start in starts) - 1
            arrays.append(sources[part][number - starts[part]])
        states = [shape_of(inputs, position) for position in self.updates]
        like = [shape_of(inputs, position) for position in range(n_in)]
        is_needed = [getattr(inputs, "needs_gradient", lambda _: True)(position) for position in range(n_in)]
        backward = BackwardCustom.of(
            self, dependencies, [array.shape for array in like], [array.dtype for array in like], is_needed
        )
        stypes = [
            [getattr(array, "stype", "default") for array in group]
            for group in (heads, like, [shape_of(outputs, position) for position in range(n_out)])
        ]
        backward.set_storage_types([stype for group in stypes for stype in group])
        gradients = as_list(F.apply(backward, [*arrays, *states]))
        return [gradient if needed else None for gradient, needed in zip(gradients, is_needed, strict=True)]


@operator("_backward_Custom")
class BackwardCustom(UserOperator, hidden=True):
    """The gradient of Custom: its ``backward``, with the arrays that it declared as dependencies."""

    arguments = ()
    primal: ClassVar[Custom]
    dependencies: ClassVar[list[int]]
    input_specs: ClassVar[tuple[list[Shape], list[DType]]]
    is_needed: ClassVar[list[bool]]
    stypes: ClassVar[list[str]]

    def set_storage_types(self, stypes: list[str]) -> None:
        """Set the storage types of the outputs' gradients, the inputs and the outputs."""
        object.__setattr__(self, "stypes", stypes)
        input_stypes = [*(stypes[number] for number in self.dependencies), *["default"] * len(self.primal.auxiliary)]
        if _returns_sparse(lambda: self.storage_types(input_stypes)):
            self.with_traits(sparse=True)

    def storage_types(self, stypes: Sequence[str]) -> tuple[list[str], list[str]]:
        count = len(self.dependencies)
        all_stypes = [*self.stypes]
        for number, stype in zip(self.dependencies, stypes, strict=False):
            all_stypes[number] = stype
        lists = self.primal.gradient_types(all_stypes, stypes[count:])
        all_stypes = [*lists[0], *lists[1], *lists[2]]
        return [*(all_stypes[number] for number in self.dependencies), *lists[4]], lists[3]

    @property
    def user_name(self) -> str:
        return f"_backward_{self.primal.op_type}"

    @classmethod
    def of(
        cls,
        primal: Custom,
        dependencies: list[int],
        shapes: Sequence[Shape],
        dtypes: Sequence[Any],
        is_needed: list[bool],
    ) -> BackwardCustom:
        """Create the gradient of one call or node, for inputs of these shapes and dtypes."""
        op = cls()
        count = len(dependencies)
        attributes = {
            "primal": primal, "dependencies": dependencies,
            "input_specs": (list(shapes), [as_dtype(dtype) for dtype in dtypes]), "is_needed": is_needed, "_specs": {},
            "updates": tuple(range(count, count + len(primal.auxiliary))),
        }  # fmt: skip
        for name, value in attributes.items():
            object.__setattr__(op, name, value)
        return op

    def inputs(self) -> tuple[str, ...]:
        return (*(f"needed{number}" for number in self.dependencies), *self.primal.auxiliary)

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.primal.inputs())

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(self.input_specs[0])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, list(self.input_specs[1])

    def method(self, device: object, memo: dict[object, Any] | None, inputs: Sequence[object]) -> Callable[..., Any]:
        like = [_ArraySpec(shape, dtype) for shape, dtype in zip(*self.input_specs, strict=True)]
        backward: Callable[..., Any] = self.primal.instance(device, memo, like).backward
        return backward

    def extra(self, run: Run) -> dict[str, Any]:
        return {"req": ["write" if needed else "null" for needed in self.is_needed]}

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        n_in, n_out = len(self.primal.inputs()), len(self.primal.outputs())
        arrays: list[Array | None] = [None] * (2 * n_out + n_in)
        for number, array in zip(self.dependencies, inputs, strict=False):
            arrays[number] = array
        for array in outputs:
            if not isinstance(array, SparseValue):
                array[...] = 0  # an array that backward does not write has no gradient
        return {
            "out_grad": arrays[:n_out], "in_data": arrays[n_out : n_out + n_in], "out_data": arrays[n_out + n_in :],
            "in_grad": outputs, "aux": inputs[len(self.dependencies) :],
        }  # fmt: skip


def _parse_lists(hook_name: str, result: object, length: int) -> list[list[str]]:
    """Return the lists of storage types in the result of a hook: ``length`` lists, or one more.

    Raises:
        TypeInferenceError: the result is invalid.
    """
    lists = [list(entries) for entries in result] if isinstance(result, (list, tuple)) else []
    if len(lists) not in (length, length + 1):
        raise TypeInferenceError(f"Custom: {hook_name} returned {result!r}, expected {length} or {length + 1} lists")
    return lists


def _check_storage(hook_name: str, lists: Sequence[Sequence[str]], lengths: Sequence[int]) -> None:
    if [len(entries) for entries in lists] != list(lengths):
        raise TypeInferenceError(
            f"Custom: {hook_name} returned {' + '.join(str(len(entries)) for entries in lists)} storage types, "
            f"expected {' + '.join(map(str, lengths))}"
        )
    wrong = [stype for entries in lists for stype in entries if stype not in STYPES]
    if wrong:
        raise TypeInferenceError(f"Custom: {hook_name} returned {wrong[0]!r}, expected one of {', '.join(STYPES)}")


def _returns_sparse(hook: Callable[[], Iterable[list[str]]]) -> bool:
    """Return whether a hook returns sparse storage types; False if the hook does not accept dense arrays.

    Raises:
        TypeInferenceError: the hook returned invalid storage types.
    """
    try:
        return any(stype != "default" for group in hook() for stype in group)
    except TypeInferenceError:
        raise
    except Exception:  # user code: the hook may reject dense arrays; it is called again with the actual ones
        return False


class _ArraySpec:
    """The shape and dtype of an array that is not available."""

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
