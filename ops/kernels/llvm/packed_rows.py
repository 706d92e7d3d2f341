"""Rows of interleaved tables, dequantized by a compiled loop."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import FLOAT, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import float_type_of
from flowmx.ops.kernels.llvm.packed_product import NUMBERS
from flowmx.ops.kernels.recording import mark_incomplete
from flowmx.ops.quantization.interleaved_weights import GROUP, TILE, layout_of
from flowmx.ops.quantization.packed_dense import PackedEmbedding
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_SHARED = 1 << 16
"""The minimum number of values for which several threads are faster."""


class Kind(NamedTuple):
    """The key of a function.

    Attributes:
        format: the format of the table.
        out: the element type of the output.
        is_short: whether indices are int32, not int64.
    """

    format: str
    out: FloatType
    is_short: bool


class Writer:
    """Generates the LLVM code; its arrays are indices, table and output."""

    def __init__(self, kind: Kind, features: frozenset[str]) -> None:
        self.kind = kind
        self.layout = layout_of(kind.format)
        self.code = code = Code(features=features)
        self.columns, self.last = code.word(), code.word()
        self.indices, self.table = code.array(), code.array(NUMBERS.get(kind.format))
        self.out = code.array(kind.out)

    def write(self) -> str:
        """Return the text: each task is a row."""
        code = self.code
        load = code.load_short_index if self.kind.is_short else code.load_index
        with code.tasks() as task:
            index = code.call("llvm.smax.i64", "i64", load(self.indices, task), code.index(0))
            index = code.least(index, self.last)
            tile, lane = code.divided(index, code.index(TILE)), code.put("i64", f"and {index}, {TILE - 1}")
            target = code.times(task, self.columns)
            (self._copy_numbers if self.layout.is_float else self._dequantize)(tile, lane, target)
        return code.finish()

    def _copy_numbers(self, tile: Value, lane: Value, target: Value) -> None:
        code = self.code
        start = code.plus(code.times(code.times(tile, self.columns), TILE), lane)

        def copy(column: Value, mask: Value | None) -> None:
            place = code.plus(start, code.times(column, TILE))
            values = code.gather(self.table, place, code.index(TILE), mask)
            code.store(values, self.out, code.plus(target, column), mask)

        code.strips(code.index(0), self.columns, copy)

    def _dequantize(self, tile: Value, lane: Value, target: Value) -> None:
        code, layout = self.code, self.layout
        records = code.divided(self.columns, code.index(GROUP * layout.groups))
        start = code.times(code.times(tile, records), layout.record_bytes)
        with code.loop(code.index(0), records) as record:
            head = code.plus(start, code.times(record, layout.record_bytes))
            lanes = code.plus(head, code.times(lane, 2))
            scale = self._number(lanes)
            minimum = self._number(code.plus(lanes, 2 * TILE)) if layout.has_minimums else None
            with code.loop(code.index(0), code.index(layout.groups)) as at:
                group = code.plus(code.plus(head, layout.head), code.times(at, layout.group_bytes))
                column = code.times(code.plus(code.times(record, layout.groups), at), GROUP)
                self._write_group(group, lane, (scale, minimum), code.plus(target, column))

    def _write_group(self, group: Value, lane: Value, head: tuple[Value, Value | None], target: Value) -> None:
        """Write the 32 values of a group."""
        code, layout = self.code, self.layout
        scale, minimum = head
        scales = [scale, scale]
        if layout.has_steps:
            step = [self._step(code.plus(code.plus(group, TILE * part), lane)) for part in range(layout.parts)]
            scales = [code.binary("fmul", scale, step[min(at, layout.parts - 1)]) for at in range(2)]
            if minimum is not None:
                lower = self._step(code.plus(code.plus(group, TILE * layout.parts), lane))
                product = code.binary("fmul", minimum, lower)
                minimum = code.put(code.vector, f"fneg {product}")
        first = code.plus(code.plus(group, layout.steps), code.times(lane, 4))
        for at, codes in enumerate(self._codes(first)):
            value = code.put(code.vector, f"uitofp {codes} to {code.vector}")
            if layout.zero:
                value = code.binary("fsub", value, code.constant(layout.zero))
            value = code.binary("fmul", value, scales[at])
            value = value if minimum is None else code.binary("fadd", value, minimum)
            code.store(value, self.out, code.plus(target, 16 * at))

    def _codes(self, first: Value) -> list[Value]:
        """Return 32 quantized values of a row as two vectors of bytes."""
        code, pieces = self.code, []
        for start in range(0, self.layout.vectors, 4):
            words = Value("<4 x i32>", "poison")
            for at in range(4):
                place = code.at(self.table, code.plus(first, 64 * (start + at)), "i8")
                word = code.put("i32", f"load i32, {place}, align 2")
                words = code.put("<4 x i32>", f"insertelement {words}, {word}, i64 {at}")
            pieces.append(code.put("<16 x i8>", f"bitcast {words} to <16 x i8>"))
        if self.layout.bits == 8:
            return pieces
        lower = code.put("<16 x i8>", f"and {pieces[0]}, splat (i8 15)")
        return [lower, code.put("<16 x i8>", f"lshr {pieces[0]}, splat (i8 4)")]

    def _number(self, place: Value) -> Value:
        """Load a float16 number into every lane."""
        half = self.code.put("half", f"load half, {self.code.at(self.table, place, 'i8')}, align 2")
        return self.code.spread(self.code.put("float", f"fpext {half} to float"))

    def _step(self, place: Value) -> Value:
        """Load the step of a scale or minimum into every lane."""
        code = self.code
        step = code.put("i8", f"load i8, {code.at(self.table, place, 'i8')}, align 1")
        return code.spread(code.put("float", f"{'uitofp' if self.layout.has_minimums else 'sitofp'} {step} to float"))


def _write(kind: Kind, features: frozenset[str]) -> str:
    return Writer(kind, features).write()


@cache
def _program(kind: Kind) -> Program:
    return Program(partial(_write, kind), is_optimized=True)


@lru_cache(maxsize=256)
def _kind(op: PackedEmbedding, index: DType) -> Kind | None:
    """Return the function's key; None if no loop supports these element types."""
    out = float_type_of(op.dtype)
    is_supported = op.format != "F16" or float_type_of(np.dtype(np.float16)) is not None
    if out is None or out.name != FLOAT.name or index not in (np.int32, np.int64) or not is_supported:
        return None
    return Kind(op.format, out, index == np.int32)


def compute(op: PackedEmbedding, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute rows of a table."""
    if not (op.interleaved and _dequantize(op, inputs, outputs)):
        mark_incomplete()
        op.forward(run, inputs, outputs)


def _dequantize(op: PackedEmbedding, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Dequantize rows by a loop; return False, without effect, if it does not support the arrays (yet)."""
    (data, table), out = inputs, outputs[0]
    kind = _kind(op, data.dtype)
    if kind is None or not (data.size and all(each.flags.c_contiguous for each in (data, table, out))):
        return False
    function = _program(kind).get()
    if function is None:
        return False
    words = struct.pack("4q3q", 0, data.size, op.output_dim, op.input_dim - 1, id(data), id(table), id(out))
    team.run(function, words, team.count() if out.size >= _SHARED else 1, [data, table, out])
    return True


kernel("cpu", PackedEmbedding.name, only_native=True)(compute)
