"""Resize images of bytes: linear, cubic and Lanczos, bit-identical to ``ops/vision/opencv_resize.py``.

A row of the result is a weighted sum of a few rows, which are first resized along their length. These are cached while
the next row of the result needs them too, in one slot per tap: the needed rows are consecutive, so a row's number
determines its slot.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.vision.opencv_resize import AREA, CUBIC, LANCZOS, LINEAR
from flowmx.ops.vision.opencv_resize import taps as taps_of

if TYPE_CHECKING:
    from flowmx.ops.vision.image import Resize

_LANES = 16
_SCALE = 1 << 11
_TAPS = {LINEAR: 2, AREA: 2, CUBIC: 4, LANCZOS: 8}
_pack = struct.Struct("11q").pack


def resize(image: Array, out: Array, interp: int) -> bool:
    """Resize an image (height, width, channels) into ``out``; return False if no compiled function can.

    Args:
        image: bytes; its rows need not be adjacent, as in a part of another image.
        out: bytes, in C order.
        interp: OpenCV's number of the method.
    """
    (h, w, channels), (new_h, new_w, _) = image.shape, out.shape
    shrinks = new_h <= h and new_w <= w
    if interp not in _TAPS or (interp == AREA and shrinks) or not _suits(image, out):
        return False
    compiled = _programs[_TAPS[interp]].get()
    if compiled is None:
        return False
    across, down = _table(w, new_w, interp, shrinks, channels), _table(h, new_h, interp, shrinks, 1)
    length, taps = new_w * channels, _TAPS[interp]
    rows, held = np.empty(taps * length, np.int32), np.full(taps, -1, np.int64)
    places = [_address(each) for each in (image, out, across, down, rows, held)]
    compiled.call(_pack(0, 1, places[0], image.strides[0], places[1], length, new_h, *places[2:]))
    return True


def _suits(image: Array, out: Array) -> bool:
    channels = image.shape[2]
    return bool(
        image.dtype == out.dtype == np.uint8
        and image.strides[1:] == (channels, 1)
        and image.strides[0] >= 0
        and out.flags.c_contiguous
        and out.shape[1] * channels >= _LANES
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@lru_cache(1024)
def _table(old: int, new: int, interp: int, shrinks: bool, channels: int) -> Any:
    """The positions of the taps of each element of a row (or of each row), then their weights."""
    taps = taps_of(old, new, interp, shrinks)
    weights = np.rint(taps.weight * _SCALE)
    index = taps.index[:, None, :] * channels + np.arange(channels)[None, :, None]
    both = np.concatenate([index, np.broadcast_to(weights[:, None], index.shape)], 2)
    return np.ascontiguousarray(both.reshape(new * channels, -1), np.int32)


@kernel("cpu", "_image_resize")
def _resize_kernel(op: Resize, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    image, out = inputs[0], outputs[0]
    if image.ndim != 3 or not resize(image, out, op.interp):
        op.forward(run, inputs, outputs)


# -- the function ------------------------------------------------------------------------------------------

_WORDS = ("source", "stride", "target", "length", "height", "across", "down", "rows", "held")


def _text(taps: int, features: frozenset[str]) -> str:
    wide = ' "min-legal-vector-width"="512"' if "avx512f" in features else ""
    lines = [*_fill(taps), f"define void @kernel(ptr noalias %data) nounwind{wide} {{", "entry:"]
    for at, name in enumerate(_WORDS, 2):
        kind = "i64" if name in ("stride", "length", "height") else "ptr"
        lines += [f"%p{at} = getelementptr i64, ptr %data, i64 {at}", f"%{name} = load {kind}, ptr %p{at}"]
    lines += [
        f"%last = sub i64 %length, {_LANES}", "br label %row",
        "row:", "%y = phi i64 [0, %entry], [%next_y, %row_done]",
        f"%entry_at = mul i64 %y, {2 * taps}", "%taps = getelementptr i32, ptr %down, i64 %entry_at",
        *[line for tap in range(taps) for line in _row_of(tap, taps)],
        "%out_at = mul i64 %y, %length", "%out = getelementptr i8, ptr %target, i64 %out_at",
        "br label %column",
        "column:", f"%begin = phi i64 [0, %have{taps - 1}], [%next_x, %column]",
        "%x = call i64 @llvm.smin.i64(i64 %begin, i64 %last)",
        *(_linear() if taps == 2 else _round_code(taps)),
        "%place = getelementptr i8, ptr %out, i64 %x", f"store <{_LANES} x i8> %bytes, ptr %place, align 1",
        f"%next_x = add i64 %begin, {_LANES}", "%more = icmp slt i64 %next_x, %length",
        "br i1 %more, label %column, label %row_done",
        "row_done:", "%next_y = add i64 %y, 1", "%further = icmp slt i64 %next_y, %height",
        "br i1 %further, label %row, label %done",
        "done:", "ret void", "}", "declare i64 @llvm.smin.i64(i64, i64)",
        f"declare {_INTS} @llvm.smax.v{_LANES}i32({_INTS}, {_INTS})",
        f"declare {_INTS} @llvm.smin.v{_LANES}i32({_INTS}, {_INTS})",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


_INTS = f"<{_LANES} x i32>"


def _fill(taps: int) -> list[str]:
    """A function that resizes one row along its length."""
    terms = []
    for tap in range(taps):
        terms += [
            f"%ia{tap} = getelementptr i32, ptr %taps, i64 {tap}", f"%i{tap} = load i32, ptr %ia{tap}",
            f"%wa{tap} = getelementptr i32, ptr %taps, i64 {taps + tap}", f"%w{tap} = load i32, ptr %wa{tap}",
            f"%j{tap} = sext i32 %i{tap} to i64", f"%va{tap} = getelementptr i8, ptr %row, i64 %j{tap}",
            f"%v{tap} = load i8, ptr %va{tap}", f"%u{tap} = zext i8 %v{tap} to i32",
            f"%m{tap} = mul i32 %u{tap}, %w{tap}", f"%s{tap} = add i32 {f'%s{tap - 1}' if tap else '0'}, %m{tap}",
        ]  # fmt: skip
    return [
        "define internal void @fill(ptr noalias %row, ptr noalias %across, ptr noalias %out, i64 %length) nounwind {",
        "entry:", "br label %each",
        "each:", "%x = phi i64 [0, %entry], [%next, %each]", f"%at = mul i64 %x, {2 * taps}",
        "%taps = getelementptr i32, ptr %across, i64 %at", *terms,
        "%place = getelementptr i32, ptr %out, i64 %x", f"store i32 %s{taps - 1}, ptr %place",
        "%next = add i64 %x, 1", "%more = icmp slt i64 %next, %length", "br i1 %more, label %each, label %done",
        "done:", "ret void", "}",
    ]  # fmt: skip


def _row_of(tap: int, taps: int) -> list[str]:
    """Load a tap's row offset, and broadcast its weight to every lane."""
    return [
        f"%ra{tap} = getelementptr i32, ptr %taps, i64 {tap}", f"%rs{tap} = load i32, ptr %ra{tap}",
        f"%r{tap} = sext i32 %rs{tap} to i64", f"%slot{tap} = and i64 %r{tap}, {taps - 1}",
        f"%ba{tap} = getelementptr i32, ptr %taps, i64 {taps + tap}", f"%bs{tap} = load i32, ptr %ba{tap}",
        f"%bi{tap} = insertelement {_INTS} poison, i32 %bs{tap}, i64 0",
        f"%b{tap} = shufflevector {_INTS} %bi{tap}, {_INTS} poison, {_INTS} zeroinitializer",
        f"%from{tap} = mul i64 %slot{tap}, %length", f"%held{tap} = getelementptr i32, ptr %rows, i64 %from{tap}",
        f"%tag{tap} = getelementptr i64, ptr %held, i64 %slot{tap}", f"%is{tap} = load i64, ptr %tag{tap}",
        f"%there{tap} = icmp eq i64 %is{tap}, %r{tap}", f"br i1 %there{tap}, label %have{tap}, label %fill{tap}",
        f"fill{tap}:", f"%sa{tap} = mul i64 %r{tap}, %stride",
        f"%src{tap} = getelementptr i8, ptr %source, i64 %sa{tap}",
        f"call void @fill(ptr %src{tap}, ptr %across, ptr %held{tap}, i64 %length)",
        f"store i64 %r{tap}, ptr %tag{tap}", f"br label %have{tap}",
        f"have{tap}:",
    ]  # fmt: skip


