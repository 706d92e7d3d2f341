"""The densities of distributions at samples, each distribution a row: its logarithm, and the slopes of that.

A parameter of shape (m) goes with samples of shape (m, n): each of its elements with a block of samples, as
``_sample_NAME`` draws them. Slopes are written in terms of registered operators, so that they have slopes of
their own; logarithms against the array namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.math.special_gamma import gammaln
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, wanted
from flowmx.ops.registry.dtypes import DType, is_floating, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator, option
from flowmx.ops.registry.traits import Precision

Slope = Callable[..., Any]


class _Density(NamedTuple):
    """One distribution."""

    name: str
    parameters: tuple[str, ...]
    log: Callable[..., Array]
    """``log(xp, x, *parameters)``, which broadcast against each other: the logarithm of the density."""
    slopes: tuple[Slope | None, ...]
    """``slope(F, S, x, *parameters)``: the logarithm's derivative by the sample and by each parameter, in the
    sample's shape, into which ``S`` brings a parameter. None where MXNet's gradient is 0: samples that are integers."""
    doc: str
    vectors: bool = False
    """True where a sample is a vector along the last axis."""


# -- the distributions -------------------------------------------------------------------------------------


def _lgamma(xp: Any, x: Array) -> Array:
    made = xp.empty(x.shape)
    gammaln(xp, x, made)
    return made


def _psi(F: Any, x: Any) -> Any:
    return F.op("_polygamma", x)


def _log_normal(xp: Any, x: Array, mu: Array, sigma: Array) -> Array:
    return -0.5 * ((x - mu) / sigma) ** 2 - xp.log(sigma) - 0.5 * math.log(2 * math.pi)


def _log_gamma(xp: Any, x: Array, alpha: Array, beta: Array) -> Array:
    return (alpha - 1) * xp.log(x) - beta * x + (alpha * xp.log(beta) - _lgamma(xp, alpha))


def _log_poisson(xp: Any, x: Array, lam: Array) -> Array:
    return x * xp.log(lam) - lam - _lgamma(xp, x + 1)


def _log_negative_binomial(xp: Any, x: Array, k: Array, p: Array) -> Array:
    ways = _lgamma(xp, x + k) - _lgamma(xp, x + 1) - _lgamma(xp, k)
    return ways + k * xp.log(p) + x * xp.log1p(-p)


def _log_dirichlet(xp: Any, x: Array, alpha: Array) -> Array:
    norm = _lgamma(xp, alpha.sum(axis=-1)) - _lgamma(xp, alpha).sum(axis=-1)
    return ((alpha - 1) * xp.log(x)).sum(axis=-1) + norm


def _slope_dispersion(F: Any, S: Any, x: Any, mu: Any, alpha: Any) -> Any:
    k, scale = 1.0 / alpha, mu * alpha + 1.0
    known = (F.log(scale) + _psi(F, k)) * k * k - mu * k / scale
    return S(known) + x * S(k / scale) - _psi(F, x + S(k)) * S(k * k)


def _slope_concentration(F: Any, S: Any, x: Any, alpha: Any) -> Any:
    total = F.sum(alpha, axis=-1, keepdims=True)
    return F.log(x) + S(F.broadcast_sub(_psi(F, total), _psi(F, alpha)))


_DENSITIES = [
    _Density(
        "uniform", ("low", "high"), lambda xp, x, low, high: -xp.log(high - low),
        (None, lambda F, S, x, low, high: S(1.0 / (high - low)), lambda F, S, x, low, high: S(1.0 / (low - high))),
        "uniform distributions from low to high, within which all samples are taken to lie",
    ),
    _Density(
        "normal", ("mu", "sigma"), _log_normal,
        (
            lambda F, S, x, mu, sigma: (S(mu) - x) / S(sigma * sigma),
            lambda F, S, x, mu, sigma: (x - S(mu)) / S(sigma * sigma),
            lambda F, S, x, mu, sigma: (F.square((x - S(mu)) / S(sigma)) - 1.0) / S(sigma),
        ),
        "normal distributions of mean mu and standard deviation sigma",
    ),
    _Density(
        "gamma", ("alpha", "beta"), _log_gamma,
        (
            lambda F, S, x, alpha, beta: S(alpha - 1.0) / x - S(beta),
            lambda F, S, x, alpha, beta: F.log(x) + S(F.log(beta) - _psi(F, alpha)),
            lambda F, S, x, alpha, beta: S(alpha / beta) - x,
        ),
        "gamma distributions of shape alpha and rate beta",
    ),
    _Density(
        "exponential", ("lam",), lambda xp, x, lam: xp.log(lam) - lam * x,
        (lambda F, S, x, lam: -S(lam), lambda F, S, x, lam: S(1.0 / lam) - x),
        "exponential distributions of rate lam",
    ),
    _Density(
        "poisson", ("lam",), _log_poisson,
        (None, lambda F, S, x, lam: x / S(lam) - 1.0),
        "Poisson distributions of mean lam",
    ),
    _Density(
        "negative_binomial", ("k", "p"), _log_negative_binomial,
        (
            None,
            lambda F, S, x, k, p: _psi(F, x + S(k)) + S(F.log(p) - _psi(F, k)),
            lambda F, S, x, k, p: S(k / p) - x / S(1.0 - p),
        ),
        "how often fails what succeeds with probability p, until the k-th success (k need not be whole)",
    ),
    _Density(
        "generalized_negative_binomial", ("mu", "alpha"),
        lambda xp, x, mu, alpha: _log_negative_binomial(xp, x, 1 / alpha, 1 / (mu * alpha + 1)),
        (None, lambda F, S, x, mu, alpha: (x / S(mu) - 1.0) / S(mu * alpha + 1.0), _slope_dispersion),
        "negative binomial distributions of mean mu and dispersion alpha, 1/k",
    ),
    _Density(
        "dirichlet", ("alpha",), _log_dirichlet,
        (lambda F, S, x, alpha: S(alpha - 1.0) / x, _slope_concentration),
        "Dirichlet distributions of concentration alpha; samples and parameters are vectors along the last axis",
        vectors=True,
    ),
]  # fmt: skip


# -- parameters aligned with their samples --------------------------------------------------------------------


def _aligned(parameter: Array, rank: int, vectors: bool) -> Array:
    """A parameter as a view of that many axes, which broadcasts against its samples."""
    lead = parameter.ndim - vectors
    return parameter.reshape((*parameter.shape[:lead], *(1,) * (rank - parameter.ndim), *parameter.shape[lead:]))


@linear("_spread_parameter")
class SpreadParameter(Linear, hidden=True):
    """Repeat each element of a parameter for all the samples that it goes with."""

    arguments = ("parameter", "sample")
    shape_only = True
    vectors: bool = option(False, "The last axis of both is that of vectors.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = _aligned(inputs[0], outputs[0].ndim, self.vectors)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        kept = _aligned(out, head.ndim, self.vectors).shape
        axes = tuple(axis for axis in range(head.ndim) if kept[axis] == 1 != head.shape[axis])
        out[...] = head.sum(axis=axes, dtype=computing_dtype(head.dtype)).reshape(out.shape)


# -- the operators -----------------------------------------------------------------------------------------


class _DensityOperator(Operator, precision=Precision.WIDEST):
    distribution: _Density
    is_log: bool

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        sample, *rest = shapes
        vectors = self.distribution.vectors
        parameter: ShapeOrNone = None
        for name, shape in zip(self.arguments[1:], rest, strict=True):
            parameter = expect_shape(self, name, shape, parameter)
        if vectors:
            expect_rank(self, "sample", sample, 1)
            expect_rank(self, self.arguments[1], parameter, 1)
        if sample is None:
            return [sample, *[parameter] * len(rest)], [None]
        if parameter is not None:
            if len(parameter) > len(sample):
                raise ShapeError(
                    f"{self.name}: input sample has shape {sample}, expected at least the {len(parameter)} axes "
                    f"that {self.arguments[1]} of shape {parameter} has"
                )
            lead = len(parameter) - vectors
            aligned = (*sample[:lead], *sample[len(sample) - vectors :])
            parameter = expect_shape(self, self.arguments[1], parameter, aligned)
        # A single vector has a density of shape (1,) in MXNet.
        density = (sample[:-1] or (1,)) if vectors else sample
        return [sample, *[parameter] * len(rest)], [density]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed, outputs = super().infer_type(dtypes)
        if outputs[0] is not None and not is_floating(outputs[0]):
            raise TypeInferenceError(f"{self.name}: the inputs have dtype {name_of(outputs[0])}, expected a float")
        return completed, outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # In float64, since the logarithms of gamma functions are large and cancel.
        sample, *rest = (each.astype(np.float64, copy=False) for each in inputs)
        rest = [_aligned(each, sample.ndim, self.distribution.vectors) for each in rest]
        log = self.distribution.log(run.xp, sample, *rest)
        outputs[0][...] = log if self.is_log else run.xp.exp(log)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        sample, vectors = inputs[0], self.distribution.vectors

        def spread(each: Any, vectors: bool = vectors) -> Any:
            return F.op("_spread_parameter", each, sample, vectors=vectors)

        head = heads[0] if self.is_log else heads[0] * outputs[0]
        if vectors:
            head = spread(head, vectors=False)
        grads: list[Any] = [None] * len(inputs)
        for at, slope in enumerate(self.distribution.slopes):
            if not wanted(inputs, at):
                continue
            if slope is None:
                grads[at] = F.zeros_like(shape_of(inputs, at))
                continue
            grads[at] = head * slope(F, spread, *inputs)
            if at:
                like = shape_of(inputs, at)
                grads[at] = F.op("_backward__spread_parameter", grads[at], sample, like, vectors=vectors)
        return grads


def _input_docs(row: _Density) -> dict[str, str]:
    last = ", classes" if row.vectors else ""
    parameter = f"({'*shape' + last}), the dtype of sample"
    return {"sample": f"(*shape, *samples{last}), float", **dict.fromkeys(row.parameters, parameter)}


for _row in _DENSITIES:
    operator(f"_random_pdf_{_row.name}", f"random_pdf_{_row.name}")(
        type(
            f"Density_{_row.name}",
            (_DensityOperator,),
            {
                "__module__": __name__,
                "__doc__": f"The probability density of {_row.doc}, at each sample.\n\n"
                "The sample's first axes are those of the parameters, which have one shape.",
                "arguments": ("sample", *_row.parameters),
                "input_docs": _input_docs(_row),
                "output_doc": f"{'(*shape, *samples)' if _row.vectors else 'The shape of sample'}, its dtype",
                "distribution": _row,
                "is_log": option(False, "Give the logarithm of the density."),
                "__annotations__": {"is_log": bool},
            },
        )
    )
