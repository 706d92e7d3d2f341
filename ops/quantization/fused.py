"""Layers with what follows them as one operator, as MXNet's files of quantized networks have them.

A convolution with BatchNorm, a sum and an activation behind it, or a product with an activation, is a node with a body
(:class:`flowmx.graph.subgraph.Body`) that says what it does to real numbers. Quantized, BatchNorm goes into the
filters, filters get a scale for each channel, and the bytes of the result come from the sums at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

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
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    RANGE,
    UINT8,
    Inferred,
    InferredTypes,
    Range,
    compute,
    known_types,
    largest,
    magnitude,
    number,
    operator,
    product_magnitude,
    put_range,
    round_into,
    scale_of,
)
from flowmx.ops.quantization.sums import Int8, Int8Convolution, Int8FullyConnected, convolved, layer_of, multiplied
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, family, option
from flowmx.ops.registry.traits import Quantization

MOST_OF_INT8 = 127.0
_HALF_OF_INT32 = np.float32(2147483647) / 2


class Filters(NamedTuple):
    """A weight in whole numbers.

    Attributes:
        whole: the numbers, int8.
        scales: the steps for each unit of a real number: one for each output, or one.
        size: the largest absolute weight.
        bias: the bias in the units of the sums, whole numbers of float32, or None.
    """

    whole: Array
    scales: Array
    size: np.float32
    bias: Array | None


def _whole_filters(xp: Any, weight: Array, bias: Array | None, data_scale: np.float32, by_channel: bool) -> Filters:
    """Filters of real numbers as whole ones."""
    rows = weight.reshape(len(weight), -1)
    sizes = xp.maximum(rows.max(axis=1), -rows.min(axis=1)) if rows.size else xp.zeros(len(weight), np.float32)
    size = np.float32(sizes.max())
    if by_channel:
        scales = xp.where(sizes > 0, np.float32(127.5) / xp.where(sizes > 0, sizes, 1), np.float32(2147483647))
        if bias is not None:  # the bias, in the units of the sums, must be an int32
            most = _HALF_OF_INT32 / xp.maximum(xp.abs(bias), np.float32(1e-20)) / data_scale
            scales = xp.minimum(scales, most)
    else:
        scales = xp.full((1,), scale_of(INT8, size), np.float32)
    scales = scales.astype(np.float32)
    whole = rows * scales[:, None]
    xp.clip(xp.rint(whole, out=whole), -128, 127, out=whole)
    if bias is not None:
        bias = xp.rint(bias * (scales * data_scale))
    return Filters(whole.reshape(weight.shape).astype(np.int8), scales, size, bias)


class Sums(NamedTuple):
    """A layer on bytes that gives int32.

    Attributes:
        kind: what computes it.
        layer: the layer of real numbers.
        end: the activation, as parameters.
    """

    kind: type[Int8]
    layer: Operator
    end: dict[str, Any]

    def of(self, unsigned: bool, biased: bool, packed: bool) -> Operator:
        """The operator for data of a type."""
        given = {**layer_of(self.layer), **self.end, "unsigned": unsigned, "no_bias": not biased, "packed": packed}
        return self.kind.create(**given)


class Settled(NamedTuple):
    """A layer whose ranges are known, as the operators that compute it.

    Attributes:
        filters: makes weight, bias and scale of the parameters, once.
        kind: what computes the layer.
        given: its parameters.
        ends: the range of the output; None where that is real.
        after: operators on real numbers that come after it, one after the other.
    """

    filters: SettledFilters
    kind: type[Int8]
    given: dict[str, Any]
    ends: Range | None
    after: tuple[Operator, ...] = ()


@family
class Part(Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True, quantized=None):
    """Base of layers with what follows them; ``subgraphs`` is the body."""

    arguments = ()
    layer_class: ClassVar[type[Operator]]
    settled_class: ClassVar[type[Int8]]
    layer: ClassVar[Any]
    """The convolution or product."""
    norm: ClassVar[BatchNorm | None]
    """The BatchNorm after it."""
    then: ClassVar[Operator | None]
    """The activation after the layer, or after the sum."""
    quantized: bool = option(False, "The data is quantized.")
    min_calib_range: float | None = option(None, "The lower end of the output's range, where it is known before.")
    max_calib_range: float | None = option(None, "The upper end.")

    @classmethod
    def create(cls, /, **given: Any) -> Operator:
        """The operator; ``subgraphs`` holds its body.

        Raises:
            ParameterError: unknown, missing or unfit parameters, or another body.
        """
        bodies = tuple(given.pop("subgraphs", ()))
        if len(bodies) != 1:
            raise ParameterError(f"{cls.name}: {len(bodies)} subgraphs were given, expected 1")
        for old, name in _OLD_NAMES.items():
            if old in given and name in cls.parameters:
                given[name] = given.pop(old)
        made: Any = cls(**cls._convert(given))
        ops = [node.op for node in bodies[0].nodes if node.op is not None]
        layers = [op for op in ops if type(op) is cls.layer_class]
        ends = [op for op in ops if not isinstance(op, (cls.layer_class, BatchNorm, SUMS))]
        if len(layers) != 1 or len(ends) > 1:
            raise ParameterError(
                f"{cls.name}: its body is {ops}, expected one {cls.layer_class.name} and what follows it"
            )
        own: dict[str, Any] = {
            "subgraphs": bodies, "_specs": {}, "layer": layers[0], "then": ends[0] if ends else None,
            "norm": next((op for op in ops if isinstance(op, BatchNorm)), None),
        }  # fmt: skip
        for name, value in own.items():
            object.__setattr__(made, name, value)
        form = made.form()
        made.with_traits(quantized=None if made.quantized else form, requantizes=made.quantized)
        return made  # type: ignore[no-any-return]

    @classmethod
    def takes(cls, name: str) -> bool:
        return super().takes(name) or _OLD_NAMES.get(name) in cls.parameters

    def form(self) -> Quantization:
        """The quantized form of this operator."""
        raise NotImplementedError

    @property
    def calibrated(self) -> tuple[np.float32, np.float32] | None:
        """The range, where it is known before."""
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    def reals(self) -> tuple[str, ...]:
        """Names of the inputs that are not ends of ranges."""
        raise NotImplementedError

    def ranges(self) -> tuple[str, ...]:
        """Names of the inputs that are, where it is quantized."""
        raise NotImplementedError

    def ranges_of_data(self) -> tuple[str, ...]:
        """The names of those that belong to data and addend, not to parameters."""
        return self.ranges()

    def inputs(self) -> tuple[str, ...]:
        return (*self.reals(), *(self.ranges() if self.quantized else ()))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.reals())
        found, outputs = self.subgraphs[0].infer_shape(shapes[:count])
        ends = [
            expect_shape(self, name, shape, RANGE) for name, shape in zip(self.ranges(), shapes[count:], strict=False)
        ]
        return [*found, *ends], [*outputs[:1], *[RANGE] * (len(self.outputs()) - 1)]

    def cost(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, int]:
        cost: tuple[int, int] = self.layer.cost(inputs[: len(self.layer.inputs())], outputs[:1])
        return cost

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self.quantized:
            self.compute(run, dict(zip(self.inputs(), inputs, strict=True)), outputs)
        else:
            self.subgraphs[0].program(run, inputs).run(run, inputs, outputs)

    def compute(self, run: Run, given: dict[str, Array], outputs: Sequence[Array]) -> None:
        """Compute on quantized numbers."""
        raise NotImplementedError

    def filters(self, xp: Any, given: dict[str, Array], data_scale: np.float32) -> Filters:
        """The weight and the bias in whole numbers, from the inputs by name, for data of so many steps a unit."""
        raise NotImplementedError

    @cached_property
    def sums(self) -> Sums | None:
        """The layer as one of sums in int32, where it is one with a bias and a ReLU at most."""
        end = self._end(np.float32(1))
        is_one = self.quantized and self.calibrated is None and len(self.outputs()) == 3 and "sum" not in self.reals()
        return Sums(self.settled_class, self.layer, end) if is_one and end in ({}, {"then": "relu"}) else None

    def parameters_read(self) -> tuple[str, ...]:
        """The names of the inputs that :meth:`filters` reads."""
        count = len(self.layer.inputs())
        return self.reals()[1:count]

    def settled(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: dict[str, Any] | None = None
    ) -> Settled | None:
        """This layer with ranges that are known; None where one is not, or where no kernel fuses what follows.

        Args:
            kinds: the dtypes of data, addend (any where there is none) and output.
            ranges: those of the data and of the addend.
            end: the activation as parameters, where it is not the layer's.
        """
        data, ends = ranges[0], self.calibrated
        is_real = kinds[-1] == FLOAT32
        if data is None or (ends is None and not is_real):
            return None
        unit = np.float32(1) if is_real or ends is None else scale_of(kinds[-1], largest(ends))
        end = self._end(unit) if end is None else end
        if end is None:
            return None
        filters = SettledFilters.of(self, scale_of(kinds[0], largest(data)), unit)
        given = {**layer_of(self.layer), **end, "scaled": True, "unsigned": kinds[0] == UINT8}
        given["made"] = name_of(kinds[-1])
        return Settled(filters, self.settled_class, given, ends)

    def _end(self, unit: np.float32) -> dict[str, Any] | None:
        """The activation as :class:`Int8` does it in so many steps a unit; None where it does not."""
        then = self.then
        if then is None:
            return {}
        if isinstance(then, Clip):
            return {"then": "clip", "top": float(np.float32(then.a_max * unit))}
        if isinstance(then, Activation):
            return {"then": "relu"} if then.act_type == "relu" else None
        leaks = isinstance(then, LeakyReLU) and then.act_type == "leaky"
        return {"then": "leaky", "slope": then.slope} if leaks else None  # type: ignore[attr-defined]

    def activate(self, run: Run, values: Array, unit: Any) -> None:
        """Apply the activation, in place, to values of which so many are a unit of a real number."""
        if self.then is None:
            return
        if isinstance(self.then, Clip):
            run.xp.clip(values, 0, self.then.a_max * unit, out=values)
        else:
            compute(self.then, run, [values], [values])


@operator("_sg_mkldnn_conv")
class ConvolutionPart(Part):
    """A convolution, and BatchNorm, a sum and an activation behind it as far as they are there."""

    layer_class, settled_class = Convolution, Int8Convolution
    with_bn: bool = option(False, "BatchNorm follows.")
    with_act: bool = option(False, "An activation follows, before the sum.")
    with_sum: bool = option(False, "The sum with another array follows.")
    with_postsum_act: bool = option(False, "An activation follows the sum.")

    def form(self) -> Quantization:
        count = len(self.reals()) - self.with_sum
        return Quantization(self.name, True, tuple(range(1, count)), parameters=(("quantized", "true"),))

    def reals(self) -> tuple[str, ...]:
        bias = () if self.layer.no_bias else ("bias",)
        norm = ("gamma", "beta", "mean", "var") if self.with_bn else ()
        return ("data", "weight", *bias, *norm, *(("sum",) if self.with_sum else ()))

    def ranges(self) -> tuple[str, ...]:
        return ("data_min", "data_max", *(("sum_min", "sum_max") if self.with_sum else ()))

    def outputs(self) -> tuple[str, ...]:
        return ("output", "output_min", "output_max") if self.quantized else ("output",)

    def auxiliary_positions(self) -> tuple[int, ...]:
        first = len(self.layer.inputs()) + 2
        return (first, first + 1) if self.with_bn else ()

    @property
    def is_unsigned(self) -> bool:
        """True where nothing of the result is negative."""
        then = self.then
        if isinstance(then, LeakyReLU):
            return then.act_type == "leaky" and then.slope == 0
        if isinstance(then, Activation):
            return then.act_type in ("relu", "sigmoid", "softrelu")
        return isinstance(then, Clip)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.quantized:
            found, outputs = self.subgraphs[0].infer_type(dtypes)
            return found, outputs[:1]
        expected: list[tuple[DType, ...]] = [
            (INT8, UINT8) if name in ("data", "sum") else (FLOAT32,) for name in self.inputs()
        ]
        made = INT32 if self.calibrated is None else UINT8 if self.is_unsigned else INT8
        return known_types(self, dtypes, expected), [made, FLOAT32, FLOAT32]

    def parameters_read(self) -> tuple[str, ...]:
        return self.reals()[1 : len(self.reals()) - self.with_sum]

    def filters(self, xp: Any, given: dict[str, Array], data_scale: np.float32) -> Filters:
        return _whole_filters(xp, *self._folded(xp, given), data_scale, self.calibrated is not None)

    def _folded(self, xp: Any, given: dict[str, Array]) -> tuple[Array, Array | None]:
        """Filters and bias with BatchNorm in them."""
        weight, bias, norm = given["weight"], given.get("bias"), self.norm
        if norm is None:
            return weight, bias
        factor = (1 if norm.fix_gamma else given["gamma"]) / xp.sqrt(given["var"] + np.float32(norm.eps))
        mean = given["mean"] if bias is None else given["mean"] - bias
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)), given["beta"] - factor * mean

    def settled(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: dict[str, Any] | None = None
    ) -> Settled | None:
        made = super().settled(kinds, ranges, end)
        if made is None or not self.with_sum:
            return made
        addend = ranges[1]
        if addend is None or self.calibrated is None:
            return None
        if sums_in_int8(*kinds[1:]):
            most = made.given.get("top", MOST_OF_INT8)
            made.given.update(then="clip", top=min(most, MOST_OF_INT8))
        own = scale_of(kinds[1], largest(addend))
        made.given.update(added=True, factor=float(np.float32(scale_of(kinds[-1], largest(self.calibrated)) / own)))
        return made

    def whole_filters(self, xp: Any, given: dict[str, Array]) -> Filters:
        """The filters where the output's range is not known before, which no range enters; the bias in real numbers."""
        weight, bias = self._folded(xp, given)
        return _whole_filters(xp, weight, None, np.float32(1), False)._replace(bias=bias)

    def compute(self, run: Run, given: dict[str, Array], outputs: Sequence[Array]) -> None:
        size = magnitude(given["data_min"], given["data_max"])
        self.compute_by(run, given, outputs, self.filters(run.xp, given, scale_of(given["data"].dtype, size)))

    def compute_by(
        self, run: Run, given: dict[str, Array], outputs: Sequence[Array], filters: Filters, packed: bool = False
    ) -> None:
        """Compute on quantized numbers with these filters, whose weight may be a packed one."""
        xp, data, out, ends = run.xp, given["data"], outputs[0], self.calibrated
        size = magnitude(given["data_min"], given["data_max"])
        data_scale = scale_of(data.dtype, size)
        if self.sums is not None:
            layer = self.sums.of(data.dtype == UINT8, filters.bias is not None, packed)
            inputs = [data, filters.whole, *([] if filters.bias is None else [filters.bias])]
            compute(layer, run, inputs, [out])
            whole = product_magnitude(filters.size, size, data.dtype)
            put_range(outputs, -whole, whole)
            return
        values = convolved(run, self.layer, data, filters.whole, out.shape, packed)
        values = values.astype(np.float32, copy=False)
        column = (-1, *(1,) * (values.ndim - 2))
        units = filters.scales * data_scale
        if filters.bias is not None:
            values += filters.bias.reshape(column)
        if ends is None:
            whole = product_magnitude(filters.size, size, data.dtype)
            ends, unit = (-whole, whole), units[0]
        else:
            unit = scale_of(out.dtype, largest(ends))
            values *= (unit / units).reshape(column)
        if self.with_sum:
            addend = given["sum"]
            own = scale_of(addend.dtype, magnitude(given["sum_min"], given["sum_max"]))
            values += addend * np.float32(unit / own)
        self.activate(run, values, unit)
        if self.with_sum and sums_in_int8(addend.dtype, out.dtype):
            xp.clip(values, 0, MOST_OF_INT8, out=values)
        round_into(xp, values, out)
        put_range(outputs, *ends)


