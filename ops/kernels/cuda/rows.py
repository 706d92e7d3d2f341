"""Formulas that look at sums and maxima of their row, as kernels: which threads take a row, and the launch.

Short rows are taken by a part of a warp each, so that a block takes several; longer ones by a block; the threads keep
them in registers. Rows too long for that are read again in each pass, by as many threads as a block may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.formulas.expressions import evaluate
from flowmx.ops.kernels.cuda.program import THREADS, Program
from flowmx.ops.kernels.cuda.row_source import Form, Row, RowSource
from flowmx.ops.kernels.llvm.rows import Formula, Kind
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["Row", "Rows"]

_WARP = 32
_BYTES = 16
"""The most bytes that a thread reads or writes at once."""
_HELD = 32
"""Elements of an array that a thread keeps in registers, at most."""
_MOST_LANES = 1024
"""Threads for a row that is not kept: so many that few rows at a time share the caches."""
_MOST_BLOCKS = 1 << 20
_LONGEST = 1 << 30


class Rows(RowSource):
    """A formula over rows, for arrays of given element types, compiled for rows of each length when they come.

    Args:
        kind: the arrays that it takes, in this order: full, columns, singles; outputs, results. What the formula
            gives beyond these is not computed.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs and results.
        dtypes: of all arrays.
    """

    def __init__(self, kind: Kind, formula: Formula, dtypes: Sequence[DType]) -> None:
        super().__init__(kind, formula, dtypes)
        along = [*range(self._singles), *range(self._outputs, self._results)]
        self._sizes: dict[int, int] = {at: dtypes[at].itemsize for at in along}
        self._programs: dict[Form, Program] = {}

    def run(self, xp: Any, p: Any, length: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Launch it on rows of this length; False, and nothing is done, where a plain forward must do it.

        Args:
            xp: cupy.
            p: what has the parameters of the formula.
            length: how many elements a row has.
            inputs: as the kind defines; those that do not lie in C order are copied. A single of one element serves for
                all rows.
            outputs: likewise, in C order.
        """
        fits = 0 < length < _LONGEST and outputs[0].size and all(each.flags.c_contiguous for each in outputs)
        if not (fits and self.is_exact):
            return False
        arrays = [*map(xp.ascontiguousarray, inputs), *outputs]
        addresses = [each.data.ptr for each in arrays]
        form = _form(length, self._width(length, addresses))
        count = outputs[0].size // length
        steps = [int(each.size > 1) for each in arrays[self._singles : self._outputs]]
        words = (count, length, length // form.width, *addresses, *steps, *self._numbers(p, length))
        blocks = min(-(-count // form.teams), _MOST_BLOCKS)
        return self._program(form).launch(xp, blocks, words, form.threads)

    def _numbers(self, p: Any, length: int) -> list[float]:
        return [evaluate(each, lambda name: length if name == "length" else getattr(p, name)) for each in self.uniforms]

    def _width(self, length: int, addresses: Sequence[int]) -> int:
        """The elements that a thread may take at a time: the length and all addresses are multiples of it."""
        width = _BYTES // max(self._sizes.values())
        while width > 1 and (length % width or any(addresses[at] % (width * size) for at, size in self._sizes.items())):
            width //= 2
        return width

    def _program(self, form: Form) -> Program:
        known = self._programs.get(form)
        if known is None:
            known = self._programs.setdefault(form, self.write(form))
        return known


def _form(length: int, width: int) -> Form:
    """The division of rows of this length among threads."""
    units = length // width
    if units <= _WARP:
        return Form(_power_of_two(units), 1, width)
    for lanes in (_WARP, THREADS):
        held = _power_of_two(-(-units // lanes))
        if held * width <= _HELD:
            return Form(lanes, held, width)
    return Form(_MOST_LANES, 0, width)


def _power_of_two(least: int) -> int:
    """The first that is not below."""
    return 1 << (least - 1).bit_length()
