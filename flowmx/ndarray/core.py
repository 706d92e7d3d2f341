"""Arrays as the engine sees them, and the one place where operators are called on them.

A :class:`Storage` is an engine variable with memory; it is allocated when the first operation that writes
it runs. A :class:`BaseArray` is a handle: a storage, or a strided view into one, with shape and dtype. The
public :class:`flowmx.ndarray.NDArray` adds the methods.

:func:`invoke` is the hot path of imperative code; every statement in it is paid for by each ``a + b``.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakSet

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device
from flowmx.engine import Actor, Origin, capture
from flowmx.engine.attributes import KnownAttributes
from flowmx.engine.origin import is_called_by_user, warn_user
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation, Variable
from flowmx.errors import AutogradError, CrossDeviceWarning, DeviceError, ShapeError, TypeInferenceError
from flowmx.ndarray.recording import ENTRIES, Further, Leaf, State, TapeEntry, TapeNode, state
from flowmx.ndarray.references import HELD
from flowmx.ops.control import custom
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import LIGHT_BYTES, Form, Operator, Run, Shape, Spec, compiling, kernel_for, lookup
from flowmx.ops.sparse.shapes import SparseShape

if TYPE_CHECKING:
    from flowmx.ndarray.views import History

View = tuple[int, tuple[int, ...]]
"""Byte offset and byte strides of a view into its storage."""


class Storage(Variable):
    """The memory of an array, as a variable of the engine."""

    array: Any = None
    shared = False
    """True where another array than the one that an operator returned may use it too."""
    histories: WeakSet[History] | None = None
    """The tape's knowledge of it, where that is not the same for all handles (``views.py``)."""
    copied_from: Any = None
    """The storages of which NumPy would have a view in place of this copy (``flowmx/numpy/parts.py``)."""
    variables: WeakSet[Any] | None = None
    """The variables of autograd that it is the memory of."""

    def __init__(self, device: Device, shape: Shape, dtype: DType, array: Any = None) -> None:
        # Not Variable's own: a storage is made for every result, and has nothing to tell it.
        self.device = device
        self.shape = shape
        self.dtype = dtype
        if array is not None:
            self.array = array

    def ensure(self) -> Any:
        """The memory, allocated now where it was not (called by the operation that writes it)."""
        if self.array is None:
            self.array = self.device.allocate(self.shape, self.dtype)
        return self.array

    def whole(self) -> BaseArray:
        """A handle on all of it, without history."""
        made = _new(BaseArray.public)
        made._storage, made._shape, made._dtype = self, self.shape, self.dtype
        return made

    def fingerprint(self) -> object:
        array = self.array
        return None if array is None else zlib.crc32(np.ascontiguousarray(self.device.to_host(array)).tobytes())


