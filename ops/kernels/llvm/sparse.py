"""Products of a csr matrix or its transpose with dense rows: one pass over the stored elements, on all cores."""

from __future__ import annotations

import struct
from functools import lru_cache, partial

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import DOUBLE, FLOAT, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array

_MIN_SIZE = 1 << 12
"""The fallback is as fast below this number of products."""
_SHARED = 1 << 16
"""The minimum number of products for which several threads are faster."""
_FLOAT_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE}

_PARTS = 4
"""The number of shares of a matrix with separate results, which are then added up, if it has that many times more
elements than the result."""
_COLUMNS = 16
"""The number of columns of a task is a multiple of this: the columns in a cache line."""

_pack = struct.Struct("6q5q").pack


def _scalar(code: Code, name: str, a: Value, b: Value) -> Value:
    return code.put(a.type, f"{name} {a}, {b.name}")


def _sum_of_row(
    code: Code, data: Value, indices: Value, b: Value, out: Value, row: Value, begin: Value, end: Value
) -> None:
    """Compute a result of one column."""
    total = code.local(code.first(code.constant(0.0)))
    with code.loop(begin, end) as e:
        term = _scalar(code, "fmul", code.load_one(data, e), code.load_one(b, code.load_index(indices, e)))
        code.set(total, _scalar(code, "fadd", code.get(total), term))
    code.store_one(code.get(total), out, row)


def _rows_of_row(
    code: Code, data: Value, indices: Value, b: Value, out: Value, row: Value, begin: Value, end: Value, length: Value
) -> None:
    """Compute one row of the result, a vector of it at a time."""

    def sum_up(column: Value, mask: Value | None) -> None:
        total = code.local(code.constant(0.0))
        with code.loop(begin, end) as e:
            place = code.plus(code.times(code.load_index(indices, e), length), column)
            term = code.binary("fmul", code.spread(code.load_one(data, e)), code.load(b, place, mask))
            code.set(total, code.binary("fadd", code.get(total), term))
        code.store(code.get(total), out, code.plus(code.times(row, length), column), mask)

    code.strips(code.index(0), length, sum_up)


def _add_row(
    code: Code, factor: Value, source: Value, b: Value, target: Value, out: Value, begin: Value, end: Value
) -> None:
    """Add a multiple of a row's columns from ``begin`` to ``end`` to those of a row of the result."""

    def add(column: Value, mask: Value | None) -> None:
        at = code.plus(target, column)
        term = code.binary("fmul", factor, code.load(b, code.plus(source, column), mask))
        code.store(code.binary("fadd", code.load(out, at, mask), term), out, at, mask)

    # The remainder is computed one by one: a masked load would wait for the masked store before it.
    lanes = code.index(code.lanes)
    whole = code.plus(begin, code.times(code.divided(code.minus(end, begin), lanes), lanes))
    code.strips(begin, whole, add)
    with code.loop(whole, end) as column:
        at = code.plus(target, column)
        term = _scalar(code, "fmul", code.first(factor), code.load_one(b, code.plus(source, column)))
        code.store_one(_scalar(code, "fadd", code.load_one(out, at), term), out, at)


def _row_products(real: FloatType, single: bool, features: frozenset[str]) -> str:
    """``out[i] = Σ data[e] · b[indices[e]]`` over the elements e of row i, a task for each share of the rows."""
    code = Code(real, features)
    share, length, rows, _ = (code.word() for _ in range(4))
    data, indices, starts, b, out = (code.array() for _ in range(5))
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), rows)) as row:
            begin, end = code.load_index(starts, row), code.load_index(starts, code.plus(row, 1))
            if single:
                _sum_of_row(code, data, indices, b, out, row, begin, end)
            else:
                _rows_of_row(code, data, indices, b, out, row, begin, end, length)
    return code.finish()