@operator("_sg_mkldnn_fully_connected")
class ProductPart(Part):
    """A product, and an activation behind it where there is one."""

    layer_class, settled_class = FullyConnected, Int8FullyConnected
    enable_float_output: bool = option(False, "Give real numbers, and no range.")
    with_eltwise: bool = option(False, "An activation follows.")
    channel_wise_quantize: bool | None = option(None, "The weight is real, and gets a scale for each output.")

    def form(self) -> Quantization:
        rest = tuple(range(1, len(self.reals())))
        return Quantization(
            self.name, True, (), rest, (("quantized", "True"),), (("channel_wise_quantize", "True"),)
        )  # fmt: skip

    def reals(self) -> tuple[str, ...]:
        return ("data", "weight") if self.layer.no_bias else ("data", "weight", "bias")

    def ranges(self) -> tuple[str, ...]:
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
        """True where MXNet makes the result uint8."""
        then = self.then
        if isinstance(then, LeakyReLU):
            return then.act_type == "leaky"
        if isinstance(then, Activation):
            return then.act_type in ("relu", "sigmoid", "softrelu")
        return then is not None

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        if not self.quantized:
            found, outputs = self.subgraphs[0].infer_type(dtypes)
            return found, outputs[:1]
        whole = (FLOAT32,) if self.channel_wise_quantize else (INT8,)
        count = len(self.reals())
        expected = [(INT8, UINT8), *[whole] * (count - 1), *[(FLOAT32,)] * (len(dtypes) - count)]
        if self.enable_float_output:
            return known_types(self, dtypes, expected), [FLOAT32]
        made = INT32 if self.calibrated is None else UINT8 if self.is_unsigned else INT8
        return known_types(self, dtypes, expected), [made, FLOAT32, FLOAT32]

    def ranges_of_data(self) -> tuple[str, ...]:
        return self.ranges()[:2]

    def parameters_read(self) -> tuple[str, ...]:
        return (*super().parameters_read(), *self.ranges()[2:])

    def settled(
        self, kinds: Sequence[DType], ranges: Sequence[Range | None], end: dict[str, Any] | None = None
    ) -> Settled | None:
        made, then = super().settled(kinds, ranges, end), self.then
        if made is not None or then is None:
            return made
        # What no kernel does on the way is done to real numbers, as compute() does.
        made = super().settled((*kinds[:-1], FLOAT32), ranges, {})
        ends = self.calibrated
        if made is None or ends is None or kinds[-1] == FLOAT32:
            return None if made is None else made._replace(after=(then,))
        low, high = map(float, ends)
        to_bytes = QuantizeV2.create(out_type=name_of(kinds[-1]), min_calib_range=low, max_calib_range=high)
        return made._replace(after=(then, to_bytes))

    def filters(self, xp: Any, given: dict[str, Array], data_scale: np.float32) -> Filters:
        if self.channel_wise_quantize:
            return _whole_filters(xp, given["weight"], given.get("bias"), data_scale, True)
        size = magnitude(given["min_weight"], given["max_weight"])
        scale, whole = scale_of(INT8, size), given["weight"]
        bias = given.get("bias")
        if bias is not None:
            of_bias = magnitude(given["min_bias"], given["max_bias"])
            own = scale_of(INT8, of_bias)
            factor = np.float32(data_scale * scale / own)
            most = np.float32(np.float32(1073741823) / of_bias / own) if of_bias else factor
            if factor > most:  # the bias, in the units of the sums, must be an int32
                smaller = np.float32(most * own / data_scale / scale)
                whole, scale, factor = _rounded(xp, whole * smaller), np.float32(scale * smaller), most
            bias = _rounded(xp, bias * factor)
        return Filters(whole.astype(np.int8, copy=False), xp.full((1,), scale, np.float32), size, bias)

    def compute(self, run: Run, given: dict[str, Array], outputs: Sequence[Array]) -> None:
        xp, data, ends = run.xp, given["data"], self.calibrated
        flatten = self.layer.flatten
        size = magnitude(given["min_data"], given["max_data"])
        data_scale = scale_of(data.dtype, size)
        filters = self.filters(xp, given, data_scale)
        if self.sums is not None:
            is_packed = "packed" in given and filters.whole is given["weight"]
            layer = self.sums.of(data.dtype == UINT8, filters.bias is not None, is_packed)
            bias = [] if filters.bias is None else [filters.bias.astype(np.float32, copy=False)]
            compute(layer, run, [data, given["packed"] if is_packed else filters.whole, *bias], outputs[:1])
            whole = product_magnitude(size, filters.size, data.dtype)
            put_range(outputs, -whole, whole)
            return
        values = multiplied(run, as_matrix(data, flatten), filters.whole).astype(np.float32, copy=False)
        if filters.bias is not None:
            values += filters.bias
        units = filters.scales * data_scale
        values = values.reshape(outputs[0].shape)
        if ends is None and not self.enable_float_output:
            self.activate(run, values, units[0])
            whole = product_magnitude(size, filters.size, data.dtype)
            round_into(xp, values, outputs[0])
            put_range(outputs, -whole, whole)
            return
        values /= units
        self.activate(run, values, 1)
        if ends is None:
            outputs[0][...] = values
            return
        values *= scale_of(outputs[0].dtype, largest(ends))
        round_into(xp, values, outputs[0])
        put_range(outputs, *ends)


