"""Random numbers. Each row of the table defines the operators of a distribution.

``_random_NAME`` takes the parameters as numbers, ``_random_NAME_like`` also takes its shape from an array, and
``_sample_NAME`` takes the parameters as arrays, with a block of samples for each element. All draw from the device's
generator, in push order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.arrays.scatter import add_at
from flowmx.ops.nn.common import expect_rank
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
    same_shape,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors

Draw = Callable[..., Any]
_INT32: DType = np.dtype(np.int32)


class _Distribution(NamedTuple):
    """One distribution."""

    name: str
    parameters: dict[str, float]
    """The parameters of ``_random_NAME`` and their defaults."""
    inputs: tuple[str, ...]
    """The inputs of ``_sample_NAME``, in the same order."""
    positive: tuple[str, ...]
    """Parameters that must not be negative."""
    draw: Draw
    """``draw(generator, shape, dtype, *parameters)``."""
    doc: str
    aliases: tuple[str, ...] = ()


def _uniform(g: Any, shape: Shape, dtype: DType, low: Any, high: Any) -> Any:
    out = g.random(shape, dtype)
    out *= np.subtract(high, low)
    out += low
    return out


def _normal(g: Any, shape: Shape, dtype: DType, loc: object, scale: object) -> Any:
    out = g.standard_normal(shape, dtype)
    out *= scale
    out += loc
    return out


def _gamma(g: Any, shape: Shape, dtype: DType, alpha: Any, beta: Any) -> Any:
    return g.standard_gamma(alpha, shape) * beta


def _exponential(g: Any, shape: Shape, dtype: DType, lam: Any) -> Any:
    return g.standard_exponential(shape, dtype) / lam


def _poisson(g: Any, shape: Shape, dtype: DType, lam: Any) -> Any:
    return g.poisson(lam, shape)


def _negative_binomial(g: Any, shape: Shape, dtype: DType, k: Any, p: Any) -> Any:
    return g.negative_binomial(k, p, shape)


def _generalized_negative_binomial(g: Any, shape: Shape, dtype: DType, mu: Any, alpha: Any) -> Any:
    # A Poisson distribution with a gamma-distributed rate; without dispersion, a plain Poisson distribution.
    spread = alpha + np.float64(0)
    dispersion = np.where(spread > 0, spread, 1.0)[()]
    rate = g.standard_gamma(1 / dispersion, shape) * dispersion * mu
    return g.poisson(np.where(spread > 0, rate, mu))


_DISTRIBUTIONS = [
    _Distribution("uniform", {"low": 0.0, "high": 1.0}, ("low", "high"), (), _uniform,
                  "Uniform numbers from low to high, excluded.", ("uniform",)),
    _Distribution("normal", {"loc": 0.0, "scale": 1.0}, ("mu", "sigma"), ("scale",), _normal,
                  "Normal numbers of mean loc and standard deviation scale.", ("normal",)),
    _Distribution("gamma", {"alpha": 1.0, "beta": 1.0}, ("alpha", "beta"), ("alpha", "beta"), _gamma,
                  "Gamma numbers of shape alpha and scale beta."),
    _Distribution("exponential", {"lam": 1.0}, ("lam",), ("lam",), _exponential,
                  "Exponential numbers of rate lam.", ("exponential",)),
    _Distribution("poisson", {"lam": 1.0}, ("lam",), ("lam",), _poisson,
                  "Poisson numbers of mean lam.", ("poisson",)),
    _Distribution("negative_binomial", {"k": 1, "p": 1.0}, ("k", "p"), ("k", "p"), _negative_binomial,
                  "Numbers of failures before the k-th success of probability p.", ("negative_binomial",)),
    _Distribution("generalized_negative_binomial", {"mu": 1.0, "alpha": 1.0}, ("mu", "alpha"), ("mu", "alpha"),
                  _generalized_negative_binomial, "Poisson numbers of mean mu and dispersion alpha.",
                  ("generalized_negative_binomial",)),
]  # fmt: skip


class _Sampler(Operator, uses_random=True, no_gradient=True):
    distribution: _Distribution
    shape: Shape
    dtype: DType | None

    def fill(self, run: Run, out: Array, parameters: Sequence[object]) -> None:
        """Draw samples into ``out``."""
        working = out.dtype if out.dtype in (np.float32, np.float64) else FLOAT32
        run.xp.copyto(out, self.distribution.draw(run.random, out.shape, working, *parameters), casting="unsafe")


class _ByNumbers(_Sampler):
    arguments: ClassVar[tuple[str, ...]] = ()
    output_doc = "`shape`, dtype `dtype`, float32 by default"

    def __post_init__(self) -> None:
        for name in self.distribution.positive:
            if getattr(self, name) < 0:
                raise ParameterError(f"{self.name}: parameter {name} is {getattr(self, name)}, expected at least 0")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype or FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.fill(run, outputs[0], [getattr(self, name) for name in self.distribution.parameters])


class _Like(_ByNumbers, shapes_only=("data",)):
    arguments = ("data",)
    input_docs = describe(data="any shape, any dtype; only its shape and dtype are used")
    output_doc = "The shape and dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[:1]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]


class _ByArrays(_Sampler):
    output_doc = "(*the parameters' shape, *shape); dtype `dtype`, by default that of float parameters, or float32"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = same_shape(self, shapes)
        return [shape] * len(shapes), [None if shape is None else (*shape, *self.shape)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed, (first,) = super().infer_type(dtypes)
        return completed, [self.dtype or (first if first is not None and first.kind == "f" else FLOAT32)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        block = (1,) * len(self.shape)
        self.fill(run, outputs[0], [array.reshape((*array.shape, *block)) for array in inputs])


def _register(row: _Distribution) -> None:
    common: dict[str, object] = {"__module__": __name__, "distribution": row}
    shape: dict[str, object] = {
        "shape": option((), "The shape of the samples.", low=0),
        "dtype": option(None, "Their dtype."),
    }
    types: dict[str, object] = {"shape": Shape, "dtype": DType | None}
    numbers = {name: option(default) for name, default in row.parameters.items()}
    number_types = {name: type(default) for name, default in row.parameters.items()}

    def make(name: str, aliases: tuple[str, ...], base: type[Operator], body: Mapping[str, object], doc: str) -> None:
        operator(name, *aliases)(type(name, (base,), {**common, "__doc__": f"{row.doc}{doc}", **body}))

    # MXNet's files contain the device of the samples; here it is the bound device.
    placement: dict[str, object] = {"shape": shape["shape"], "ctx": option("", "Not used."), "dtype": shape["dtype"]}
    make(
        f"_random_{row.name}",
        (f"random_{row.name}", *row.aliases),
        _ByNumbers,
        {
            **numbers,
            **placement,
            "__annotations__": {**number_types, "shape": Shape, "ctx": str, "dtype": DType | None},
        },
        "",
    )
    make(
        f"_random_{row.name}_like",
        (f"random_{row.name}_like",),
        _Like,
        {**numbers, "__annotations__": number_types},
        "\n\nThe output has the shape and dtype of the data.",
    )
    input_docs = dict.fromkeys(row.inputs, f"the shape and dtype of {row.inputs[0]}")
    input_docs[row.inputs[0]] = "any shape, any dtype"
    make(f"_sample_{row.name}", (f"sample_{row.name}",), _ByArrays,
         {**shape, "arguments": row.inputs, "input_docs": input_docs, "__annotations__": types},
         "\n\nThe parameters are arrays; for each of their elements, samples of ``shape`` are drawn.")  # fmt: skip


for _row in _DISTRIBUTIONS:
    _register(_row)


@operator("_random_randint", "random_randint")
class RandInt(Operator, uses_random=True, no_gradient=True):
    """Draw integers uniformly from low to high - 1."""

    arguments = ()
    output_doc = "`shape`, dtype `dtype`, int32 by default"
    low: int = required("The smallest integer.")
    high: int = required("The upper bound, excluded.")
    shape: Shape = option((), "The shape of the samples.", low=0)
    ctx: str = option("", "Not used.")
    dtype: DType | None = option(None, "int32 (the default) or int64.")

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ParameterError(f"{self.name}: parameter high is {self.high}, expected more than low {self.low}")
        if self.dtype is not None and self.dtype.kind not in "iu":
            raise ParameterError(f"{self.name}: parameter dtype is {self.dtype}, expected an integer dtype")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype or _INT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        out[...] = run.random.integers(self.low, self.high, out.shape)


@operator("_sample_multinomial", "sample_multinomial")
class SampleMultinomial(Operator, uses_random=True):
    """Class numbers drawn with the probabilities along the last axis of the data.

    Shapes: data (..., classes), output (...) followed by ``shape``; (1,) where both are empty. With ``get_prob`` a
    second output holds the logarithm of each sample's probability, whose gradient is that of REINFORCE
    (Williams, 1992).
    """

    input_docs = describe(data="(..., classes), float; probabilities")
    output_doc = "(..., *shape), dtype `dtype`; with get_prob also the logarithms, in the dtype of data"
    shape: Shape = option((), "The shape of the samples of each distribution.", low=0)
    get_prob: bool = option(False, "Also return the log-probabilities of the samples.")
    dtype: DType = option(_INT32, "The dtype of the samples.")

    def outputs(self) -> tuple[str, ...]:
        return ("output0", "output1") if self.get_prob else ("output",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        expect_rank(self, "data", shapes[0], 1)
        shape = None if shapes[0] is None else (*shapes[0][:-1], *self.shape) or (1,)
        return shapes, [shape] * len(self.outputs())

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype, dtypes[0]][: len(self.outputs())]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data = run.xp, inputs[0]
        rows = data.reshape(-1, data.shape[-1])
        samples = outputs[0].reshape(len(rows), -1)
        classes = xp.empty(samples.shape, xp.int64)
        sums = xp.cumsum(rows, axis=1, dtype=xp.float64)
        for total, row in zip(sums, classes, strict=True):
            points = run.random.random(row.shape) * total[-1]
            row[...] = xp.searchsorted(total[:-1], points, side="right")
        outputs[0][...] = classes.reshape(outputs[0].shape)
        if self.get_prob:
            outputs[1][...] = xp.log(xp.take_along_axis(rows, classes, axis=1)).reshape(outputs[1].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if not self.get_prob:
            return [F.zeros_like(inputs[0])]
        return [F.op("_backward_sample_multinomial", heads[1], inputs[0], outputs[0])]


@operator("_backward_sample_multinomial")
class BackwardSampleMultinomial(Operator, hidden=True):
    """The gradient of the log-probabilities with respect to the probabilities: head/p at each sample, 0 elsewhere."""

    arguments = ("head", "data", "samples")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, data, samples = inputs
        total = run.xp.zeros((data.size // data.shape[-1], data.shape[-1]), data.dtype)
        rows = run.xp.arange(len(total))[:, None]
        key = rows, samples.reshape(len(total), -1).astype(run.xp.int64)
        add_at(run.xp, total, key, head.reshape(len(total), -1))
        total = total.reshape(data.shape)
        outputs[0][...] = total / run.xp.where(
            total == 0, 1, data
        )  # a class that was not sampled may have probability 0


@operator("_shuffle", "shuffle")
class Shuffle(Operator, uses_random=True, input_named=True):
    """The data in random order along the first axis; its gradient is not implemented."""

    input_docs = describe(data="(n, ...), any dtype")
    output_doc = "The shape and dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] == ():
            raise ShapeError(f"{self.name}: input data has shape (), expected at least 1 axis")
        return shapes, shapes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.take(inputs[0], run.random.permutation(len(inputs[0])), axis=0, out=outputs[0])
