"""Native forms of computations on small arrays, which NumPy computes otherwise.

A NumPy call takes a microsecond or more, and cannot be recorded. Each form here is bit-identical to the NumPy call: its
operations are rounded as NumPy rounds them, and sums have NumPy's order. Native runs record these forms where
the usual computation makes no native call, and compare both once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.formulas.expressions import primitives
from flowmx.ops.kernels import blas
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, float_type_of
from flowmx.ops.kernels.recording import NativeCall, Recording, current, recording_to, use_memory
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Form, Operator

if TYPE_CHECKING:
    from flowmx.ops.nn.linear import FullyConnected

NativeForm = Callable[[Sequence[Array], Sequence[Array]], None]
"""Computes outputs from inputs, all in C order, in native calls only."""

_ROUNDED_ONCE = frozenset({
    "input", "number", "parameter", "add", "sub", "mul", "div", "neg", "sqrt", "abs", "lt", "le", "gt", "ge", "eq",
    "ne", "and", "or", "select",
})  # fmt: skip
"""Primitives whose results are bit-identical in NumPy and in a loop."""
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def native_form(op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> NativeForm | None:
    """Return the native form of an operator that NumPy computes for arrays of these shapes and dtypes, or None."""
    dtype = out_forms[0][1]
    if dtype not in _DTYPES or any(0 in shape or each != dtype for shape, each in (*in_forms, *out_forms)):
        return None
    if op.name == "SliceChannel":
        return _parts(op, in_forms, out_forms)
    if len(out_forms) != 1:
        return None
    find = _BY_NAME.get(op.name)
    form = None if find is None else find(op, in_forms, out_forms[0])
    return _formula(op, in_forms, out_forms[0]) if form is None else form


def _formula(op: Operator, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return an elementwise formula of arrays of the same shape."""
    if any(form != out_form for form in in_forms):
        return None
    return _elementwise(op, out_form, len(in_forms), _ROUNDED_ONCE)


def record_form(
    form: NativeForm, inputs: Sequence[Array], outputs: Sequence[Array], expected: Sequence[Array],
    recording: Recording,
) -> Sequence[NativeCall]:  # fmt: skip
    """Record a form; return its native calls, or nothing if its results differ from the expected ones.

    The outputs are the expected ones in both cases.
    """
    with recording_to(recording):
        form(inputs, outputs)
    if all(one.tobytes() == other.tobytes() for one, other in zip(outputs, expected, strict=True)):
        return recording.calls if recording.is_complete else ()
    for one, other in zip(outputs, expected, strict=True):
        one[...] = other
    return ()


def _elementwise(
    op: Operator, form: Form, count: int, allowed: frozenset[str] | None = None
) -> NativeForm | None:  # fmt: skip
    """Return the loop of an operator on ``count`` arrays of a form, if its formula has only the allowed primitives."""
    fused = FUSED.get(op.name)
    if fused is None or fused.updates:
        return None
    loop = fused.loop(op, form[1], count)
    if loop is None or len(loop.outputs) != 1 or not (allowed is None or primitives(loop.outputs) <= allowed):
        return None
    call = loop.bind(math.prod(form[0]), loop.values(op))
    return None if call is None else lambda inputs, outputs: call(*inputs, *outputs)


