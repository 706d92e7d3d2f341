"""Rows picked by index arrays (Embedding, take along the first axis), their gradients, and one_hot."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.indexing import Embedding, positions
from flowmx.ops.kernels.loops import team
from flowmx.ops.kernels.loops.code import FLOAT, Code, Value
from flowmx.ops.kernels.loops.program import Program
from flowmx.ops.kernels.loops.softmax import suits
from flowmx.ops.registry import Array, Run, kernel

_LEAST = 1 << 14
"""Elements of the output below which the plain forward is as fast."""
_SHARED = 1 << 16
"""Elements from which several threads pay."""

_pack = struct.Struct("5q3q").pack
_pack_one_hot = struct.Struct("5q2d2q").pack


def _copy_row(code: Code, source: Value, start: Value, target: Value, to: Value, length: Value) -> None:
    """Copy one row."""

    def body(column: Value, mask: Value | None) -> None:
        code.store(code.load(source, code.plus(start, column), mask), target, code.plus(to, column), mask)

    code.strips(code.index(0), length, body)


def _gather(features: frozenset[str]) -> str:
    """``out[i] = table[index[i]]``, a task for each share of the output's rows."""
    code = Code(FLOAT, features)
    count, share, length = code.word(), code.word(), code.word()
    table, index, out = code.array(), code.array(), code.array()
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), count)) as row:
            start = code.times(code.load_index(index, row), length)
            _copy_row(code, table, start, out, code.times(row, length), length)
    return code.finish()


def _scatter(features: frozenset[str]) -> str:
    """``out[index[i]] += head[i]`` from zeros, a task for each share of the output's rows.

    Each task goes through all indices in order and adds what is for its rows: sums do not depend on the
    number of threads.
    """
    code = Code(FLOAT, features)
    rows, share, length = code.word(), code.word(), code.word()
    head, index, out = code.array(), code.array(), code.array()
    # The number of indices comes with the first of the rows' words.
    count = code.word()
    with code.tasks() as task:
        first = code.times(task, share)
        last = code.least(code.plus(first, share), rows)

        def clear(place: Value, mask: Value | None) -> None:
            code.store(code.constant(0.0), out, place, mask)

        code.strips(code.times(first, length), code.times(last, length), clear)
        mine = code.put("i64", f"sub {last}, {first.name}")
        with code.loop(code.index(0), count) as row:
            place = code.put("i64", f"sub {code.load_index(index, row)}, {first.name}")
            with code.when(code.put("i1", f"icmp ult {place}, {mine.name}")):
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


_gather_program = Program(_gather)
_scatter_program = Program(_scatter)
_one_hot_program = Program(_one_hot)


def _shares(rows: int, length: int) -> tuple[int, int, int]:
    """Rows of a task, tasks, threads."""
    share = max(1, -(-rows // 64), _LEAST // max(1, length))
    tasks = -(-rows // share)
    return share, tasks, team.count() if tasks > 1 and rows * length >= _SHARED else 1


def gather(table: Array, index: Array, out: Array) -> bool:
    """``out[...] = table[index]`` for positions in range; False where the kernel does not take the arrays."""
    width = math.prod(table.shape[1:]) * table.itemsize
    if out.size < _LEAST or width % 4 or table.dtype != out.dtype or not (_dense(table) and _dense(out)):
        return False
    compiled = _gather_program.get()
    if compiled is None:
        return False
    length = width // 4  # rows of any elements move as so many float32
    share, tasks, threads = _shares(index.size, length)
    team.run(compiled, _pack(0, tasks, index.size, share, length, id(table), id(index), id(out)), threads)
    return True


def _dense(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


def _as_index(found: Array) -> Array:
    return np.ascontiguousarray(found, np.int64)


def _take(op: Any, name: str, run: Run, table: Array, index: Array, out: Array) -> bool:
    if out.size < _LEAST:
        return False
    places = _as_index(positions(run.xp, index, table.shape[0], getattr(op, "mode", "clip"), name))
    return gather(table, places, out)


@kernel("cpu", "take")
def _take_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    table, index = inputs
    if op.axis % table.ndim or not _take(op, "take", run, table, index, outputs[0]):
        op.forward(run, inputs, outputs)


@kernel("cpu", "Embedding")
def _embedding_kernel(op: Embedding, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    index, table = inputs
    if not _take(op, "Embedding", run, table, index, outputs[0]):
        op.forward(run, inputs, outputs)


@kernel("cpu", "_backward_take")
def _backward_take_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    head, index, out = inputs[0], inputs[1], outputs[0]
    compiled = None
    if head.size >= _LEAST and op.axis % out.ndim == 0 and suits(head, out):
        compiled = _scatter_program.get()
    if compiled is None:
        op.forward(run, inputs, outputs)
        return
    rows = len(out)
    length = out.size // max(1, rows)
    places = _as_index(positions(run.xp, index, rows, op.mode, "take"))
    # Few tasks, since each reads all indices.
    tasks = min(rows, 16 if length >= 16 else 4)
    share = -(-rows // tasks)
    tasks = -(-rows // share)
    threads = team.count() if head.size + out.size >= _SHARED else 1
    words = _pack(0, tasks, rows, share, length, id(head), id(places), id(out)) + struct.pack("q", places.size)
    team.run(compiled, words, threads)


@kernel("cpu", "one_hot")
def _one_hot_kernel(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    index, out = inputs[0], outputs[0]
    compiled = _one_hot_program.get() if out.size >= _LEAST and suits(out) else None
    if compiled is None:
        op.forward(run, inputs, outputs)
        return
    places = _as_index(index)
    share, tasks, threads = _shares(places.size, op.depth)
    words = _pack_one_hot(0, tasks, places.size, share, op.depth, op.on_value, op.off_value, id(places), id(out))
    team.run(compiled, words, threads)
