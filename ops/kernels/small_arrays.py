"""Native forms of computations on small arrays, which NumPy computes otherwise.

A NumPy call takes a microsecond or more, and cannot be recorded. Each form here gives the bits of the NumPy call: its
operations are rounded as NumPy rounds them, and sums have NumPy's order. Replays of backward passes record these forms
where the usual computation makes no native call, and compare both once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import primitives
from flowmx.ops.kernels import blas
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import Code, Real
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, real_of
from flowmx.ops.kernels.recording import current
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array, Form, Operator

NativeForm = Callable[[Sequence[Array], Sequence[Array]], None]
"""Computes outputs from inputs, all in C order, in native calls only."""

_ROUNDED_ONCE = frozenset({
    "input", "number", "parameter", "add", "sub", "mul", "div", "neg", "sqrt", "abs", "lt", "le", "gt", "ge", "eq",
    "ne", "and", "or", "select",
})  # fmt: skip
"""Primitives that give the same bits in NumPy and in a loop."""
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def native_form(op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> NativeForm | None:
    """Return the native form of an operator that NumPy computes for arrays of these shapes and dtypes, or None."""
    if len(out_forms) != 1 or any(dtype != out_forms[0][1] or 0 in shape for shape, dtype in (*in_forms, *out_forms)):
        return None
    if out_forms[0][1] not in _DTYPES:
        return None
    find = _BY_NAME.get(op.name)
    form = None if find is None else find(op, in_forms, out_forms[0])
    return _formula(op, in_forms, out_forms[0]) if form is None else form


def _formula(op: Operator, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return an elementwise formula of arrays of the same shape."""
    fused = FUSED.get(op.name)
    if fused is None or fused.updates or any(form != out_form for form in in_forms):
        return None
    shape, dtype = out_form
    loop = fused.loop(op, dtype, len(in_forms))
    if loop is None or len(loop.outputs) != 1 or not primitives(loop.outputs) <= _ROUNDED_ONCE:
        return None
    call = loop.bind(math.prod(shape), loop.values(op))
    return None if call is None else lambda inputs, outputs: call(*inputs, *outputs)


def _data_gradient(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return FullyConnected's gradient of the data, a product of two matrices."""
    (head, dtype), (weight, _) = in_forms[:2]
    if dtype != FLOAT32 or not len(head) == len(out_form[0]) == 2:
        return None
    multiply = blas.product(head[0], weight[1], head[1], False)
    return None if multiply is None else lambda inputs, outputs: multiply(inputs[0], inputs[1], outputs[0])


def _weight_gradient(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return FullyConnected's gradient of the weight, a product of two matrices, or of two vectors."""
    (head, dtype), (data, _) = in_forms[:2]
    if not len(head) == len(data) == 2:
        return None
    if head[0] == 1:
        return _loop(_outer_product, dtype, head[1], data[1])
    if dtype != FLOAT32:
        return None
    multiply = blas.product(head[1], data[1], head[0], True)
    return None if multiply is None else lambda inputs, outputs: multiply(inputs[0], inputs[1], outputs[0])


def _bias_gradient(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return the sums of the columns of a matrix, each added up from the first row to the last."""
    shape, dtype = in_forms[0]
    is_last = op.axis in (-1, len(shape) - 1)
    if not is_last or len(shape) < 2 or shape[-1] == 1:  # NumPy adds up a single column in pairs
        return None
    return _loop(_column_sums, dtype, math.prod(shape[:-1]), shape[-1])


def _copy(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return a copy of the first input."""
    if in_forms[0][1] != out_form[1] or math.prod(in_forms[0][0]) != math.prod(out_form[0]):
        return None

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        recording = current()
        if recording is not None:
            recording.add_bytes(outputs[0], inputs[0])
        outputs[0].reshape(-1)[:] = inputs[0].reshape(-1)

    return form


_BY_NAME: dict[str, Callable[[Any, Sequence[Form], Form], NativeForm | None]] = {
    "_backward_FullyConnected_data": _data_gradient,
    "_backward_FullyConnected_weight": _weight_gradient,
    "_backward_bias": _bias_gradient,
    "reshape_like": _copy,
}


def _loop(write: Callable[[Real, frozenset[str]], str], dtype: Any, rows: int, columns: int) -> NativeForm | None:
    """Return a loop over the rows and columns of arrays; None if it is not compiled (yet)."""
    program = _program(write, dtype)
    if program is None or program.get() is None:
        return None
    head = struct.pack("4q", 0, 1, rows, columns)

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = (*inputs, *outputs)
        compiled = program.compiled
        assert compiled is not None
        team.run(compiled, head + struct.pack(f"{len(arrays)}q", *map(id, arrays)), 1, arrays)

    return form


@cache
def _program(write: Callable[[Real, frozenset[str]], str], dtype: Any) -> Program | None:
    real = real_of(dtype)
    return None if real is None else Program(lambda features: write(real, features))


def _column_sums(real: Real, features: frozenset[str]) -> str:
    code = Code(real, features)
    rows, columns, x, out = code.word(), code.word(), code.array(), code.array()
    with code.tasks():

        def add_up(index: Any, mask: Any) -> None:
            total = code.local(code.load(x, index, mask))
            with code.loop(code.index(1), rows) as row:
                term = code.load(x, code.plus(code.times(row, columns), index), mask)
                code.set(total, code.binary("fadd", code.get(total), term))
            code.store(code.get(total), out, index, mask)

        code.strips(code.index(0), columns, add_up)
    return code.finish()


def _outer_product(real: Real, features: frozenset[str]) -> str:
    code = Code(real, features)
    rows, columns, x, y, out = code.word(), code.word(), code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), rows) as row:
        factor, start = code.spread(code.load_one(x, row)), code.times(row, columns)

        def multiply(index: Any, mask: Any) -> None:
            code.store(code.binary("fmul", factor, code.load(y, index, mask)), out, code.plus(start, index), mask)

        code.strips(code.index(0), columns, multiply)
    return code.finish()
