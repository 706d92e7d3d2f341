"""Formulas as kernels: one pass over memory for arrays that are broadcast to one shape, in any layout.

Axes that can be merged for all arrays become one axis (:func:`flowmx.ops.kernels.llvm.strided_loops.merged_axes`). If
arrays are dense or constant along the innermost axis, a thread accesses 16 bytes of the widest of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from flowmx.bounded_tables import make_room
from flowmx.devices.cuda.memory import address_of
from flowmx.ops.formulas.expressions import Expr, placeholder
from flowmx.ops.kernels.cuda.elementwise_source import Formulas, constant, lower
from flowmx.ops.kernels.cuda.source_kernels import Program, blocks_for
from flowmx.ops.kernels.llvm.strided_loops import merged_axes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["Loop", "constant"]

_BYTES = 16
"""The maximum number of bytes that a thread reads or writes at once."""
_MAX_AXES = 6
_MAX_PLACES = 1024
_SMALL = 1 << 30
"""Arrays with fewer elements use 32-bit counters."""


class _Form(NamedTuple):
    """The key of a kernel's source, in addition to the formulas.

    Attributes:
        rank: the number of axes.
        inner: the step of each array along the innermost axis: 0, 1, or 2 for any other step.
        width: elements per thread and access.
        counter: the C type of element counters.
    """

    rank: int
    inner: tuple[int, ...]
    width: int
    counter: str


class _Place(NamedTuple):
    """The iteration space of arrays of given shapes and strides."""

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    """The strides of each array along each axis, in elements."""
    inner: tuple[int, ...]
    width: int
    """The maximum number of elements per thread and access, if the addresses are aligned."""
    mask: int
    """The bits of an address that must be 0, so that it is aligned."""
    counter: str


class Loop(Formulas):
    """Formulas for arrays of given element types.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: the dtypes of the inputs, then of the outputs.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        super().__init__(outputs, dtypes)
        self._sizes = [dtype.itemsize for dtype in dtypes]
        self._programs: dict[_Form, Program] = {}
        self._places: dict[object, _Place | None] = {}

    def run(self, xp: object, numbers: Sequence[float], arrays: Sequence[Array]) -> bool:
        """Launch the kernel on arrays, inputs first; return False, without effect, if they do not fit."""
        key = tuple([(array.shape, array.strides) for array in arrays])
        try:
            place = self._places[key]
        except KeyError:
            make_room(self._places, _MAX_PLACES)
            place = self._places.setdefault(key, self._place(arrays))
        if place is None:
            return False
        addresses, bits = [], 0
        for array in arrays:
            address = address_of(array)
            addresses.append(address)
            bits |= address
        width = 1 if bits & place.mask else place.width
        units = math.prod(place.lengths) // width
        program = self._program(_Form(len(place.lengths), place.inner, width, place.counter))
        steps = [step for each in place.strides for step in each]
        return program.launch(xp, blocks_for(units), (units, *place.lengths, *steps, *addresses, *numbers))

    def _place(self, arrays: Sequence[Array]) -> _Place | None:
        lengths, strides = merged_axes(arrays)
        if len(lengths) > _MAX_AXES or any(
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
        program = self._programs.get(form)
        if program is None:
            program = self._programs.setdefault(form, self._write(form))
        return program

    # -- source text -----------------------------------------------------------------------------------

    def _write(self, form: _Form) -> Program:
        count, rank = len(self._types), form.rank
        fields = ["int64 units", f"int64 length[{rank}]", f"int64 step[{count}][{rank}]"]
        fields += [f"{name}* array{index}" for index, name in enumerate(self._types)]
        fields += [f"double number{index}" for index in range(len(self.uniforms))]
        layout = f"{1 + rank + count * rank + count}q{len(self.uniforms)}d"
        inputs = count - len(self._outputs)
        lines = [f"const {self._real} n{index} = ({self._real})a.number{index};" for index in range(len(self.uniforms))]
        lines += [
            f"const {form.counter} units = a.units, step = gridDim.x * ({form.counter})blockDim.x;",
            f"const {form.counter} first = blockIdx.x * ({form.counter})blockDim.x + threadIdx.x;",
            f"for ({form.counter} unit = first; unit < units; unit += step) {{",
            *self._walk(form),
            *[line for index in range(inputs) for line in self._read(index, form)],
            *[f"Pack<{self._types[index]}, {form.width}> p{index};" for index in range(inputs, count)],
            "#pragma unroll",
            f"for (int lane = 0; lane < {form.width}; ++lane) {{",
            *self._compute(form, inputs),
            "}",
            *[self._store(index, form) for index in range(inputs, count)],
            "}",
        ]
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        return Program(fields, layout, f"{head} {{\n" + "\n".join(lines) + "\n}\n")

    def _walk(self, form: _Form) -> list[str]:
        """Return the source lines that compute the offset of each array's elements in this unit."""
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
        for position, inner in enumerate(form.inner):
            terms = [f"place{axis} * ({index})a.step[{position}][{axis}]" for axis in range(last)]
            terms += {0: [], 1: [f"place{last}"], 2: [f"place{last} * ({index})a.step[{position}][{last}]"]}[inner]
            lines.append(f"{index} at{position} = {' + '.join(terms) or '0'};")
        return lines

    def _read(self, index: int, form: _Form) -> list[str]:
        name = self._types[index]
        if not form.inner[index]:
            return [f"const {self._real} still{index} = widened(a.array{index}[at{index}]);"]
        return [f"const Pack<{name}, {form.width}> p{index} = load<{form.width}>(a.array{index} + at{index});"]

    def _store(self, index: int, form: _Form) -> str:
        return f"store<{form.width}>(a.array{index} + at{index}, p{index});"

    def _compute(self, form: _Form, inputs: int) -> list[str]:
        names = {uniform: f"n{index}" for index, uniform in enumerate(self.uniforms)}
        lines = []
        for index in range(inputs):
            names[placeholder(index)] = f"x{index}"
            source = f"widened(p{index}.at[lane])" if form.inner[index] else f"still{index}"
            lines.append(f"const {self._real} x{index} = {source};")
        statements, results = lower(self._outputs, names, self._real)
        stores = [f"narrow(({self._real}){value}, p{inputs + index}.at[lane]);" for index, value in enumerate(results)]
        return [*lines, *statements, *stores]
