"""Lazy updates of optimizers: the rows of a weight and its states for which a gradient is stored, in one pass."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, MIN_TASK_SIZE, WORTH_A_THREAD_NS, Loop, ns_per_element
from flowmx.ops.kernels.llvm.lowering import invariants, lower
from flowmx.ops.registry.operators import Array, Operator

_GRAD = 1
"""The position of the gradient among the inputs of updates."""

_programs: WeakKeyDictionary[Loop, tuple[Program, Any]] = WeakKeyDictionary()
"""The program that updates rows with a loop's formula, and the packer of its arguments."""


def update(op: Operator, rows: Array, arrays: Sequence[Array]) -> bool:
    """Update rows of a weight and its states in place; return False, without changes, if no loop fits.

    Args:
        op: the update.
        rows: the indices of the rows, int64, ascending, in range.
        arrays: the operator's inputs: the weight, the gradients of these rows alone, and the states.
    """
    weight = arrays[0]
    fused = FUSED.get(op.name)
    if fused is None or weight.ndim == 0 or any(each.dtype != weight.dtype for each in arrays):
        return False
    dense = all(each.flags.c_contiguous for each in (rows, *arrays))
    whole = all(each.shape == weight.shape for at, each in enumerate(arrays) if at != _GRAD)
    if len(rows) and not 0 <= rows[0] <= rows[-1] < len(weight):
        return False  # out of range: the fallback raises the error
    if not dense or not whole or rows.dtype != np.int64 or arrays[_GRAD].shape != (len(rows), *weight.shape[1:]):
        return False
    loop = fused.loop(op, weight.dtype, len(arrays))
    if loop is None:
        return False
    program, pack = _program(loop, (0, *fused.updates))
    compiled = program.compiled or program.get()
    if compiled is None:
        return False
    length = math.prod(weight.shape[1:])
    elements = len(rows) * length
    threads = (
        team.count() if elements * ns_per_element(loop.outputs, len(arrays) + 1, loop.real) > WORTH_A_THREAD_NS else 1
    )
    share = max(1, MIN_TASK_SIZE // max(1, length)) if threads > 1 else max(1, len(rows))
    words = pack(0, -(-len(rows) // share), len(rows), share, length, *loop.values(op), *map(id, (*arrays, rows)))
    team.run(compiled, words, threads)
    return True


def _program(loop: Loop, targets: tuple[int, ...]) -> tuple[Program, Any]:
    program = _programs.get(loop)
    if program is None:
        pack = struct.Struct(f"5q{len(loop.uniforms)}d{loop.inputs + 1}q").pack
        program = _programs.setdefault(loop, (Program(partial(_generate, loop, targets)), pack))
    return program


def _generate(loop: Loop, targets: tuple[int, ...], features: frozenset[str]) -> str:
    """Return the LLVM code; output k of the formula replaces the input with index ``targets[k]``."""
    code = Code(loop.real, features)
    count, share, length = code.word(), code.word(), code.word()
    numbers = {uniform: code.number() for uniform in loop.uniforms}
    sources = [code.array() for _ in range(loop.inputs)]
    rows = code.array()
    fixed = invariants(code, loop.outputs, numbers)
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), count)) as number:
            own = code.times(number, length)
            place = code.times(code.load_index(rows, number), length)

            def body(column: Value, mask: Value | None, own: Value = own, place: Value = place) -> None:
                at = [code.plus(own if which == _GRAD else place, column) for which in range(loop.inputs)]
                read = {placeholder(which): code.load(source, at[which], mask) for which, source in enumerate(sources)}
                for value, target in zip(lower(code, loop.outputs, fixed | read), targets, strict=True):
                    code.store(value, sources[target], at[target], mask)

            code.strips(code.index(0), length, body)
    return code.finish()
