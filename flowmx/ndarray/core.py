"""Storages, array handles, and the dispatch of operators on arrays.

A :class:`Storage` is an engine variable with memory, allocated when the first operation that writes it runs.
A :class:`BaseArray` is a handle: a storage, or a strided view into one, with shape and dtype. The public
:class:`flowmx.ndarray.NDArray` adds the methods.

:func:`invoke` is the hot path of imperative code: each ``a + b`` pays for every statement in it.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar
from weakref import WeakSet

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device
from flowmx.devices.launch_traits import LaunchTraits, set_launch_traits
from flowmx.engine import Actor, Origin, capture
from flowmx.engine.concurrent_attributes import DeclaredAttributes
from flowmx.engine.origin import is_called_by_user, warn_user
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation, Variable
from flowmx.errors import AutogradError, CrossDeviceWarning, DeviceError, ShapeError, TypeInferenceError
from flowmx.late_binding import late
from flowmx.ndarray.computations import BoundCall, bind_once, compute, compute_into_copy, run_on
from flowmx.ndarray.recording import (
    ENTRIES,
    Gradient,
    GradientRules,
    LaterOutput,
    Leaf,
    State,
    TapeEntry,
    TapeNode,
    state,
)
from flowmx.ndarray.reference_counts import REFERENCES_OF_ATTRIBUTE
from flowmx.ops.control import custom
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import LIGHT_BYTES, Operator, Shape, lookup
from flowmx.ops.registry.spec import Spec
from flowmx.ops.sparse.shapes import SparseShape

B = TypeVar("B", bound="BaseArray")

if TYPE_CHECKING:
    from flowmx.ndarray.views import History

View = tuple[int, tuple[int, ...]]
"""Byte offset and byte strides of a view into its storage."""


class Storage(Variable):
    """The memory of an array, as a variable of the engine."""

    array: Any = None
    ones_at = ones_from = -1
    """The version in which all elements were set to 1, and the version before it (``fixing.py``)."""
    mask_at = -1
    """The version in which the content was a mask of the numbers 0 and 1 (``indexing.py`` warns of it)."""
    shared = False
    """Whether handles other than the operator's result may use the memory."""
    histories: WeakSet[History] | None = None
    """The tape's histories of the memory, if its handles have different ones (``views.py``)."""
    copied_from: Any = None
    """The storages that this one copies where NumPy would return a view (``flowmx/numpy/view_semantics.py``)."""
    variables: WeakSet[Any] | None = None
    """The autograd variables that use this memory."""

    def __init__(self, device: Device, shape: Shape, dtype: DType, array: Any = None) -> None:
        # No super().__init__(): a storage is created for every result, and Variable's defaults are enough.
        self.device = device
        self.shape = shape
        self.dtype = dtype
        if array is not None:
            self.array = array

    def ensure(self) -> Any:
        """Return the memory, allocating it first if necessary (called by the operation that writes it)."""
        if self.array is None:
            self.array = self.device.allocate(self.shape, self.dtype)
        return self.array

    def whole(self) -> BaseArray:
        """Return a handle on the whole memory, without history."""
        handle = new_handle(BaseArray.public)
        handle.storage, handle.dims, handle.element_type = self, self.shape, self.dtype
        return handle

    def fingerprint(self) -> object:
        array = self.array
        return None if array is None else zlib.crc32(np.ascontiguousarray(self.device.to_host(array)).tobytes())


