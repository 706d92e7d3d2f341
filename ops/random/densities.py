"""Probability densities at samples. Each row of the table has the log density of a distribution and its derivatives.

A parameter of shape (m) belongs to samples of shape (m, n): each element to a block of samples, as drawn by
``_sample_NAME``. Derivatives are composed of registered operators, so that they have derivatives too; log densities use
the array namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.math.special_gamma import gammaln
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, needs_gradient
from flowmx.ops.registry.dtypes import DType, is_floating, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import Precision

Slope = Callable[..., Any]


class _Density(NamedTuple):
    """One distribution."""

    name: str
    parameters: tuple[str, ...]
    log: Callable[..., Array]
    """``log(xp, x, *parameters)``: the logarithm of the density; the arguments broadcast."""
    slopes: tuple[Slope | None, ...]
    """``slope(F, S, x, *parameters)``: the derivatives of the logarithm with respect to the sample and each parameter,
    in the shape of the sample, to which ``S`` spreads a parameter. None for integer samples: MXNet's gradient is 0."""
    doc: str
    vectors: bool = False
    """Whether a sample is a vector along the last axis."""


# -- the distributions -------------------------------------------------------------------------------------


def _lgamma(xp: ArrayNamespace, x: Array) -> Array:
    out = xp.empty(x.shape)
    gammaln(xp, x, out)
    return out


def _psi(F: Functions, x: Tensor) -> Tensor:
    return F.op("_polygamma", x)


def _log_normal(xp: ArrayNamespace, x: Array, mu: Array, sigma: Array) -> Array:
    return -0.5 * ((x - mu) / sigma) ** 2 - xp.log(sigma) - 0.5 * math.log(2 * math.pi)


def _log_gamma(xp: ArrayNamespace, x: Array, alpha: Array, beta: Array) -> Array:
    result: Array = (alpha - 1) * xp.log(x) - beta * x + (alpha * xp.log(beta) - _lgamma(xp, alpha))
    return result


def _log_poisson(xp: ArrayNamespace, x: Array, lam: Array) -> Array:
    return x * xp.log(lam) - lam - _lgamma(xp, x + 1)


def _log_negative_binomial(xp: ArrayNamespace, x: Array, k: Array, p: Array) -> Array:
    log_count = _lgamma(xp, x + k) - _lgamma(xp, x + 1) - _lgamma(xp, k)
    result: Array = log_count + k * xp.log(p) + x * xp.log1p(-p)
    return result


def _log_dirichlet(xp: ArrayNamespace, x: Array, alpha: Array) -> Array:
    norm = _lgamma(xp, alpha.sum(axis=-1)) - _lgamma(xp, alpha).sum(axis=-1)
    result: Array = ((alpha - 1) * xp.log(x)).sum(axis=-1) + norm
    return result


def _slope_dispersion(F: Functions, S: Callable[[Tensor], Tensor], x: Tensor, mu: Tensor, alpha: Tensor) -> Tensor:
    k, scale = 1.0 / alpha, mu * alpha + 1.0
    constant = (F.log(scale) + _psi(F, k)) * k * k - mu * k / scale
    result: Tensor = S(constant) + x * S(k / scale) - _psi(F, x + S(k)) * S(k * k)
    return result


def _slope_concentration(F: Functions, S: Callable[[Tensor], Tensor], x: Tensor, alpha: Tensor) -> Tensor:
    total = F.sum(alpha, axis=-1, keepdims=True)
    result: Tensor = F.log(x) + S(F.broadcast_sub(_psi(F, total), _psi(F, alpha)))
    return result


