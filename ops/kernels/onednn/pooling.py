"""Pooling and its gradient by oneDNN, for max and avg.

The gradient of max needs the positions of the maxima. In a bound graph the forward stores them
(``ops/compiled/pooling_indices.py``); elsewhere the gradient traverses the windows again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.ops.compiled.pooling_indices import PoolingWithIndices
from flowmx.ops.kernels.onednn.kernel import PrimitiveKernel, TiedKernel, run_fallback, threads_here
from flowmx.ops.kernels.onednn.layouts import (
    FLOATS,
    Array,
    Desc,
    Geometry,
    Shape,
    channels_last,
    dims,
    geometry,
    is_channels_last,
    library_or_raise,
    plain,
    pointer,
    strided,
    suits,
)
from flowmx.ops.kernels.onednn.library import Alg, Arg, Handle, Prop, Query, Unsupported
from flowmx.ops.kernels.onednn.library import DType as Type
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, attributes
from flowmx.ops.kernels.onednn.work import FixedWork, Operand, Work, move_time_ns, plan, with_copies
from flowmx.ops.kernels.recording import mark_incomplete, use_memory
from flowmx.ops.nn.pooling import BackwardPooling, Pooling, lowest
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.kernels import kernel, register_kernel
from flowmx.ops.registry.operators import Bound, Form, Operator, Run

_SCRATCH_BYTES = 1 << 20
"""The largest memory of one call that a recording keeps."""


def _windows(op: Pooling, size: Shape, out: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """Return stride, kernel, and the padding before and after each axis.

    Raises:
        Unsupported: an average over windows that extend beyond the padding, where oneDNN divides differently.
    """
    lines = op.lines(size, out)
    after = [max(0, (n.windows - 1) * n.stride + n.kernel - n.length - n.pad) for n in lines]
    if op.pool_type == "avg" and any(needed > line.pad for needed, line in zip(after, lines, strict=True)):
        raise Unsupported("oneDNN: average pooling of clipped windows")
    return (
        tuple(n.stride for n in lines), tuple(n.kernel for n in lines), tuple(n.pad for n in lines), tuple(after)
    )  # fmt: skip


def _algorithm(op: Pooling) -> Alg:
    if op.pool_type == "max":
        return Alg.POOLING_MAX
    if op.pool_type != "avg":
        raise Unsupported(f"oneDNN: {op.pool_type} pooling")
    include = op.count_include_pad is not False
    return Alg.POOLING_AVG_INCLUDE_PADDING if include else Alg.POOLING_AVG_EXCLUDE_PADDING


Order = Callable[[Shape, Type], Desc]


def _order(op: Pooling, data: Geometry, out: Geometry) -> Order:
    """Return the memory order in which arrays of these layouts are traversed and maxima stored."""
    if is_channels_last(data) or is_channels_last(out):
        return channels_last
    # For windows of one element along an axis, or one axis, oneDNN has only a reference loop for C order, which is ten
    # times slower.
    lengths = [line.kernel for line in op.lines(data.shape[2:], out.shape[2:])]
    return channels_last if len(lengths) == 1 or 1 in lengths else plain


class _Work(Work):
    """Base of both directions: the algorithm, and descriptors of data, output and windows."""

    def __init__(self, op: Pooling, data: Geometry, out: Geometry, order: Order) -> None:
        super().__init__()
        self.algorithm = _algorithm(op)
        self.data, self.out = order(data.shape, data.dtype), order(out.shape, out.dtype)
        stride, size, before, after = _windows(op, data[0][2:], out[0][2:])
        self.windows = [dims(each) for each in (stride, size, (0,) * len(size), before, after)]

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        return move_time_ns(*key[1:3])

    def forward_desc(self, train: bool) -> Handle:
        lib = library_or_raise()
        return lib.create(
            "pooling_forward_primitive_desc_create", lib.engine,
            int(Prop.FORWARD_TRAINING if train else Prop.FORWARD_INFERENCE), int(self.algorithm),
            self.data.handle, self.out.handle, *self.windows, attributes(),
        )  # fmt: skip


class Forward(_Work):
    """Output = the maxima or averages of the windows; with ``note``, also the positions of the maxima."""

    def __init__(self, op: Pooling, data: Geometry, out: Geometry, note: bool, order: Order | None = None) -> None:
        super().__init__(op, data, out, order or _order(op, data, out))
        arguments: dict[int, Desc | Query] = {Arg.SRC: self.data, Arg.DST: self.out}
        if note:
            arguments[Arg.WORKSPACE] = Query.WORKSPACE
        self._run = Primitive(self.workspace, self.forward_desc(note), arguments)
        self.note_bytes = self._run.descriptor(Arg.WORKSPACE).nbytes if note else 0
        self._source = Operand(self.workspace, strided(*data), self.data)
        self._target = Operand(self.workspace, strided(*out), self.out, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return with_copies(self._run, self._source, self._target, base, addresses)


class Backward(_Work):
    """The gradient for the data; for max from positions in the same order."""

    def __init__(self, op: Pooling, head: Geometry, data: Geometry, order: Order) -> None:
        super().__init__(op, data, head, order)
        lib = library_or_raise()
        hint = lib.own(self, "primitive_desc", self.forward_desc(True))
        is_max = self.algorithm == Alg.POOLING_MAX
        desc = lib.create(
            "pooling_backward_primitive_desc_create", lib.engine, int(self.algorithm), self.data.handle,
            self.out.handle, *self.windows, hint, attributes(),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.DIFF_DST: self.out, Arg.DIFF_SRC: self.data}
        if is_max:
            arguments[Arg.WORKSPACE] = Query.WORKSPACE
        self._run = Primitive(self.workspace, desc, arguments)
        self._head = Operand(self.workspace, strided(*head), self.out)
        self._target = Operand(self.workspace, strided(*data), self.data, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return with_copies(self._run, self._head, self._target, base, addresses)


def _fill_empty(op: Any, data: Array, out: Array) -> None:
    """Fill windows outside the data with the lowest 16-bit number; float32's lowest would become infinite."""
    if op.pool_type != "max" or out.dtype.itemsize != 2:
        return
    data, out = op.channels_first(data), op.channels_first(out)
    for line in op.lines(data.shape[2:], out.shape[2:]):
        first = (line.length + line.pad - 1) // line.stride + 1
        if first < line.windows:
            out[(slice(None),) * (line.axis + 1) + (slice(first, None),)] = lowest(out.dtype)