class BaseArray(DeclaredAttributes):
    """A handle on a storage; see :class:`flowmx.ndarray.NDArray`."""

    storage: Storage
    dims: Shape
    element_type: DType
    strided_view: View | None = None
    history: TapeEntry | History | None = None
    """The tape entry of the content, or a history if other handles share the memory (``views.py``)."""

    public: ClassVar[type[BaseArray]]
    """The class of the arrays that operators return."""

    if TYPE_CHECKING:  # what every array class defines
        as_in_context: Callable[..., Any]
        as_np_ndarray: Callable[..., Any]
        asnumpy: Callable[..., Any]
        astype: Callable[..., Any]
        item: Callable[..., Any]
        tolist: Callable[..., Any]
        tostype: Callable[..., Any]

        @property
        def size(self) -> int: ...

    # -- properties ------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The length of each axis."""
        return self.dims

    @property
    def variable(self) -> Storage:
        """The engine variable of the array's memory."""
        return self.storage

    @property
    def context(self) -> Context:
        """The context of the array's device."""
        return self.storage.device.context

    @property
    def tape_entry(self) -> TapeEntry | None:
        """The tape entry that the content comes from."""
        history = self.history
        return history if history is None or type(history) in ENTRIES else history.read(self)  # type: ignore[union-attr,return-value]

    def without_history(self) -> Self:
        """Return another handle on the same memory, without history."""
        self.storage.shared = True
        other = new_handle(self.__class__)
        other.storage, other.dims, other.element_type = self.storage, self.dims, self.element_type
        if self.strided_view is not None:
            other.strided_view = self.strided_view
        return other

    # -- memory, inside operations ---------------------------------------------------------------------

    def raw(self) -> Any:
        """Return the raw array (inside an operation, or after a wait)."""
        array = self.storage.array
        if self.strided_view is None:
            return array
        offset, strides = self.strided_view
        return self.storage.device.view(array, self.dims, self.element_type, offset, strides)

    def raw_for_writing(self) -> Any:
        """Return the raw array to write into (inside an operation)."""
        if self.strided_view is None:
            array = self.storage.array
            return self.storage.ensure() if array is None else array
        self.storage.ensure()
        return self.raw()

    # -- waiting ---------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Self]:
        storage = self.storage
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
        """Block until the content is computed; raise the error of the operation that failed to write it."""
        engine.wait_variable(self.storage)

    def wait_to_write(self) -> None:
        """Block until no pending operation reads or writes the array."""
        if not engine.holds(self.storage):
            for op in list(self.storage.pending()):
                engine.wait(op)
        if self.storage.marks is not None:
            self.storage.marks.finish_reads()


if TYPE_CHECKING:

    def new_handle(cls: type[B], /) -> B:
        """Return a handle without a constructor call."""

else:
    new_handle = object.__new__


def allocate(
    device: Device, shape: Shape, dtype: DType, array: Any = None, cls: type[BaseArray] | None = None
) -> BaseArray:
    """Create an array handle.

    Args:
        device: the device that holds its memory.
        shape: the length of each axis.
        dtype: the element type.
        array: the memory, if it already exists.
        cls: the handle's class (default: :attr:`BaseArray.public`).
    """
    handle = new_handle(cls or BaseArray.public)
    handle.storage = Storage(device, shape, dtype, array)
    handle.dims = shape
    handle.element_type = dtype
    return handle


class Casting(Protocol):
    """The dtypes of operators' inputs in mixed precision."""

    @property
    def needs_scaling(self) -> bool:
        """Whether small gradients underflow in the target dtype, so that losses must be scaled."""

    def targets(self, op: Operator, dtypes: tuple[DType, ...], name: str = "") -> tuple[DType, ...] | None:
        """Return the dtypes to cast the inputs to; None to leave all unchanged."""

    def leaves(self, op: Operator, name: str = "") -> bool:
        """Return whether no list names the operator, so that it computes in the dtypes of its inputs."""


casting: Casting | None = None
"""The casts applied to operators' inputs (AMP), or None; set by :func:`use_casting`."""
casting_listeners: list[Callable[[], None]] = []
"""Functions to call when :data:`casting` changes."""


def use_casting(new_casting: Casting | None) -> None:
    """Set the casts of operators' inputs (None: no casts)."""
    global casting
    casting = new_casting
    for listener in casting_listeners:
        listener()


def _cast(op: Operator, inputs: Sequence[BaseArray], casting: Casting) -> Sequence[BaseArray]:
    """Return the inputs in the dtypes that mixed precision computes an operator in."""
    targets = casting.targets(op, tuple([array.element_type for array in inputs]))
    if targets is None:
        return inputs
    return [
        array
        if array.element_type == dtype
        else invoke(lookup("amp_cast").create(dtype=name_of(dtype)), [array], depth=4)
        for array, dtype in zip(inputs, targets, strict=True)
    ]


