"""Casts between float32, float16 and bfloat16, which NumPy computes one number at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, partial

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import MIN_TASK_SIZE, WORTH_A_THREAD_NS, float_type_of
from flowmx.ops.math.conversion import cast_kernel
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Operator, Run

_MIN_SIZE = 1024
"""NumPy is as fast below this number of elements."""
_NS = 1 / 16
"""The approximate time per element, in nanoseconds."""

_pack = struct.Struct("6q").pack


def _write(source: FloatType, target: FloatType, features: frozenset[str]) -> str:
    code = Code(source, features)
    size, share, source_array, target_array = code.word(), code.word(), code.array(source), code.array(target)
    with code.tasks() as task:
        start = code.times(task, share)
        stop = code.least(code.plus(start, share), size)

        def body(index: Value, mask: Value | None) -> None:
            code.store(code.load(source_array, index, mask), target_array, index, mask)

        code.strips(start, stop, body)
    return code.finish()


@cache
def _program(source: object, target: object) -> Program | None:
    """Return the loop from one element type to another, or None."""
    source_real, target_real = float_type_of(source), float_type_of(target)
    if source_real is None or target_real is None or not source_real.name == target_real.name == "float":
        return None
    return Program(partial(_write, source_real, target_real))


@cast_kernel("cpu")
def copy(source: Array, out: Array) -> bool:
    """Copy an array with a conversion of its element type; return False if no loop supports it."""
    size = out.size
    if size < _MIN_SIZE or source.shape != out.shape or source.dtype == out.dtype or not _alike(source, out):
        return False
    program = _program(source.dtype, out.dtype)
    compiled = None if program is None else program.compiled or program.get()
    if compiled is None:
        return False
    threads = team.count() if size * _NS > WORTH_A_THREAD_NS else 1
    share = size if threads == 1 else max(MIN_TASK_SIZE, size // (8 * threads) // 1024 * 1024)
    words = _pack(0, -(-size // share), size, share, id(source), id(out))
    team.run(compiled, words, threads, (source, out))
    return True


def _alike(source: Array, out: Array) -> bool:
    """Return whether two arrays are dense with the same order of axes."""
    if source.flags.c_contiguous and out.flags.c_contiguous:
        return True
    one, other = ([step // each.itemsize for step in each.strides] for each in (source, out))
    steps = sorted((step, length) for step, length in zip(one, out.shape, strict=True) if length != 1)
    dense = 1
    for step, length in steps:
        if step != dense:
            return False
        dense *= length
    return one == other


def _cast(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not copy(inputs[0], outputs[0]):
        op.forward(run, inputs, outputs)


for _name in ("Cast", "amp_cast", "_cast_like"):
    kernel("cpu", _name, only_native=True)(_cast)
