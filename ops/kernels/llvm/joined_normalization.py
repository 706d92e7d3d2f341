"""BatchNorm of joined arrays: one pass that reads all parts and writes whole rows of channels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, partial

from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.compiled.joined_normalization import JoinedNormalization
from flowmx.ops.kernels.llvm import chain, team
from flowmx.ops.kernels.llvm.assembly import Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.recording import mark_incomplete
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run, lookup

LANES = 16
_TASK = 1 << 15
"""The minimum number of elements of a task."""
_AFTER = 3
"""The addresses before those of the parts: scale, shift and output."""


def _write(is_relu: bool, features: frozenset[str]) -> str:
    """Return LLVM code; its arguments: parts, positions, positions of a task, channels, channels of each part."""
    code = Code(features=features)
    count, positions, share, channels = code.word(), code.word(), code.word(), code.word()
    table = code.counter()  # the channels of each part, then the addresses
    zero = code.constant(0.0)

    def address(number: Value | int) -> Value:
        word = code.load_index(table, code.plus(count, number))
        return code.put("ptr", f"inttoptr {word} to ptr")

    scale, shift, out = (address(number) for number in range(_AFTER))
    with code.tasks() as task:
        first = code.times(task, share)
        with code.loop(first, code.least(code.plus(first, share), positions)) as position:
            row, start = code.times(position, channels), code.local(code.index(0))
            with code.loop(code.index(0), count) as part:
                length, data = code.load_index(table, part), address(code.plus(part, _AFTER))
                source, before = code.times(position, length), code.get(start)
                with code.loop(code.index(0), length, LANES) as at:
                    channel = code.plus(before, at)
                    value = code.load(data, code.plus(source, at))
                    value = code.binary("fmul", value, code.load(scale, channel))
                    value = code.binary("fadd", value, code.load(shift, channel))
                    if is_relu:
                        value = code.choose(code.compare("olt", value, zero), zero, value)
                    code.store(value, out, code.plus(row, channel))
                code.set(start, code.plus(before, length))
    return code.finish()


@cache
def _program(is_relu: bool) -> Program:
    return Program(partial(_write, is_relu), is_optimized=True)


@cache
def _operations(is_relu: bool) -> Chain:
    """Return the operations on data, scale and shift for arrays of other layouts."""
    links = [
        Link(lookup("broadcast_mul").create(), (0, 1), "scale"),
        Link(lookup("broadcast_add").create(), (3, 2), "shift"),
        *([Link(lookup("relu").create(), (4,), "relu")] if is_relu else []),
    ]
    operations = Chain.of(3, links, [2 + len(links)])
    assert isinstance(operations, Chain)
    return operations


def _is_suited(array: Array) -> bool:
    """Return whether an array has its channels last, in whole vectors."""
    is_float = array.dtype == FLOAT32 and array.shape[1] % LANES == 0
    return bool(is_float and array.transpose(0, 2, 3, 1).flags.c_contiguous)


@kernel("cpu", JoinedNormalization.name, only_native=True)
def _compute(op: JoinedNormalization, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    *parts, scale, shift = inputs
    out = outputs[0]
    is_suited = all(map(_is_suited, (*parts, out))) and all(each.flags.c_contiguous for each in (scale, shift))
    function = _program(op.relu).get() if is_suited else None
    if function is None:
        mark_incomplete()
        for *arrays, target in op.pieces(inputs, out):
            chain.compute(_operations(op.relu), run, arrays, [target])
        return
    positions, channels = out.size // out.shape[1], out.shape[1]
    tasks = max(1, min(8 * team.count(), out.size // _TASK))
    share = -(-positions // tasks)
    lengths = [part.shape[1] for part in parts]
    addresses = [each.ctypes.data for each in (scale, shift, out, *parts)]
    numbers = [0, -(-positions // share), len(parts), positions, share, channels, *lengths, *addresses]
    team.run(function, struct.pack(f"{len(numbers)}q", *numbers), min(tasks, team.count()), addresses=addresses)