def invoke(
    op: Operator,
    inputs: Sequence[BaseArray],
    out: BaseArray | Sequence[BaseArray] | None = None,
    device: Device | None = None,
    depth: int = 2,
) -> Any:
    """Enqueue an operator on arrays and return its visible output, or a list of them, immediately.

    Args:
        op: the operator with its parameters.
        inputs: arrays on one device, auxiliary states last.
        out: the array (or arrays) to write into and return, instead of new ones.
        device: the device for operators without inputs.
        depth: the number of frames above this one that always belong to flowmx.

    Raises:
        ShapeError, TypeInferenceError, DeviceError: the inputs do not fit.
        AutogradError: ``out`` is a variable, while recording.
    """
    mode = state.get()
    if out is None and device is None and casting is None and mode.notes is None:
        shapes: list[Shape] = []
        dtypes: list[DType] = []
        memory: list[Storage] = []
        for array in inputs:
            shapes.append(array.dims)
            dtypes.append(array.element_type)
            memory.append(array.storage)
        form = tuple(shapes), tuple(dtypes)
        spec = op._specs.get(form) or _spec(op, form)
        if spec is None:
            return _invoke_sparse(op, inputs, out, device, depth + 2)
        if spec.is_plain and memory:
            device = memory[0].device
            for other in memory:
                if other.device is not device:
                    return _invoke_across_devices(op, inputs, out, depth + 2)
            return _call(op, spec, inputs, tuple(memory), device, mode, depth + 1)
    return _call_any(op, inputs, out, device, mode, depth + 1)


def _call(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], reads: tuple[Storage, ...], device: Device, mode: State,
    depth: int,
) -> Any:  # fmt: skip
    """Run :func:`invoke` for an operator that computes new outputs and has no side effects."""
    ready: BoundCall | None = spec.ready
    light = spec.light
    if ready is None or ready[0] is not device:
        ready = bind_once(op, spec, device, inputs)
        light = light and spec.ready is ready
    cls = inputs[0].__class__  # results of mx.np.ndarray have the same class
    if spec.single:
        outputs = [allocate(device, spec.shapes[0], spec.dtypes[0], None, cls)]
        writes: tuple[Variable, ...] = (outputs[0].storage,)
        visible = 1
    else:
        outputs = [allocate(device, s, t, None, cls) for s, t in zip(spec.shapes, spec.dtypes, strict=True)]
        writes = tuple([output.storage for output in outputs])
        visible = op.visible_outputs()
    arguments = (ready[1], ready[3 if mode.training else 2], inputs, outputs)
    origin: Origin | None = None
    if light and engine.run_light(device.compute, reads, compute, *arguments):
        for output in outputs:
            output.storage.version = 1
    else:
        origin = capture(depth)
        work = Operation(compute, arguments, reads, writes, device.compute, op.name, origin, spec.nbytes, light)
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
    """Run :func:`invoke` for any call: with AMP's casts, with ``out``, or while a gradient is traced."""
    if _is_sparse(op, inputs, out):
        return _invoke_sparse(op, inputs, out, device, depth + 2)
    if casting is not None and out is None and not mode.backward:
        inputs = _cast(op, inputs, casting)
    if inputs:
        device = inputs[0].storage.device
        for array in inputs:
            if array.storage.device is not device:
                return _invoke_across_devices(op, inputs, out, depth + 2)
    elif device is None:
        device = devices.get(devices.current_context())
    spec = op.spec(tuple([array.dims for array in inputs]), tuple([array.element_type for array in inputs]))
    if mode.notes is not None:
        return _note(mode.notes, op, inputs, spec, device, out)
    out_arrays: list[BaseArray] = [] if out is None else [out] if isinstance(out, BaseArray) else list(out)
    if out_arrays and inputs and out_arrays[0].storage.device is not device:
        return _invoke_across_devices(op, inputs, out, depth + 2)
    if out is not None and mode.recording:
        inputs = late("ndarray.recorded_writes").prepare(op, spec, inputs, out_arrays, device)
    reads = tuple([array.storage for array in inputs])
    function: Callable[..., None] = compute
    if out is None:
        cls = inputs[0].__class__ if inputs else None  # results of mx.np.ndarray have the same class
        outputs = [allocate(device, s, t, None, cls) for s, t in zip(spec.shapes, spec.dtypes, strict=True)]
    else:
        outputs, reads, function = _prepare_outputs(op, spec, inputs, out_arrays, reads, device)
    nbytes = spec.nbytes if out is None else 0
    writes: tuple[Variable, ...] = tuple([array.storage for array in outputs])
    traits = op.traits
    if traits.uses_random:
        writes += (device.generator,)
    if op.auxiliary or op.updates:
        for position in op.fixed_inputs():
            storage = inputs[position].storage
            if storage.ones_at != storage.version or inputs[position].strided_view is not None:
                late("ndarray.fixing").set_to_ones([inputs[position]])
        writes += tuple([inputs[position].storage for position in op.updated_inputs(mode.training)])
    origin = capture(depth)
    ready = bind_once(op, spec, device, inputs)
    arguments = ready[1], run_on(device, mode.training), inputs, outputs
    light = spec.light and spec.ready is ready
    work = Operation(function, arguments, reads, writes, device.compute, op.name, origin, nbytes, light)
    work.short = spec.short and not traits.detached
    if traits.detached:
        op.detach(work, inputs)
    engine.enqueue(work)
    visible = op.visible_outputs() if not spec.single else 1
    if mode.recording:
        if not out_arrays:
            record(op.name, spec.gradient, inputs, outputs, visible, origin, spec.rules)
        else:
            record_written(op.name, spec.gradient, inputs, outputs, out_arrays, visible, origin, spec.rules)
        for position in op.updates:
            set_tape_entry(inputs[position], None, origin)
    return outputs[0] if visible == 1 else outputs[:visible]


