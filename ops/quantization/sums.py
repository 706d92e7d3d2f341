"""Sums of products of bytes: exact on every processor, with what makes bytes of them again in the same step.

The plain forwards compute in float32, by the kernels of real numbers, where no sum can reach 2**24, from where on
float32 leaves whole numbers out. Elsewhere the channels are summed in parts, or in float64. Processors with VNNI have
kernels that sum in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowmx.ops.compiled.fused import Fused
from flowmx.ops.compiled.packed import Pack
from flowmx.ops.math.products import matmul
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected, as_matrix
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8, InferredTypes, compute, known_types, round_into
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, family, operator, option
from flowmx.ops.registry.traits import BatchWise

__all__ = [
    "Int8", "Int8Convolution", "Int8FullyConnected", "PackInt8Convolution", "PackInt8FullyConnected", "convolved",
    "layer_of", "multiplied", "summing",
]  # fmt: skip

_BESIDES = ("no_bias", "workspace", "cudnn_tune", "cudnn_off", "layout")
_EXACT = 1 << 24
"""Whole numbers up to here are float32's too."""
_KINDS: dict[str, DType] = {"int32": INT32, "int8": INT8, "uint8": UINT8, "float32": FLOAT32}


@family
class Int8(Fused, no_gradient=True):
    """A layer on bytes and what follows it: then(scale · sums + bias + factor · addend), rounded where that is whole.

    With ``inner`` the sums with scale and bias are rounded and cut off before the addend comes, then multiplied by it,
    and ``shift`` is added. It stands before the layer among the bases. Data and addend are int8 or uint8, the weight is
    int8, bias and scale are float32, a number for each output. Without all of these it gives the sums.
    """

    then: Literal["", "relu", "leaky", "clip"] = option("", "The activation in the end.")
    factor: float = option(1.0, "What the addend is multiplied by.")
    inner: float = option(0.0, "What rounded sums are multiplied by; 0 where they are not rounded.")
    low: float = option(0.0, "The least rounded sum, with inner.")
    high: float = option(0.0, "The largest one.")
    shift: float = option(0.0, "What is added to these, when they were multiplied.")
    unsigned: bool = option(False, "The data is uint8.")
    made: Literal["int32", "int8", "uint8", "float32"] = option("int32", "The dtype of the output.")

    if TYPE_CHECKING:  # the layer's, whose default it is
        no_bias: bool

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        data = UINT8 if self.unsigned else INT8
        kinds = {"data": (data,), "weight": (INT8,), "bias": (FLOAT32,), "scale": (FLOAT32,)}
        expected = [kinds.get(name, (INT8, UINT8)) for name in self.inputs()]
        return known_types(self, dtypes, expected), [_KINDS[self.made]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, given, out = run.xp, self.parts(inputs), outputs[0]
        weight = given.weight
        if self.packed:
            shape = self.weight_shape(given.data.shape)
            weight = weight[: prod(shape)].reshape(shape)
        sums = self.sums(run, given.data, weight, out.shape)
        if self.no_bias and not (self.scaled or self.added or self.then):
            xp.copyto(out, sums, casting="unsafe")
            return
        values = sums.astype(np.float32, copy=False)
        column = [1] * values.ndim
        column[self.bias_axis()] = -1
        if self.scaled:
            values *= given.scale.reshape(column)
        if not self.no_bias:
            values += given.bias.reshape(column)
        if self.inner:
            xp.clip(xp.rint(values, out=values), np.float32(self.low), np.float32(self.high), out=values)
            values *= np.float32(self.inner)
            values += np.float32(self.shift)
        if self.added:
            values += xp.multiply(given.addend, np.float32(self.factor), dtype=np.float32)
        if self.then:
            compute(self.activation(), run, [values], [values])
        if out.dtype == FLOAT32:
            xp.copyto(out, values)
        else:
            round_into(xp, values, out)

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        """The exact sums, as float32, float64 or int32."""
        raise NotImplementedError

    def bias_axis(self) -> int:
        """The axis of the output that bias and scale lie along."""
        raise NotImplementedError


@operator("_int8_Convolution")
class Int8Convolution(Int8, Convolution, batch_wise=BatchWise.OWN):
    """A convolution of bytes with what follows it."""

    bias_axis = Convolution.bias_axis

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        return _convolved(run, _real(self), data, weight.astype(np.float32), shape)


@operator("_int8_FullyConnected")
class Int8FullyConnected(Int8, FullyConnected, batch_wise=BatchWise.OWN):
    """A product of bytes with what follows it."""

    bias_axis = FullyConnected.bias_axis

    def bound(self, xp: Any, given: Any, made: Any) -> None:
        return None

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        rows = as_matrix(data, self.flatten)
        dtype = np.float32 if _largest(run.xp, data, weight) < _EXACT else np.float64
        out = run.xp.empty((len(rows), len(weight)), dtype)
        matmul(run, rows.astype(dtype), weight.astype(dtype).T, out)
        return out.reshape(shape)


@family
class _PackInt8(Pack):
    """Base of packed weights of int8; it stands before :class:`flowmx.ops.compiled.packed.Pack`."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8,)]), [INT8]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        Pack.forward(self, run, inputs, outputs)


@operator("_pack_int8_Convolution")
class PackInt8Convolution(_PackInt8, Int8Convolution):
    """The filters of a convolution of bytes."""


@operator("_pack_int8_FullyConnected")
class PackInt8FullyConnected(_PackInt8, Int8FullyConnected):
    """The weight of a product of bytes."""


def convolved(
    run: Run, op: Convolution, data: Array, weight: Array, shape: Shape, packed: bool = False
) -> Array:  # fmt: skip
    """The exact sums of a convolution without bias, as int32.

    Args:
        run: what it runs in.
        op: the convolution; only its geometry counts.
        data: int8 or uint8.
        weight: int8.
        shape: that of the result.
        packed: the weight is a packed one.
    """
    out = _lying_as(run.xp, data, shape)
    compute(summing(op, data.dtype == UINT8, packed), run, [data, weight], [out])
    return out


def _lying_as(xp: Any, data: Array, shape: Shape) -> Array:
    """An array of int32 with the channels contiguous in memory where those of the data are."""
    rank = len(shape)
    if data.ndim != rank or data.strides[1] != data.itemsize or rank < 3:
        return xp.empty(shape, INT32)
    return xp.empty((shape[0], *shape[2:], shape[1]), INT32).transpose(0, rank - 1, *range(1, rank - 1))


def multiplied(run: Run, data: Array, weight: Array) -> Array:
    """The exact products of two matrices, the second transposed, as int32.

    Args:
        run: what it runs in.
        data: int8 or uint8.
        weight: int8.
    """
    out = run.xp.empty((len(data), len(weight)), INT32)
    layer = Int8FullyConnected.create(num_hidden=len(weight), no_bias=True, unsigned=data.dtype == UINT8)
    compute(layer, run, [data, weight], [out])
    return out


def _largest(xp: Any, data: Array, weight: Array) -> float:
    """No sum of products is larger, whatever the data."""
    rows = weight.reshape(len(weight), -1)
    most = float(xp.abs(rows.astype(np.float32)).sum(axis=1).max()) if rows.size else 0.0
    return most * (-np.iinfo(data.dtype).min or np.iinfo(data.dtype).max)


def _convolved(run: Run, op: Operator, data: Array, weight: Array, shape: Shape) -> Array:
    xp, channels = run.xp, data.shape[1]
    if _largest(run.xp, data, weight) < _EXACT:
        out = xp.empty(shape, np.float32)
        compute(op, run, [data.astype(np.float32), weight], [out])
        return out
    if channels != weight.shape[1] or channels == 1:  # groups, whose sums are short, or a huge window
        out = xp.empty(shape, np.float64)
        op.forward(run, [data.astype(np.float64), weight.astype(np.float64)], [out])
        return out
    half = channels // 2
    total = _convolved(run, op, data[:, :half], xp.ascontiguousarray(weight[:, :half]), shape).astype(np.int32)
    total += _convolved(run, op, data[:, half:], xp.ascontiguousarray(weight[:, half:]), shape).astype(np.int32)
    return total


def layer_of(op: Operator) -> dict[str, Any]:
    """The parameters of a convolution or product that say what it computes, bias left out."""
    return {name: getattr(op, name) for name in op.parameters if name not in _BESIDES}


def summing(op: Convolution, unsigned: bool, packed: bool = False) -> Operator:
    """The operator that gives the sums of a convolution, for uint8 or int8 data."""
    return _kept(op, f"_summing_{unsigned}_{packed}", Int8Convolution, unsigned=unsigned, packed=packed)


def _real(op: Convolution) -> Operator:
    """The same convolution of real numbers."""
    return _kept(op, "_real", Convolution)


def _kept(op: Convolution, name: str, kind: type[Operator], **more: Any) -> Operator:
    found: Operator | None = op.__dict__.get(name)
    if found is None:
        given = {name: each for name, each in layer_of(op).items() if name in Convolution.parameters}
        found = kind.create(**given, no_bias=True, **more)
        object.__setattr__(op, name, found)
    return found
