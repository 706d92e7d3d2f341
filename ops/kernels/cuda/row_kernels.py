"""Kernels for formulas with sums and maxima over rows: division of rows among threads, and the launch.

A part of a warp processes a short row, so a block processes several; a block processes a longer row. The threads keep
rows in registers. Longer rows are read again in each pass, by a block of maximum size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.devices.cuda.memory import address_of
from flowmx.ops.formulas.expressions import evaluate
from flowmx.ops.kernels.cuda.row_source import Form, Row, RowSource
from flowmx.ops.kernels.cuda.source_kernels import THREADS, Program
from flowmx.ops.kernels.llvm.row_loops import Formula, Kind
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["Row", "Rows"]

_WARP = 32
_BYTES = 16
"""The maximum number of bytes that a thread reads or writes at once."""
_HELD = 32
"""The maximum number of elements of an array that a thread keeps in registers."""
_MAX_LANES = 1024
"""Threads for a row that is not kept in registers: many, so that few rows share the caches."""
_MAX_BLOCKS = 1 << 20
_LONGEST = 1 << 30


class Rows(RowSource):
    """A formula over rows, for arrays of given element types, compiled for each length of rows on first use.

    Args:
        kind: the arrays, in this order: full, columns, singles; outputs, results. Further values of the formula are
            not computed.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs and results.
        dtypes: the dtypes of all arrays.
    """

    def __init__(self, kind: Kind, formula: Formula, dtypes: Sequence[DType]) -> None:
        super().__init__(kind, formula, dtypes)
        row_arrays = [*range(self._singles), *range(self._outputs, self._results)]
        self._sizes: dict[int, int] = {index: dtypes[index].itemsize for index in row_arrays}
        self._programs: dict[Form, Program] = {}

    def run(self, xp: Any, p: object, length: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Launch the kernel on rows of this length; return False, without effect, if the fallback must run.

        Args:
            xp: cupy.
            p: an object with the parameters of the formula.
            length: the elements of a row.
            inputs: the inputs in the order of the kind; those not in C order are copied. A single of one element
                applies to all rows.
            outputs: the outputs in the order of the kind, in C order.
        """
        is_supported = 0 < length < _LONGEST and outputs[0].size and all(each.flags.c_contiguous for each in outputs)
        if not (is_supported and self.is_exact):
            return False
        arrays = [*map(xp.ascontiguousarray, inputs), *outputs]
        addresses = [address_of(each) for each in arrays]
        form = _form(length, self._width(length, addresses))
        count = outputs[0].size // length
        steps = [int(each.size > 1) for each in arrays[self._singles : self._outputs]]
        words = (count, length, length // form.width, *addresses, *steps, *self._numbers(p, length))
        blocks = min(-(-count // form.teams), _MAX_BLOCKS)
        return self._program(form).launch(xp, blocks, words, form.threads)

    def _numbers(self, p: object, length: int) -> list[float]:
        return [evaluate(each, lambda name: length if name == "length" else getattr(p, name)) for each in self.uniforms]

    def _width(self, length: int, addresses: Sequence[int]) -> int:
        """Return the elements per access: length and all addresses are multiples of it."""
        width = _BYTES // max(self._sizes.values())
        while width > 1 and (
            length % width or any(addresses[index] % (width * size) for index, size in self._sizes.items())
        ):
            width //= 2
        return width

    def _program(self, form: Form) -> Program:
        program = self._programs.get(form)
        if program is None:
            program = self._programs.setdefault(form, self.write(form))
        return program


def _form(length: int, width: int) -> Form:
    """Return the division of rows of this length among threads."""
    units = length // width
    if units <= _WARP:
        return Form(_power_of_two(units), 1, width)
    for lanes in (_WARP, THREADS):
        held_units = _power_of_two(-(-units // lanes))
        if held_units * width <= _HELD:
            return Form(lanes, held_units, width)
    return Form(_MAX_LANES, 0, width)


def _power_of_two(minimum: int) -> int:
    """Return the smallest power of two that is at least ``minimum``."""
    return 1 << (minimum - 1).bit_length()
