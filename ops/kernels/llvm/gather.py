"""Rows picked by index arrays (Embedding, take along the first axis), their gradients, and one_hot."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from flowmx.ops.arrays.indexing import positions
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import FLOAT, INDEX, Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_MIN_SIZE = 1 << 14
"""Elements of the output below which the plain forward is as fast."""
_TASK = 1 << 14
"""Elements of a task, at least."""
_SHARED = 1 << 16
"""Elements from which several threads pay."""
_AHEAD = 4
"""The number of rows that memory is prefetched ahead."""

_pack = struct.Struct("6q3q").pack
_pack_one_hot = struct.Struct("5q2d2q").pack

_INDEX_TYPES = {np.dtype(np.int64): "i64", np.dtype(np.int32): "i32", np.dtype(np.float32): "float"}
_INT64 = np.dtype(np.int64)


def _suits(*arrays: Array) -> bool:
    return all(array.dtype == FLOAT32 and array.flags.c_contiguous for array in arrays)


def _position(code: Code, indices: Value, at: Value, kind: str, mode: str, rows: Value) -> Value:
    """The row that an index means: outside, the nearest one, or around."""
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
            code.prefetch(table, code.times(_position(code, indices, ahead, kind, mode, rows), length), length)
            start = code.times(_position(code, indices, row, kind, mode, rows), length)
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
            place = code.put(INDEX, f"sub {_position(code, indices, row, kind, mode, rows)}, {first.name}")
            with code.when(code.put("i1", f"icmp ult {place}, {row_count.name}")):
                source, target = code.times(row, length), code.times(code.plus(place, first), length)

                def add(column: Value, mask: Value | None, source: Value = source, target: Value = target) -> None:
                    at = code.plus(target, column)
                    term = code.load(head, code.plus(source, column), mask)
                    code.store(code.binary("fadd", code.load(out, at, mask), term), out, at, mask)

                code.strips(code.index(0), length, add)
    return code.finish()


def _one_hot(features: frozenset[str]) -> str:
    """Rows of one number with another at the index, where that is one."""
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
    """An index array that the functions can read, and how they are to read it."""
    if mode == "raise" or index.dtype not in _INDEX_TYPES:
        index, mode = positions(run.xp, index, rows, mode, name), "clip"
    if index.dtype not in _INDEX_TYPES or not index.flags.c_contiguous:
        index = np.ascontiguousarray(index, _INT64)
    return index, mode


def _take(run: Run, name: str, mode: str, inputs: Sequence[Array], out: Array) -> bool:
    """``out[...] = table[index]`` where the function takes such arrays."""
    table, index = inputs
    rows = len(table)
    width = table.nbytes // max(1, rows)
    alike = table.dtype == out.dtype and table.flags.c_contiguous and out.flags.c_contiguous
    if out.size < _MIN_SIZE or width % 4 or not rows or not alike:
        return False
    index, mode = _readable(run, index, rows, mode, name)
    compiled = _program(_gather, _INDEX_TYPES[index.dtype], mode).get()
    if compiled is None:
        return False
    length = width // 4  # rows of any elements move as so many float32
    share, tasks, threads = _shares(index.size, length)
    arrays = table, index, out
    team.run(compiled, _pack(0, tasks, share, length, rows, index.size, *map(id, arrays)), threads, arrays)
    return True


@kernel("cpu", "take", only_native=True)
def _take_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if op.axis % inputs[0].ndim or not _take(run, "take", op.mode, inputs, outputs[0]):
        op.forward(run, inputs, outputs)


@kernel("cpu", "Embedding", only_native=True)
def _embedding_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not _take(run, "Embedding", "clip", inputs[::-1], outputs[0]):
        op.forward(run, inputs, outputs)


def _add_rows(run: Run, mode: str, head: Array, index: Array, out: Array) -> bool:
    """The sums of a head's rows by index, into ``out``, where the function takes such arrays."""
    rows = len(out)
    if head.size < _MIN_SIZE or not rows or not _suits(head, out):
        return False
    index, mode = _readable(run, index, rows, mode, "take")
    compiled = _program(_scatter, _INDEX_TYPES[index.dtype], mode).get()
    if compiled is None:
        return False
    length = out.size // rows
    # Few tasks, since each reads all indices.
    share = -(-rows // min(rows, 16 if length >= 16 else 4))
    tasks = -(-rows // share)
    words = _pack(0, tasks, share, length, rows, index.size, id(head), id(index), id(out))
    team.run(compiled, words, team.count() if head.size + out.size >= _SHARED else 1)
    return True


@kernel("cpu", "_backward_take")
def _backward_take_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out = outputs[0]
    if op.axis % out.ndim or not _add_rows(run, op.mode, inputs[0], inputs[1], out):
        op.forward(run, inputs, outputs)


@kernel("cpu", "one_hot")
def _one_hot_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    index, out = inputs[0], outputs[0]
    compiled = _one_hot_program.get() if out.size >= _MIN_SIZE and _suits(out) else None
    if compiled is None:
        op.forward(run, inputs, outputs)
        return
    places = np.ascontiguousarray(index, _INT64)
    share, tasks, threads = _shares(places.size, op.depth)
    words = _pack_one_hot(0, tasks, places.size, share, op.depth, op.on_value, op.off_value, id(places), id(out))
    team.run(compiled, words, threads)
