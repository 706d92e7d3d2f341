"""The operator ``Custom``: the user's own, written in Python on arrays.

The user registers a *property* (:class:`flowmx.operator.CustomOpProp`), which says what the operator takes and
gives, and makes for each call, or each node of a bound graph, the object that computes. What that object's
``forward`` and ``backward`` are given are arrays of their own over the memory of the operation's arrays: what
is pushed on them inside never waits for the operation itself, and the operation ends when all of that has.
``flowmx/operator.py`` does this, since operators know no arrays of ours.

So that user code may wait inside for anything that does not wait for it, an operation that contains it runs on
threads of its own, of which there are as many as wait (:data:`actor`), or on the engine's loop where it is a
coroutine.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from flowmx.engine import Operation, ThreadActor, engine, runs_user_code
from flowmx.errors import ParameterError, ShapeError, TypeInferenceError, also_mxnet, raised_as_mxnet
from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, described, merge, operator, required
from flowmx.ops.registry.traits import Precision
from flowmx.suggestions import did_you_mean

Groups = Mapping[str, Sequence[Array | None]]
Runner = Callable[[Callable[..., Any], Run, Groups, Mapping[str, Any]], Awaitable[None] | None]
Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]

properties: dict[str, Callable[..., Any]] = {}
"""For each ``op_type``, the function that makes its property from keyword arguments, which are strings."""
runner: Runner | None = None
"""Called with a user's method and arrays; returns an awaitable, or None once done. Set by ``flowmx.operator``."""


inside: ContextVar[str] = ContextVar("flowmx_custom_operator", default="")
"""The name of the user's operator that pushes here."""

when_called: Callable[[str, float, float], None] | None = None
"""Called with an operator's name and the begin and end of its method's run; set by the profiler."""


class SparseValue:
    """A sparse array of an operation, as user code gets it and leaves it.

    Attributes:
        content: what it stores (``ops/sparse/content.py``); of one that is written, set anew when the code has run.
        stype: its storage type.
        shape: its shape.
        dtype: its dtype.
    """

    __slots__ = ("content", "dtype", "shape", "stype")

    def __init__(self, content: Any, stype: str, shape: Shape, dtype: DType) -> None:
        self.content, self.stype, self.shape, self.dtype = content, stype, shape, dtype


STYPES = ("default", "row_sparse", "csr")


class _UserActor(ThreadActor):
    """The threads of user code. No other thread runs its operations: what that has begun could wait for them."""

    may_lend = False


actor = _UserActor("user code", slots=16)


def detach(work: Operation, coroutine: bool = False) -> None:
    """Prepare an operation that contains user code, before its push: its own context, threads of its own."""
    work.is_coroutine = coroutine
    runs_user_code(work)
    if coroutine:
        work.actor = engine.network
    elif engine.kind != "NaiveEngine":  # there it runs at its push like any other
        work.actor = actor


class _Calls:
    """The user's operator object: made once, and kept for the backward pass."""

    def __init__(self, prop: Any) -> None:
        self._prop = prop
        self._made: Any = None
        self._lock = threading.RLock()

    def get(self, device: Any, inputs: Sequence[Any]) -> Any:
        with self._lock:
            if self._made is None:
                with device.context:
                    self._made = self._prop.create_operator(
                        device.context, [list(each.shape) for each in inputs],
                        [np.dtype(each.dtype).type for each in inputs],
                    )  # fmt: skip
            return self._made