def _note(
    notes: Any, op: Operator, inputs: Sequence[BaseArray], spec: Spec, device: Device,
    out: BaseArray | Sequence[BaseArray] | None,
) -> Any:  # fmt: skip
    """Trace a call instead of running it; return placeholders of its visible output, or a list of them."""
    results = notes.note(op, inputs, spec, device, out)
    if out is None and inputs and inputs[0].__class__ is not results[0].__class__:
        for result in results:  # results of mx.np.ndarray have the same class
            result.__class__ = inputs[0].__class__
    return results[0] if op.visible_outputs() == 1 else results[: op.visible_outputs()]


def _spec(op: Operator, form: tuple[tuple[Shape, ...], tuple[DType, ...]]) -> Spec | None:
    """Infer the spec of a call; None for sparse storage, which has no cached spec."""
    return None if op.traits.sparse or any(isinstance(shape, SparseShape) for shape in form[0]) else op.spec(*form)


def _is_sparse(op: Operator, inputs: Sequence[BaseArray], out: BaseArray | Sequence[BaseArray] | None) -> bool:
    """Return whether an array is sparse or the operator returns sparse arrays."""
    targets = () if out is None else (out,) if isinstance(out, BaseArray) else out
    return op.traits.sparse or any(isinstance(array.dims, SparseShape) for array in (*inputs, *targets))


def _invoke_sparse(op: Operator, inputs: Sequence[BaseArray], out: Any, device: Device | None, depth: int) -> Any:
    """Run :func:`invoke` with sparse storage."""
    return late("ndarray.sparse.calls").invoke(op, inputs, out, device, depth)


def _invoke_across_devices(op: Operator, inputs: Sequence[BaseArray], out: Any, depth: int) -> Any:
    """Run :func:`invoke` on arrays from several devices, after copying them to one."""
    first = out if out is None or isinstance(out, BaseArray) else out[0]
    return invoke(op, late("ndarray.mixed_devices").copy_to_one_device(op, inputs, first), out, None, depth)


