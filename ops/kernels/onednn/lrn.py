"""LRN and its gradient by oneDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from flowmx.ops.kernels.onednn.kernel import PrimitiveKernel
from flowmx.ops.kernels.onednn.layouts import Desc, Geometry, channels_last, library_or_raise, strided
from flowmx.ops.kernels.onednn.library import Alg, Arg, Handle, Prop, Query
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, attributes
from flowmx.ops.kernels.onednn.work import Operand, Work, plan
from flowmx.ops.nn.normalization.local_response import LRN
from flowmx.ops.registry.kernels import register_kernel


class _Work(Work):
    """Base of both directions: descriptors and the parameters of the window."""

    def __init__(self, op: LRN, data: Geometry) -> None:
        super().__init__()
        self.data = channels_last(data.shape, data.dtype)
        self.numbers = [ctypes.c_float(each) for each in (op.alpha, op.beta, op.knorm)]
        self.size = ctypes.c_int64(op.nsize)

    def forward_desc(self, prop: Prop) -> Handle:
        lib = library_or_raise()
        return lib.create(
            "lrn_forward_primitive_desc_create", lib.engine, int(prop), int(Alg.LRN_ACROSS_CHANNELS),
            self.data.handle, self.data.handle, self.size, *self.numbers, attributes(),
        )  # fmt: skip


class Forward(_Work):
    """The normalized data."""

    def __init__(self, op: LRN, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data)
        workspace, desc = self.workspace, self.forward_desc(Prop.FORWARD_INFERENCE)
        self._run = Primitive(workspace, desc, {Arg.SRC: self.data, Arg.DST: self.data})
        self._source = Operand(workspace, strided(*data), self.data)
        self._target = Operand(workspace, strided(*out), self.data, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, out = addresses
        return [
            *self._source.before(base, data),
            self._run.at(base, self._source.at(base, data), self._target.at(base, out)),
            *self._target.after(base, out),
        ]


class Backward(_Work):
    """The gradient for the data; the forward's workspace is recomputed."""

    def __init__(self, op: LRN, head: Geometry, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data)
        lib, workspace = library_or_raise(), self.workspace
        forward = self.forward_desc(Prop.FORWARD_TRAINING)
        desc = lib.create(
            "lrn_backward_primitive_desc_create", lib.engine, int(Alg.LRN_ACROSS_CHANNELS), self.data.handle,
            self.data.handle, self.data.handle, self.size, *self.numbers, forward, attributes(),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: self.data, Arg.WORKSPACE: Query.WORKSPACE}
        self._run = Primitive(workspace, desc, {**arguments, Arg.DIFF_DST: self.data, Arg.DIFF_SRC: self.data})
        self._again = Primitive(workspace, forward, {**arguments, Arg.DST: self.data})
        self._note = workspace.take(self._run.descriptor(Arg.WORKSPACE).nbytes)
        self._output = workspace.take(self.data.nbytes)
        self._head = Operand(workspace, strided(*head), self.data)
        self._source = Operand(workspace, strided(*data), self.data)
        self._target = Operand(workspace, strided(*out), self.data, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, data, out = addresses
        source, note = self._source.at(base, data), base + self._note
        return [
            *self._source.before(base, data),
            self._again.at(base, source, note, base + self._output),
            *self._head.before(base, head),
            self._run.at(base, source, note, self._head.at(base, head), self._target.at(base, out)),
            *self._target.after(base, out),
        ]


def _lrn(op: LRN, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    return plan(Forward, op, inputs[0], outputs[0])


def _backward_lrn(op: LRN, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    # oneDNN's gradient crashes for a single channel.
    return plan(Backward, op, *inputs, outputs[0]) if op.nsize > 1 else None


register_kernel("cpu", "LRN", PrimitiveKernel(_lrn))
register_kernel("cpu", "_backward_LRN", PrimitiveKernel(_backward_lrn))
