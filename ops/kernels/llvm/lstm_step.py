"""A step of an LSTM: the recurrent product, and all operations after it.

A panel of the recurrent weights has the four gates of 16 units, so that the sums of a panel become new cells and
outputs without leaving the registers. Every second step reads the panels backward: the last panels that the previous
step read are then still in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.llvm.assembly import Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.lowering import lower_side_by_side
from flowmx.ops.kernels.llvm.math_functions import sigmoid, tanh
from flowmx.ops.kernels.llvm.matrix_product import LANES, PANEL, Kind, Part, Target, Writer


class _Writer(Writer):
    """Generates the LLVM code of the function."""

    def read_words(self) -> None:
        code = self.code
        self.is_backward, self.gate_step, self.cell_step = code.word(), code.word(), code.word()
        self.data, self.weights, self.gates = code.address(), code.address(), code.address()
        self.before, self.after, self.out = code.address(), code.address(), code.address()

    def panel_at(self, number: Value, first: Value, last: Value) -> Value:
        code = self.code
        mirrored = code.plus(code.minus(last, number), code.plus(first, -1))
        return code.put("i64", f"select {self._is_backward()}, {mirrored}, {number}")

    def distance_ahead(self, part: Part) -> Value:
        code, forward = self.code, super().distance_ahead(part)
        return code.put("i64", f"select {self._is_backward()}, {code.times(forward, -1)}, {forward}")

    def _is_backward(self) -> Value:
        return self.code.put("i1", f"icmp ne {self.is_backward}, 0")

    def finish(self, rows: Sequence[tuple[Value, list[Value]]], target: Target) -> None:
        """Compute the cells and outputs of 16 units of each row."""
        code = self.code
        unit = code.put("i64", f"udiv {target.column}, {PANEL // LANES}")
        mask = code.first_lanes(code.minus(self.outputs, unit))
        i, f, g, o, cell = names = [placeholder(at) for at in range(5)]
        new = sigmoid(f) * cell + sigmoid(i) * tanh(g)
        places = [code.plus(code.times(row, self.cell_step), unit) for row, _ in rows]
        inputs = []
        for (row, totals), place in zip(rows, places, strict=True):
            start = code.plus(code.times(row, self.gate_step), target.column)
            sums = [
                code.binary("fadd", code.get(total), code.load(self.gates, code.plus(start, at * LANES)))
                for at, total in enumerate(totals)
            ]
            inputs.append(dict(zip(names, [*sums, code.load(self.before, place, mask)], strict=True)))
        # A cell is a long chain of instructions that wait for each other.
        results = lower_side_by_side(code, [new, sigmoid(o) * tanh(new)], inputs)
        for (row, _), place, (new_cell, out) in zip(rows, places, results, strict=True):
            code.store(new_cell, self.after, place, mask)
            code.store(out, self.out, code.plus(code.times(row, self.out_step), unit), mask)


def _write(rows: int, lines: int, features: frozenset[str]) -> str:
    return _Writer(Kind(rows, lines, "", False, False), features).write()


@cache
def program(rows: int, lines: int) -> Program:
    """Return the function for blocks of this many rows, which prefetches lines as in :class:`Kind`.

    Its words are those of :mod:`matrix_product`, where the outputs are the units; whether to read the panels backward;
    the elements from row to row of gates and cells; and the addresses of the previous outputs, the weights, the input
    part of the gates, the previous cells, the cells and the outputs.
    """
    return Program(partial(_write, rows, lines), is_optimized=True)