def sums_in_int8(addend: DType, made: DType) -> bool:
    """True where MXNet sums in the memory of an int8 addend, so that int8 is all there is room for."""
    return addend == INT8 and made == UINT8


def _rounded(xp: Any, values: Array) -> Array:
    """The nearest whole numbers, halves away from zero."""
    return xp.trunc(values + xp.copysign(np.float32(0.5), values))


@operator("_settled_filters")
class SettledFilters(Operator, hidden=True, no_gradient=True, once=True):
    """The parameters of a quantized layer as its kernel takes them, for known ranges of data and output."""

    arguments = ()
    output_names = ("weight", "bias", "scale")
    part: ClassVar[Part]
    """The layer."""
    data_scale: ClassVar[np.float32]
    """The steps of the data for each unit of a real number."""
    unit: ClassVar[np.float32]
    """Those of the output; 1 where it is real."""

    @classmethod
    def of(cls, part: Part, data_scale: np.float32, unit: np.float32) -> SettledFilters:
        """The operator for a layer."""
        return _about(cls(), part=part, data_scale=data_scale, unit=unit)

    def inputs(self) -> tuple[str, ...]:
        return self.part.parameters_read()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = shapes[0]
        each = None if weight is None else weight[:1]
        return shapes, [weight, each, each]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT8, FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight, bias, scale = outputs
        made = self.part.filters(run.xp, dict(zip(self.inputs(), inputs, strict=True)), self.data_scale)
        weight[...] = made.whole
        scale[...] = self.unit / (made.scales * self.data_scale)
        bias[...] = 0 if made.bias is None else made.bias * scale

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