_DENSITIES = [
    _Density(
        "uniform", ("low", "high"), lambda xp, x, low, high: -xp.log(high - low),
        (None, lambda F, S, x, low, high: S(1.0 / (high - low)), lambda F, S, x, low, high: S(1.0 / (low - high))),
        "uniform distributions from low to high, which are assumed to contain all samples",
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
        "the number of failures before the k-th success of probability p (k may be fractional)",
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


def _align(parameter: Array, rank: int, vectors: bool) -> Array:
    """Return a view of a parameter with ``rank`` axes, which broadcasts against its samples."""
    lead = parameter.ndim - vectors
    return parameter.reshape((*parameter.shape[:lead], *(1,) * (rank - parameter.ndim), *parameter.shape[lead:]))


@linear("_spread_parameter")
class SpreadParameter(Linear, hidden=True):
    """Repeat each element of a parameter for all its samples."""

    arguments = ("parameter", "sample")
    shape_only = True
    vectors: bool = option(False, "The last axis of both inputs is that of vectors.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = _align(inputs[0], outputs[0].ndim, self.vectors)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        aligned_shape = _align(out, head.ndim, self.vectors).shape
        axes = tuple(axis for axis in range(head.ndim) if aligned_shape[axis] == 1 != head.shape[axis])
        out[...] = head.sum(axis=axes, dtype=computing_dtype(head.dtype)).reshape(out.shape)


# -- the operators -----------------------------------------------------------------------------------------


class _DensityOperator(Operator, precision=Precision.WIDEST):
    distribution: _Density
    is_log: bool

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        sample, *parameters = shapes
        vectors = self.distribution.vectors
        parameter: ShapeOrNone = None
        for name, shape in zip(self.arguments[1:], parameters, strict=True):
            parameter = expect_shape(self, name, shape, parameter)
        if vectors:
            expect_rank(self, "sample", sample, 1)
            expect_rank(self, self.arguments[1], parameter, 1)
        if sample is None:
            return [sample, *[parameter] * len(parameters)], [None]
        if parameter is not None:
            if len(parameter) > len(sample):
                raise ShapeError(
                    f"{self.name}: input sample has shape {sample}, expected at least the {len(parameter)} axes "
                    f"of {self.arguments[1]}, of shape {parameter}"
                )
            lead = len(parameter) - vectors
            aligned = (*sample[:lead], *sample[len(sample) - vectors :])
            parameter = expect_shape(self, self.arguments[1], parameter, aligned)
        # A single vector has a density of shape (1,) in MXNet.
        density = (sample[:-1] or (1,)) if vectors else sample
        return [sample, *[parameter] * len(parameters)], [density]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed, outputs = super().infer_type(dtypes)
        if outputs[0] is not None and not is_floating(outputs[0]):
            raise TypeInferenceError(f"{self.name}: the inputs have dtype {name_of(outputs[0])}, expected a float")
        return completed, outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # In float64, since the logarithms of gamma functions are large and cancel.
        sample, *parameters = (array.astype(np.float64, copy=False) for array in inputs)
        parameters = [_align(array, sample.ndim, self.distribution.vectors) for array in parameters]
        log = self.distribution.log(run.xp, sample, *parameters)
        outputs[0][...] = log if self.is_log else run.xp.exp(log)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        sample, vectors = inputs[0], self.distribution.vectors

        def spread(parameter: object, vectors: bool = vectors) -> Tensor:
            return F.op("_spread_parameter", parameter, sample, vectors=vectors)

        head = heads[0] if self.is_log else heads[0] * outputs[0]
        possible = None if self.is_log else outputs[0] != 0
        if vectors:
            head = spread(head, vectors=False)
            possible = None if possible is None else spread(possible, vectors=False)
        grads: list[Any] = [None] * len(inputs)
        for index, slope in enumerate(self.distribution.slopes):
            if not needs_gradient(inputs, index):
                continue
            if slope is None:
                grads[index] = F.zeros_like(shape_of(inputs, index))
                continue
            grads[index] = head * slope(F, spread, *inputs)
            if possible is not None:  # the derivative of log 0 is not finite
                grads[index] = F.where(possible, grads[index], F.zeros_like(grads[index]))
            if index:
                like = shape_of(inputs, index)
                grads[index] = F.op("_backward__spread_parameter", grads[index], sample, like, vectors=vectors)
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
                "The sample's first axes are those of the parameters, which have the same shape.",
                "arguments": ("sample", *_row.parameters),
                "input_docs": _input_docs(_row),
                "output_doc": f"{'(*shape, *samples)' if _row.vectors else 'The shape of sample'}, its dtype",
                "distribution": _row,
                "is_log": option(False, "Return the logarithm of the density."),
                "__annotations__": {"is_log": bool},
            },
        )
    )