def _fully_connected(op: FullyConnected, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return FullyConnected, a product of two matrices and a sum."""
    (data, dtype), (weight, _) = in_forms[:2]
    if dtype != FLOAT32 or len(data) != 2:
        return None
    (rows, terms), units = data, weight[0]
    swapped = rows == 1
    multiply = (
        blas.column_product(units if swapped else rows, terms)
        if min(rows, units) == 1
        else blas.product(rows, units, terms, transpose_b=True)
    )
    add = None if op.no_bias else _loop(_added_row, dtype, rows, units)
    if multiply is None or (add is None and not op.no_bias):
        return None

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a, b = inputs[:2]
        multiply(*((b, a) if swapped else (a, b)), outputs[0])
        if add is not None:
            add(inputs[2:], outputs)

    return form


def _dense(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return a product with an activation."""
    product, activation = op.parts
    connect, activate = _fully_connected(product, in_forms, out_form), _elementwise(activation, out_form, 1)
    if connect is None or activate is None:
        return None

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        connect(inputs, outputs)
        activate(outputs, outputs)

    return form


def _data_gradient(op: Operator, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return FullyConnected's gradient of the data, a product of two matrices."""
    (head, dtype), (weight, _) = in_forms[:2]
    if dtype != FLOAT32 or not len(head) == len(out_form[0]) == 2:
        return None
    if head[1] == 1:
        return _loop(_single_products, dtype, head[0], weight[1])
    if head[0] == 1:
        multiply_row = blas.row_product(weight[1], head[1])
        return None if multiply_row is None else lambda inputs, outputs: multiply_row(inputs[1], inputs[0], outputs[0])
    multiply = blas.product(head[0], weight[1], head[1], False)
    return None if multiply is None else lambda inputs, outputs: multiply(inputs[0], inputs[1], outputs[0])


def _weight_gradient(op: Operator, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return FullyConnected's gradient of the weight, a product of two matrices, or of two vectors."""
    (head, dtype), (data, _) = in_forms[:2]
    if not len(head) == len(data) == 2:
        return None
    if head[0] == 1:
        return _loop(_outer_product, dtype, head[1], data[1])
    if dtype != FLOAT32:
        return None
    if head[1] == 1:
        multiply_row = blas.row_product(data[1], head[0])
        return None if multiply_row is None else lambda inputs, outputs: multiply_row(inputs[1], inputs[0], outputs[0])
    multiply = blas.product(head[1], data[1], head[0], True)
    return None if multiply is None else lambda inputs, outputs: multiply(inputs[0], inputs[1], outputs[0])


def _bias_gradient(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return the sums of the columns of a matrix, each added up from the first row to the last."""
    shape, dtype = in_forms[0]
    is_last = op.axis in (-1, len(shape) - 1)
    if not is_last or len(shape) < 2:
        return None
    if shape[-1] == 1:
        count = math.prod(shape)
        return _loop(_sum_in_pairs, dtype, count, 1) if _LANES <= count <= _MAX_BLOCK else None
    return _loop(_column_sums, dtype, math.prod(shape[:-1]), shape[-1])


def _copy(op: Operator, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return a copy of the first input."""
    if in_forms[0][1] != out_form[1] or math.prod(in_forms[0][0]) != math.prod(out_form[0]):
        return None

    return lambda inputs, outputs: _copy_bytes(outputs[0], inputs[0])


def _spread(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return the gradient of a sum or mean over the last axes: each number of the head fills a row."""
    (shape, dtype), head = out_form, math.prod(in_forms[0][0])
    axes = sorted(op.axes(len(shape)))
    if not axes or axes != [*range(axes[0], len(shape))] or head != math.prod(shape[: axes[0]]):
        return None
    columns = math.prod(shape[axes[0] :])
    return _loop(_filled_rows, dtype, head, columns, numbers=(columns if op.name == "_backward_mean" else 1,))


def _embed(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return zeros with a part in C order replaced by the input."""
    (shape, dtype), size = out_form, 1
    for length, stride in zip(op.shape[::-1], op.strides[::-1], strict=True):
        if length > 1 and stride != size:
            return None
        size *= length
    first, whole, zeros = op.offset, math.prod(shape), np.zeros(shape, dtype)
    if math.prod(in_forms[0][0]) != size or not 0 <= first <= whole - size:
        return None

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0].reshape(-1)
        _copy_bytes(out, use_memory(zeros))
        _copy_bytes(out[first : first + size], inputs[0])

    return form


def _outer_products(op: Any, in_forms: Sequence[Form], out_form: Form) -> NativeForm | None:
    """Return a batch of products of a column and a row."""
    (x, dtype), (y, _) = in_forms[:2]
    if len(x) != 3 or x[1 if op.transpose_a else 2] != 1 or y[2 if op.transpose_b else 1] != 1:
        return None
    return _loop(_batched_products, dtype, x[0], x[1] * x[2], y[1] * y[2])


def _parts(op: Any, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> NativeForm | None:
    """Return the parts of an array along its first axis that is longer than 1."""
    shape = in_forms[0][0]
    if math.prod(shape[: op.axis % len(shape)]) != 1:
        return None

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat, start = inputs[0].reshape(-1), 0
        for out in outputs:
            _copy_bytes(out, flat[start : start + out.size])
            start += out.size

    return form


def _copy_bytes(target: Array, source: Array) -> None:
    """Copy all elements between arrays in C order, and record the copy."""
    recording = current()
    if recording is not None:
        recording.add_bytes(target, source)
    target.reshape(-1)[:] = source.reshape(-1)


_BY_NAME: dict[str, Callable[[Any, Sequence[Form], Form], NativeForm | None]] = {
    "FullyConnected": _fully_connected,
    "_dense": _dense,
    "_backward_FullyConnected_data": _data_gradient,
    "_backward_FullyConnected_weight": _weight_gradient,
    "_backward_bias": _bias_gradient,
    "_backward_mean": _spread,
    "_backward_sum": _spread,
    "_embedded_part": _embed,
    "batch_dot": _outer_products,
    "reshape_like": _copy,
}


def _loop(
    write: Callable[[FloatType, frozenset[str]], str], dtype: DType, *counts: int, numbers: tuple[float, ...] = ()
) -> NativeForm | None:  # fmt: skip
    """Return a loop with these counts (rows and columns) over arrays; None if it is not compiled (yet)."""
    program = _program(write, dtype)
    if program is None or program.get() is None:
        return None
    head = struct.pack(f"{2 + len(counts)}q{len(numbers)}d", 0, 1, *counts, *numbers)
    count = _INPUTS.get(write, 1)

    def form(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = (*inputs[:count], *outputs)
        compiled = program.compiled
        assert compiled is not None
        team.run(compiled, head + struct.pack(f"{len(arrays)}q", *map(id, arrays)), 1, arrays)

    return form


@cache
def _program(write: Callable[[FloatType, frozenset[str]], str], dtype: DType) -> Program | None:
    real = float_type_of(dtype)
    return None if real is None else Program(lambda features: write(real, features))


def _column_sums(real: FloatType, features: frozenset[str]) -> str:
    code = Code(real, features)
    rows, columns, x, out = code.word(), code.word(), code.array(), code.array()
    with code.tasks():

        def add_up(index: Value, mask: Value | None) -> None:
            total = code.local(code.load(x, index, mask))
            with code.loop(code.index(1), rows) as row:
                term = code.load(x, code.plus(code.times(row, columns), index), mask)
                code.set(total, code.binary("fadd", code.get(total), term))
            code.store(code.get(total), out, index, mask)

        code.strips(code.index(0), columns, add_up)
    return code.finish()


def _outer_product(real: FloatType, features: frozenset[str]) -> str:
    code = Code(real, features)
    rows, columns, x, y, out = code.word(), code.word(), code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), rows) as row:
        factor, start = code.spread(code.load_one(x, row)), code.times(row, columns)

        def multiply(index: Value, mask: Value | None) -> None:
            code.store(code.binary("fmul", factor, code.load(y, index, mask)), out, code.plus(start, index), mask)

        code.strips(code.index(0), columns, multiply)
    return code.finish()


def _single_products(real: FloatType, features: frozenset[str]) -> str:
    """A product of matrices with one term, which NumPy adds to 0."""
    code = Code(real, features)
    rows, columns, x, y, out = code.word(), code.word(), code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), rows) as row:
        factor, start = code.spread(code.load_one(x, row)), code.times(row, columns)

        def multiply(index: Value, mask: Value | None) -> None:
            term = code.binary("fmul", factor, code.load(y, index, mask))
            code.store(code.binary("fadd", code.constant(0.0), term), out, code.plus(start, index), mask)

        code.strips(code.index(0), columns, multiply)
    return code.finish()


def _batched_products(real: FloatType, features: frozenset[str]) -> str:
    """Products of matrices with one term, for each item of a batch."""
    code = Code(real, features)
    batch, rows, columns = code.word(), code.word(), code.word()
    x, y, out = code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), batch) as item, code.loop(code.index(0), rows) as row:
        number = code.plus(code.times(item, rows), row)
        factor = code.spread(code.load_one(x, number))
        start, first = code.times(number, columns), code.times(item, columns)

        def multiply(index: Value, mask: Value | None) -> None:
            term = code.binary("fmul", factor, code.load(y, code.plus(first, index), mask))
            code.store(code.binary("fadd", code.constant(0.0), term), out, code.plus(start, index), mask)

        code.strips(code.index(0), columns, multiply)
    return code.finish()