@operator("_whole_filters")
class WholeFilters(Operator, hidden=True, no_gradient=True, once=True):
    """The filters of a convolution whose output's range is found at each call, folded and in whole numbers."""

    arguments = ()
    output_names = ("weight", "scale", "size", "bias")
    part: ClassVar[ConvolutionPart]
    """The layer."""

    @classmethod
    def of(cls, part: ConvolutionPart) -> WholeFilters:
        """The operator for a layer."""
        return _about(cls(), part=part)

    def inputs(self) -> tuple[str, ...]:
        return self.part.parameters_read()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = shapes[0]
        return shapes, [weight, RANGE, RANGE, None if weight is None else weight[:1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT8, FLOAT32, FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        made = self.part.whole_filters(run.xp, dict(zip(self.inputs(), inputs, strict=True)))
        for out, value in zip(outputs, (made.whole, made.scales, made.size, made.bias), strict=True):
            out[...] = 0 if value is None else value


@operator("_convolution_by_filters")
class ConvolutionByFilters(
    Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True, makes_channels_last=True
):
    """A quantized convolution by such filters, with what follows it; its range is found at each call."""

    arguments = ()
    output_names = ("output", "output_min", "output_max")
    part: ClassVar[ConvolutionPart]
    """The layer."""
    packed: ClassVar[bool] = False
    """True where the weight is a copy in a kernel's order."""

    @classmethod
    def of(cls, part: ConvolutionPart, packed: bool = False) -> ConvolutionByFilters:
        """The operator for a layer."""
        return _about(cls(), part=part, packed=packed)

    def inputs(self) -> tuple[str, ...]:
        return (
            "data",
            *WholeFilters.output_names,
            *self.part.reals()[-1:][not self.part.with_sum :],
            *self.part.ranges(),
        )

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [None if shapes[0] is None else self.part.layer.convolved(shapes[0]), RANGE, RANGE]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT32, FLOAT32, FLOAT32]

    def cost(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, int]:
        cost: tuple[int, int] = self.part.layer.cost(inputs[: len(self.part.layer.inputs())], outputs[:1])
        return cost

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        given = dict(zip(self.inputs(), inputs, strict=True))
        units = given["scale"] * scale_of(given["data"].dtype, magnitude(given["data_min"], given["data_max"]))
        bias = run.xp.rint(given["bias"] * units)
        filters = Filters(given["weight"], given["scale"], number(given["size"]), bias)
        self.part.compute_by(run, given, outputs, filters, self.packed)

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


@operator("_product_by_packed")
class ProductByPacked(Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True):
    """A quantized product whose range is found at each call, by a packed copy of its weight."""

    arguments = ()
    output_names = ("output", "min_output", "max_output")
    part: ClassVar[ProductPart]
    """The layer."""

    @classmethod
    def of(cls, part: ProductPart) -> ProductByPacked:
        """The operator for a layer."""
        return _about(cls(), part=part)

    def inputs(self) -> tuple[str, ...]:
        return (*self.part.inputs(), "packed")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        found, outputs = self.part.infer_shape(shapes[:-1])
        return [*found, shapes[-1]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        found, outputs = self.part.infer_type(dtypes[:-1])
        return [*found, INT8], outputs

    def cost(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, int]:
        return self.part.cost(inputs[:-1], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.part.compute(run, dict(zip(self.inputs(), inputs, strict=True)), outputs)

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


Made = TypeVar("Made", bound=Operator)


def _about(made: Made, **own: Any) -> Made:
    """An operator with facts that are no parameters."""
    for name, value in {**own, "_specs": {}}.items():
        object.__setattr__(made, name, value)
    return made


_OLD_NAMES = {"with_relu": "with_act", "with_postsum_relu": "with_postsum_act"}
"""Names of parameters in older files."""
