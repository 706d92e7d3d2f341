"""Parts of arrays that are split along an axis, as loops that native runs record."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import FLOAT, Code
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.arrays.joining import SliceChannel

_TASK = 1 << 14
"""The number of elements of a task, at least."""
_SHARED = 1 << 16
"""The minimum number of elements for which several threads are faster."""
_MAX_PARTS = 8

_pack = struct.Struct("5q").pack


def _write(count: int, features: frozenset[str]) -> str:
    """Write the loop: each task copies the parts of some rows."""
    code = Code(FLOAT, features)
    rows, share, length = (code.word() for _ in range(3))
    source, *parts = (code.array() for _ in range(count + 1))
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), rows)) as row:
            to = code.times(row, length)
            start = code.times(to, count)
            for part in parts:

                def copy(column: Any, mask: Any, start: Any = start, part: Any = part, to: Any = to) -> None:
                    code.store(code.load(source, code.plus(start, column), mask), part, code.plus(to, column), mask)

                code.strips(code.index(0), length, copy)
                start = code.plus(start, length)
    return code.finish()


@cache
def _program(count: int) -> Program:
    """Return the loop for a number of parts."""
    return Program(lambda features: _write(count, features))


@kernel("cpu", "SliceChannel", only_native=True)
def _split(op: SliceChannel, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    source, axis, count = inputs[0], op.axis % inputs[0].ndim, len(outputs)
    suits = source.size and 1 < count <= _MAX_PARTS and all(
        array.dtype == FLOAT32 and array.flags.c_contiguous for array in (source, *outputs)
    )  # fmt: skip
    compiled = _program(count).get() if suits else None
    if compiled is None:
        op.forward(run, inputs, outputs)
        return
    rows = math.prod(source.shape[:axis])
    threads = team.count() if source.size >= _SHARED else 1
    share = max(1, -(-_TASK * rows // source.size)) if threads > 1 else rows
    arrays = [source, *outputs]
    words = _pack(0, -(-rows // share), rows, share, source.size // rows // count)
    team.run(compiled, words + struct.pack(f"{len(arrays)}q", *map(id, arrays)), threads, arrays)
