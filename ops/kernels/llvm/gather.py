"""Rows picked by index arrays (Embedding, take along the first axis), their gradients, and one_hot."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.arrays.indexing import positions
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import FLOAT, INDEX, Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import Bind, kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run

if TYPE_CHECKING:
    from flowmx.ops.arrays.indexing import Embedding, OneHot, Take

_MIN_SIZE = 1 << 14
"""Elements of the output below which the plain forward is as fast."""
_MIN_ROWS_SIZE = 1 << 9
"""The same for rows picked by an index, and their gradient."""
_TASK = 1 << 14
"""The minimum number of elements of a task."""
_SHARED = 1 << 16
"""The minimum number of elements for which several threads are faster."""
_AHEAD = 4
"""The number of rows that memory is prefetched ahead."""

_pack = struct.Struct("6q3q").pack
_pack_head, _pack_places = struct.Struct("6q").pack, struct.Struct("3q").pack
_pack_one_hot = struct.Struct("5q2d2q").pack

INDEX_TYPES = {np.dtype(np.int64): "i64", np.dtype(np.int32): "i32", np.dtype(np.float32): "float"}
"""LLVM's names of the types of index arrays."""
_INT64 = np.dtype(np.int64)


def _suits(*arrays: Array) -> bool:
    return all(array.dtype == FLOAT32 and array.flags.c_contiguous for array in arrays)


def position(code: Code, indices: Value, at: Value, kind: str, mode: str, rows: Value) -> Value:
    """Return the row for an index; an index out of range is clipped, or with ``mode`` wrap taken modulo the rows."""
    place = code.at(indices, at, kind)
    index = code.put(kind, f"load {kind}, {place}")
    if kind == "float":
        index = code.call("llvm.fptosi.sat.i64.f32", INDEX, index)
    elif kind != INDEX:
        index = code.put(INDEX, f"sext {index} to {INDEX}")
    if mode == "wrap":
        left = code.put(INDEX, f"srem {index}, {rows.name}")
        negative = code.put("i1", f"icmp slt {left}, 0")
        return code.choose(negative, code.plus(left, rows), left)
    last = code.plus(rows, -1)
    return code.call("llvm.smax.i64", INDEX, code.least(index, last), code.index(0))


def _copy_row(code: Code, source: Value, start: Value, target: Value, to: Value, length: Value) -> None:
    """Copy one row."""

    def body(column: Value, mask: Value | None) -> None:
        code.store(code.load(source, code.plus(start, column), mask), target, code.plus(to, column), mask)

    code.strips(code.index(0), length, body)


def _gather(kind: str, mode: str, features: frozenset[str]) -> str:
    """``out[i] = table[index[i]]``, a task for each share of the output's rows."""
    code = Code(FLOAT, features)
    share, length, rows, count = (code.word() for _ in range(4))
    table, indices, out = code.array(), code.array(), code.array()
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), count)) as row:
            ahead = code.least(code.plus(row, _AHEAD), code.plus(count, -1))
            code.prefetch(table, code.times(position(code, indices, ahead, kind, mode, rows), length), length)
            start = code.times(position(code, indices, row, kind, mode, rows), length)
            _copy_row(code, table, start, out, code.times(row, length), length)
    return code.finish()


def _scatter(kind: str, mode: str, features: frozenset[str]) -> str:
    """``out[index[i]] += head[i]`` from zeros, a task for each share of the output's rows.

    Each task goes through all indices in order and adds what is for its rows: sums do not depend on the
    number of threads.
    """
    code = Code(FLOAT, features)
    share, length, rows, count = (code.word() for _ in range(4))
    head, indices, out = code.array(), code.array(), code.array()
    with code.tasks() as task:
        first = code.times(task, share)
        last = code.least(code.plus(first, share), rows)

        def clear(place: Value, mask: Value | None) -> None:
            code.store(code.constant(0.0), out, place, mask)

        code.strips(code.times(first, length), code.times(last, length), clear)
        row_count = code.put(INDEX, f"sub {last}, {first.name}")
        with code.loop(code.index(0), count) as row:
            place = code.put(INDEX, f"sub {position(code, indices, row, kind, mode, rows)}, {first.name}")
            with code.when(code.put("i1", f"icmp ult {place}, {row_count.name}")):
                source, target = code.times(row, length), code.times(code.plus(place, first), length)

                def add(column: Value, mask: Value | None, source: Value = source, target: Value = target) -> None:
                    at = code.plus(target, column)
                    term = code.load(head, code.plus(source, column), mask)
                    code.store(code.binary("fadd", code.load(out, at, mask), term), out, at, mask)

                code.strips(code.index(0), length, add)
    return code.finish()


