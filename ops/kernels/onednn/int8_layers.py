"""Int8 operators without products, by oneDNN: conversions, pooling, concatenation, sums.

A conversion is a reorder, between any layouts, that also multiplies and rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.ops.kernels.onednn.kernel import Make, PrimitiveKernel
from flowmx.ops.kernels.onednn.layouts import (
    Array,
    Desc,
    Geometry,
    channels_last,
    geometry,
    library_or_raise,
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
from flowmx.ops.quantization.quantized_layers import QuantizedAdd, QuantizedConcat
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8, magnitude, round_into
from flowmx.ops.quantization.zero_point import BytesPooling, DequantizeLinear, FromBytes, QuantizeLinear, ToBytes
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel, register_kernel
from flowmx.ops.registry.operators import Run

_NUMBERS = frozenset([FLOAT32, INT32, INT8, UINT8])
_INT8_DTYPES = frozenset([INT8, UINT8])
_SMALL = 1 << 12
"""NumPy is as fast below this number of elements."""


class Rescale(Work):
    """A copy between arrays of the same shape with a factor; rounded for integer targets."""

    def __init__(self, source: Geometry, target: Geometry) -> None:
        super().__init__()
        self._copy = Reorder(self.workspace, strided(*source), strided(*target), (0, plain((1,))))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


class Add(Work):
    """The sum of two int8 arrays with the same layout, each with a factor."""

    def __init__(self, first: Geometry, second: Geometry, out: Geometry) -> None:
        super().__init__()
        lib, descriptors = library_or_raise(), [strided(*each) for each in (first, second, out)]
        scales = ((int(Arg.SRC), 0), (int(Arg.SRC_1), 0))
        desc = lib.create(
            "binary_primitive_desc_create", lib.engine, int(Alg.BINARY_ADD), *[each.handle for each in descriptors],
            attributes(scales=scales),
        )  # fmt: skip
        number = plain((1,))
        arguments: dict[int, Desc | Query] = dict(zip((Arg.SRC, Arg.SRC_1, Arg.DST), descriptors, strict=True))
        arguments |= {Arg.ATTR_SCALES | argument: number for argument, _ in scales}
        self._run = Primitive(self.workspace, desc, arguments)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._run.at(base, *addresses)]


class RescaleBy(Rescale):
    """A rescaling by a constant factor."""

    def __init__(self, source: Geometry, target: Geometry, factor: float) -> None:
        super().__init__(source, target)
        self.constants = [np.full((1,), factor, np.float32)]

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return super().calls(base, *addresses, pointer(self.constants[0]))


def _by_factor(factor: Callable[[Any], float]) -> Make:
    """Return a maker of rescalings by a factor that follows from the operator."""

    def make(op: object, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
        (source,), (target,) = inputs, outputs
        is_supported = 0 < len(target.shape) <= 12 and not getattr(op, "zero", 0)
        return plan(RescaleBy, source, target, factor(op)) if is_supported else None

    return make


def _rescale(source: Array, target: Array, factor: np.float32) -> None:
    """Compute ``target[...] = source * factor``, rounded for integer targets."""
    work = None
    if target.size >= _SMALL and 0 < target.ndim <= 12 and suits(source, target, among=_NUMBERS):
        work = plan(Rescale, geometry(source), geometry(target))
    if work is not None:
        number = np.full((1,), factor, np.float32)
        work(pointer(source), pointer(target), pointer(number))
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
    steps, bounds = op.steps_of(data, out.dtype)
    _rescale(data, out, steps)
    op.put_range(outputs, bounds)


@kernel("cpu", "_contrib_requantize")
def _requantize(op: Requantize, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (data, *bounds), out = inputs, outputs[0]
    scale, out_bounds = op.steps_of(data, out.dtype, magnitude(*bounds))
    _rescale(data, out, scale)
    op.put_range(outputs, out_bounds)


@kernel("cpu", "_contrib_dequantize")
def _dequantize(op: Dequantize, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    data, *bounds = inputs
    _rescale(data, outputs[0], op.unit(data.dtype, magnitude(*bounds)))


register_kernel("cpu", ToBytes.name, PrimitiveKernel(_by_factor(lambda op: op.factor), None, _NUMBERS))
register_kernel("cpu", FromBytes.name, PrimitiveKernel(_by_factor(lambda op: op.factor), None, _NUMBERS))
register_kernel("cpu", QuantizeLinear.name, PrimitiveKernel(_by_factor(lambda op: 1 / op.scale), None, _NUMBERS))
register_kernel("cpu", DequantizeLinear.name, PrimitiveKernel(_by_factor(lambda op: op.scale), None, _NUMBERS))


class Pool(Forward):
    """Maxima or rounded means of windows of int8 or uint8 values, with the channels contiguous in memory."""

    def __init__(self, op: Pooling, data: Geometry, out: Geometry) -> None:
        super().__init__(op, data, out, False, channels_last)


def _pool(op: Any, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    return None if op.channels_last else plan(Pool, op, inputs[0], outputs[0])


register_kernel("cpu", BytesPooling.name, PrimitiveKernel(_pool, None, _INT8_DTYPES))


@kernel("cpu", "_contrib_quantized_concat")
def _concat(op: QuantizedConcat, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for part, array, factor in op.pieces(inputs, outputs):
        if factor is None:
            part[...] = array  # NumPy copies bytes faster than a reorder, in any layout
        else:
            _rescale(array, part, factor)


@kernel("cpu", "_contrib_quantized_elemwise_add")
def _add(op: QuantizedAdd, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (lhs, rhs), out = inputs[:2], outputs[0]
    work = None
    if lhs.dtype == rhs.dtype and lhs.size >= _SMALL and suits(lhs, out, among=_INT8_DTYPES):
        work = plan(Add, geometry(lhs), geometry(rhs), geometry(out))
    if work is None:
        op.forward(run, inputs, outputs)
        return
    factors, bounds = op.factors(inputs, out.dtype)
    numbers = np.array(factors, np.float32)
    work(pointer(lhs), pointer(rhs), pointer(out), pointer(numbers), pointer(numbers[1:]))
    op.put_range(outputs, bounds)
