"""Operators that only move elements, by oneDNN's reorder: concatenation, splitting, transposition, layout changes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.kernels.onednn.layouts import Array, Geometry, geometry, pointer, strided, suits
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Work, move_time_ns, plan
from flowmx.ops.kernels.recording import current
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Bound, Form, Run

if TYPE_CHECKING:
    from flowmx.ops.arrays.joining import Concat
    from flowmx.ops.registry.operators import Operator

_SMALL = 1 << 14
"""NumPy's copy is faster below this number of elements."""


_JOINED = 1 << 16
"""NumPy's concatenation is faster than a copy per part below this number of elements."""


class Copy(Work):
    """A copy between arrays of the same shape, in any layout."""

    def __init__(self, source: Geometry, target: Geometry) -> None:
        super().__init__()
        self._copy = Reorder(self.workspace, strided(*source), strided(*target))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        return move_time_ns(*key)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


def copy(source: Array, target: Array) -> None:
    """Copy source to target, arrays of the same shape, on all cores if that is faster."""
    work, recording = None, current()
    is_plain = source.flags.c_contiguous and target.flags.c_contiguous
    is_large = target.size >= _SMALL or (recording is not None and not is_plain)
    if is_large and 0 < target.ndim <= 12 and suits(source, target):
        work = plan(Copy, geometry(source), geometry(target))
    if work is None:
        if recording is not None:
            recording.add_copy(target, source)
        target[...] = source
    else:
        work(pointer(source), pointer(target))


def _join(op: Concat, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    """Return a concatenation of few elements by NumPy."""
    if prod(out_forms[0][0]) >= _JOINED or len({dtype for _, dtype in (*in_forms, *out_forms)}) > 1:
        return None
    join, axis = np.concatenate, op.dim % len(out_forms[0][0])

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        join(inputs, axis, outputs[0])

    return bound


@kernel("cpu", "Concat", bind=_join, only_native=True)
def _concat(op: Concat, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out, start = outputs[0], 0
    before = (slice(None),) * (op.dim % out.ndim)
    for each in inputs:
        stop = start + each.shape[op.dim]
        copy(each, out[(*before, slice(start, stop))])
        start = stop


@kernel("cpu", "_backward_Concat", only_native=True)
def _backward_concat(op: Concat, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    head, start = inputs[0], 0
    before = (slice(None),) * (op.dim % head.ndim)
    for out in outputs:
        stop = start + out.shape[op.dim]
        copy(head[(*before, slice(start, stop))], out)
        start = stop


def _view(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    copy(op.view(inputs[0], outputs[0].shape), outputs[0])


for _name in ("transpose", "SwapAxis"):
    kernel("cpu", _name, only_native=True)(_view)


def _reshape(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, out = inputs[0], outputs[0]
    if out.flags.c_contiguous:
        copy(data, out.reshape(data.shape))
    else:
        op.forward(run, inputs, outputs)


for _name in ("Reshape", "Flatten"):
    kernel("cpu", _name, only_native=True)(_reshape)