def record(
    name: str,
    gradient: Gradient | None,
    inputs: Sequence[BaseArray],
    outputs: Sequence[BaseArray],
    visible: int,
    origin: Origin | None = None,
    rules: GradientRules | None = None,
) -> None:
    """Put a call on the tape if one of its inputs is on the tape.

    Args:
        name: the call's name in messages.
        gradient: the gradient function, like :meth:`flowmx.ops.registry.operators.Operator.gradient`; None if no
            gradient flows.
        inputs: its inputs.
        outputs: its outputs, which are new arrays.
        visible: the number of outputs that the user sees.
        origin: the user's line.
        rules: the cache of learned gradients, shared by calls of equal shapes and dtypes; None: call ``gradient``
            each time.
    """
    entries: list[Any] = []
    is_recorded = False
    for array in inputs:
        entry = array.history
        if entry is not None:
            if type(entry) not in ENTRIES:
                entry = entry.read(array)  # type: ignore[union-attr]
            is_recorded |= entry is not None
        entries.append(entry)
    if not is_recorded or not visible:
        return
    outputs[0].history = node = TapeNode(name, gradient, tuple(entries), inputs, outputs, visible, origin, rules)
    if visible > 1:
        for index, output in enumerate(outputs[1:visible], 1):
            output.history = LaterOutput(node, index)


def record_result(
    name: str, gradient: Gradient | None, x: BaseArray, y: BaseArray | None, out: BaseArray, origin: Origin,
    rules: GradientRules,
) -> None:  # fmt: skip
    """Put a call with one or two inputs and a new result on the tape, as :func:`record` does, in half of the time."""
    entry = x.history
    if entry is not None and type(entry) not in ENTRIES:
        entry = entry.read(x)  # type: ignore[union-attr]
    other = None if y is None else y.history
    if other is not None and type(other) not in ENTRIES:
        other = other.read(y)  # type: ignore[union-attr,arg-type]
    if entry is None and other is None:
        return
    state: tuple[Any, ...] = ()
    if gradient is not None:
        source, target = x.storage, out.storage
        source.shared = target.shared = True
        first = source if x.strided_view is None else x.without_history()
        if y is None:
            state = (first, target, source.version, target.version)
        else:
            storage = y.storage
            storage.shared = True
            second = storage if y.strided_view is None else y.without_history()
            state = (first, second, target, source.version, storage.version, target.version)
    entries: Any = (entry,) if y is None else (entry, other)
    out.history = TapeNode.of_result(name, gradient, entries, state, origin, rules)


def record_written(
    name: str,
    gradient: Gradient | None,
    inputs: Sequence[BaseArray],
    outputs: Sequence[BaseArray],
    targets: Sequence[BaseArray],
    visible: int,
    origin: Origin | None = None,
    rules: GradientRules | None = None,
) -> None:
    """Put a call that writes to existing arrays on the tape, and update all handles on their memory.

    The arguments are those of :func:`record`, plus ``targets``, the arrays that the user passed as outputs.
    """
    entries = [array.tape_entry for array in inputs]
    node = None
    if any(entry is not None for entry in entries):
        node = TapeNode(name, gradient, entries, inputs, outputs, visible, origin, rules)
    for index, output in enumerate(outputs[:visible]):
        entry = None if node is None else node.output(index)
        if index < len(targets):
            set_tape_entry(output, entry, origin)
        else:
            output.history = entry


def set_tape_entry(array: BaseArray, entry: TapeEntry | None, origin: Origin | None = None) -> None:
    """Record that an array was overwritten with the content of a tape entry (None: it is not recorded).

    A variable remains a variable.
    """
    history = array.history
    if history is None:
        array.history = entry
    elif type(history) in ENTRIES:
        array.history = history if type(history) is Leaf else entry
    else:
        history.write(array, entry, origin)  # type: ignore[union-attr]