def _load_code(tap: int) -> list[str]:
    return [
        f"%ha{tap} = getelementptr i32, ptr %held{tap}, i64 %x",
        f"%h{tap} = load {_INTS}, ptr %ha{tap}, align 4",
    ]


def _every(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * _LANES)}>"


def _linear() -> list[str]:
    """Two rows, with OpenCV's roundings in between."""
    lines = []
    for tap in range(2):
        lines += [
            *_load_code(tap),
            f"%c{tap} = ashr {_INTS} %h{tap}, {_every(4)}",
            f"%d{tap} = mul {_INTS} %c{tap}, %b{tap}",
            f"%e{tap} = ashr {_INTS} %d{tap}, {_every(16)}",
        ]
    return [
        *lines,
        f"%f = add {_INTS} %e0, %e1",
        f"%g = add {_INTS} %f, {_every(2)}",
        f"%i = ashr {_INTS} %g, {_every(2)}",
        *_cut_off(),
    ]


def _round_code(taps: int) -> list[str]:
    """Return code that sums several rows and rounds once."""
    lines = []
    for tap in range(taps):
        before = f"%t{tap - 1}" if tap else _every(1 << 21)
        lines += [
            *_load_code(tap),
            f"%d{tap} = mul {_INTS} %h{tap}, %b{tap}",
            f"%t{tap} = add {_INTS} {before}, %d{tap}",
        ]
    return [*lines, f"%i = ashr {_INTS} %t{taps - 1}, {_every(22)}", *_cut_off()]


def _cut_off() -> list[str]:
    return [
        f"%low = call {_INTS} @llvm.smax.v{_LANES}i32({_INTS} %i, {_INTS} zeroinitializer)",
        f"%both = call {_INTS} @llvm.smin.v{_LANES}i32({_INTS} %low, {_INTS} {_every(255)})",
        f"%bytes = trunc {_INTS} %both to <{_LANES} x i8>",
    ]


_programs = {taps: Program(partial(_text, taps)) for taps in (2, 4, 8)}
