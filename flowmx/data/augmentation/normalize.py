"""Copying of an image into a batch: one pass over memory mirrors, normalizes and moves the channels to the front."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flowmx.data.codecs import Image
from flowmx.ops.kernels.llvm.assembly import DATA
from flowmx.ops.kernels.llvm.background_compilation import Program

_pack = struct.Struct("9q9d").pack
_LANES = 16


@dataclass(frozen=True)
class Scaling:
    """``(value - mean) * factor + shift``, in float32, per channel; the mean may be an image (c, h, w)."""

    mean: Any
    factor: Any
    shift: Any

    @cached_property
    def numbers(self) -> list[float]:
        """Means, factors and shifts, in this order."""
        return [*self.mean.tolist(), *self.factor.tolist(), *self.shift.tolist()]


def write_image(out: Any, image: Image, mirrored: bool, scaling: Scaling | None) -> None:
    """Write an image into a batch.

    Args:
        out: (channels, height, width): floats, int8 or uint8.
        image: (height, width, channels); may be a view.
        mirrored: whether to mirror left and right.
        scaling: the normalization of the values; None copies them unchanged.
    """
    if scaling is not None and out.dtype == np.float32 and _write_compiled(out, image, mirrored, scaling):
        return
    channels_first = image.transpose(2, 0, 1)
    if scaling is not None:
        mean = scaling.mean if scaling.mean.ndim == 3 else scaling.mean[:, None, None]
        if out.dtype == np.int8:  # MXNet only subtracts the mean
            channels_first = np.clip(channels_first.astype(np.int16) - _round_half_away(mean), -128, 127)
        else:
            differences = channels_first.astype(np.float32) - mean
            channels_first = differences * scaling.factor[:, None, None] + scaling.shift[:, None, None]
    out[...] = channels_first[:, :, ::-1] if mirrored else channels_first


def _round_half_away(mean: Any) -> Any:
    """Round to integers, and ties away from zero, as in C."""
    return (np.sign(mean) * np.floor(np.abs(mean) + 0.5)).astype(np.int16)


def _write_compiled(out: Any, image: Image, mirrored: bool, scaling: Scaling) -> bool:
    """Write an image with the compiled function; return False if the function does not support the image."""
    height, width, channels = image.shape
    is_supported = channels == 3 and width >= _LANES and image.strides[1:] == (3, 1) and out.flags.c_contiguous
    if not is_supported or scaling.mean.ndim != 1:
        return False
    compiled = _program.get()
    if compiled is None:
        return False
    compiled.call(
        _pack(
            0, 1, id(image), image.strides[0], id(out), height, width, height * width, int(mirrored), *scaling.numbers
        )
    )  # fmt: skip
    return True


def _text(features: frozenset[str]) -> str:
    """Return the function's LLVM IR: row by row, 16 pixels at a time; the last 16 of a row may overlap the others."""
    wide = ' "min-legal-vector-width"="512"' if "avx512f" in features else ""
    lines = [f"define void @kernel(ptr noalias %data) nounwind{wide} {{", "entry:"]
    for at, name in enumerate(("source", "stride", "target", "height", "width", "plane", "mirrored"), 2):
        lines += [f"%p{at} = getelementptr i64, ptr %data, i64 {at}", f"%{name} = load i64, ptr %p{at}"]
    for name, array in (("from", "source"), ("to", "target")):
        lines += [f"%{array}_head = inttoptr i64 %{array} to ptr"]
        lines += [f"%{array}_data = getelementptr i8, ptr %{array}_head, i64 {DATA}"]
        lines += [f"%{name} = load ptr, ptr %{array}_data"]
    lines += [line for at in range(9) for line in _constant(at)]
    lines += [
        "%flips = icmp ne i64 %mirrored, 0", f"%last = sub i64 %width, {_LANES}", "br label %row",
        "row:", "%y = phi i64 [0, %entry], [%next_y, %row_done]",
        "%row_at = mul i64 %y, %stride", "%row_from = getelementptr i8, ptr %from, i64 %row_at",
        "%line = mul i64 %y, %width", "%row_to = getelementptr float, ptr %to, i64 %line",
        "br label %column",
        "column:", "%begin = phi i64 [0, %row], [%next_x, %column]",
        "%x = call i64 @llvm.smin.i64(i64 %begin, i64 %last)",
        "%x3 = mul i64 %x, 3", "%pixels = getelementptr i8, ptr %row_from, i64 %x3",
        "%bytes = load <48 x i8>, ptr %pixels, align 1",
        "%other = sub i64 %last, %x", "%place = select i1 %flips, i64 %other, i64 %x",
        "%out0 = getelementptr float, ptr %row_to, i64 %place",
        "%out1 = getelementptr float, ptr %out0, i64 %plane", "%out2 = getelementptr float, ptr %out1, i64 %plane",
        *[line for channel in range(3) for line in _channel(channel)],
        f"%next_x = add i64 %begin, {_LANES}", "%more = icmp slt i64 %next_x, %width",
        "br i1 %more, label %column, label %row_done",
        "row_done:", "%next_y = add i64 %y, 1", "%rows = icmp slt i64 %next_y, %height",
        "br i1 %rows, label %row, label %done",
        "done:", "ret void", "}", "declare i64 @llvm.smin.i64(i64, i64)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _constant(at: int) -> list[str]:
    """Return the lines that broadcast one of the nine numbers to a vector."""
    vector = f"<{_LANES} x float>"
    return [
        f"%q{at} = getelementptr i64, ptr %data, i64 {9 + at}",
        f"%d{at} = load double, ptr %q{at}",
        f"%f{at} = fptrunc double %d{at} to float",
        f"%i{at} = insertelement {vector} poison, float %f{at}, i64 0",
        f"%n{at} = shufflevector {vector} %i{at}, {vector} poison, <{_LANES} x i32> zeroinitializer",
    ]


def _channel(channel: int) -> list[str]:
    """Return the lines for one channel of 16 pixels."""
    vector = f"<{_LANES} x float>"
    lanes = ", ".join(f"i32 {channel + 3 * lane}" for lane in range(_LANES))
    backwards = ", ".join(f"i32 {_LANES - 1 - lane}" for lane in range(_LANES))
    return [
        f"%b{channel} = shufflevector <48 x i8> %bytes, <48 x i8> poison, <{_LANES} x i32> <{lanes}>",
        f"%v{channel} = uitofp <{_LANES} x i8> %b{channel} to {vector}",
        f"%c{channel} = fsub {vector} %v{channel}, %n{channel}",
        f"%m{channel} = fmul {vector} %c{channel}, %n{3 + channel}",
        f"%s{channel} = fadd {vector} %m{channel}, %n{6 + channel}",
        f"%r{channel} = shufflevector {vector} %s{channel}, {vector} poison, <{_LANES} x i32> <{backwards}>",
        f"%w{channel} = select i1 %flips, {vector} %r{channel}, {vector} %s{channel}",
        f"store {vector} %w{channel}, ptr %out{channel}, align 4",
    ]


_program = Program(_text)