def _prepare_outputs(
    op: Operator,
    spec: Any,
    inputs: Sequence[BaseArray],
    out_arrays: list[BaseArray],
    reads: tuple[Storage, ...],
    device: Device,
) -> tuple[list[BaseArray], tuple[Storage, ...], Callable[..., None]]:
    """Check the arrays passed as ``out``; return all outputs, the variables to read, and the function to run."""
    visible = op.visible_outputs()
    if len(out_arrays) not in (visible, len(spec.shapes)):
        raise ValueError(f"{op.name}: out holds {len(out_arrays)} arrays, expected {visible}")
    for index, (array, shape, dtype) in enumerate(zip(out_arrays, spec.shapes, spec.dtypes, strict=False)):
        if array.dims != shape:
            raise ShapeError(f"{op.name}: out {index} has shape {array.dims}, expected {shape}")
        if array.element_type != dtype:
            raise TypeInferenceError(
                f"{op.name}: out {index} has dtype {name_of(array.element_type)}, expected {name_of(dtype)}"
            )
        if array.storage.device is not device:
            raise DeviceError(f"{op.name}: out {index} is on {array.storage.device}, the operator runs on {device}")
        if array.strided_view is not None:
            reads += (array.storage,)
    other_forms = zip(spec.shapes[len(out_arrays) :], spec.dtypes[len(out_arrays) :], strict=True)
    outputs = [*out_arrays, *(allocate(device, s, t) for s, t in other_forms)]
    function: Callable[..., None] = compute
    out_storages = {array.storage for array in out_arrays}
    in_place_outputs: dict[int, list[BaseArray]] = {}  # a dict: an update of many weights has many pairs
    for position, index in op.traits.in_place:
        if index < len(out_arrays):
            in_place_outputs.setdefault(position, []).append(out_arrays[index])
    for position, array in enumerate(inputs):
        if array.storage in out_storages and not any(
            _same_memory(array, other) for other in in_place_outputs.get(position, ())
        ):
            function = compute_into_copy
    return outputs, reads, function


_warned_lines: set[tuple[str, int]] = set()
"""The user's lines that a :class:`CrossDeviceWarning` was issued for."""


def warn_of_copy(source: Device, target: Device, what: str, depth: int = 3) -> None:
    """Warn once at the user's line about an implicit copy away from a device.

    Copies from the host are usually intended, and copies by flowmx are not the user's; neither is reported.

    Args:
        source: the device that holds the data.
        target: the device to copy it to.
        what: the start of the message: the user's action.
        depth: the number of frames between this one and the user's, if the user called directly.
    """
    if source.is_asynchronous and is_called_by_user(depth + 1):
        warn_user(
            f"{what} copies from {source} to {target} each time it runs: create the array on {target} once, or call "
            f"as_in_context({target}) if the copy is intended",
            _warned_lines,
            CrossDeviceWarning,
        )


def _same_memory(one: BaseArray, other: BaseArray) -> bool:
    return one.storage is other.storage and one.strided_view == other.strided_view


def refuse_in_place(array: BaseArray, name: str) -> None:
    """Raise AutogradError if code that is not an operator would change a recorded array in place."""
    if array.tape_entry is not None:
        raise AutogradError(
            f"{name}: an array of the recorded graph (shape {array.dims}) cannot be changed in place while "
            "recording; write to a new array, or change it outside autograd.record()"
        )


def store(source: BaseArray, target: BaseArray) -> None:
    """Enqueue a move of a temporary result into an array: its memory if possible, else its content."""
    device, reads = target.storage.device, source.storage
    writes: tuple[Variable, ...] = (target.storage, reads)
    light = source.element_type.itemsize * math.prod(source.dims) <= LIGHT_BYTES
    # Also read the result, so that its failure propagates to the array.
    push_on(device, _store, (reads, target.storage), (reads,), writes, "store", light, depth=3)


def may_store(source: BaseArray, target: BaseArray) -> bool:
    """Return whether :func:`store` may move the memory of a new result to the target instead of copying."""
    source_storage, target_storage = source.storage, target.storage
    return (
        not source_storage.shared
        and source.strided_view is None
        and target.strided_view is None
        and source_storage.device is target_storage.device
        and source.dims == target.dims
        and source.element_type == target.element_type
    )


def _store(source: Storage, target: Storage) -> None:
    """Move the source's memory to the target, or copy the content if either memory has other users."""
    is_unshared = sys.getrefcount(source.array) <= REFERENCES_OF_ATTRIBUTE
    if is_unshared and (target.array is None or sys.getrefcount(target.array) <= REFERENCES_OF_ATTRIBUTE):
        target.array, source.array = source.array, None
    else:
        target.device.copy(source.array, target.ensure())


set_launch_traits(_store, LaunchTraits(moves_memory=True))


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
    """Enqueue work on arrays that is not an operator, such as an assignment or copy.

    ``detached`` work contains user code. The device's compute actor runs it unless ``actor`` is set.
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