class BaseArray(KnownAttributes):
    """A handle on a storage; see :class:`flowmx.ndarray.NDArray`."""

    _storage: Storage
    _shape: Shape
    _dtype: DType
    _view: View | None = None
    _past: TapeEntry | History | None = None
    """The content's origin on the tape; a history where other handles share the memory (``views.py``)."""

    public: ClassVar[type[BaseArray]]
    """The class of the arrays that operators return."""

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The length of each axis."""
        return self._shape

    @property
    def variable(self) -> Storage:
        """The engine variable of its memory."""
        return self._storage

    @property
    def context(self) -> Context:
        """The device that it lives on."""
        return self._storage.device.context

    @property
    def _entry(self) -> TapeEntry | None:
        """The content's origin on the tape."""
        past = self._past
        return past if past is None or type(past) in ENTRIES else past.read(self)  # type: ignore[union-attr,return-value]

    def _plain(self) -> BaseArray:
        """Another handle on the same memory, without history."""
        self._storage.shared = True
        other = _new(self.__class__)
        other._storage, other._shape, other._dtype = self._storage, self._shape, self._dtype
        if self._view is not None:
            other._view = self._view
        return other

    # -- memory, for the operation that runs -----------------------------------------------------------

    def _read(self) -> Any:
        """The raw array (inside an operation, or after a wait)."""
        array = self._storage.array
        if self._view is None:
            return array
        offset, strides = self._view
        return self._storage.device.view(array, self._shape, self._dtype, offset, strides)

    def _written(self) -> Any:
        """The raw array to write into (inside an operation)."""
        if self._view is None:
            array = self._storage.array
            return self._storage.ensure() if array is None else array
        self._storage.ensure()
        return self._read()

    # -- waiting ---------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Any]:
        storage = self._storage
        writer = storage.writer
        if writer is not None:
            if writer.state != DONE and engine.holds(storage):
                return self
            yield from engine.wait_async(writer)
        elif engine.must_yield():
            yield
        if storage.marks is not None:
            yield from engine.wait_for_device(storage.marks)
        if storage.failure is not None:
            storage.failure.throw_awaited()
        return self

    def wait_to_read(self) -> None:
        """Block until the content is there; raises the error of the operation that was to write it."""
        engine.wait_variable(self._storage)

    def wait_to_write(self) -> None:
        """Block until nothing pushed so far reads or writes it any more."""
        if not engine.holds(self._storage):
            for op in list(self._storage.pending()):
                engine.wait(op)
        if self._storage.marks is not None:
            self._storage.marks.finish_reads()


_new: Callable[[type[BaseArray]], BaseArray] = object.__new__

_KEPT = 256
"""Forms of calls that an elementwise operator remembers."""
_SHARED_BYTES = 1 << 18
"""Bytes of a result from which a kernel on several cores beats a ufunc on one."""


def allocate(
    device: Device, shape: Shape, dtype: DType, array: Any = None, face: type[BaseArray] | None = None
) -> BaseArray:
    """A new array handle; ``array`` is its memory where that exists already, ``face`` its class if not the usual."""
    made = _new(face or BaseArray.public)
    made._storage = Storage(device, shape, dtype, array)
    made._shape = shape
    made._dtype = dtype
    return made


def _compute(forward: Callable[..., Any], run: Run, inputs: Sequence[BaseArray], outputs: Sequence[BaseArray]) -> Any:
    """Run the forward of an imperative operation; returns its result, which may have to be awaited."""
    given: list[Any] = []
    made: list[Any] = []
    for each in inputs:
        given.append(each._storage.array if each._view is None else each._read())
    for each in outputs:
        storage = each._storage
        array = storage.array
        if array is None:
            array = storage.array = storage.device.allocate(storage.shape, storage.dtype)
        made.append(array if each._view is None else each._read())
    return forward(run, given, made)


def _compute_into_copy(
    forward: Callable[..., Any], run: Run, inputs: Sequence[BaseArray], outputs: Sequence[BaseArray]
) -> Any:
    """As :func:`_compute`, where an output's memory is also an input's: computed in a temporary, then copied."""
    targets = [each._written() for each in outputs]
    results = [run.device.allocate(each._shape, each._dtype) for each in outputs]
    pending = forward(run, [each._read() for each in inputs], results)
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
    """The Run of a device and mode."""
    run = _runs.get((device, train))
    if run is None:
        run = _runs[device, train] = Run(device, train)
    return run