def _column_products(real: FloatType, single: bool, is_separate: bool, features: frozenset[str]) -> str:
    """``out[places[e]] += data[e] · b[i]`` over the elements e of all rows i, from zeros.

    A task is either a share of the columns of ``b``, or, with ``is_separate``, a share of the matrix's rows, summed
    into a separate result. In both cases sums do not depend on the number of threads.
    """
    code = Code(real, features)
    share, length, rows, results = (code.word() for _ in range(4))
    data, places, starts, b, out = (code.array() for _ in range(5))
    with code.tasks() as task:
        first = code.times(task, share)
        last = code.least(code.plus(first, share), rows if is_separate else length)
        none = code.index(0)
        columns = (none, length) if is_separate else (first, last)
        base = code.times(task, results)
        with code.loop(first if is_separate else none, last if is_separate else rows) as row:
            begin, end = code.load_index(starts, row), code.load_index(starts, code.plus(row, 1))
            with code.loop(begin, end) as e:
                place = code.load_short_index(places, e)
                place = code.plus(place, base) if is_separate else place
                factor = code.load_one(data, e)
                if single:
                    term = _scalar(code, "fmul", factor, code.load_one(b, row))
                    code.store_one(_scalar(code, "fadd", code.load_one(out, place), term), out, place)
                else:
                    ends = code.times(row, length), b, code.times(place, length), out
                    _add_row(code, code.spread(factor), *ends, *columns)
    return code.finish()


@lru_cache
def _rows_program(dtype: np.dtype[np.generic], single: bool) -> Program:
    return Program(partial(_row_products, _FLOAT_TYPES[dtype], single))


@lru_cache
def _columns_program(dtype: np.dtype[np.generic], single: bool, is_separate: bool) -> Program:
    return Program(partial(_column_products, _FLOAT_TYPES[dtype], single, is_separate))


def _suits(width: int, data: Array, *arrays: Array) -> bool:
    """Return whether the functions support these arrays; the first have the elements' dtype."""
    alike = data.dtype in _FLOAT_TYPES and all(each.dtype == data.dtype for each in arrays)
    return data.size * width >= _MIN_SIZE and alike and all(each.flags.c_contiguous for each in (data, *arrays))


def _whole_numbers(*arrays: Array) -> list[Array]:
    """The arrays as the functions read them."""
    return [np.ascontiguousarray(each, np.int64) for each in arrays]


def _threads(work: int) -> int:
    return team.count() if work >= _SHARED else 1


def product(data: Array, indices: Array, starts: Array, b: Array) -> Array | None:
    """Return the product of a csr matrix with a matrix; None if it is not compiled. All indices must be valid rows."""
    rows, width = len(starts) - 1, b.shape[1]
    compiled = _rows_program(data.dtype, width == 1).get() if _suits(width, data, b) else None
    if compiled is None:
        return None
    indices, starts = _whole_numbers(indices, starts)
    out = np.empty((rows, width), data.dtype)
    threads = _threads(data.size * width)
    share = max(1, -(-rows // (64 * threads)))
    words = _pack(0, -(-rows // share), share, width, rows, rows, *map(id, (data, indices, starts, b, out)))
    team.run(compiled, words, threads)
    return out


def transposed_product(data: Array, places: Array, starts: Array, b: Array, results: int) -> Array | None:
    """Return the product of a transposed csr matrix with a matrix; None if it is not compiled.

    Args:
        data: the stored elements.
        places: the row of the result for each element, int32.
        starts: the start of each row, and the end of the last one, int64.
        b: the matrix.
        results: the number of rows of the result.
    """
    rows, width = len(starts) - 1, b.shape[1]
    is_separate = data.size >= _PARTS * results
    compiled = _columns_program(data.dtype, width == 1, is_separate).get() if _suits(width, data, b) else None
    if compiled is None:
        return None
    (starts,) = _whole_numbers(starts)
    out = np.zeros((_PARTS if is_separate else 1, results, width), data.dtype)
    threads = _threads(data.size * width)
    if is_separate:
        whole, share = rows, max(1, -(-rows // _PARTS))
    else:
        whole, share = width, max(_COLUMNS, -(-width // (threads * _COLUMNS)) * _COLUMNS)
    arrays = (data, places, starts, b, out)
    team.run(compiled, _pack(0, -(-whole // share), share, width, rows, results, *map(id, arrays)), threads)
    product: Array = out.sum(axis=0) if is_separate else out[0]
    return product
