"""BatchNorm and its gradient by oneDNN."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowmx.ops.kernels.onednn.layouts import (
    Array,
    Desc,
    Geometry,
    channels_last,
    geometry,
    is_channels_last,
    library_or_raise,
    plain,
    pointer,
    strided,
    suits,
)
from flowmx.ops.kernels.onednn.library import (
    USE_GLOBAL_STATS,
    USE_SCALE,
    USE_SHIFT,
    Alg,
    Arg,
    Handle,
    Prop,
    Query,
)
from flowmx.ops.kernels.onednn.primitives import Call, Post, Primitive, attributes
from flowmx.ops.kernels.onednn.work import Operand, Work, move_time_ns, plan, with_copies
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.batch_norm import BackwardBatchNorm


class _Work(Work):
    """Base of both directions: descriptors of data and statistics."""

    def __init__(self, data: Geometry, out: Geometry, eps: float, flags: int) -> None:
        super().__init__()
        self.order = channels_last if is_channels_last(data) or is_channels_last(out) else plain
        self.data = self.order(data.shape, data.dtype)
        self.channels = plain((data[0][1],))
        self.eps, self.flags = ctypes.c_float(eps), flags

    @staticmethod
    def nanoseconds(*key: object) -> float:
        return move_time_ns(*[each for each in key if isinstance(each, Geometry)])

    def forward_desc(self, prop: Prop, *posts: Post) -> Handle:
        lib = library_or_raise()
        return lib.create(
            "batch_normalization_forward_primitive_desc_create", lib.engine, int(prop), self.data.handle,
            self.data.handle, self.eps, self.flags, attributes(*posts),
        )  # fmt: skip


class Forward(_Work):
    """Normalize by the batch's statistics, which are also outputs, or by statistics that are inputs."""

    def __init__(self, data: Geometry, out: Geometry, eps: float, flags: int, relu: bool) -> None:
        super().__init__(data, out, eps, flags)
        training = not flags & USE_GLOBAL_STATS
        prop = Prop.FORWARD_TRAINING if training else Prop.FORWARD_INFERENCE
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: self.data, Arg.DST: self.data, Arg.SHIFT: self.channels,
            Arg.MEAN: self.channels, Arg.VARIANCE: self.channels,
        }  # fmt: skip
        if flags & USE_SCALE:
            arguments[Arg.SCALE] = self.channels
        # A final ReLU needs no mask: its gradient follows from the output.
        posts = [("eltwise", Alg.ELTWISE_RELU, 0.0, 0.0)] if relu else []
        self._run = Primitive(self.workspace, self.forward_desc(prop, *posts), arguments)
        self._source = Operand(self.workspace, strided(*data), self.data)
        self._target = Operand(self.workspace, strided(*out), self.data, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return with_copies(self._run, self._source, self._target, base, addresses)


class Backward(_Work):
    """The gradients for the data, scale and shift."""

    def __init__(self, head: Geometry, data: Geometry, out: Geometry, eps: float, flags: int) -> None:
        super().__init__(data, out, eps, flags)
        lib = library_or_raise()
        hint = lib.own(self, "primitive_desc", self.forward_desc(Prop.FORWARD_TRAINING))
        desc = lib.create(
            "batch_normalization_backward_primitive_desc_create", lib.engine, int(Prop.BACKWARD), self.data.handle,
            self.data.handle, self.data.handle, self.eps, flags, hint,
            attributes(),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {
            Arg.DIFF_DST: self.data, Arg.SRC: self.data, Arg.DIFF_SRC: self.data, Arg.MEAN: self.channels,
            Arg.VARIANCE: self.channels, Arg.DIFF_SHIFT: self.channels,
        }  # fmt: skip
        if flags & USE_SCALE:
            arguments |= {Arg.SCALE: self.channels, Arg.DIFF_SCALE: self.channels}
        workspace = self.workspace
        self._run = Primitive(workspace, desc, arguments)
        self._head = Operand(workspace, strided(*head), self.data)
        self._source = Operand(workspace, strided(*data), self.data)
        self._target = Operand(workspace, strided(*out), self.data, is_output=True)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        head, data, out, *parameters = addresses
        operands = self._head.at(base, head), self._source.at(base, data), self._target.at(base, out)
        return [
            *self._head.before(base, head), *self._source.before(base, data),
            self._run.at(base, *operands, *parameters),
            *self._target.after(base, out),
        ]  # fmt: skip


def _flags(op: BatchNorm, given_statistics: bool) -> int:
    return USE_SHIFT | (0 if op.fix_gamma else USE_SCALE) | (USE_GLOBAL_STATS if given_statistics else 0)


def _fits(op: BatchNorm, *arrays: Array) -> bool:
    """Return whether oneDNN supports these arrays: 2 to 5 axes, with the channels on axis 1."""
    rank = arrays[0].ndim
    return 2 <= rank <= 5 and op.axis in (1, 1 - rank) and suits(*arrays)


def _to_float32(vector: Array) -> Array:
    """Return a parameter in oneDNN's form: float32, contiguous."""
    return np.ascontiguousarray(vector, np.float32)


def batch_norm(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool = False) -> bool:
    """Compute BatchNorm; return False if oneDNN cannot."""
    data, gamma, beta, moving_mean, moving_var = inputs
    out, mean, inverse, from_batch = outputs
    if not _fits(op, data, out) or mean.dtype != FLOAT32:
        return False
    batch = run.train and not op.use_global_stats
    work = plan(Forward, geometry(data), geometry(out), op.eps, _flags(op, not batch), relu)
    if work is None:
        return False
    var = np.empty_like(mean)
    if not batch:
        mean[...], var[...] = moving_mean, moving_var
    vectors = [_to_float32(beta), mean, var, *([] if op.fix_gamma else [_to_float32(gamma)])]
    work(*map(pointer, (data, out, *vectors)))
    if batch:
        op.update_moving(moving_mean, mean)
        op.update_moving(moving_var, var)
    inverse[...] = 1 / np.sqrt(var + var.dtype.type(op.eps))
    from_batch[...] = batch
    return True


def backward_batch_norm(op: BackwardBatchNorm, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute BatchNorm's gradients; return False if oneDNN cannot."""
    head, data, gamma, mean, inverse = inputs[:5]
    out, gamma_grad, beta_grad = outputs
    if not _fits(op, head, data, out) or mean.dtype != FLOAT32:
        return False
    flags = _flags(op, not op.over_batch(inputs))
    work = plan(Backward, geometry(head), geometry(data), geometry(out), op.eps, flags)
    if work is None:
        return False
    var = 1 / np.square(inverse) - inverse.dtype.type(op.eps)
    targets = (beta_grad,) if op.fix_gamma else (beta_grad, gamma_grad)
    results = [
        each if each.flags.c_contiguous and each.dtype == FLOAT32 else np.empty(each.shape, FLOAT32) for each in targets
    ]
    scales = () if op.fix_gamma else (_to_float32(gamma), results[1])
    work(*map(pointer, (head, data, out, mean, var, results[0], *scales)))
    for target, result in zip(targets, results, strict=True):
        if result is not target:
            target[...] = result
    return True
