"""Sums over all but the channels of images: what normalisation needs, for images that lie in either order.

Two kernels. The first sums formulas of the elements over a part of each channel, block by block, in float32 (or
float64); the second adds up the parts, in a fixed order, and computes formulas of the totals: vectors with an element a
channel. So results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.formulas.expressions import Expr, placeholder, uniforms
from flowmx.ops.kernels.cuda.elementwise_source import computed_in, kept, lower
from flowmx.ops.kernels.cuda.program import THREADS, Program
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

_MOST_PARTS = 64
_WANTED_BLOCKS = 1024
_LANES = 32
"""Adjacent channels that a block takes where they are innermost."""
_ROWS = THREADS // _LANES


class Seen(NamedTuple):
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
        """The number of elements of a channel."""
        return self.before * self.after


class Sums:
    """Sums of formulas over each channel, and formulas of these.

    Args:
        summed: the formulas of the elements: placeholders ``x0``, ``x1``, ..., of vectors ``v0``, ``v1``, ..., and of
            singles ``s0``, ``s1``, ...
        made: the formulas of the totals: ``t0``, ``t1``, ..., of the vectors, and of ``count``.
        full: the element types of the images.
        vectors: of the vectors; one of one element serves for all channels.
        outputs: of what is made.
        singles: of arrays with an element for all channels at one place of the images.
    """

    def __init__(
        self, summed: Sequence[Expr], made: Sequence[Expr], full: Sequence[DType], vectors: Sequence[DType],
        outputs: Sequence[DType], singles: Sequence[DType] = (),
    ) -> None:  # fmt: skip
        self._summed, self._made = summed, made
        self._full, self._vectors, self._outputs, self._singles = full, vectors, outputs, singles
        self._real = computed_in([*full, *vectors, *singles]) or "float"
        self.is_exact = computed_in([*full, *vectors, *singles, *outputs]) is not None
        self.uniforms = uniforms([*summed, *made])
        self._partly: dict[bool, Program] = {}
        self._wholly: Program | None = None

    def run(
        self, xp: Any, seen: Seen, numbers: Sequence[float], full: Sequence[Array], vectors: Sequence[Array],
        outputs: Sequence[Array], singles: Sequence[Array] = (),
    ) -> bool:  # fmt: skip
        """Compute the vectors; False, and nothing is done, where the kernels cannot be compiled."""
        program = self._partly.get(seen.last)
        if program is None:
            program = self._partly.setdefault(seen.last, self._write_parts(seen.last))
        if self._wholly is None:
            self._wholly = self._write_totals()
        parts, blocks = _shares(seen)
        partial = xp.empty(
            (len(self._summed), parts, seen.channels), np.float64 if self._real == "double" else np.float32
        )
        steps = [int(vector.size > 1) for vector in vectors]
        shape = (seen.before, seen.channels, seen.after, parts, seen.elements)
        addresses = [each.data.ptr for each in vectors]
        reads = [each.data.ptr for each in (*full, *singles)]
        words = (*shape, partial.data.ptr, *reads, *addresses, *steps, *numbers)
        if not program.launch(xp, blocks, words):
            return False
        words = (*shape, partial.data.ptr, *addresses, *[each.data.ptr for each in outputs], *steps, *numbers)
        return self._wholly.launch(xp, -(-seen.channels // THREADS), words)

    # -- text ------------------------------------------------------------------------------------------

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
            fields += [f"{kept(dtype)}* {name}{at}" for at, dtype in enumerate(dtypes)]
        fields += [f"int64 step{at}" for at in range(len(self._vectors))]
        whole = len(fields)
        fields += [f"double n{at}" for at in range(len(self.uniforms))]
        return fields, f"{whole}q{len(self.uniforms)}d"

    def _begin(self, channel: str) -> list[str]:
        """The declarations at the beginning of a channel: the vectors' elements, and the scalars of the call."""
        real = self._real
        lines = [f"const {real} n{at} = ({real})a.n{at};" for at in range(len(self.uniforms))]
        return lines + [
            f"const {real} v{at} = widened(a.v{at}[{channel} * a.step{at}]);" for at in range(len(self._vectors))
        ]

    def _given(self, **more: str) -> dict[Expr, str]:
        given: dict[Expr, str] = {uniform: f"n{at}" for at, uniform in enumerate(self.uniforms)}
        given.update({placeholder(f"v{at}"): f"v{at}" for at in range(len(self._vectors))})
        given.update({placeholder(name): text for name, text in more.items()})
        return given

    def _add(self, place: str) -> list[str]:
        """Add the formulas of the element at this place, the channel's i-th, to the sums."""
        real = self._real
        reads = {f"x{at}": place for at in range(len(self._full))} | {f"s{at}": "i" for at in range(len(self._singles))}
        lines = [f"const {real} {name} = widened(a.{name}[{where}]);" for name, where in reads.items()]
        made, results = lower(self._summed, self._given(**{name: name for name in reads}), real, "e")
        return [*lines, *made, *[f"sum{at} += {value};" for at, value in enumerate(results)]]

    def _write_parts(self, last: bool) -> Program:
        real, count = self._real, len(self._summed)
        fields, layout = self._fields([("x", self._full), ("s", self._singles), ("v", self._vectors)])
        sums = f"{real} " + ", ".join([f"sum{at} = 0" for at in range(count)]) + ";"
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        body = self._by_columns(sums) if last else self._by_rows(sums)
        return Program(fields, layout, f"{head} {{\n" + "\n".join(body) + "\n}\n")

    def _by_rows(self, sums: str) -> list[str]:
        """A block for each part of a channel, whose elements lie in rows."""
        real, count = self._real, len(self._summed)
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
        for at in range(count):
            lines += [
                f"for (int by = 16; by; by >>= 1) sum{at} += __shfl_xor_sync(0xffffffffu, sum{at}, by);",
                f"if (!lane) warps[{at}][warp] = sum{at};",
            ]
        lines += ["__syncthreads();", f"if (threadIdx.x < {count}) {{", f"{real} total = 0;"]
        lines += [f"for (int w = 0; w < {THREADS // 32}; ++w) total += warps[threadIdx.x][w];"]
        return [*lines, "a.partial[(threadIdx.x * a.parts + part) * a.channels + channel] = total;", "}"]

    def _by_columns(self, sums: str) -> list[str]:
        """A block for each part of neighbouring channels, whose elements lie in columns."""
        real, count = self._real, len(self._summed)
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
            *[f"rows[{at}][row][lane] = sum{at};" for at in range(count)],
            "__syncthreads();",
            f"if (row < {count} && channel < a.channels) {{",
            f"{real} total = 0;",
            f"for (int r = 0; r < {_ROWS}; ++r) total += rows[row][r][lane];",
            "a.partial[(row * a.parts + part) * a.channels + channel] = total;",
            "}",
        ]  # fmt: skip

    def _write_totals(self) -> Program:
        real, count = self._real, len(self._summed)
        fields, layout = self._fields([("v", self._vectors), ("y", self._outputs)])
        totals = {f"t{at}": f"t{at}" for at in range(count)}
        made, results = lower(self._made, self._given(count="count", **totals), real, "e")
        lines = [
            "const int64 channel = (int64)blockIdx.x * blockDim.x + threadIdx.x;",
            "if (channel >= a.channels) return;",
            *self._begin("channel"),
            f"const {real} count = ({real})a.count;",
            f"{real} " + ", ".join([f"t{at} = 0" for at in range(count)]) + ";",
            "for (int64 part = 0; part < a.parts; ++part) {",
            *[f"t{at} += a.partial[({at} * a.parts + part) * a.channels + channel];" for at in range(count)],
            "}",
            *made,
            *[f"narrow(({real}){value}, a.y{at}[channel]);" for at, value in enumerate(results)],
        ]
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const Args a)'
        return Program(fields, layout, f"{head} {{\n" + "\n".join(lines) + "\n}\n")


def _shares(seen: Seen) -> tuple[int, tuple[int, int]]:
    """Into how many parts each channel goes, and the blocks."""
    across = -(-seen.channels // _LANES) if seen.last else seen.channels
    least = THREADS // _LANES * 8 if seen.last else THREADS * 4  # elements of a channel that a block is worth
    parts = max(1, min(_MOST_PARTS, -(-seen.elements // least), -(-_WANTED_BLOCKS // across)))
    return parts, (across, parts)
