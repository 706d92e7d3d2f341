"""Operators on bytes without products, by oneDNN: conversions, pooling, joins, sums.

A conversion is a reorder that multiplies and rounds on the way, from any layout to any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.ops.kernels.onednn.kernel import Kernel, Make
from flowmx.ops.kernels.onednn.layouts import (
    Array,
    Desc,
    Geometry,
    channels_last,
    geometry,
    loaded,
    plain,
    pointer,
    strided,
    suits,
)
from flowmx.ops.kernels.onednn.library import Alg, Arg, Query
from flowmx.ops.kernels.onednn.pooling import Forward
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, Reorder, attributes
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.quantization.conversions import Dequantize, QuantizeV2, Requantize
from flowmx.ops.quantization.layers import QuantizedAdd, QuantizedConcat
from flowmx.ops.quantization.linear import BytesPooling, DequantizeLinear, FromBytes, QuantizeLinear, ToBytes
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8, magnitude, round_into
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Run, kernel

_NUMBERS = frozenset([FLOAT32, INT32, INT8, UINT8])
_BYTES = frozenset([INT8, UINT8])
_SMALL = 1 << 12
"""Elements below which NumPy is as fast."""


class Rescale(Work):
    """From one array to another of the same shape: multiplied by a number, rounded where that is whole."""

    def __init__(self, source: Geometry, target: Geometry) -> None:
        super().__init__()
        self._copy = Reorder(self.room, strided(*source), strided(*target), (0, plain((1,))))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


class Add(Work):
    """The sum of two arrays of bytes that lie alike, each multiplied by a number."""

    def __init__(self, one: Geometry, other: Geometry, out: Geometry) -> None:
        super().__init__()
        lib, given = loaded(), [strided(*each) for each in (one, other, out)]
        scales = ((int(Arg.SRC), 0), (int(Arg.SRC_1), 0))
        desc = lib.create(
            "binary_primitive_desc_create", lib.engine, int(Alg.BINARY_ADD), *[each.handle for each in given],
            attributes(scales=scales),
        )  # fmt: skip
        number = plain((1,))
        arguments: dict[int, Desc | Query] = dict(zip((Arg.SRC, Arg.SRC_1, Arg.DST), given, strict=True))
        arguments |= {Arg.ATTR_SCALES | argument: number for argument, _ in scales}
        self._run = Primitive(self.room, desc, arguments)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._run.at(base, *addresses)]


class RescaleBy(Rescale):
    """The same by a number that is known."""

    def __init__(self, source: Geometry, target: Geometry, factor: float) -> None:
        super().__init__(source, target)
        self._factor = np.full((1,), factor, np.float32)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return super().calls(base, *addresses, pointer(self._factor))


def _known(factor: Callable[[Any], float]) -> Make:
    """Make what computes a conversion by a number that its operator knows."""

    def make(op: Any, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
        (source,), (target,) = inputs, outputs
        fits = 0 < len(target.shape) <= 12 and not getattr(op, "zero", 0)
        return plan(RescaleBy, source, target, factor(op)) if fits else None

    return make


def _rescale(source: Array, target: Array, factor: np.float32) -> None:
    """``target[...] = source * factor``, rounded where the target is of whole numbers."""
    made = None
    if target.size >= _SMALL and 0 < target.ndim <= 12 and suits(source, target, among=_NUMBERS):
        made = plan(Rescale, geometry(source), geometry(target))
    if made is not None:
        number = np.full((1,), factor, np.float32)
        made(pointer(source), pointer(target), pointer(number))
    elif target.dtype == FLOAT32:
        np.multiply(source, factor, out=target, dtype=np.float32)
    else:
        round_into(np, np.multiply(source, factor, dtype=np.float32), target)


@kernel("cpu", "_contrib_quantize_v2")
def _quantize(op: QuantizeV2, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, out = inputs[0], outputs[0]
    if data.dtype != FLOAT32:
        op.forward(run, inputs, outputs)
        return
    steps, ends = op.steps_of(data, out.dtype)
    _rescale(data, out, steps)
    op.put_range(outputs, ends)


@kernel("cpu", "_contrib_requantize")
def _requantize(op: Requantize, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (data, *ends), out = inputs, outputs[0]
    scale, made = op.steps_of(data, out.dtype, magnitude(*ends))
    _rescale(data, out, scale)
    op.put_range(outputs, made)


@kernel("cpu", "_contrib_dequantize")
def _dequantize(op: Dequantize, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, *ends = inputs
    _rescale(data, outputs[0], op.unit(data.dtype, magnitude(*ends)))


kernel("cpu", ToBytes.name)(Kernel(_known(lambda op: op.factor), None, _NUMBERS))
kernel("cpu", FromBytes.name)(Kernel(_known(lambda op: op.factor), None, _NUMBERS))
kernel("cpu", QuantizeLinear.name)(Kernel(_known(lambda op: 1 / op.scale), None, _NUMBERS))
kernel("cpu", DequantizeLinear.name)(Kernel(_known(lambda op: op.scale), None, _NUMBERS))


class Pool(Forward):
    """The maxima or rounded means of windows of bytes, with the channels contiguous in memory."""

    def __init__(self, op: Pooling, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data, out, False, channels_last)


def _pool(op: Any, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    return None if op.channels_last else plan(Pool, op, inputs[0], outputs[0])


kernel("cpu", BytesPooling.name)(Kernel(_pool, None, _BYTES))


@kernel("cpu", "_contrib_quantized_concat")
def _concat(op: QuantizedConcat, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for part, array, factor in op.pieces(inputs, outputs):
        if factor is None:
            part[...] = array  # NumPy copies bytes faster than a reorder, in any layout
        else:
            _rescale(array, part, factor)


@kernel("cpu", "_contrib_quantized_elemwise_add")
def _add(op: QuantizedAdd, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (one, other), out = inputs[:2], outputs[0]
    made = None
    if one.dtype == other.dtype and one.size >= _SMALL and suits(one, out, among=_BYTES):
        made = plan(Add, geometry(one), geometry(other), geometry(out))
    if made is None:
        op.forward(run, inputs, outputs)
        return
    factors, ends = op.factors(inputs, out.dtype)
    numbers = np.array(factors, np.float32)
    made(pointer(one), pointer(other), pointer(out), pointer(numbers), pointer(numbers[1:]))
    op.put_range(outputs, ends)
