"""Steps of recurrent cells and their gradients: one loop over the units instead of a dozen operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import instruction_count, placeholder
from flowmx.ops.kernels.llvm.assembly import FLOAT
from flowmx.ops.kernels.llvm.math_functions import sigmoid, tanh
from flowmx.ops.kernels.llvm.strided_loops import Axes, StridedLoop, axes_of, vectors
from flowmx.ops.recurrent import cell_steps
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import Kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run


class CellStep(Kernel):
    """The kernel of a step, or of a step's gradient, from its formula."""

    only_native = True
    records_calls = True

    def __init__(self, of: type[cell_steps.CellOperator]) -> None:
        self._of = of
        self._loops: dict[object, StridedLoop] = {}

    def compute(self, op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the outputs."""
        arrays = op.pieces(inputs, outputs)
        axes = _loop_axes(arrays)
        if axes is not None:
            loop = self._strided_loop(axes)
            threads = loop.threads(axes)
            if loop.run(loop.words(axes, (), threads), arrays, threads):
                return
        op.forward(run, inputs, outputs)

    def bind(self, op: Any, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return the kernel specialized for arrays of these shapes and dtypes."""
        inputs, outputs = ([np.empty(shape, dtype) for shape, dtype in forms] for forms in (in_forms, out_forms))
        axes = _loop_axes(op.pieces(inputs, outputs))
        if axes is None:
            return None
        loop = self._strided_loop(axes)
        if loop.program.get() is None:
            return None
        threads = loop.threads(axes)
        words, pieces = loop.words(axes, (), threads), op.pieces

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for each in (*inputs, *outputs):
                if not each.flags.c_contiguous:
                    self.compute(op, run, inputs, outputs)
                    return
            if not loop.run(words, pieces(inputs, outputs), threads):
                op.forward(run, inputs, outputs)

        return bound

    def _strided_loop(self, axes: Axes) -> StridedLoop:
        key = axes.is_constant, len(axes.lengths)
        loop = self._loops.get(key)
        if loop is None:
            outputs = self._of.formula(sigmoid, tanh, [placeholder(at) for at in range(len(axes.strides))])
            side_by_side = vectors(instruction_count(outputs), math.prod(axes.lengths))
            loop = self._loops.setdefault(
                key, StridedLoop(outputs, FLOAT, axes.is_constant, len(axes.lengths), False, side_by_side)
            )
        return loop


def _loop_axes(arrays: Sequence[Array]) -> Axes | None:
    """Return the axes of the loop over arrays of the same shape; None if there is no loop for them."""
    shape = arrays[-1].shape
    if not all(shape) or any(each.dtype != FLOAT32 or each.shape != shape for each in arrays):
        return None
    axes = axes_of(arrays)
    return None if axes is None or any(axes.is_constant) else axes


for _op in (cell_steps.GRUStep, cell_steps.BackwardGRUStep, cell_steps.LSTMStep, cell_steps.BackwardLSTMStep):
    register_kernel("cpu", _op.name, CellStep(_op))
