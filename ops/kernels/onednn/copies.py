"""Operators that only move elements, by oneDNN's reorder: joins, splits, transpositions, changes of layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.onednn.layouts import Array, Geometry, geometry, pointer, strided, suits
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Work, moving, plan
from flowmx.ops.registry.operators import Bound, Form, Run, kernel

_SMALL = 1 << 14
"""Elements below which NumPy's copy is faster."""


_JOINED = 1 << 16
"""Elements below which NumPy's concatenation is faster than a copy for each part."""


class Copy(Work):
    """From one array to another of the same shape, however they lie."""

    def __init__(self, source: Geometry, target: Geometry) -> None:
        super().__init__()
        self._copy = Reorder(self.room, strided(*source), strided(*target))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        return moving(*key)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


def copy(source: Array, target: Array) -> None:
    """``target[...] = source`` for arrays of one shape, on all cores where that pays."""
    made = None
    if target.size >= _SMALL and 0 < target.ndim <= 12 and suits(source, target):
        made = plan(Copy, geometry(source), geometry(target))
    if made is None:
        target[...] = source
    else:
        made(pointer(source), pointer(target))


@kernel("cpu", "Concat")
def _concat(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out, start = outputs[0], 0
    before = (slice(None),) * (op.dim % out.ndim)
    for each in inputs:
        stop = start + each.shape[op.dim]
        copy(each, out[(*before, slice(start, stop))])
        start = stop


def _join(op: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
    """A concatenation of few elements, by NumPy."""
    if prod(made[0][0]) >= _JOINED or len({dtype for _, dtype in (*given, *made)}) > 1:
        return None
    join, axis = np.concatenate, op.dim % len(made[0][0])

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        join(inputs, axis, outputs[0])

    return bound


_concat.bind = _join  # type: ignore[attr-defined]


@kernel("cpu", "_backward_Concat")
def _backward_concat(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    head, start = inputs[0], 0
    before = (slice(None),) * (op.dim % head.ndim)
    for out in outputs:
        stop = start + out.shape[op.dim]
        copy(head[(*before, slice(start, stop))], out)
        start = stop


def _view(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    copy(op.view(inputs[0], outputs[0].shape), outputs[0])


for _name in ("transpose", "SwapAxis"):
    kernel("cpu", _name)(_view)


def _reshape(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, out = inputs[0], outputs[0]
    if out.flags.c_contiguous:
        copy(data, out.reshape(data.shape))
    else:
        op.forward(run, inputs, outputs)


for _name in ("Reshape", "Flatten"):
    kernel("cpu", _name)(_reshape)