class _TiedPooling(TiedKernel):
    """A pooling for one step of a bound graph."""

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().__call__(run, inputs, outputs)
        if outputs[0].dtype.itemsize == 2:
            mark_incomplete()
            _fill_empty(self._op, inputs[0], outputs[0])


class _Pooling(PrimitiveKernel):
    """A pooling kernel, with the channels on axis 1 or last."""

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().compute(op, run, inputs, outputs)
        if not isinstance(op, BackwardPooling) and outputs[0].dtype.itemsize == 2:
            mark_incomplete()
            _fill_empty(op, inputs[0], outputs[0])

    def takes(self, op: Any, dtype: DType) -> bool:
        return dtype in FLOATS and op.pool_type in ("max", "avg")

    def tie(self, op: Operator, predicts: bool) -> TiedKernel:
        kind = TiedKernel if isinstance(op, BackwardPooling) else _TiedPooling
        return kind(self, op, predicts)

    def bind(self, op: Any, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        data, out = (op.channels_first(np.empty(*forms[0])) for forms in (in_forms, out_forms))
        if not suits(data, out) or out.dtype.itemsize == 2:
            return None
        work = plan(Forward, op, geometry(data), geometry(out), False)
        threads, call = threads_here(), None if work is None else FixedWork(work, 2)

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x, y = inputs[0], outputs[0]
            if call is None or threads != threads_here() or not (x.flags.c_contiguous and y.flags.c_contiguous):
                self.compute(op, run, inputs, outputs)
            else:
                call(pointer(x), pointer(y))

        return bound


def _channels_first(op: Pooling, array: Geometry) -> Geometry:
    """Return the geometry of a view with the channels on axis 1."""
    if not op.channels_last:
        return array
    shape, strides, dtype = array
    return Geometry((shape[0], shape[-1], *shape[1:-1]), (strides[0], strides[-1], *strides[1:-1]), dtype)


def _pooling(op: Pooling, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Forward | None:
    return plan(Forward, op, _channels_first(op, inputs[0]), _channels_first(op, outputs[0]), False)


register_kernel("cpu", "Pooling", _Pooling(_pooling))


def _takes(op: Pooling, dtype: DType) -> bool:
    return dtype in FLOATS and op.pool_type in ("max", "avg")


def _bind_backward_pooling(op: Pooling, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    """Bind the gradient of max, which runs the forward again to find the positions."""
    head, data, output, out = (op.channels_first(np.empty(*form)) for form in (*in_forms, out_forms[0]))
    if op.pool_type != "max" or not suits(head, data, out):
        return None
    order = _order(op, geometry(data), geometry(output))
    back = plan(Backward, op, geometry(head), geometry(out), order)
    again = None if back is None else plan(Forward, op, geometry(data), geometry(output), True)
    if back is None or again is None:
        return None
    note, first, second, threads = again.note_bytes, FixedWork(again, 3), FixedWork(back, 3), threads_here()

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = [*inputs, *outputs]
        for each in arrays:
            if not each.flags.c_contiguous:
                break
        else:
            if threads == threads_here():
                values, indices = _scratch(np.empty_like(arrays[2])), _scratch(np.empty(note, np.uint8))
                first(pointer(arrays[1]), pointer(values), pointer(indices))
                second(pointer(arrays[0]), pointer(arrays[3]), pointer(indices))
                return
        _backward_pooling(op, run, inputs, outputs)

    return bound


def _scratch(memory: Array) -> Array:
    """Return memory for one call; a recording keeps it if it is small, and is refused otherwise."""
    return use_memory(memory) if memory.nbytes <= _SCRATCH_BYTES else memory


@kernel("cpu", "_backward_Pooling", bind=_bind_backward_pooling, takes=_takes, only_native=True)
def _backward_pooling(op: Pooling, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    head, data, output, out = map(op.channels_first, (*inputs, outputs[0]))
    if not suits(head, data, out):
        run_fallback(op, run, inputs, outputs)
        return
    values, order = output, _order(op, geometry(out), geometry(head))
    if op.pool_type == "max":
        values = _scratch(np.empty_like(output))
        order = _order(op, geometry(data), geometry(values))
    work = plan(Backward, op, geometry(head), geometry(out), order)
    if work is not None and op.pool_type != "max":
        work(pointer(head), pointer(out))
        return
    again = None if work is None else plan(Forward, op, geometry(data), geometry(values), True)
    if work is None or again is None:
        run_fallback(op, run, inputs, outputs)
        return
    note = _scratch(np.empty(again.note_bytes, np.uint8))
    again(pointer(data), pointer(values), pointer(note))
    work(pointer(head), pointer(out), pointer(note))


class NotedBackward(Backward):
    """The gradient of max from positions that the forward stored."""

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, _, _, note, out = addresses
        return super().calls(base, head, out, note)


class _IndicesKernel(_Pooling):
    """A kernel whose last input or output holds the positions."""

    def takes(self, op: object, dtype: DType) -> bool:
        return dtype in FLOATS

    def computed(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [each for each in arrays if is_floating(each.dtype)]

    def bind(self, op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> None:
        """Return None: the kernel does more than oneDNN's primitive."""


def _forward_with_indices(op: PoolingWithIndices, data: Geometry, out: Geometry) -> Forward | None:
    """Return the forward with positions of the operator's size, or None."""
    work = plan(Forward, op, data, out, True)
    return work if work is not None and work.note_bytes == math.prod(out[0]) * op.position_dtype().itemsize else None


def _noted_pooling(op: PoolingWithIndices, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    return _forward_with_indices(op, inputs[0], outputs[0])


def _backward_noted_pooling(
    op: PoolingWithIndices, inputs: Sequence[Geometry], outputs: Sequence[Geometry]
) -> Work | None:
    head, data, output, *_ = inputs
    if _forward_with_indices(op, data, output) is None:
        return None
    return plan(NotedBackward, op, head, outputs[0], _order(op, data, output))


register_kernel("cpu", "_noted_Pooling", _IndicesKernel(_noted_pooling))
register_kernel("cpu", "_backward_noted_Pooling", _IndicesKernel(_backward_noted_pooling))
