"""int8 convolution and matrix product with exact sums on every processor, requantized in the same step.

The fallback forwards compute in float32 with the floating-point kernels if no sum can reach 2**24, the limit up to
which float32 represents all integers. Otherwise the channels are summed in parts, or in float64. Processors with VNNI
have kernels that sum in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np

from flowmx.ops.compiled.fused_layers import Fused
from flowmx.ops.compiled.packed_weights import Pack
from flowmx.ops.math.matmul import matmul
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected, as_matrix
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8, InferredTypes, known_types, round_into
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Form, Operator, Run, Shape, family, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace
from flowmx.ops.registry.traits import BatchWise

__all__ = [
    "Int8", "Int8Convolution", "Int8FullyConnected", "PackInt8Convolution", "PackInt8FullyConnected", "convolve_int8",
    "layer_parameters", "multiply_int8", "sum_operator",
]  # fmt: skip

_IGNORED = ("no_bias", "workspace", "cudnn_tune", "cudnn_off", "layout")
_EXACT = 1 << 24
"""float32 represents all integers up to this one."""
_KINDS: dict[str, DType] = {"int32": INT32, "int8": INT8, "uint8": UINT8, "float32": FLOAT32}


@family
class Int8(Fused, no_gradient=True):
    """A fused layer on int8 data: activation(scale · sums + bias + factor · addend), rounded for integer outputs.

    With ``inner``, scale · sums + bias is rounded and clipped, multiplied by ``inner``, and ``shift`` is added, before
    the addend. This class precedes the layer among the bases. Data and addend are int8 or uint8, the weight is int8,
    bias and scale are float32 with one number per output. Without these options it returns the sums.
    """

    activation: Literal["", "relu", "leaky", "clip"] = option("", "The final activation.")
    factor: float = option(1.0, "The factor of the addend.")
    inner: float = option(0.0, "The factor of the rounded sums; 0: do not round.")
    low: float = option(0.0, "The smallest rounded sum, with inner.")
    high: float = option(0.0, "The largest rounded sum.")
    shift: float = option(0.0, "Added to the rounded sums after multiplication.")
    unsigned: bool = option(False, "The data is uint8.")
    out_dtype: Literal["int32", "int8", "uint8", "float32"] = option("int32", "The dtype of the output.")

    if TYPE_CHECKING:  # a parameter of the layer, with its default
        no_bias: bool

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        data = UINT8 if self.unsigned else INT8
        kinds = {"data": (data,), "weight": (INT8,), "bias": (FLOAT32,), "scale": (FLOAT32,)}
        choices = [kinds.get(name, (INT8, UINT8)) for name in self.inputs()]
        return known_types(self, dtypes, choices), [_KINDS[self.out_dtype]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, parts, out = run.xp, self.parts(inputs), outputs[0]
        weight = parts.weight
        if self.packed:
            shape = self.weight_shape(parts.data.shape)
            weight = weight[: prod(shape)].reshape(shape)
        sums = self.sums(run, parts.data, weight, out.shape)
        if self.no_bias and not (self.scaled or self.has_addend or self.activation):
            xp.copyto(out, sums, casting="unsafe")
            return
        values = sums.astype(np.float32, copy=False)
        column = [1] * values.ndim
        column[self.bias_axis()] = -1
        if self.scaled:
            values *= parts.scale.reshape(column)
        if not self.no_bias:
            values += parts.bias.reshape(column)
        if self.inner:
            xp.clip(xp.rint(values, out=values), np.float32(self.low), np.float32(self.high), out=values)
            values *= np.float32(self.inner)
            values += np.float32(self.shift)
        if self.has_addend:
            values += xp.multiply(parts.addend, np.float32(self.factor), dtype=np.float32)
        if self.activation:
            compute_operator(self.activation_operator(), run, [values], [values])
        if out.dtype == FLOAT32:
            xp.copyto(out, values)
        else:
            round_into(xp, values, out)

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        """Return the exact sums, as float32, float64 or int32."""
        raise NotImplementedError

    def bias_axis(self) -> int:
        """Return the axis of the output along which bias and scale vary."""
        raise NotImplementedError


@operator("_int8_Convolution")
class Int8Convolution(Int8, Convolution, batch_wise=BatchWise.OWN):
    """A fused int8 convolution."""

    bias_axis = Convolution.bias_axis

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        return _convolve(run, _float_operator(self), data, weight.astype(np.float32), shape)


@operator("_int8_FullyConnected")
class Int8FullyConnected(Int8, FullyConnected, batch_wise=BatchWise.OWN):
    """A fused int8 matrix product."""

    bias_axis = FullyConnected.bias_axis

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> None:
        return None

    def sums(self, run: Run, data: Array, weight: Array, shape: Shape) -> Array:
        rows = as_matrix(data, self.flatten)
        dtype = np.float32 if _largest(run.xp, data, weight) < _EXACT else np.float64
        out = run.xp.empty((len(rows), len(weight)), dtype)
        matmul(run, rows.astype(dtype), weight.astype(dtype).T, out)
        result: Array = out.reshape(shape)
        return result


@family
class _PackInt8(Pack):
    """Base of packed int8 weights; it precedes :class:`flowmx.ops.compiled.packed_weights.Pack` among the bases."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8,)]), [INT8]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        Pack.forward(self, run, inputs, outputs)


