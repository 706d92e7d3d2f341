"""Sums over all axes of images except the channels, for normalization, with the channels first or last.

Two kernels: the first sums formulas of the elements over a part of each channel, block by block, in float32 (or
float64). The second adds up the parts in a fixed order and computes formulas of the totals: vectors with one element
per channel. Results are therefore the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.devices.cuda.memory import address_of
from flowmx.ops.formulas.expressions import Expr, placeholder, uniforms
from flowmx.ops.kernels.cuda.elementwise_source import compute_type, lower, memory_type
from flowmx.ops.kernels.cuda.source_kernels import THREADS, Program
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

_MAX_PARTS = 64
_WANTED_BLOCKS = 1024
_LANES = 32
"""Adjacent channels per block, if the channels are innermost."""
_ROWS = THREADS // _LANES


class ChannelView(NamedTuple):
    """Images as (before, channels, after), dense in one of two orders.

    Attributes:
        before, channels, after: the lengths.
        last: whether the channels are innermost.
    """

    before: int
    channels: int
    after: int
    last: bool

    @property
    def elements(self) -> int:
        """The number of elements of one channel."""
        return self.before * self.after


class Sums:
    """Sums of formulas over each channel, and formulas of the totals.

    Args:
        terms: the formulas to sum, of elements ``x0``, ``x1``, ..., vectors ``v0``, ``v1``, ..., and singles ``s0``,
            ``s1``, ...
        results: the formulas of the results, of totals ``t0``, ``t1``, ..., the vectors, and ``count``.
        full: the element types of the images.
        vectors: the element types of the vectors; a vector of one element applies to all channels.
        outputs: the element types of the results.
        singles: the element types of arrays with one element per position, for all channels.
    """

    def __init__(
        self, terms: Sequence[Expr], results: Sequence[Expr], full: Sequence[DType], vectors: Sequence[DType],
        outputs: Sequence[DType], singles: Sequence[DType] = (),
    ) -> None:  # fmt: skip
        self._terms, self._final = terms, results
        self._full, self._vectors, self._outputs, self._singles = full, vectors, outputs, singles
        self._real = compute_type([*full, *vectors, *singles]) or "float"
        self.is_exact = compute_type([*full, *vectors, *singles, *outputs]) is not None
        self.uniforms = uniforms([*terms, *results])
        self._part_programs: dict[bool, Program] = {}
        self._total_program: Program | None = None

    def run(
        self, xp: Any, view: ChannelView, numbers: Sequence[float], full: Sequence[Array], vectors: Sequence[Array],
        outputs: Sequence[Array], singles: Sequence[Array] = (),
    ) -> bool:  # fmt: skip
        """Compute the results; return False, without effect, if the kernels cannot be compiled."""
        program = self._part_programs.get(view.last)
        if program is None:
            program = self._part_programs.setdefault(view.last, self._write_parts(view.last))
        if self._total_program is None:
            self._total_program = self._write_totals()
        parts, blocks = _shares(view)
        partial = xp.empty(
            (len(self._terms), parts, view.channels), np.float64 if self._real == "double" else np.float32
        )
        steps = [int(vector.size > 1) for vector in vectors]
        shape = (view.before, view.channels, view.after, parts, view.elements)
        addresses = [address_of(each) for each in vectors]
        reads = [address_of(each) for each in (*full, *singles)]
        words = (*shape, address_of(partial), *reads, *addresses, *steps, *numbers)
        if not program.launch(xp, blocks, words):
            return False
        words = (*shape, address_of(partial), *addresses, *[address_of(each) for each in outputs], *steps, *numbers)
        return self._total_program.launch(xp, -(-view.channels // THREADS), words)

    # -- source text -----------------------------------------------------------------------------------

    def _fields(self, arrays: Sequence[tuple[str, Sequence[DType]]]) -> tuple[list[str], str]:
        fields = [
            "int64 before",
            "int64 channels",
            "int64 after",
            "int64 parts",
            "int64 count",
            f"{self._real}* partial",
        ]
        for name, dtypes in arrays:
            fields += [f"{memory_type(dtype)}* {name}{index}" for index, dtype in enumerate(dtypes)]
        fields += [f"int64 step{index}" for index in range(len(self._vectors))]
        int_count = len(fields)
        fields += [f"double n{index}" for index in range(len(self.uniforms))]
        return fields, f"{int_count}q{len(self.uniforms)}d"

    def _begin(self, channel: str) -> list[str]:
        """Return the declarations at the beginning of a channel: the vectors' elements and the scalars of the call."""
        real = self._real
        lines = [f"const {real} n{index} = ({real})a.n{index};" for index in range(len(self.uniforms))]
        return lines + [
            f"const {real} v{index} = widened(a.v{index}[{channel} * a.step{index}]);"
            for index in range(len(self._vectors))
        ]

    def _names(self, **extra: str) -> dict[Expr, str]:
        names: dict[Expr, str] = {uniform: f"n{index}" for index, uniform in enumerate(self.uniforms)}
        names.update({placeholder(f"v{index}"): f"v{index}" for index in range(len(self._vectors))})
        names.update({placeholder(name): text for name, text in extra.items()})
        return names

    def _add(self, place: str) -> list[str]:
        """Return the code that adds the terms of the channel's i-th element, at this place, to the sums."""
        real = self._real
        reads = {f"x{index}": place for index in range(len(self._full))} | {
            f"s{index}": "i" for index in range(len(self._singles))
        }
        lines = [f"const {real} {name} = widened(a.{name}[{where}]);" for name, where in reads.items()]
        statements, results = lower(self._terms, self._names(**{name: name for name in reads}), real, "e")
        return [*lines, *statements, *[f"sum{index} += {value};" for index, value in enumerate(results)]]

    def _write_parts(self, last: bool) -> Program:
        real, count = self._real, len(self._terms)
        fields, layout = self._fields([("x", self._full), ("s", self._singles), ("v", self._vectors)])
        sums = f"{real} " + ", ".join([f"sum{index} = 0" for index in range(count)]) + ";"
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        body = self._column_code(sums) if last else self._row_code(sums)
        return Program(fields, layout, f"{head} {{\n" + "\n".join(body) + "\n}\n")

    def _row_code(self, sums: str) -> list[str]:
        """Return the code for one block per part of a channel, with contiguous elements."""
        real, count = self._real, len(self._terms)
        lines = [
            "const int64 channel = blockIdx.x, part = blockIdx.y;",
            *self._begin("channel"), sums,
            "for (int64 i = part * blockDim.x + threadIdx.x; i < a.count; i += a.parts * blockDim.x) {",
            "const int64 example = i / a.after;",
            "const int64 place = (example * a.channels + channel) * a.after + (i - example * a.after);",
            *self._add("place"),
            "}",
            f"__shared__ {real} warps[{count}][{THREADS // 32}];",
            "const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;",
        ]  # fmt: skip
        for index in range(count):
            lines += [
                f"for (int by = 16; by; by >>= 1) sum{index} += __shfl_xor_sync(0xffffffffu, sum{index}, by);",
                f"if (!lane) warps[{index}][warp] = sum{index};",
            ]
        lines += ["__syncthreads();", f"if (threadIdx.x < {count}) {{", f"{real} total = 0;"]
        lines += [f"for (int w = 0; w < {THREADS // 32}; ++w) total += warps[threadIdx.x][w];"]
        return [*lines, "a.partial[(threadIdx.x * a.parts + part) * a.channels + channel] = total;", "}"]

    def _column_code(self, sums: str) -> list[str]:
        """Return the code for one block per part of neighboring channels, with innermost channels."""
        real, count = self._real, len(self._terms)
        return [
            f"const int lane = threadIdx.x % {_LANES}, row = threadIdx.x / {_LANES};",
            f"const int64 channel = (int64)blockIdx.x * {_LANES} + lane, part = blockIdx.y;",
            f"__shared__ {real} rows[{count}][{_ROWS}][{_LANES}];",
            sums,
            "if (channel < a.channels) {",
            *self._begin("channel"),
            f"for (int64 i = part * {_ROWS} + row; i < a.count; i += a.parts * {_ROWS}) {{",
            *self._add("i * a.channels + channel"),
            "}", "}",
            *[f"rows[{index}][row][lane] = sum{index};" for index in range(count)],
            "__syncthreads();",
            f"if (row < {count} && channel < a.channels) {{",
            f"{real} total = 0;",
            f"for (int r = 0; r < {_ROWS}; ++r) total += rows[row][r][lane];",
            "a.partial[(row * a.parts + part) * a.channels + channel] = total;",
            "}",
        ]  # fmt: skip

    def _write_totals(self) -> Program:
        real, count = self._real, len(self._terms)
        fields, layout = self._fields([("v", self._vectors), ("y", self._outputs)])
        totals = {f"t{index}": f"t{index}" for index in range(count)}
        statements, results = lower(self._final, self._names(count="count", **totals), real, "e")
        lines = [
            "const int64 channel = (int64)blockIdx.x * blockDim.x + threadIdx.x;",
            "if (channel >= a.channels) return;",
            *self._begin("channel"),
            f"const {real} count = ({real})a.count;",
            f"{real} " + ", ".join([f"t{index} = 0" for index in range(count)]) + ";",
            "for (int64 part = 0; part < a.parts; ++part) {",
            *[f"t{index} += a.partial[({index} * a.parts + part) * a.channels + channel];" for index in range(count)],
            "}",
            *statements,
            *[f"narrow(({real}){value}, a.y{index}[channel]);" for index, value in enumerate(results)],
        ]
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        return Program(fields, layout, f"{head} {{\n" + "\n".join(lines) + "\n}\n")


def _shares(view: ChannelView) -> tuple[int, tuple[int, int]]:
    """Return the number of parts of each channel, and the grid of blocks."""
    column_blocks = -(-view.channels // _LANES) if view.last else view.channels
    least = (
        THREADS // _LANES * 8 if view.last else THREADS * 4
    )  # the fewest elements of a channel that are worth a block
    parts = max(1, min(_MAX_PARTS, -(-view.elements // least), -(-_WANTED_BLOCKS // column_blocks)))
    return parts, (column_blocks, parts)
