"""Fused layers as subgraph operators, as in MXNet's files of quantized networks.

A convolution followed by BatchNorm, a sum and an activation, or a product followed by an activation, is a node with a
body (:class:`flowmx.graph.subgraph.Body`) that defines the floating-point computation. When quantized, BatchNorm is
folded into the filters, filters get a scale per channel, and the sums are converted to int8 in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected, as_matrix
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.quantization.conversions import QuantizeV2
from flowmx.ops.quantization.int8_filters import Filters, quantize_filters, round_half_away
from flowmx.ops.quantization.int8_layers import (
    Int8,
    Int8Convolution,
    Int8FullyConnected,
    convolve_int8,
    layer_parameters,
    multiply_int8,
)
from flowmx.ops.quantization.prepared_filters import FusedFilters
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    RANGE,
    UINT8,
    Inferred,
    InferredTypes,
    Range,
    known_types,
    largest,
    magnitude,
    operator,
    product_magnitude,
    put_range,
    round_into,
    scale_of,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, family, option
from flowmx.ops.registry.tensors import ArrayNamespace
from flowmx.ops.registry.traits import Quantization

MAX_INT8 = 127.0


class Int32Layer(NamedTuple):
    """A layer on int8 data with an int32 output.

    Attributes:
        kind: the operator class that computes it.
        layer: the floating-point layer.
        activation: the parameters of the activation.
    """

    kind: type[Int8]
    layer: Operator
    activation: dict[str, Any]

    def create(self, unsigned: bool, biased: bool, packed: bool) -> Operator:
        """Return the operator for data of a dtype."""
        flags = {"unsigned": unsigned, "no_bias": not biased, "packed": packed}
        return self.kind.create(**layer_parameters(self.layer), **self.activation, **flags)


class FusedForm(NamedTuple):
    """The operators that compute a layer with known ranges.

    Attributes:
        filters: computes weight, bias and scale from the parameters, once.
        kind: the operator class of the layer.
        parameters: the parameters of the layer.
        ends: the range of the output; None if that is floating point.
        after: floating-point operators to apply after it, in order.
    """

    filters: FusedFilters
    kind: type[Int8]
    parameters: dict[str, Any]
    ends: Range | None
    after: tuple[Operator, ...] = ()


@family
class SubgraphLayer(Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True, quantized=None):
    """Base of fused layers; ``subgraphs`` holds the body."""

    arguments = ()
    layer_class: ClassVar[type[Operator]]
    int8_class: ClassVar[type[Int8]]
    layer: ClassVar[Any]
    """The convolution or product."""
    norm: ClassVar[BatchNorm | None]
    """The BatchNorm after it."""
    activation: ClassVar[Operator | None]
    """The activation after the layer or after the sum."""
    quantized: bool = option(False, "The data is quantized.")
    min_calib_range: float | None = option(None, "The lower end of the output's range, if calibrated.")
    max_calib_range: float | None = option(None, "The upper end.")

    @classmethod
    def create(cls, /, **arguments: Any) -> Operator:
        """Return the operator; ``subgraphs`` holds its body.

        Raises:
            ParameterError: a parameter is unknown, missing or invalid, or the body does not fit.
        """
        bodies = tuple(arguments.pop("subgraphs", ()))
        if len(bodies) != 1:
            raise ParameterError(f"{cls.name}: {len(bodies)} subgraphs were given, expected 1")
        for old, name in _OLD_NAMES.items():
            if old in arguments and name in cls.parameters:
                arguments[name] = arguments.pop(old)
        result: Any = cls(**cls._convert(arguments))
        ops = [node.op for node in bodies[0].nodes if node.op is not None]
        layers = [op for op in ops if type(op) is cls.layer_class]
        ends = [op for op in ops if not isinstance(op, (cls.layer_class, BatchNorm, SUMS))]
        if len(layers) != 1 or len(ends) > 1:
            raise ParameterError(
                f"{cls.name}: its body is {ops}, expected one {cls.layer_class.name} and at most one activation"
            )
        attributes: dict[str, Any] = {
            "subgraphs": bodies, "_specs": {}, "layer": layers[0], "activation": ends[0] if ends else None,
            "norm": next((op for op in ops if isinstance(op, BatchNorm)), None),
        }  # fmt: skip
        for name, value in attributes.items():
            object.__setattr__(result, name, value)
        form = result.form()
        result.with_traits(quantized=None if result.quantized else form, requantizes=result.quantized)
        return result  # type: ignore[no-any-return]

    @classmethod
    def takes(cls, name: str) -> bool:
        return super().takes(name) or _OLD_NAMES.get(name) in cls.parameters

    def form(self) -> Quantization:
        """Return the quantized form of this operator."""
        raise NotImplementedError

    @property
    def calibrated(self) -> tuple[np.float32, np.float32] | None:
        """The calibrated range, or None."""
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    def array_names(self) -> tuple[str, ...]:
        """Return the names of the inputs that are not ends of ranges."""
        raise NotImplementedError

    def range_names(self) -> tuple[str, ...]:
        """Return the names of the inputs that are ends of ranges, for the quantized layer."""
        raise NotImplementedError

    def ranges_of_data(self) -> tuple[str, ...]:
        """Return the names of the ends of the ranges of data and addend, without those of parameters."""
        return self.range_names()

    def inputs(self) -> tuple[str, ...]:
        return (*self.array_names(), *(self.range_names() if self.quantized else ()))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.array_names())
        in_shapes, outputs = self.subgraphs[0].infer_shape(shapes[:count])
        ends = [
            expect_shape(self, name, shape, RANGE)
            for name, shape in zip(self.range_names(), shapes[count:], strict=False)
        ]
        return [*in_shapes, *ends], [*outputs[:1], *[RANGE] * (len(self.outputs()) - 1)]

    def cost(self, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[int, int]:
        cost: tuple[int, int] = self.layer.cost(inputs[: len(self.layer.inputs())], outputs[:1])
        return cost

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self.quantized:
            self.compute(run, dict(zip(self.inputs(), inputs, strict=True)), outputs)
        else:
            self.subgraphs[0].program(run, inputs).run(run, inputs, outputs)

    def compute(self, run: Run, arrays: dict[str, Array], outputs: Sequence[Array]) -> None:
        """Compute on quantized arrays."""
        raise NotImplementedError

    def filters(self, xp: ArrayNamespace, arrays: dict[str, Array], data_scale: np.float32) -> Filters:
        """Return the quantized weight and bias, from the inputs by name, for data with this scale."""
        raise NotImplementedError

    @cached_property
    def int32_layer(self) -> Int32Layer | None:
        """The layer with int32 sums as output, if it has at most a bias and a ReLU; otherwise None."""
        activation = self._activation_parameters(np.float32(1))
        is_plain = activation in ({}, {"activation": "relu"}) and "sum" not in self.array_names()
        has_sums = self.quantized and self.calibrated is None and len(self.outputs()) == 3
        if activation is None or not is_plain or not has_sums:
            return None
        return Int32Layer(self.int8_class, self.layer, activation)

    def parameters_read(self) -> tuple[str, ...]:
        """Return the names of the inputs that :meth:`filters` reads."""
        count = len(self.layer.inputs())
        return self.array_names()[1:count]

    def fused_form(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: Mapping[str, object] | None = None
    ) -> FusedForm | None:
        """Return the operators of this layer for known ranges; None if a range is unknown or no kernel fuses it.

        Args:
            kinds: the dtypes of data, addend (any, without an addend) and output.
            ranges: the ranges of data and addend.
            end: the parameters of the activation, if it is not the layer's.
        """
        data, ends = ranges[0], self.calibrated
        is_real = kinds[-1] == FLOAT32
        if data is None or (ends is None and not is_real):
            return None
        unit = np.float32(1) if is_real or ends is None else scale_of(kinds[-1], largest(ends))
        end = self._activation_parameters(unit) if end is None else end
        if end is None:
            return None
        filters = FusedFilters.of(self, scale_of(kinds[0], largest(data)), unit)
        parameters = {**layer_parameters(self.layer), **end, "scaled": True, "unsigned": kinds[0] == UINT8}
        parameters["out_dtype"] = name_of(kinds[-1])
        return FusedForm(filters, self.int8_class, parameters, ends)

    def _activation_parameters(self, unit: np.float32) -> dict[str, object] | None:
        """Return the parameters of :class:`Int8` for the activation, at this number of steps per unit, or None."""
        activation = self.activation
        if activation is None:
            return {}
        if isinstance(activation, Clip):
            return {"activation": "clip", "top": float(np.float32(activation.a_max * unit))}
        if isinstance(activation, Activation):
            return {"activation": "relu"} if activation.act_type == "relu" else None
        if isinstance(activation, LeakyReLU) and activation.act_type == "leaky":
            return {"activation": "leaky", "slope": activation.slope}
        return None

    def activate(self, run: Run, values: Array, unit: Any) -> None:
        """Apply the activation in place to values in quantization steps; ``unit`` is the number of steps per unit."""
        if self.activation is None:
            return
        if isinstance(self.activation, Clip):
            run.xp.clip(values, 0, self.activation.a_max * unit, out=values)
        else:
            compute_operator(self.activation, run, [values], [values])


@operator("_sg_mkldnn_conv")
class SubgraphConvolution(SubgraphLayer):
    """A convolution, optionally followed by BatchNorm, a sum and an activation."""

    layer_class, int8_class = Convolution, Int8Convolution
    with_bn: bool = option(False, "BatchNorm follows.")
    with_act: bool = option(False, "An activation follows, before the sum.")
    with_sum: bool = option(False, "The sum with another array follows.")
    with_postsum_act: bool = option(False, "An activation follows the sum.")

    def form(self) -> Quantization:
        count = len(self.array_names()) - self.with_sum
        return Quantization(self.name, True, tuple(range(1, count)), parameters=(("quantized", "true"),))

    def array_names(self) -> tuple[str, ...]:
        bias = () if self.layer.no_bias else ("bias",)
        norm = ("gamma", "beta", "mean", "var") if self.with_bn else ()
        return ("data", "weight", *bias, *norm, *(("sum",) if self.with_sum else ()))

    def range_names(self) -> tuple[str, ...]:
        return ("data_min", "data_max", *(("sum_min", "sum_max") if self.with_sum else ()))

    def outputs(self) -> tuple[str, ...]:
        return ("output", "output_min", "output_max") if self.quantized else ("output",)

    def auxiliary_positions(self) -> tuple[int, ...]:
        first = len(self.layer.inputs()) + 2
        return (first, first + 1) if self.with_bn else ()

    @property
    def is_unsigned(self) -> bool:
        """Whether the result is never negative."""
        activation = self.activation
        if isinstance(activation, LeakyReLU):
            return activation.act_type == "leaky" and activation.slope == 0
        if isinstance(activation, Activation):
            return activation.act_type in ("relu", "sigmoid", "softrelu")
        return isinstance(activation, Clip)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.quantized:
            completed, outputs = self.subgraphs[0].infer_type(dtypes)
            return completed, outputs[:1]
        types: list[tuple[DType, ...]] = [
            (INT8, UINT8) if name in ("data", "sum") else (FLOAT32,) for name in self.inputs()
        ]
        out_dtype = INT32 if self.calibrated is None else UINT8 if self.is_unsigned else INT8
        return known_types(self, dtypes, types), [out_dtype, FLOAT32, FLOAT32]

    def parameters_read(self) -> tuple[str, ...]:
        return self.array_names()[1 : len(self.array_names()) - self.with_sum]

    def filters(self, xp: ArrayNamespace, arrays: dict[str, Array], data_scale: np.float32) -> Filters:
        return quantize_filters(xp, *self._fold_batch_norm(xp, arrays), data_scale, self.calibrated is not None)

    def _fold_batch_norm(self, xp: ArrayNamespace, arrays: dict[str, Array]) -> tuple[Array, Array | None]:
        """Return filters and bias with BatchNorm folded in."""
        weight, bias, norm = arrays["weight"], arrays.get("bias"), self.norm
        if norm is None:
            return weight, bias
        factor = (1 if norm.fix_gamma else arrays["gamma"]) / xp.sqrt(arrays["var"] + np.float32(norm.eps))
        mean = arrays["mean"] if bias is None else arrays["mean"] - bias
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)), arrays["beta"] - factor * mean

    def fused_form(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: Mapping[str, object] | None = None
    ) -> FusedForm | None:
        form = super().fused_form(kinds, ranges, end)
        if form is None or not self.with_sum:
            return form
        addend = ranges[1]
        if addend is None or self.calibrated is None:
            return None
        if sums_in_int8(*kinds[1:]):
            most = form.parameters.get("top", MAX_INT8)
            form.parameters.update(activation="clip", top=min(most, MAX_INT8))
        addend_scale = scale_of(kinds[1], largest(addend))
        form.parameters.update(
            has_addend=True, factor=float(np.float32(scale_of(kinds[-1], largest(self.calibrated)) / addend_scale))
        )
        return form

    def range_free_filters(self, xp: ArrayNamespace, arrays: dict[str, Array]) -> Filters:
        """Return filters that depend on no range, for an uncalibrated output; the bias stays in floating point."""
        weight, bias = self._fold_batch_norm(xp, arrays)
        return quantize_filters(xp, weight, None, np.float32(1), False)._replace(bias=bias)

    def compute(self, run: Run, arrays: dict[str, Array], outputs: Sequence[Array]) -> None:
        size = magnitude(arrays["data_min"], arrays["data_max"])
        self.compute_by(run, arrays, outputs, self.filters(run.xp, arrays, scale_of(arrays["data"].dtype, size)))

    def compute_by(
        self, run: Run, arrays: dict[str, Array], outputs: Sequence[Array], filters: Filters, packed: bool = False
    ) -> None:
        """Compute on quantized arrays with these filters; ``packed`` is true if their weight is packed."""
        xp, data, out, ends = run.xp, arrays["data"], outputs[0], self.calibrated
        size = magnitude(arrays["data_min"], arrays["data_max"])
        data_scale = scale_of(data.dtype, size)
        if self.int32_layer is not None:
            layer = self.int32_layer.create(data.dtype == UINT8, filters.bias is not None, packed)
            inputs = [data, filters.weight, *([] if filters.bias is None else [filters.bias])]
            compute_operator(layer, run, inputs, [out])
            sum_size = product_magnitude(filters.size, size, data.dtype)
            put_range(outputs, -sum_size, sum_size)
            return
        values = convolve_int8(run, self.layer, data, filters.weight, out.shape, packed)
        values = values.astype(np.float32, copy=False)
        column = (-1, *(1,) * (values.ndim - 2))
        units = filters.scales * data_scale
        if filters.bias is not None:
            values += filters.bias.reshape(column)
        if ends is None:
            sum_size = product_magnitude(filters.size, size, data.dtype)
            ends, unit = (-sum_size, sum_size), units[0]
        else:
            unit = scale_of(out.dtype, largest(ends))
            values *= (unit / units).reshape(column)
        if self.with_sum:
            addend = arrays["sum"]
            addend_scale = scale_of(addend.dtype, magnitude(arrays["sum_min"], arrays["sum_max"]))
            values += addend * np.float32(unit / addend_scale)
        self.activate(run, values, unit)
        if self.with_sum and sums_in_int8(addend.dtype, out.dtype):
            xp.clip(values, 0, MAX_INT8, out=values)
        round_into(xp, values, out)
        put_range(outputs, *ends)


@operator("_sg_mkldnn_fully_connected")
class SubgraphProduct(SubgraphLayer):
    """A product, optionally followed by an activation."""

    layer_class, int8_class = FullyConnected, Int8FullyConnected
    enable_float_output: bool = option(False, "Return floating-point numbers, without a range.")
    with_eltwise: bool = option(False, "An activation follows.")
    channel_wise_quantize: bool | None = option(None, "The weight is in floating point and gets a scale per output.")

    def form(self) -> Quantization:
        parameters = tuple(range(1, len(self.array_names())))
        return Quantization(
            self.name, True, (), parameters, (("quantized", "True"),), (("channel_wise_quantize", "True"),)
        )  # fmt: skip

    def array_names(self) -> tuple[str, ...]:
        return ("data", "weight") if self.layer.no_bias else ("data", "weight", "bias")

    def range_names(self) -> tuple[str, ...]:
        data: tuple[str, ...] = ("min_data", "max_data")
        if self.channel_wise_quantize:
            return data
        return (*data, "min_weight", "max_weight", *(() if self.layer.no_bias else ("min_bias", "max_bias")))

    def outputs(self) -> tuple[str, ...]:
        return (
            ("output", "min_output", "max_output") if self.quantized and not self.enable_float_output else ("output",)
        )

    @property
    def is_unsigned(self) -> bool:
        """Whether MXNet's result is uint8."""
        activation = self.activation
        if isinstance(activation, LeakyReLU):
            return activation.act_type == "leaky"
        if isinstance(activation, Activation):
            return activation.act_type in ("relu", "sigmoid", "softrelu")
        return activation is not None

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.quantized:
            completed, outputs = self.subgraphs[0].infer_type(dtypes)
            return completed, outputs[:1]
        parameter_types = (FLOAT32,) if self.channel_wise_quantize else (INT8,)
        count = len(self.array_names())
        types = [(INT8, UINT8), *[parameter_types] * (count - 1), *[(FLOAT32,)] * (len(dtypes) - count)]
        if self.enable_float_output:
            return known_types(self, dtypes, types), [FLOAT32]
        out_dtype = INT32 if self.calibrated is None else UINT8 if self.is_unsigned else INT8
        return known_types(self, dtypes, types), [out_dtype, FLOAT32, FLOAT32]

    def ranges_of_data(self) -> tuple[str, ...]:
        return self.range_names()[:2]

    def parameters_read(self) -> tuple[str, ...]:
        return (*super().parameters_read(), *self.range_names()[2:])

    def fused_form(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: Mapping[str, object] | None = None
    ) -> FusedForm | None:
        form, activation = super().fused_form(kinds, ranges, end), self.activation
        if form is not None or activation is None:
            return form
        # No kernel fuses this activation: apply it in floating point, as compute() does.
        form = super().fused_form((*kinds[:-1], FLOAT32), ranges, {})
        ends = self.calibrated
        if form is None or ends is None or kinds[-1] == FLOAT32:
            return None if form is None else form._replace(after=(activation,))
        low, high = map(float, ends)
        to_bytes = QuantizeV2.create(out_type=name_of(kinds[-1]), min_calib_range=low, max_calib_range=high)
        return form._replace(after=(activation, to_bytes))

    def filters(self, xp: ArrayNamespace, arrays: dict[str, Array], data_scale: np.float32) -> Filters:
        if self.channel_wise_quantize:
            return quantize_filters(xp, arrays["weight"], arrays.get("bias"), data_scale, True)
        size = magnitude(arrays["min_weight"], arrays["max_weight"])
        scale, weight = scale_of(INT8, size), arrays["weight"]
        bias = arrays.get("bias")
        if bias is not None:
            bias_size = magnitude(arrays["min_bias"], arrays["max_bias"])
            bias_scale = scale_of(INT8, bias_size)
            factor = np.float32(data_scale * scale / bias_scale)
            most = np.float32(np.float32(1073741823) / bias_size / bias_scale) if bias_size else factor
            if factor > most:  # the bias, in steps of the sums, must fit into an int32
                smaller = np.float32(most * bias_scale / data_scale / scale)
                weight, scale, factor = round_half_away(xp, weight * smaller), np.float32(scale * smaller), most
            bias = round_half_away(xp, bias * factor)
        return Filters(weight.astype(np.int8, copy=False), xp.full((1,), scale, np.float32), size, bias)

    def compute(self, run: Run, arrays: dict[str, Array], outputs: Sequence[Array]) -> None:
        xp, data, ends = run.xp, arrays["data"], self.calibrated
        flatten = self.layer.flatten
        size = magnitude(arrays["min_data"], arrays["max_data"])
        data_scale = scale_of(data.dtype, size)
        filters = self.filters(xp, arrays, data_scale)
        if self.int32_layer is not None:
            is_packed = "packed" in arrays and filters.weight is arrays["weight"]
            layer = self.int32_layer.create(data.dtype == UINT8, filters.bias is not None, is_packed)
            bias = [] if filters.bias is None else [filters.bias.astype(np.float32, copy=False)]
            compute_operator(layer, run, [data, arrays["packed"] if is_packed else filters.weight, *bias], outputs[:1])
            sum_size = product_magnitude(size, filters.size, data.dtype)
            put_range(outputs, -sum_size, sum_size)
            return
        values = multiply_int8(run, as_matrix(data, flatten), filters.weight).astype(np.float32, copy=False)
        if filters.bias is not None:
            values += filters.bias
        units = filters.scales * data_scale
        values = values.reshape(outputs[0].shape)
        if ends is None and not self.enable_float_output:
            self.activate(run, values, units[0])
            sum_size = product_magnitude(size, filters.size, data.dtype)
            round_into(xp, values, outputs[0])
            put_range(outputs, -sum_size, sum_size)
            return
        values /= units
        self.activate(run, values, 1)
        if ends is None:
            outputs[0][...] = values
            return
        values *= scale_of(outputs[0].dtype, largest(ends))
        round_into(xp, values, outputs[0])
        put_range(outputs, *ends)


def sums_in_int8(addend: DType, output: DType) -> bool:
    """Return whether MXNet sums in the memory of an int8 addend, which limits the result to int8."""
    return addend == INT8 and output == UINT8


_OLD_NAMES = {"with_relu": "with_act", "with_postsum_relu": "with_postsum_act"}
"""Names of parameters in older files."""
