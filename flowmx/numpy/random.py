"""``mx.np.random``: random arrays from the generator of a device, which ``mx.random.seed`` seeds.

Each function is a row of :data:`TABLE` with the parameters of NumPy's generator. Parameters may be arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowmx import random as _classic
from flowmx.bounded_tables import make_room
from flowmx.devices import current_context
from flowmx.errors import raised_as_mxnet
from flowmx.late_binding import late
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.creation import on_context
from flowmx.numpy import calls, conversion
from flowmx.numpy.forms import encode
from flowmx.numpy.operator import CallOperator
from flowmx.ops.registry.dtypes import FLOAT32, DType, DTypeLike
from flowmx.ops.registry.operators import SPEC_LIMIT, Array, Run, Shape, operator, required
from flowmx.ops.registry.spec import Spec
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor
from flowmx.semantics import default_float

if TYPE_CHECKING:
    from flowmx.numpy.arrays import ndarray

    def __getattr__(name: str) -> Callable[..., ndarray]: ...


__all__ = ["TABLE", "choice", "rand", "randint", "randn", "seed", "shuffle"]


class Row(NamedTuple):
    """A distribution.

    Attributes:
        parameters: the parameters and their defaults (None: required).
        method: the method of NumPy's generator.
        gradient: the gradients of the parameters, called with (namespace, gradient, result, *parameters), or None.
        draws_integers: whether it draws integers.
    """

    parameters: dict[str, Any]
    method: str
    gradient: Callable[..., Any] | None = None
    draws_integers: bool = False


def _location_scale(xp: Functions, g: Tensor, r: Tensor, loc: Tensor, scale: Tensor) -> Gradients:
    return g, g * (r - loc) / scale


def _interval(xp: Functions, g: Tensor, r: Tensor, low: Tensor, high: Tensor) -> Gradients:
    fraction = (r - low) / (high - low)
    return g * (1 - fraction), g * fraction


def _scale(xp: Functions, g: Tensor, r: Tensor, scale: Tensor) -> Gradients:
    return (g * r / scale,)


def _lognormal(xp: Functions, g: Tensor, r: Tensor, mean: Tensor, sigma: Tensor) -> Gradients:
    return g * r, g * r * (xp.log(r) - mean) / sigma


def _power(xp: Functions, g: Tensor, r: Tensor, a: Tensor) -> Gradients:
    return (-g * r * xp.log(r) / a,)


def _pareto(xp: Functions, g: Tensor, r: Tensor, a: Tensor) -> Gradients:
    return (-g * (r + 1) * xp.log1p(r) / a,)


TABLE: dict[str, Row] = {
    "uniform": Row({"low": 0.0, "high": 1.0}, "uniform", _interval),
    "normal": Row({"loc": 0.0, "scale": 1.0}, "normal", _location_scale),
    "gumbel": Row({"loc": 0.0, "scale": 1.0}, "gumbel", _location_scale),
    "logistic": Row({"loc": 0.0, "scale": 1.0}, "logistic", _location_scale),
    "laplace": Row({"loc": 0.0, "scale": 1.0}, "laplace", _location_scale),
    "lognormal": Row({"mean": 0.0, "sigma": 1.0}, "lognormal", _lognormal),
    "exponential": Row({"scale": 1.0}, "exponential", _scale),
    "rayleigh": Row({"scale": 1.0}, "rayleigh", _scale),
    "gamma": Row({"shape": None, "scale": 1.0}, "gamma"),
    "beta": Row({"a": None, "b": None}, "beta"),
    "chisquare": Row({"df": None}, "chisquare"),
    "f": Row({"dfnum": None, "dfden": None}, "f"),
    "pareto": Row({"a": None}, "pareto", _pareto),
    "power": Row({"a": None}, "power", _power),
    "weibull": Row({"a": None}, "weibull", _power),
    "poisson": Row({"lam": 1.0}, "poisson", draws_integers=True),
    "binomial": Row({"n": None, "p": None}, "binomial", draws_integers=True),
    "geometric": Row({"p": None}, "geometric", draws_integers=True),
    "multinomial": Row({"n": None, "pvals": None}, "multinomial", draws_integers=True),
    "multivariate_normal": Row({"mean": None, "cov": None}, "multivariate_normal"),
    "permutation": Row({"x": None}, "permutation", draws_integers=True),
}
_METHODS = {row.method: row for row in TABLE.values()}


@operator("_np_random")
class NumPyRandom(CallOperator, hidden=True, uses_random=True):
    """Draw from a distribution of NumPy's generator."""

    dtype: DType = required("The result's dtype.")

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        key = (shapes, dtypes)
        spec = self._specs.get(key)
        if spec is not None:
            return spec
        square = self.function == "multivariate_normal"
        stand_ins = [
            np.broadcast_to(
                np.eye(shape[-2], shape[-1]) if square and len(shape) > 1 else _VALID_PARAMETER.get(self.function, 1.0),
                shape,
            )
            for shape in shapes
        ]
        args, kwargs = self.call.fill([stand.astype(t) for stand, t in zip(stand_ins, dtypes, strict=True)])
        sample = np.asarray(_sample(np.random.default_rng(0), self.function, args, kwargs))
        spec = Spec([sample.shape], [self.dtype], light=False)
        spec.gradient = self.gradient if self.dtype.kind == "f" else None
        make_room(self._specs, SPEC_LIMIT)
        self._specs[key] = spec
        return spec

    def infer_shape(self, shapes: list[Any]) -> Any:
        if any(shape is None or -1 in shape for shape in shapes):
            return shapes, [None]
        return shapes, list(self.spec(tuple(shapes), (FLOAT32,) * len(shapes)).shapes)

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        args, kwargs = self.call.fill(inputs)
        if self.function == "multinomial" and np.size(args[1]):  # float32 rounding may make the sum exceed 1
            probabilities = np.asarray(args[1], np.float64)
            total = probabilities.sum(axis=-1, keepdims=True)
            args[1] = np.where(np.abs(total - 1) < 1e-4, probabilities / np.where(total == 0, 1, total), probabilities)
        outputs[0][...] = _sample(run.random, self.function, args, kwargs)

    def gradient(self, F: Functions, inputs: Any, outputs: Any, heads: Any) -> Any:
        gradients = late("numpy.gradients")
        row = _METHODS.get(self.function.removesuffix("_n"))
        rule = None if row is None else row.gradient
        if row is None or rule is None:
            calls.refusal(f"random.{self.function}")(F, inputs, outputs, heads)
        xp = gradients._functions(F)
        arrays = [gradients._as_np(inputs[index]) for index in range(self.num_args)]
        args, _ = self.call.fill(arrays)
        results: list[object] = [None] * self.num_args
        head, result = gradients.as_head(heads[0]), gradients._as_np(outputs[0])
        gradients.scatter_to_slots(self.call.args, rule(xp, head, result, *args[: len(row.parameters)]), results)
        pairs = zip(results, arrays, strict=True)
        return [None if gradient is None else gradients.unbroadcast(xp, gradient, array) for gradient, array in pairs]


