"""LRN and its gradient by oneDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from flowmx.ops.kernels.onednn.library import Alg, Arg, Handle, Prop, Query
from flowmx.ops.kernels.onednn.primitives import (
    Array,
    Desc,
    Geometry,
    Operand,
    Primitive,
    attributes,
    channels_last,
    geometry,
    loaded,
    plainly,
    plan,
    pointer,
    scratch,
    strided,
    suits,
)
from flowmx.ops.nn_normalization import LRN
from flowmx.ops.registry import Run, kernel


class _Plan:
    """What both directions share."""

    def __init__(self, op: LRN, data: Geometry) -> None:
        self.data = channels_last(data[0])
        self.numbers = [ctypes.c_float(each) for each in (op.alpha, op.beta, op.knorm)]
        self.size = ctypes.c_int64(op.nsize)

    def forward_desc(self, prop: Prop) -> Handle:
        lib = loaded()
        return lib.create(
            "lrn_forward_primitive_desc_create", lib.engine, int(prop), int(Alg.LRN_ACROSS_CHANNELS),
            self.data.handle, self.data.handle, self.size, *self.numbers, attributes(),
        )  # fmt: skip


class Forward(_Plan):
    """The normalised data."""

    def __init__(self, op: LRN, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data)
        self._run = Primitive(self.forward_desc(Prop.FORWARD_INFERENCE), {Arg.SRC: self.data, Arg.DST: self.data})
        self._source = Operand("data", strided(*data), self.data)
        self._target = Operand("output", strided(*out), self.data, is_output=True)

    def __call__(self, data: int, out: int) -> None:
        self._run(self._source.before(data), self._target.room(out))
        self._target.after(out)


class Backward(_Plan):
    """The gradient for the data; what the forward notes for it is made anew."""

    def __init__(self, op: LRN, head: Geometry, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data)
        lib = loaded()
        forward = self.forward_desc(Prop.FORWARD_TRAINING)
        desc = lib.create(
            "lrn_backward_primitive_desc_create", lib.engine, int(Alg.LRN_ACROSS_CHANNELS), self.data.handle,
            self.data.handle, self.data.handle, self.size, *self.numbers, forward, attributes(),
        )  # fmt: skip
        ends: dict[int, Desc | Query] = {Arg.SRC: self.data, Arg.WORKSPACE: Query.WORKSPACE}
        self._run = Primitive(desc, {**ends, Arg.DIFF_DST: self.data, Arg.DIFF_SRC: self.data})
        self._again = Primitive(forward, {**ends, Arg.DST: self.data})
        self._note_bytes = self._run.descriptor(Arg.WORKSPACE).nbytes
        self._head = Operand("output", strided(*head), self.data)
        self._source = Operand("data", strided(*data), self.data)
        self._target = Operand("gradient", strided(*out), self.data, is_output=True)

    def __call__(self, head: int, data: int, out: int) -> None:
        source, note = self._source.before(data), scratch("note", self._note_bytes)
        self._again(source, note, scratch("again", self.data.nbytes))
        self._run(source, note, self._head.before(head), self._target.room(out))
        self._target.after(out)


@kernel("cpu", "LRN")
def _lrn(op: LRN, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, out = inputs[0], outputs[0]
    made = plan(Forward, op, geometry(data), geometry(out)) if suits(data, out) else None
    if made is None:
        plainly(op, run, inputs, outputs)
    else:
        made(pointer(data), pointer(out))


@kernel("cpu", "_backward_LRN")
def _backward_lrn(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (head, data), out = inputs, outputs[0]
    # oneDNN's gradient of one channel alone crashes.
    fits = op.nsize > 1 and suits(head, data, out)
    made = plan(Backward, op, geometry(head), geometry(data), geometry(out)) if fits else None
    if made is None:
        plainly(op, run, inputs, outputs)
    else:
        made(pointer(head), pointer(data), pointer(out))