class UserOperator(Operator, detached=True, heavy=True):
    """The base of forward and backward pass: run one of the user's methods."""

    @property
    def called(self) -> str:
        """The user's name of it."""
        raise NotImplementedError

    def method(self, device: Any, memo: dict[Any, Any] | None, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The user's method to call, given arrays of any kind."""
        raise NotImplementedError

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        """The arrays under the names of the method's arguments."""
        raise NotImplementedError

    def begin(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> Awaitable[None] | None:
        """Call the method; returns an awaitable, or None where it is done."""
        assert runner is not None
        extra = self.extra(run)
        token, start = inside.set(self.called), perf_counter()
        try:
            with raised_as_mxnet(Exception):
                return runner(self.method(run.device, run.memo, inputs), run, self.groups(inputs, outputs), extra)
        finally:
            inside.reset(token)
            if when_called is not None:
                when_called(self.called, start, perf_counter())

    def extra(self, run: Run) -> dict[str, Any]:
        """The arguments of the method that are no arrays."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        pending = self.begin(run, inputs, outputs)
        if pending is not None:
            await_on_loop(self.name, pending)

    def is_coroutine(self, device: Any, inputs: Sequence[Any]) -> bool:
        """Tell whether the user's method is a coroutine function."""
        return inspect.iscoroutinefunction(self.method(device, None, inputs))

    def storage_types(self, given: Sequence[str]) -> tuple[list[str], list[str]]:
        """The storage types in which the method gets its inputs and outputs, for inputs of such."""
        raise NotImplementedError

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        device = inputs[0].variable.device if inputs else work.arguments[1].device
        coroutine = self.is_coroutine(device, inputs)
        if coroutine:
            work.arguments = (self.begin, *work.arguments[1:])
        detach(work, coroutine)


def await_on_loop(name: str, pending: Awaitable[None]) -> None:
    """Run a coroutine to its end on the engine's loop, from a thread."""

    async def body() -> None:
        await pending

    from flowmx.engine import push

    push(body, name=name).wait()


@operator("Custom")
class Custom(UserOperator, open_ended=True, precision=Precision.FLOAT32):
    """An operator of the user's own, registered with :func:`flowmx.operator.register`.

    The inputs, in the order of the property's ``list_arguments`` and then ``list_auxiliary_states``, are given by
    position or by name. All further parameters go to the property's constructor as text.
    """

    arguments = ()
    input_docs = described(data="shapes and dtypes as the property's infer_shape and infer_type accept them")
    output_doc = "Shapes and dtypes that the property's infer_shape and infer_type return"
    op_type: str = required("The name that the operator's property is registered under.")

    @property
    def called(self) -> str:
        return self.op_type

    prop: ClassVar[Any]
    texts: ClassVar[dict[str, str]]
    calls: ClassVar[_Calls]

    @classmethod
    def create(cls, /, **given: Any) -> Operator:
        """An operator with a state of its own: never the same object twice.

        Raises:
            ParameterError: no property is registered under ``op_type``.
        """
        texts = {name: str(value) for name, value in given.items()}
        op_type = texts.pop("op_type", "")
        maker = properties.get(op_type)
        if maker is None:
            raise ParameterError(
                f"Custom: parameter op_type is {op_type!r}, which is not registered"
                f"{did_you_mean(op_type, properties)} (register a CustomOpProp with mx.operator.register)"
            )
        made = cls(op_type=op_type)
        prop = maker(**texts)
        count = len(prop.list_arguments())
        auxiliary = tuple(prop.list_auxiliary_states())
        own = {
            "prop": prop, "texts": texts, "calls": _Calls(prop), "auxiliary": auxiliary, "_specs": {},
            "updates": tuple(range(count, count + len(auxiliary))),
        }  # fmt: skip
        for name, value in own.items():
            object.__setattr__(made, name, value)
        dense = ("default",) * (2 * len(made.outputs()) + count), ("default",) * len(auxiliary)
        forward = _makes_sparse(lambda: made.storage_types(("default",) * (count + len(auxiliary))))
        backward = _makes_sparse(lambda: made.gradient_types(*dense))
        if forward or backward:
            made.with_traits(sparse=True)
        return made

    def attributes(self) -> dict[str, str]:
        return {"op_type": self.op_type, **self.texts}

    def inputs(self) -> tuple[str, ...]:
        return tuple(self.prop.list_arguments())

    def outputs(self) -> tuple[str, ...]:
        return tuple(self.prop.list_outputs())

    # -- inference -------------------------------------------------------------------------------------

    def _ask(self, hook: str, given: list[Any], known: bool) -> list[list[Any]] | None:
        """Call an inference hook: lists for arguments, outputs and states; None where it needs to know more."""
        try:
            found = [list(each) for each in getattr(self.prop, hook)(list(given))]
        except Exception as raised:
            if known:
                raise also_mxnet(raised) from raised.__cause__
            return None
        found += [[]] * (3 - len(found))
        expected = [len(self.inputs()), len(self.outputs()), len(self.auxiliary)]
        if [len(each) for each in found] != expected:
            error = ShapeError if hook == "infer_shape" else TypeInferenceError
            raise error(
                f"Custom: {hook} of {self.op_type!r} returned {' + '.join(str(len(each)) for each in found)} entries, "
                f"expected {' + '.join(map(str, expected))} (arguments + outputs + auxiliary states)"
            )
        return found

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.inputs())
        known = all(shape is not None and -1 not in shape for shape in shapes[:count])
        given = [[] if shape is None else [max(length, 0) for length in shape] for shape in shapes[:count]]
        found = self._ask("infer_shape", given, known)
        if found is None:
            return shapes, [None] * len(self.outputs())

        def read(shape: Any) -> ShapeOrNone:
            lengths = tuple(int(length) for length in shape)
            if not known:
                lengths = tuple(length if length > 0 else -1 for length in lengths)
            return lengths if lengths or known else None

        arguments = []
        for name, before, after in zip(self.inputs(), shapes, map(read, found[0]), strict=False):
            both = merge(before, after)
            if both is False:
                raise ShapeError(f"Custom({self.op_type}): input {name} has shape {before}, expected {after}")
            arguments.append(both)
        return [*arguments, *map(read, found[2])], [*map(read, found[1])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        given = dtypes[: len(self.inputs())]
        types = [None if dtype is None else dtype.type for dtype in given]
        found = self._ask("infer_type", types, None not in given)
        if found is None:
            return dtypes, [None] * len(self.outputs())
        arguments, outputs, auxiliary = [[None if t is None else as_dtype(t) for t in group] for group in found]
        return [*arguments, *auxiliary], outputs

    def storage_types(self, given: Sequence[str]) -> tuple[list[str], list[str]]:
        count, auxiliary = len(self.inputs()), len(self.auxiliary)
        hook = getattr(self.prop, "infer_storage_type", None)
        if hook is None:
            return ["default"] * len(given), ["default"] * len(self.outputs())
        found = _lists(f"infer_storage_type of {self.op_type!r}", hook(list(given[:count])), 2)
        found += [["default"] * auxiliary] * (3 - len(found))
        _check_storage(f"infer_storage_type of {self.op_type!r}", found, [count, len(self.outputs()), auxiliary])
        return [*found[0], *found[2]], found[1]

    def gradient_types(self, stypes: Sequence[str], states: Sequence[str]) -> list[list[str]]:
        """The storage types in the backward pass: five lists, as the property's hook gives them.

        Args:
            stypes: of the outputs' gradients, the inputs and the outputs.
            states: of the auxiliary states.
        """
        made, taken = len(self.outputs()), len(self.inputs())
        lengths = [made, taken, made, taken, len(states)]
        parts = stypes[:made], stypes[made : made + taken], stypes[made + taken :], ["default"] * taken, states
        hook = getattr(self.prop, "infer_storage_type_backward", None)
        if hook is None:
            return [["default"] * length for length in lengths]
        what = f"infer_storage_type_backward of {self.op_type!r}"
        found = _lists(what, hook(*map(list, parts)), 4)
        found += [["default"] * len(states)] * (5 - len(found))
        _check_storage(what, found, lengths)
        return found

    # -- computing -------------------------------------------------------------------------------------

    def kept(self, device: Any, memo: dict[Any, Any] | None, inputs: Sequence[Any]) -> Any:
        """The user's object that computes: one for each call, or for each bound graph (which brings a ``memo``)."""
        calls = self.calls if memo is None else memo.setdefault((self, "calls"), _Calls(self.prop))
        return calls.get(device, inputs[: len(self.inputs())])

    def method(self, device: Any, memo: dict[Any, Any] | None, inputs: Sequence[Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = self.kept(device, memo, inputs).forward
        return found

    def extra(self, run: Run) -> dict[str, Any]:
        return {"is_train": run.train, "req": ["write"] * len(self.outputs())}

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        count = len(self.inputs())
        return {"in_data": inputs[:count], "out_data": outputs, "aux": inputs[count:]}

    def gradient(
        self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]
    ) -> Sequence[Any | None]:
        taken, given = len(self.inputs()), len(self.outputs())
        ids = list(range(2 * given + taken))
        parts = ids[:given], ids[given : given + taken], ids[given + taken :]
        needed = sorted(set(self.prop.declare_backward_dependency(*map(list, parts))))
        sources = [heads, inputs, outputs]
        starts = (0, given, given + taken)
        arrays = []
        for number in needed:
            part = sum(number >= start for start in starts) - 1
            arrays.append(sources[part][number - starts[part]])
        states = [shape_of(inputs, position) for position in self.updates]
        like = [shape_of(inputs, position) for position in range(taken)]
        wanted = [getattr(inputs, "wanted", lambda _: True)(position) for position in range(taken)]
        backward = BackwardCustom.of(self, needed, [each.shape for each in like], [each.dtype for each in like], wanted)
        stypes = [
            [getattr(each, "stype", "default") for each in group]
            for group in (heads, like, [shape_of(outputs, position) for position in range(given)])
        ]
        backward.expect([stype for group in stypes for stype in group])
        found = F.apply(backward, [*arrays, *states])
        found = [found] if taken == 1 else list(found)
        return [gradient if want else None for gradient, want in zip(found, wanted, strict=True)]


@operator("_backward_Custom")
class BackwardCustom(UserOperator, hidden=True):
    """The gradient of Custom: its ``backward``, of those arrays that it declared to need."""

    arguments = ()
    primal: ClassVar[Custom]
    needed: ClassVar[list[int]]
    made: ClassVar[tuple[list[Shape], list[DType]]]
    wanted: ClassVar[list[bool]]
    stypes: ClassVar[list[str]]

    def expect(self, stypes: list[str]) -> None:
        """Take down the storage types of the outputs' gradients, the inputs and the outputs, while it is made."""
        object.__setattr__(self, "stypes", stypes)
        given = [*(stypes[number] for number in self.needed), *["default"] * len(self.primal.auxiliary)]
        if _makes_sparse(lambda: self.storage_types(given)):
            self.with_traits(sparse=True)

    def storage_types(self, given: Sequence[str]) -> tuple[list[str], list[str]]:
        count = len(self.needed)
        every = [*self.stypes]
        for number, stype in zip(self.needed, given, strict=False):
            every[number] = stype
        found = self.primal.gradient_types(every, given[count:])
        every = [*found[0], *found[1], *found[2]]
        return [*(every[number] for number in self.needed), *found[4]], found[3]

    @property
    def called(self) -> str:
        return f"_backward_{self.primal.op_type}"

    @classmethod
    def of(
        cls, primal: Custom, needed: list[int], shapes: Sequence[Shape], dtypes: Sequence[Any], wanted: list[bool]
    ) -> BackwardCustom:
        """The gradient of one call or node, for inputs of these shapes and dtypes."""
        op = cls()
        count = len(needed)
        own = {
            "primal": primal, "needed": needed, "made": (list(shapes), [as_dtype(each) for each in dtypes]),
            "wanted": wanted, "_specs": {}, "updates": tuple(range(count, count + len(primal.auxiliary))),
        }  # fmt: skip
        for name, value in own.items():
            object.__setattr__(op, name, value)
        return op

    def inputs(self) -> tuple[str, ...]:
        return (*(f"needed{number}" for number in self.needed), *self.primal.auxiliary)

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.primal.inputs())

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(self.made[0])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, list(self.made[1])

    def method(self, device: Any, memo: dict[Any, Any] | None, inputs: Sequence[Any]) -> Callable[..., Any]:
        like = [_Like(shape, dtype) for shape, dtype in zip(*self.made, strict=True)]
        found: Callable[..., Any] = self.primal.kept(device, memo, like).backward
        return found

    def extra(self, run: Run) -> dict[str, Any]:
        return {"req": ["write" if want else "null" for want in self.wanted]}

    def groups(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Groups:
        taken, given = len(self.primal.inputs()), len(self.primal.outputs())
        every: list[Array | None] = [None] * (2 * given + taken)
        for number, array in zip(self.needed, inputs, strict=False):
            every[number] = array
        for array in outputs:
            if not isinstance(array, SparseValue):
                array[...] = 0  # what backward leaves alone has no gradient
        return {
            "out_grad": every[:given], "in_data": every[given : given + taken], "out_data": every[given + taken :],
            "in_grad": outputs, "aux": inputs[len(self.needed) :],
        }  # fmt: skip


def _lists(what: str, found: Any, least: int) -> list[list[str]]:
    """The lists of storage types that a property gave: so many, or one more.

    Raises:
        TypeInferenceError: it gave something else.
    """
    lists = [list(each) for each in found] if isinstance(found, (list, tuple)) else []
    if len(lists) not in (least, least + 1):
        raise TypeInferenceError(f"Custom: {what} returned {found!r}, expected {least} or {least + 1} lists")
    return lists


def _check_storage(what: str, found: Sequence[Sequence[str]], lengths: Sequence[int]) -> None:
    if [len(each) for each in found] != list(lengths):
        raise TypeInferenceError(
            f"Custom: {what} returned {' + '.join(str(len(each)) for each in found)} storage types, expected "
            f"{' + '.join(map(str, lengths))}"
        )
    wrong = [stype for each in found for stype in each if stype not in STYPES]
    if wrong:
        raise TypeInferenceError(f"Custom: {what} returned {wrong[0]!r}, expected one of {', '.join(STYPES)}")


def _makes_sparse(asked: Callable[[], Iterable[list[str]]]) -> bool:
    """Tell whether there are sparse arrays among dense ones, by a hook that may refuse these.

    Raises:
        TypeInferenceError: the hook gave no storage types.
    """
    try:
        return any(stype != "default" for group in asked() for stype in group)
    except TypeInferenceError:
        raise
    except Exception:  # it takes no dense arrays; with those that come it is asked again
        return False


class _Like:
    """The shape and dtype of an array that is not at hand."""

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