def _filled_rows(real: FloatType, features: frozenset[str]) -> str:
    """Fill each row with a number divided by a constant."""
    code = Code(real, features)
    rows, columns, divisor, x, out = code.word(), code.word(), code.number(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), rows) as row:
        number = code.binary("fdiv", code.spread(code.load_one(x, row)), divisor)
        start = code.times(row, columns)

        def fill(index: Value, mask: Value | None) -> None:
            code.store(number, out, code.plus(start, index), mask)

        code.strips(code.index(0), columns, fill)
    return code.finish()


def _added_row(real: FloatType, features: frozenset[str]) -> str:
    """Add a row to each row of a matrix."""
    code = Code(real, features)
    rows, columns, x, out = code.word(), code.word(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), rows) as row:
        start = code.times(row, columns)

        def add(index: Value, mask: Value | None) -> None:
            place = code.plus(start, index)
            total = code.binary("fadd", code.load(out, place, mask), code.load(x, index, mask))
            code.store(total, out, place, mask)

        code.strips(code.index(0), columns, add)
    return code.finish()


_LANES, _MAX_BLOCK = 8, 128
"""NumPy adds up to 128 numbers with eight partial sums, and more in blocks."""


def _sum_in_pairs(real: FloatType, features: frozenset[str]) -> str:
    """The sum of 8 to 128 numbers, in NumPy's order."""
    code = Code(real, features)
    count, _, x, out = code.word(), code.word(), code.array(), code.array()
    with code.tasks():
        sums = [code.local(code.load_one(x, code.index(lane))) for lane in range(_LANES)]
        whole = code.times(code.divided(count, code.index(_LANES)), _LANES)
        with code.loop(code.index(_LANES), whole, _LANES) as first:
            for lane, total in enumerate(sums):
                code.set(total, code.binary("fadd", code.get(total), code.load_one(x, code.plus(first, lane))))
        values = [code.get(total) for total in sums]
        while len(values) > 1:
            values = [code.binary("fadd", *pair) for pair in zip(values[::2], values[1::2], strict=True)]
        result = code.local(values[0])
        with code.loop(whole, count) as index:
            code.set(result, code.binary("fadd", code.get(result), code.load_one(x, index)))
        code.store_one(code.get(result), out, code.index(0))
    return code.finish()


_INPUTS: dict[object, int] = {_outer_product: 2, _single_products: 2, _batched_products: 2}
"""The number of inputs that a loop reads, if it is not one."""