def _sample(generator: Any, function: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Draw with a method of a generator. Bernoulli samples are uniform numbers compared with the probability."""
    if function in _POSITIVE and any((np.asarray(arg) <= 0).any() for arg in args):
        raise ValueError(f"random.{function}: a parameter is not above 0")
    if function == "choice" and len(args) == 4 and args[3] is not None:  # float32 rounding may make the sum exceed 1
        probabilities = np.asarray(args[3], np.float64)
        args = [*args[:3], probabilities / probabilities.sum()]
    if function in ("uniform_n", "normal_n"):
        size = (*kwargs["size"], *np.broadcast_shapes(*(np.shape(arg) for arg in args)))
        return getattr(generator, function[:-2])(*args, size=size)
    if function == "multinomial" and not np.size(args[1]):
        return np.zeros((*np.atleast_1d(kwargs.get("size", ())).astype(int), 0))
    if function == "multivariate_normal" and (np.ndim(args[0]) > 1 or np.ndim(args[1]) > 2):
        return _batched_normal(generator, *args, **kwargs)
    if not function.startswith("bernoulli"):
        return getattr(generator, function)(*args, **kwargs)
    probability = np.asarray(args[0] if function == "bernoulli" else 1 / (1 + np.exp(-np.asarray(args[0]))))
    if ((probability < 0) | (probability > 1)).any():
        raise ValueError("random.bernoulli: a probability is outside 0 to 1")
    return generator.random(kwargs.get("size", probability.shape)) < probability


def _batched_normal(generator: Any, mean: Any, cov: Any, size: Any = ()) -> Any:
    """Draw normal vectors for batches of means or covariances; the batch axes are broadcast."""
    lead = np.broadcast_shapes(np.shape(mean)[:-1], np.shape(cov)[:-2])
    factor = np.linalg.cholesky(np.asarray(cov, np.float64))
    size = (size,) if isinstance(size, int) else tuple(size)
    samples = generator.standard_normal((*size, *lead, np.shape(mean)[-1]))
    return mean + (factor @ samples[..., None])[..., 0]


_POSITIVE = ("gamma", "pareto", "power", "weibull")
"""Distributions whose parameters must be positive in MXNet."""


_VALID_PARAMETER = {"binomial": 0.5, "geometric": 0.5, "multinomial": 0.0}
"""A valid parameter value for the distributions for which 1 is invalid."""


def _draw(method: str, args: Sequence[Any], size: Any, dtype: DTypeLike, ctx: Any, out: Any) -> ndarray:
    arrays = conversion.arrays_of(list(args))
    context = arrays[0].context if arrays else ctx or current_context()
    splitter = calls.ArgumentSplitter(context)
    slots = [splitter.split(np.asarray(arg) if isinstance(arg, list) else arg) for arg in args]
    kwargs = {} if size is None else {"size": int(size) if isinstance(size, (int, np.integer)) else tuple(size)}
    parameters = {"num_args": len(splitter.arrays), "function": method, "form": encode(slots, kwargs), "dtype": dtype}
    op = NumPyRandom.create(**parameters)
    with raised_as_mxnet(ValueError):
        result: ndarray = conversion.to_np(
            invoke(op, splitter.arrays, None, None if splitter.arrays else on_context(context), 4)
        )
    if out is not None:
        result = calls.write_into(method, result, out, None)
    return result


def _function(name: str, row: Row) -> Callable[..., ndarray]:
    kind = inspect.Parameter
    parameters = [
        kind(parameter, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if default is None else default)
        for parameter, default in row.parameters.items()
    ]
    others = [kind(option, kind.POSITIONAL_OR_KEYWORD, default=None) for option in ("size", "dtype", "ctx", "out")]
    signature = inspect.Signature([*parameters, *others])

    def function(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        dtype = conversion.parse_dtype(values["dtype"]) or (
            np.dtype(np.int64) if row.draws_integers else default_float()
        )
        numbers = [
            row.parameters[parameter] if values[parameter] is None else values[parameter]
            for parameter in row.parameters
        ]
        return _draw(row.method, numbers, values["size"], dtype, values["ctx"] or device, values["out"])

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    vars(function)["__signature__"] = signature
    function.__doc__ = f"Draw random numbers, as :meth:`numpy.random.Generator.{row.method}`."
    return function


for _name, _row in TABLE.items():
    globals()[_name] = _function(_name, _row)
    __all__ += [_name]


def randint(
    low: Any, high: Any = None, size: Any = None, dtype: DTypeLike = None, ctx: Any = None, out: Any = None
) -> ndarray:
    """Draw integers from ``low`` up to, excluding, ``high`` (from 0 up to ``low`` if ``high`` is None)."""
    bounds = (0, low) if high is None else (low, high)
    return _draw("integers", bounds, size, conversion.parse_dtype(dtype) or np.dtype(np.int64), ctx, out)


def rand(*size: int, **kwargs: Any) -> ndarray:
    """Draw uniform numbers from 0 to 1. The arguments are the shape: ``rand(2, 3)``."""
    uniform: Callable[..., ndarray] = globals()["uniform"]
    return uniform(0.0, 1.0, size=size or None, **kwargs)


def randn(*size: int, **kwargs: Any) -> ndarray:
    """Draw normal numbers with mean 0 and standard deviation 1. The arguments are the shape: ``randn(2, 3)``."""
    normal: Callable[..., ndarray] = globals()["normal"]
    return normal(0.0, 1.0, size=size or None, **kwargs)


def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Any = None, out: Any = None) -> ndarray:
    """Draw elements of an array, or integers below ``a``, with the probabilities ``p``."""
    count = a if isinstance(a, (int, np.integer)) else a.shape[0]
    if p is not None:
        p = np.asarray(p.asnumpy() if isinstance(p, BaseArray) else p, np.float64)
        p = tuple((p / p.sum()).tolist())
    args = (int(count), None if size is None else size, replace, p)
    indices = _draw("choice", args, None, np.dtype(np.int64), ctx, None)
    result = indices if isinstance(a, (int, np.integer)) else a[indices]
    return result if out is None else calls.write_into("choice", result, out, None)


def shuffle(x: Any) -> None:
    """Shuffle the rows of an array in place."""
    order = globals()["permutation"](x.shape[0])
    x[...] = x[order]


seed = _classic.seed