@operator("_pack_int8_Convolution")
class PackInt8Convolution(_PackInt8, Int8Convolution):
    """The packed filters of an int8 convolution."""


@operator("_pack_int8_FullyConnected")
class PackInt8FullyConnected(_PackInt8, Int8FullyConnected):
    """The packed weight of an int8 matrix product."""


def convolve_int8(
    run: Run, op: Convolution, data: Array, weight: Array, shape: Shape, packed: bool = False
) -> Array:  # fmt: skip
    """Return the exact sums of a convolution without bias, as int32.

    Args:
        run: the context of the forward.
        op: the convolution, of which only the geometry is used.
        data: int8 or uint8.
        weight: int8.
        shape: the shape of the result.
        packed: whether the weight is packed.
    """
    out = _empty_in_layout_of(run.xp, data, shape)
    compute_operator(sum_operator(op, data.dtype == UINT8, packed), run, [data, weight], [out])
    return out


def _empty_in_layout_of(xp: ArrayNamespace, data: Array, shape: Shape) -> Array:
    """Return an empty int32 array, with the channels contiguous in memory if those of the data are."""
    rank = len(shape)
    if data.ndim != rank or data.strides[1] != data.itemsize or rank < 3:
        return xp.empty(shape, INT32)
    return xp.empty((shape[0], *shape[2:], shape[1]), INT32).transpose(0, rank - 1, *range(1, rank - 1))


def multiply_int8(run: Run, data: Array, weight: Array) -> Array:
    """Return the exact product of two matrices, the second transposed, as int32.

    Args:
        run: the context of the forward.
        data: int8 or uint8.
        weight: int8.
    """
    out: Array = run.xp.empty((len(data), len(weight)), INT32)
    layer = Int8FullyConnected.create(num_hidden=len(weight), no_bias=True, unsigned=data.dtype == UINT8)
    compute_operator(layer, run, [data, weight], [out])
    return out


def _largest(xp: ArrayNamespace, data: Array, weight: Array) -> float:
    """Return an upper bound of the sums for any data."""
    rows = weight.reshape(len(weight), -1)
    limit = float(xp.abs(rows.astype(np.float32)).sum(axis=1).max()) if rows.size else 0.0
    return limit * (-np.iinfo(data.dtype).min or np.iinfo(data.dtype).max)


def _convolve(run: Run, op: Operator, data: Array, weight: Array, shape: Shape) -> Array:
    xp, channels = run.xp, data.shape[1]
    if _largest(run.xp, data, weight) < _EXACT:
        out: Array = xp.empty(shape, np.float32)
        compute_operator(op, run, [data.astype(np.float32), weight], [out])
        return out
    if channels != weight.shape[1] or channels == 1:  # groups, whose sums are short, or a huge window
        out = xp.empty(shape, np.float64)
        op.forward(run, [data.astype(np.float64), weight.astype(np.float64)], [out])
        return out
    half = channels // 2
    total = _convolve(run, op, data[:, :half], xp.ascontiguousarray(weight[:, :half]), shape).astype(np.int32)
    total += _convolve(run, op, data[:, half:], xp.ascontiguousarray(weight[:, half:]), shape).astype(np.int32)
    return total


def layer_parameters(op: Operator) -> dict[str, object]:
    """Return the parameters of a convolution or product that define its computation, except the bias."""
    return {name: getattr(op, name) for name in op.parameters if name not in _IGNORED}


def sum_operator(op: Convolution, unsigned: bool, packed: bool = False) -> Operator:
    """Return the operator of a convolution's int32 sums, for uint8 or int8 data."""
    return _cached_operator(op, f"_summing_{unsigned}_{packed}", Int8Convolution, unsigned=unsigned, packed=packed)


def _float_operator(op: Convolution) -> Operator:
    """Return the same convolution in floating point."""
    return _cached_operator(op, "_real", Convolution)


def _cached_operator(op: Convolution, name: str, kind: type[Operator], **extra: object) -> Operator:
    cached: Operator | None = op.__dict__.get(name)
    if cached is None:
        parameters = {name: value for name, value in layer_parameters(op).items() if name in Convolution.parameters}
        cached = kind.create(**parameters, no_bias=True, **extra)
        object.__setattr__(op, name, cached)
    return cached
