"""Formulas as kernels: one pass over memory for arrays that are broadcast to one shape, however they lie.

Axes that all arrays can walk as one are one axis (:func:`..loops.walks.merged_axes`). Where arrays are dense along the
innermost axis, or stand still, a thread takes 16 bytes of the widest of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowmx.ops.formulas.expressions import Expr, placeholder
from flowmx.ops.kernels.cuda.elementwise_source import Formulas, constant, lower
from flowmx.ops.kernels.cuda.program import Program, blocks_for
from flowmx.ops.kernels.llvm.walks import merged_axes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["Loop", "constant"]

_BYTES = 16
"""The most bytes that a thread reads or writes at once."""
_MOST_AXES = 6
_SMALL = 1 << 30
"""Elements below which 32 bits count them."""


class _Form(NamedTuple):
    """The key of a kernel's source, besides the formulas.

    Attributes:
        rank: how many axes there are.
        inner: the step of each array along the innermost one: 0, 1, or 2 for any other.
        width: how many elements a thread takes.
        counter: C's type of what counts elements.
    """

    rank: int
    inner: tuple[int, ...]
    width: int
    counter: str


class _Place(NamedTuple):
    """The iteration space of arrays of given shapes and strides."""

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """For each array, in elements, along each axis."""
    inner: tuple[int, ...]
    width: int
    """The most elements that a thread may take, if the addresses allow it."""
    mask: int
    """The bits of an address that must not be set for that."""
    counter: str


class Loop(Formulas):
    """Formulas for arrays of given element types.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: of the inputs and then of the outputs.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        super().__init__(outputs, dtypes)
        self._sizes = [dtype.itemsize for dtype in dtypes]
        self._programs: dict[_Form, Program] = {}
        self._places: dict[Any, _Place | None] = {}

    def run(self, xp: Any, numbers: Sequence[float], arrays: Sequence[Array]) -> bool:
        """Launch it on arrays, inputs first; False, and nothing is done, where they cannot be walked."""
        key = tuple([(array.shape, array.strides) for array in arrays])
        try:
            place = self._places[key]
        except KeyError:
            if len(self._places) > 256:
                self._places.clear()
            place = self._places.setdefault(key, self._place(arrays))
        if place is None:
            return False
        addresses, bits = [], 0
        for array in arrays:
            address = array.data.ptr
            addresses.append(address)
            bits |= address
        width = 1 if bits & place.mask else place.width
        units = math.prod(place.lengths) // width
        program = self._program(_Form(len(place.lengths), place.inner, width, place.counter))
        steps = [step for each in place.strides for step in each]
        return program.launch(xp, blocks_for(units), (units, *place.lengths, *steps, *addresses, *numbers))

    def _place(self, arrays: Sequence[Array]) -> _Place | None:
        lengths, strides = merged_axes(arrays)
        if len(lengths) > _MOST_AXES or any(
            step % size for steps, size in zip(strides, self._sizes, strict=True) for step in steps
        ):
            return None
        steps = tuple([tuple([step // size for step in each]) for each, size in zip(strides, self._sizes, strict=True)])
        inner = tuple([each[-1] if each[-1] in (0, 1) else 2 for each in steps])
        reach = sum(abs(step) * length for each in steps for step, length in zip(each, lengths, strict=True))
        width = _BYTES // max(self._sizes)
        moving = [(each, size) for each, size in zip(steps, self._sizes, strict=True) if each[-1]]
        if 2 in inner or lengths[-1] % width or any(step % width for each, _ in moving for step in each[:-1]):
            width = 1
        mask = max([width * size for _, size in moving], default=1) - 1
        return _Place(lengths, steps, inner, width, mask if width > 1 else 0, "int" if reach < _SMALL else "int64")

    def _program(self, form: _Form) -> Program:
        known = self._programs.get(form)
        if known is None:
            known = self._programs.setdefault(form, self._write(form))
        return known

    # -- text ------------------------------------------------------------------------------------------

    def _write(self, form: _Form) -> Program:
        count, rank = len(self._kept), form.rank
        fields = ["int64 units", f"int64 length[{rank}]", f"int64 step[{count}][{rank}]"]
        fields += [f"{name}* array{at}" for at, name in enumerate(self._kept)]
        fields += [f"double number{at}" for at in range(len(self.uniforms))]
        layout = f"{1 + rank + count * rank + count}q{len(self.uniforms)}d"
        inputs = count - len(self._outputs)
        lines = [f"const {self._real} n{at} = ({self._real})a.number{at};" for at in range(len(self.uniforms))]
        lines += [
            f"const {form.counter} units = a.units, step = gridDim.x * ({form.counter})blockDim.x;",
            f"const {form.counter} first = blockIdx.x * ({form.counter})blockDim.x + threadIdx.x;",
            f"for ({form.counter} unit = first; unit < units; unit += step) {{",
            *self._walk(form),
            *[line for at in range(inputs) for line in self._read(at, form)],
            *[f"Pack<{self._kept[at]}, {form.width}> p{at};" for at in range(inputs, count)],
            "#pragma unroll",
            f"for (int lane = 0; lane < {form.width}; ++lane) {{",
            *self._compute(form, inputs),
            "}",
            *[self._store(at, form) for at in range(inputs, count)],
            "}",
        ]
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        return Program(fields, layout, f"{head} {{\n" + "\n".join(lines) + "\n}\n")

    def _walk(self, form: _Form) -> list[str]:
        """The source lines that compute where each array's elements of this unit begin."""
        index, last = form.counter, form.rank - 1
        lines = [f"{index} row = unit;"]
        if last:
            lines += [
                f"{index} inner = ({index})a.length[{last}] / {form.width};",
                f"{index} place{last} = row % inner * {form.width}; row /= inner;",
            ]
            for axis in range(last - 1, 0, -1):
                lines.append(
                    f"{index} place{axis} = row % ({index})a.length[{axis}]; row /= ({index})a.length[{axis}];"
                )
            lines.append(f"{index} place0 = row;")
        else:
            lines.append(f"{index} place0 = row * {form.width};")
        for at, inner in enumerate(form.inner):
            terms = [f"place{axis} * ({index})a.step[{at}][{axis}]" for axis in range(last)]
            terms += {0: [], 1: [f"place{last}"], 2: [f"place{last} * ({index})a.step[{at}][{last}]"]}[inner]
            lines.append(f"{index} at{at} = {' + '.join(terms) or '0'};")
        return lines

    def _read(self, at: int, form: _Form) -> list[str]:
        name = self._kept[at]
        if not form.inner[at]:
            return [f"const {self._real} still{at} = widened(a.array{at}[at{at}]);"]
        return [f"const Pack<{name}, {form.width}> p{at} = load<{form.width}>(a.array{at} + at{at});"]

    def _store(self, at: int, form: _Form) -> str:
        return f"store<{form.width}>(a.array{at} + at{at}, p{at});"

    def _compute(self, form: _Form, inputs: int) -> list[str]:
        given = {uniform: f"n{at}" for at, uniform in enumerate(self.uniforms)}
        lines = []
        for at in range(inputs):
            given[placeholder(at)] = f"x{at}"
            source = f"widened(p{at}.at[lane])" if form.inner[at] else f"still{at}"
            lines.append(f"const {self._real} x{at} = {source};")
        made, results = lower(self._outputs, given, self._real)
        stores = [f"narrow(({self._real}){value}, p{inputs + at}.at[lane]);" for at, value in enumerate(results)]
        return [*lines, *made, *stores]