def _one_hot(features: frozenset[str]) -> str:
    """Rows of one number, with another number at the index if that is in range."""
    code = Code(FLOAT, features)
    count, share, length = code.word(), code.word(), code.word()
    on, off = code.number(), code.number()
    index, out = code.array(), code.array()
    with code.tasks() as task:
        first = code.times(task, share)
        last = code.least(code.plus(first, share), count)

        def fill(place: Value, mask: Value | None) -> None:
            code.store(off, out, place, mask)

        code.strips(code.times(first, length), code.times(last, length), fill)
        with code.loop(first, last) as row:
            place = code.load_index(index, row)
            with code.when(code.put("i1", f"icmp ult {place}, {length.name}")):
                code.store_one(code.first(on), out, code.plus(code.times(row, length), place))
    return code.finish()


@lru_cache
def _program(write: Callable[[str, str, frozenset[str]], str], kind: str, mode: str) -> Program:
    return Program(partial(write, kind, mode))


_one_hot_program = Program(_one_hot)


def _shares(rows: int, length: int) -> tuple[int, int, int]:
    """Rows of a task, tasks, threads."""
    share = max(1, -(-rows // 64), _TASK // max(1, length))
    tasks = -(-rows // share)
    return share, tasks, team.count() if tasks > 1 and rows * length >= _SHARED else 1


def _readable(run: Run, index: Array, rows: int, mode: str, name: str) -> tuple[Array, str]:
    """Return an index array in a form that the functions read, and the mode for indices out of range."""
    if mode == "raise" or index.dtype not in INDEX_TYPES:
        index, mode = positions(run.xp, index, rows, mode, name), "clip"
    if index.dtype not in INDEX_TYPES or not index.flags.c_contiguous:
        index = np.ascontiguousarray(index, _INT64)
    return index, mode


def _take(run: Run, name: str, mode: str, inputs: Sequence[Array], out: Array) -> bool:
    """Compute ``out[...] = table[index]``; return False if no function supports the arrays (yet)."""
    table, index = inputs
    rows = len(table)
    width = table.nbytes // max(1, rows)
    alike = table.dtype == out.dtype and table.flags.c_contiguous and out.flags.c_contiguous
    if out.size < _MIN_ROWS_SIZE or width % 4 or not rows or not alike:
        return False
    index, mode = _readable(run, index, rows, mode, name)
    compiled = _program(_gather, INDEX_TYPES[index.dtype], mode).get()
    if compiled is None:
        return False
    length = width // 4  # rows of any elements move as so many float32
    share, tasks, threads = _shares(index.size, length)
    arrays = table, index, out
    team.run(compiled, _pack(0, tasks, share, length, rows, index.size, *map(id, arrays)), threads, arrays)
    return True


def _bind(
    write: Callable[[str, str, frozenset[str]], str], op: Any, mode: str, table: Form, index: Form, moved: Form,
    shares: tuple[int, int, int], order: Callable[[Sequence[Array], Sequence[Array]], tuple[Array, ...]],
) -> Bound | None:  # fmt: skip
    """Bind a function on rows to arrays of these forms; None if several threads are worthwhile, or nothing fits.

    Args:
        write: writes the function.
        op: the operator.
        mode: how to read indices out of range.
        table: the array with all rows.
        index: the index array.
        moved: the array with a row for each index.
        shares: the result of :func:`_shares`.
        order: called with inputs and outputs; returns the arrays in the order of the function.
    """
    share, tasks, threads = shares
    kind = INDEX_TYPES.get(index[1])
    if mode == "raise" or kind is None or threads > 1 or math.prod(moved[0]) < _MIN_ROWS_SIZE:
        return None
    program: Any = _program(write, kind, mode)  # its function is replaced by an optimized one
    if program.get() is None:
        return None
    rows = table[0][0]
    length = math.prod(table[0][1:]) * table[1].itemsize // 4
    head = _pack_head(0, tasks, share, length, rows, math.prod(index[0]))
    plain = op.forward

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = order(inputs, outputs)
        for each in arrays:
            if not each.flags.c_contiguous:
                plain(run, inputs, outputs)
                return
        team.run(program.compiled, head + _pack_places(*map(id, arrays)), 1, arrays)

    return bound


def _bind_take(table_at: int) -> Bind:
    """Return the ``bind`` of an operator with the table at this position among the inputs."""

    def bind(op: Any, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        table, index, out = in_forms[table_at], in_forms[1 - table_at], out_forms[0]
        width = math.prod(table[0][1:]) * table[1].itemsize
        if not table[0] or not table[0][0] or table[1] != out[1] or width % 4 or getattr(op, "axis", 0) % len(table[0]):
            return None
        shares = _shares(math.prod(index[0]), width // 4)

        def order(inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
            return inputs[table_at], inputs[1 - table_at], outputs[0]

        return _bind(_gather, op, getattr(op, "mode", "clip"), table, index, out, shares, order)

    return bind


def _bind_backward_take(op: Take, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    head, index, out = in_forms[0], in_forms[1], out_forms[0]
    if not out[0] or not out[0][0] or op.axis % len(out[0]) or not head[1] == out[1] == FLOAT32:
        return None
    shares = _sum_shares(out[0][0], math.prod(out[0][1:]), math.prod(head[0]))

    def order(inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Array, ...]:
        return inputs[0], inputs[1], outputs[0]

    return _bind(_scatter, op, op.mode, out, index, head, shares, order)


@kernel("cpu", "take", bind=_bind_take(0), only_native=True)
def _take_kernel(op: Take, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if op.axis % inputs[0].ndim or not _take(run, "take", op.mode, inputs, outputs[0]):
        op.forward(run, inputs, outputs)


@kernel("cpu", "Embedding", bind=_bind_take(1), only_native=True)
def _embedding_kernel(op: Embedding, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not _take(run, "Embedding", "clip", inputs[::-1], outputs[0]):
        op.forward(run, inputs, outputs)


def _sum_shares(rows: int, length: int, size: int) -> tuple[int, int, int]:
    """Return rows of a task, tasks and threads for the sums of ``size`` elements; few tasks: each reads all indices."""
    share = -(-rows // min(rows, 16 if length >= 16 else 4))
    threads = team.count() if size + rows * length >= _SHARED else 1
    return share if threads > 1 else rows, -(-rows // share) if threads > 1 else 1, threads


def _add_rows(run: Run, mode: str, head: Array, index: Array, out: Array) -> bool:
    """Sum the rows of a head gradient by index, into ``out``; return False if no function supports the arrays (yet)."""
    rows = len(out)
    if head.size < _MIN_ROWS_SIZE or not rows or not _suits(head, out):
        return False
    index, mode = _readable(run, index, rows, mode, "take")
    compiled = _program(_scatter, INDEX_TYPES[index.dtype], mode).get()
    if compiled is None:
        return False
    length = out.size // rows
    share, tasks, threads = _sum_shares(rows, length, head.size)
    arrays = head, index, out
    team.run(compiled, _pack(0, tasks, share, length, rows, index.size, *map(id, arrays)), threads, arrays)
    return True


@kernel("cpu", "_backward_take", bind=_bind_backward_take, only_native=True)
def _backward_take_kernel(op: Take, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out = outputs[0]
    if op.axis % out.ndim or not _add_rows(run, op.mode, inputs[0], inputs[1], out):
        op.forward(run, inputs, outputs)


@kernel("cpu", "one_hot")
def _one_hot_kernel(op: OneHot, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    index, out = inputs[0], outputs[0]
    compiled = _one_hot_program.get() if out.size >= _MIN_SIZE and _suits(out) else None
    if compiled is None:
        op.forward(run, inputs, outputs)
        return
    places = np.ascontiguousarray(index, _INT64)
    share, tasks, threads = _shares(places.size, op.depth)
    words = _pack_one_hot(0, tasks, places.size, share, op.depth, op.on_value, op.off_value, id(places), id(out))
    team.run(compiled, words, threads)