def forward_of(op: Operator, device: Device) -> Callable[..., None]:
    """The computation of an operator on a device: a registered kernel, else the plain forward."""
    fast = kernel_for(device.kernels, op.name)
    if fast is None:
        return device.timed(op, op.forward)

    def call(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        fast(op, run, inputs, outputs)

    return device.timed(op, call)


def forward_of_call(op: Operator, spec: Spec, device: Device, given: Sequence[Form]) -> Callable[..., Any]:
    """The computation of an operator on arrays of known shapes and dtypes, with as little to decide as there can be."""
    if not spec.nbytes and not op.writes_more():
        return _nothing
    direct = op.as_ufunc(device.xp, given[0][1]) if given and spec.nbytes < _SHARED_BYTES else None
    if direct is not None:
        ufunc, number = direct

        # What a ufunc returns is no promise to wait for.
        def call_ufunc(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            ufunc(*inputs, out=outputs[0])

        def call_with_number(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            ufunc(inputs[0], number, out=outputs[0])

        return call_ufunc if number is None else call_with_number
    fast, made = kernel_for(device.kernels, op.name), tuple(zip(spec.shapes, spec.dtypes, strict=True))
    if fast is None:
        bound = op.bound(device.xp, given, made)
    else:
        bind = getattr(fast, "bind", None)
        bound = None if bind is None else bind(op, given, made)
    return forward_of(op, device) if bound is None else device.timed(op, bound)


_Ready = tuple[Device, Callable[..., Any], Run, Run]
"""A computation that is bound on a device, and the contexts for it in predictions and in training."""


def _ready(op: Operator, spec: Spec, device: Device, inputs: Sequence[BaseArray]) -> _Ready:
    """Bind what calls of one form run, and remember it with what was inferred of them.

    What an event loop asks for and is not compiled yet is not remembered. It must not run at its push, where the plain
    forward would take its place, which rounds otherwise; a worker waits for it.
    """
    known: _Ready | None = spec.ready
    if known is None or known[0] is not device:
        given = tuple([(each._shape, each._dtype) for each in inputs])
        compiling.missed = False
        forward = forward_of_call(op, spec, device, given)
        known = device, forward, run_on(device, False), run_on(device, True)
        if not compiling.missed:
            spec.ready = known
    return known


def _nothing(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """The computation of outputs without elements."""


def _compute_ufunc(ufunc: Callable[..., Any], operands: tuple[BaseArray, ...], number: Any, result: BaseArray) -> None:
    """Run an elementwise operation: one call of a ufunc, into the result's memory."""
    storage = result._storage
    array = storage.array
    if array is None:
        array = storage.array = storage.device.allocate(storage.shape, storage.dtype)
    if result._view is not None:
        array = result._read()
    x = operands[0]
    content = x._storage.array if x._view is None else x._read()
    if number is not None:
        ufunc(content, number, out=array)
    elif len(operands) == 2:
        y = operands[1]
        ufunc(content, y._storage.array if y._view is None else y._read(), out=array)
    else:
        ufunc(content, out=array)


class Casting(Protocol):
    """Says what operators are given in mixed precision."""

    @property
    def needs_scaling(self) -> bool:
        """True if small gradients underflow in the target dtype, so that losses must be scaled."""

    def targets(self, op: Operator, dtypes: tuple[DType, ...], name: str = "") -> tuple[DType, ...] | None:
        """The dtypes that the inputs are to have; None where all stay as they are."""

    def leaves(self, op: Operator, name: str = "") -> bool:
        """Tell whether nothing is said of the operator, so that it computes in the types that it is given."""


casting: Casting | None = None
"""The casts that are applied to inputs of operators (AMP), or None; set by :func:`use_casting`."""


def use_casting(chosen: Casting | None) -> None:
    """From now on cast the inputs of operators so (None: not at all)."""
    global casting
    casting = chosen
    for each in list(_elementwise):
        each.forget()


def _cast(inputs: Sequence[BaseArray], targets: Sequence[DType]) -> list[BaseArray]:
    return [
        each if each._dtype == dtype else invoke(lookup("amp_cast").create(dtype=name_of(dtype)), [each], depth=4)
        for each, dtype in zip(inputs, targets, strict=True)
    ]


_elementwise: WeakSet[Elementwise] = WeakSet()


class Elementwise:
    """An elementwise operator, ready to be called on arrays again and again.

    It remembers what was inferred, for the last call in particular: where shapes and dtypes are the same objects,
    as they are in loops, nothing is looked up, and a ufunc is called without anything between. What it remembers of
    a call is one tuple, replaced as a whole, so that several threads may call it.
    """

    __slots__ = ("__weakref__", "_all", "_known", "op")

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.forget()
        _elementwise.add(self)

    def forget(self) -> None:
        """Learn anew at the next call."""
        self._known: tuple[Any, ...] = (None,) * 8
        self._all: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, x: BaseArray, y: BaseArray | None = None, out: BaseArray | None = None) -> Any:
        """Enqueue it; ``out`` may only be ``x`` itself, which is then updated in place."""
        x_shape, x_dtype, y_shape, y_dtype, device, spec, ufunc, number = self._known
        storage = x._storage
        same = x_shape is x._shape and x_dtype is x._dtype and storage.device is device
        if y is None:
            operands: tuple[BaseArray, ...] = (x,)
            reads: tuple[Storage, ...] = (storage,)
        else:
            operands, reads = (x, y), (storage, y._storage)
            same = same and y_shape is y._shape and y_dtype is y._dtype and reads[1].device is device
        mode = state.get()
        if mode.recording and (out is not None or mode.notes is not None):
            return invoke(self.op, operands, out, depth=3)
        if not same:
            key = (
                (x._shape, x._dtype, storage.device)
                if y is None
                else (x._shape, x._dtype, storage.device, y._shape, y._dtype, reads[1].device)
            )
            known = self._all.get(key)
            if known is None:
                known = self._learn(operands, storage.device, key)
            elif known:
                self._known = known
            if not known:
                return invoke(self.op, operands, out, depth=3)
            _, _, _, _, device, spec, ufunc, number = known
        shape, dtype = spec.shapes[0], spec.dtypes[0]
        if out is None:
            target = Storage(device, shape, dtype)
            out = _new(x.__class__)
            out._storage = target
            out._shape = shape
            out._dtype = dtype
            nbytes = spec.nbytes
        elif out._shape == shape and out._dtype == dtype and type(ufunc) is not FunctionType:
            target, nbytes = storage, 0
        else:
            return invoke(self.op, operands, out, depth=3)
        origin: Origin | None = None
        if nbytes and spec.light and engine.at_once(
            device.compute, reads, _compute_ufunc, ufunc, operands, number, out
        ):  # fmt: skip
            target.version = 1
        else:
            origin = capture(3)
            arguments = (ufunc, operands, number, out)
            work = Operation(
                _compute_ufunc, arguments, reads, (target,), device.compute, self.op.name, origin, nbytes, spec.light
            )
            work.short = spec.short
            engine.enqueue(work)
        if mode.recording and (x._past is not None or y is not None):
            op = self.op
            gradient = spec.gradient
            record(op.name, gradient, operands, (out,), 1, origin or capture(3), spec.rules)
        return out

    def _learn(self, operands: tuple[BaseArray, ...], device: Device, key: Any) -> tuple[Any, ...]:
        """Remember what calls like this one need; nothing where the general path must take them."""
        known = self._needed(operands, device)
        if known:
            self._known = known
        if len(self._all) >= _KEPT:
            self._all.clear()
        self._all[key] = known
        return known

    def _needed(self, operands: tuple[BaseArray, ...], device: Device) -> tuple[Any, ...]:
        if any(isinstance(each._shape, SparseShape) for each in operands):
            return ()
        direct = self.op.as_ufunc(device.xp, operands[0]._dtype)
        if any(each._storage.device is not device for each in operands):
            return ()
        if casting is not None and casting.targets(self.op, tuple([each._dtype for each in operands])) is not None:
            return ()
        spec = self.op.spec(tuple([each._shape for each in operands]), tuple([each._dtype for each in operands]))
        if direct is None or (spec.nbytes >= _SHARED_BYTES and kernel_for(device.kernels, self.op.name) is not None):
            direct = self._bound(operands, device, spec)
            if direct is None:
                return ()
        first, last = operands[0], operands[-1]
        return (first._shape, first._dtype, last._shape, last._dtype, device, spec, *direct)

    def _bound(
        self, operands: tuple[BaseArray, ...], device: Device, spec: Spec
    ) -> tuple[Callable[..., Any], Any] | None:  # fmt: skip
        """The function that computes calls of one form, called as a ufunc; None where there is more to a call."""
        plain = spec.is_plain and spec.single and not self.op.traits.mode_matters
        if not plain or device.is_asynchronous or device.xp is not np or self.op.visible_outputs() != 1:
            return None
        ready = _ready(self.op, spec, device, operands)
        if spec.ready is not ready:
            return None
        _, forward, run, _ = ready

        def call(*inputs: Any, out: Any) -> None:
            forward(run, inputs, (out,))

        return call, None


def invoke(
    op: Operator,
    inputs: Sequence[BaseArray],
    out: BaseArray | Sequence[BaseArray] | None = None,
    device: Device | None = None,
    depth: int = 2,
) -> Any:
    """Enqueue an operator on arrays; returns its visible output, or a list of them, at once.

    Args:
        op: the operator with its parameters.
        inputs: arrays of one device, auxiliary states last.
        out: write into this array (or these) and return it, in place of new ones.
        device: where to run operators without inputs.
        depth: how many frames above this one belong to flowmx for sure.

    Raises:
        ShapeError, TypeInferenceError, DeviceError: the inputs do not fit.
        AutogradError: ``out`` is a variable, while recording.
    """
    mode = state.get()
    if out is None and device is None and casting is None and mode.notes is None:
        shapes: list[Shape] = []
        dtypes: list[DType] = []
        memory: list[Storage] = []
        for each in inputs:
            shapes.append(each._shape)
            dtypes.append(each._dtype)
            memory.append(each._storage)
        form = tuple(shapes), tuple(dtypes)
        spec = op._specs.get(form) or _spec(op, form)
        if spec is None:
            return _invoke_sparse(op, inputs, out, device, depth + 2)
        if spec.is_plain and memory:
            device = memory[0].device
            for other in memory:
                if other.device is not device:
                    return _invoke_together(op, inputs, out, depth + 2)
            return _call(op, spec, inputs, tuple(memory), device, mode, depth + 1)
    return _call_any(op, inputs, out, device, mode, depth + 1)


def _call(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], reads: tuple[Storage, ...], device: Device, mode: State,
    depth: int,
) -> Any:  # fmt: skip
    """:func:`invoke` for an operator that makes its outputs from its inputs and does nothing else."""
    ready: _Ready | None = spec.ready
    light = spec.light
    if ready is None or ready[0] is not device:
        ready = _ready(op, spec, device, inputs)
        light = light and spec.ready is ready
    face = inputs[0].__class__  # results of mx.np.ndarray are such
    if spec.single:
        outputs = [allocate(device, spec.shapes[0], spec.dtypes[0], None, face)]
        writes: tuple[Variable, ...] = (outputs[0]._storage,)
        visible = 1
    else:
        outputs = [allocate(device, s, t, None, face) for s, t in zip(spec.shapes, spec.dtypes, strict=True)]
        writes = tuple([each._storage for each in outputs])
        visible = op.visible_outputs()
    arguments = (ready[1], ready[3 if mode.training else 2], inputs, outputs)
    origin: Origin | None = None
    if light and engine.at_once(device.compute, reads, _compute, *arguments):
        for each in outputs:
            each._storage.version = 1
    else:
        origin = capture(depth)
        work = Operation(_compute, arguments, reads, writes, device.compute, op.name, origin, spec.nbytes, light)
        work.short = spec.short
        engine.enqueue(work)
    if mode.recording:
        gradient = spec.gradient
        record(op.name, gradient, inputs, outputs, visible, origin or capture(depth), spec.rules)
    return outputs[0] if visible == 1 else outputs[:visible]


def _call_any(
    op: Operator, inputs: Sequence[BaseArray], out: BaseArray | Sequence[BaseArray] | None, device: Device | None,
    mode: State, depth: int,
) -> Any:  # fmt: skip
    """:func:`invoke` for any operator, with AMP's casts, arrays to write into, and notes in place of calls."""
    if _is_sparse(op, inputs, out):
        return _invoke_sparse(op, inputs, out, device, depth + 2)
    if casting is not None and out is None and not mode.backward:
        targets = casting.targets(op, tuple([each._dtype for each in inputs]))
        if targets is not None:
            inputs = _cast(inputs, targets)
    if inputs:
        device = inputs[0]._storage.device
        for each in inputs:
            if each._storage.device is not device:
                return _invoke_together(op, inputs, out, depth + 2)
    elif device is None:
        device = devices.get(devices.current_context())
    spec = op.spec(tuple([each._shape for each in inputs]), tuple([each._dtype for each in inputs]))
    if mode.notes is not None:
        noted = mode.notes.note(op, inputs, spec, device, out)
        if out is None and inputs and inputs[0].__class__ is not noted[0].__class__:
            for each in noted:  # results of mx.np.ndarray are such
                each.__class__ = inputs[0].__class__
        return noted[0] if op.visible_outputs() == 1 else noted[: op.visible_outputs()]
    given: list[BaseArray] = []
    if out is not None:
        given = [out] if isinstance(out, BaseArray) else list(out)
        if given and inputs and given[0]._storage.device is not device:
            return _invoke_together(op, inputs, out, depth + 2)
        if mode.recording:
            from flowmx.ndarray import writing

            inputs = writing.prepare(op, spec, inputs, given, device)
    reads = tuple([each._storage for each in inputs])
    compute: Callable[..., None] = _compute
    if out is None:
        face = inputs[0].__class__ if inputs else None  # results of mx.np.ndarray are such
        outputs = [allocate(device, s, t, None, face) for s, t in zip(spec.shapes, spec.dtypes, strict=True)]
        nbytes = spec.nbytes
        writes: tuple[Variable, ...] = tuple([each._storage for each in outputs])
    else:
        outputs, reads, compute = _given_outputs(op, spec, inputs, given, reads, device)
        nbytes = 0
        writes = tuple([each._storage for each in outputs])
    traits = op.traits
    if traits.uses_random:
        writes += (device.generator,)
    if op.auxiliary or op.updates:
        writes += tuple([inputs[position]._storage for position in op.moved_inputs(mode.training)])
    origin = capture(depth)
    ready = _ready(op, spec, device, inputs)
    work = Operation(
        compute,
        (ready[1], run_on(device, mode.training), inputs, outputs),
        reads,
        writes,
        device.compute,
        op.name,
        origin,
        nbytes,
        spec.light and spec.ready is ready,
    )
    work.short = spec.short and not traits.detached
    if traits.detached:
        op.detach(work, inputs)
    engine.enqueue(work)
    visible = op.visible_outputs() if not spec.single else 1
    if mode.recording:
        gradient = spec.gradient
        if not given:
            record(op.name, gradient, inputs, outputs, visible, origin, spec.rules)
        else:
            record_written(op.name, gradient, inputs, outputs, given, visible, origin, spec.rules)
        for position in op.updates:
            comes_from(inputs[position], None, origin)
    if visible == 1:
        return outputs[0]
    return outputs[:visible]


def _spec(op: Operator, form: tuple[tuple[Shape, ...], tuple[DType, ...]]) -> Spec | None:
    """The result of inference; None where sparse storage is concerned, for which nothing is ever kept."""
    return None if op.traits.sparse or any(isinstance(shape, SparseShape) for shape in form[0]) else op.spec(*form)


def _is_sparse(op: Operator, inputs: Sequence[BaseArray], out: BaseArray | Sequence[BaseArray] | None) -> bool:
    """Tell whether a call is one for sparse storage: some array is sparse, or the operator makes such."""
    given = () if out is None else (out,) if isinstance(out, BaseArray) else out
    return op.traits.sparse or any(isinstance(each._shape, SparseShape) for each in (*inputs, *given))


def _invoke_sparse(op: Operator, inputs: Sequence[BaseArray], out: Any, device: Device | None, depth: int) -> Any:
    """:func:`invoke` where sparse storage is concerned."""
    from flowmx.ndarray.sparse import calls

    return calls.invoke(op, inputs, out, device, depth)


def _invoke_together(op: Operator, inputs: Sequence[BaseArray], out: Any, depth: int) -> Any:
    """:func:`invoke` on arrays of several devices, which are brought together."""
    from flowmx.ndarray.host import together

    first = out if out is None or isinstance(out, BaseArray) else out[0]
    return invoke(op, together(op, inputs, first), out, None, depth)


def record(
    name: str,
    gradient: Callable[..., Any] | None,
    inputs: Sequence[BaseArray],
    outputs: Sequence[BaseArray],
    visible: int,
    origin: Origin | None = None,
    rules: dict[Any, Any] | None = None,
) -> None:
    """Put a call on the tape, where one of its inputs is part of it.

    Args:
        name: what messages call it.
        gradient: as :meth:`flowmx.ops.registry.operators.Operator.gradient`; None where no gradient flows.
        inputs: its inputs.
        outputs: its outputs, which are new.
        visible: how many outputs the user sees.
        origin: the user's line.
        rules: where the gradient is kept once it was learned, for all calls of one form; None: it is called each time.
    """
    entries: list[Any] = []
    is_part = False
    for each in inputs:
        past = each._past
        if past is not None:
            if type(past) not in ENTRIES:
                past = past.read(each)  # type: ignore[union-attr]
            is_part |= past is not None
        entries.append(past)
    if not is_part or not visible:
        return
    outputs[0]._past = node = TapeNode(name, gradient, tuple(entries), inputs, outputs, visible, origin, rules)
    if visible > 1:
        for index, output in enumerate(outputs[1:visible], 1):
            output._past = Further(node, index)


def record_written(
    name: str,
    gradient: Callable[..., Any] | None,
    inputs: Sequence[BaseArray],
    outputs: Sequence[BaseArray],
    targets: Sequence[BaseArray],
    visible: int,
    origin: Origin | None = None,
    rules: dict[Any, Any] | None = None,
) -> None:
    """Put a call on the tape whose first outputs are memory that was there before: all handles on it are notified.

    The arguments are those of :func:`record`, and ``targets``, the arrays that the user gave for outputs.
    """
    entries = [each._entry for each in inputs]
    node = None
    if any(entry is not None for entry in entries):
        node = TapeNode(name, gradient, entries, inputs, outputs, visible, origin, rules)
    for index, each in enumerate(outputs[:visible]):
        entry = None if node is None else node.output(index)
        if index < len(targets):
            comes_from(each, entry, origin)
        else:
            each._past = entry


def comes_from(array: BaseArray, entry: TapeEntry | None, origin: Origin | None = None) -> None:
    """Take down on the tape that an array was given another content (None: one of which nothing was recorded).

    A variable stays one.
    """
    past = array._past
    if past is None:
        array._past = entry
    elif type(past) in ENTRIES:
        array._past = past if type(past) is Leaf else entry
    else:
        past.write(array, entry, origin)  # type: ignore[union-attr]


def _given_outputs(
    op: Operator,
    spec: Any,
    inputs: Sequence[BaseArray],
    given: list[BaseArray],
    reads: tuple[Storage, ...],
    device: Device,
) -> tuple[list[BaseArray], tuple[Storage, ...], Callable[..., None]]:
    """Check the arrays given as ``out``, and say how to compute into them."""
    visible = op.visible_outputs()
    if len(given) not in (visible, len(spec.shapes)):
        raise ValueError(f"{op.name}: out holds {len(given)} arrays, expected {visible}")
    for index, (each, shape, dtype) in enumerate(zip(given, spec.shapes, spec.dtypes, strict=False)):
        if each._shape != shape:
            raise ShapeError(f"{op.name}: out {index} has shape {each._shape}, expected {shape}")
        if each._dtype != dtype:
            raise TypeInferenceError(
                f"{op.name}: out {index} has dtype {name_of(each._dtype)}, expected {name_of(dtype)}"
            )
        if each._storage.device is not device:
            raise DeviceError(f"{op.name}: out {index} is on {each._storage.device}, the operator runs on {device}")
        if each._view is not None:
            reads += (each._storage,)
    rest = zip(spec.shapes[len(given) :], spec.dtypes[len(given) :], strict=True)
    outputs = [*given, *(allocate(device, s, t) for s, t in rest)]
    compute: Callable[..., None] = _compute
    written = {each._storage for each in given}
    sharing: dict[int, list[BaseArray]] = {}  # an update of many weights has as many pairs
    for position, index in op.traits.in_place:
        if index < len(given):
            sharing.setdefault(position, []).append(given[index])
    for position, each in enumerate(inputs):
        if each._storage in written and not any(_same_memory(each, other) for other in sharing.get(position, ())):
            compute = _compute_into_copy
    return outputs, reads, compute


_crossings: set[tuple[str, int]] = set()
"""The user's lines that were warned of, since data crosses devices there."""


def warn_of_crossing(source: Device, target: Device, what: str, depth: int = 3) -> None:
    """Warn at the user's line, once, that data leaves a device there, and that nothing in it says so.

    Data that comes from the host is meant to. What flowmx's own code moves is its own affair.

    Args:
        source: where the data is.
        target: where it goes.
        what: what the user's line does.
        depth: how many frames above this one the user's is, where the user calls directly.
    """
    if source.is_asynchronous and is_called_by_user(depth + 1):
        warn_user(
            f"{what} copies from {source} to {target} each time it runs: make the array on {target} once, or write "
            f"as_in_context({target}) where the copy is meant",
            _crossings,
            CrossDeviceWarning,
        )


def _same_memory(one: BaseArray, other: BaseArray) -> bool:
    return one._storage is other._storage and one._view == other._view


def refuse_in_place(array: BaseArray, name: str) -> None:
    """Refuse to change an array that the tape knows, while recording, by what is no operator."""
    if array._entry is not None:
        raise AutogradError(
            f"{name}: an array of the recorded graph (shape {array._shape}) can not be changed in place while "
            "recording; write to a new array, or change it outside autograd.record()"
        )


def store(source: BaseArray, target: BaseArray) -> None:
    """Enqueue that a result nobody will look at again becomes the content of an array: by its memory where it can."""
    device, reads = target._storage.device, source._storage
    writes: tuple[Variable, ...] = (target._storage, reads)
    light = source._dtype.itemsize * math.prod(source._shape) <= LIGHT_BYTES
    # Read too, so that what went wrong with the result goes on to the array.
    push_on(device, _store, (reads, target._storage), (reads,), writes, "store", light, depth=3)


def may_store(source: BaseArray, target: BaseArray) -> bool:
    """Tell whether :func:`store` may hand the memory of a fresh result over to the target instead of copying."""
    taken, given = source._storage, target._storage
    return (
        not taken.shared
        and source._view is None
        and target._view is None
        and taken.device is given.device
        and source._shape == target._shape
        and source._dtype == target._dtype
    )


def _store(source: Storage, target: Storage) -> None:
    """Give the target the source's memory, or its content where somebody else uses the memory of one of them."""
    alone = sys.getrefcount(source.array) <= HELD
    if alone and (target.array is None or sys.getrefcount(target.array) <= HELD):
        target.array, source.array = source.array, None
    else:
        target.device.copy(source.array, target.ensure())


_store.moves_memory = True  # type: ignore[attr-defined]  # it must not be put off


def push_on(
    device: Device,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    reads: tuple[Variable, ...],
    writes: tuple[Variable, ...],
    name: str,
    light: bool = False,
    nbytes: int = 0,
    depth: int = 2,
    detached: bool = False,
    actor: Actor | None = None,
    short: bool = False,
) -> None:
    """Enqueue work on arrays that is no operator (assignments, copies), or ``detached``: with user code in it.

    The device's compute actor runs it, if no other ``actor`` is given.
    """
    notes = state.get().notes
    if notes is not None:
        notes.refuse()
    actor = actor or device.compute
    work = Operation(function, arguments, reads, writes, actor, name, capture(depth), nbytes, light)
    work.short = short
    if detached:
        custom.detach(work)
    engine.enqueue(work)
