"""``mx.np.random``: arrays of random numbers, drawn by the device's generator, which ``mx.random.seed`` seeds.

Each function is a row of :data:`TABLE`: its parameters, as NumPy's generator takes them. Parameters may be arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import random as _classic
from flowmx.devices import current_context
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray.array import on_context
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.numpy import calls, conversion
from flowmx.numpy.forms import encode
from flowmx.numpy.operator import _Calling
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, Shape, Spec, operator, required
from flowmx.semantics import default_float

__all__ = ["TABLE", "choice", "rand", "randint", "randn", "seed", "shuffle"]


class Row(NamedTuple):
    """A distribution.

    Attributes:
        parameters: the names of the parameters, with their defaults (None: must be given).
        method: NumPy's generator's.
        gradient: that of the parameters, of (functions, gradient, result, *parameters); None where there is none.
        whole: whether the numbers are whole.
    """

    parameters: dict[str, Any]
    method: str
    gradient: Callable[..., Any] | None = None
    whole: bool = False


def _moved_and_scaled(np_of: Any, g: Any, r: Any, loc: Any, scale: Any) -> tuple[Any, Any]:
    return g, g * (r - loc) / scale


def _between(np_of: Any, g: Any, r: Any, low: Any, high: Any) -> tuple[Any, Any]:
    part = (r - low) / (high - low)
    return g * (1 - part), g * part


def _scaled(np_of: Any, g: Any, r: Any, scale: Any) -> tuple[Any]:
    return (g * r / scale,)


def _of_exponent(np_of: Any, g: Any, r: Any, mean: Any, sigma: Any) -> tuple[Any, Any]:
    return g * r, g * r * (np_of.log(r) - mean) / sigma


def _of_power(np_of: Any, g: Any, r: Any, a: Any) -> tuple[Any]:
    return (-g * r * np_of.log(r) / a,)


def _of_pareto(np_of: Any, g: Any, r: Any, a: Any) -> tuple[Any]:
    return (-g * (r + 1) * np_of.log1p(r) / a,)


TABLE: dict[str, Row] = {
    "uniform": Row({"low": 0.0, "high": 1.0}, "uniform", _between),
    "normal": Row({"loc": 0.0, "scale": 1.0}, "normal", _moved_and_scaled),
    "gumbel": Row({"loc": 0.0, "scale": 1.0}, "gumbel", _moved_and_scaled),
    "logistic": Row({"loc": 0.0, "scale": 1.0}, "logistic", _moved_and_scaled),
    "laplace": Row({"loc": 0.0, "scale": 1.0}, "laplace", _moved_and_scaled),
    "lognormal": Row({"mean": 0.0, "sigma": 1.0}, "lognormal", _of_exponent),
    "exponential": Row({"scale": 1.0}, "exponential", _scaled),
    "rayleigh": Row({"scale": 1.0}, "rayleigh", _scaled),
    "gamma": Row({"shape": None, "scale": 1.0}, "gamma"),
    "beta": Row({"a": None, "b": None}, "beta"),
    "chisquare": Row({"df": None}, "chisquare"),
    "f": Row({"dfnum": None, "dfden": None}, "f"),
    "pareto": Row({"a": None}, "pareto", _of_pareto),
    "power": Row({"a": None}, "power", _of_power),
    "weibull": Row({"a": None}, "weibull", _of_power),
    "poisson": Row({"lam": 1.0}, "poisson", whole=True),
    "binomial": Row({"n": None, "p": None}, "binomial", whole=True),
    "geometric": Row({"p": None}, "geometric", whole=True),
    "multinomial": Row({"n": None, "pvals": None}, "multinomial", whole=True),
    "multivariate_normal": Row({"mean": None, "cov": None}, "multivariate_normal"),
    "permutation": Row({"x": None}, "permutation", whole=True),
}
_METHODS = {each.method: each for each in TABLE.values()}


@operator("_np_random")
class NumPyRandom(_Calling, hidden=True, uses_random=True):
    """Draw from a distribution of NumPy's generator."""

    dtype: DType = required("The result's dtype.")

    def spec(self, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]) -> Spec:
        key = (shapes, dtypes)
        known = self._specs.get(key)
        if known is not None:
            return known
        square = self.function == "multivariate_normal"
        stands = [
            np.broadcast_to(
                np.eye(shape[-2], shape[-1]) if square and len(shape) > 1 else _STANDING.get(self.function, 1.0), shape
            )
            for shape in shapes
        ]
        args, kwargs = self.call.fill([each.astype(t) for each, t in zip(stands, dtypes, strict=True)])
        found = np.asarray(_drawn(np.random.default_rng(0), self.function, args, kwargs))
        made = Spec([found.shape], [self.dtype], light=False)
        made.gradient = self.gradient if self.dtype.kind == "f" else None
        self._specs[key] = made
        return made

    def infer_shape(self, shapes: list[Any]) -> Any:
        if any(shape is None or -1 in shape for shape in shapes):
            return shapes, [None]
        return shapes, list(self.spec(tuple(shapes), (FLOAT32,) * len(shapes)).shapes)

    def infer_type(self, dtypes: list[DType | None]) -> Any:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        args, kwargs = self.call.fill(inputs)
        if self.function == "multinomial" and np.size(args[1]):  # in float32 a sum of 1 may be more
            chances = np.asarray(args[1], np.float64)
            total = chances.sum(axis=-1, keepdims=True)
            args[1] = np.where(np.abs(total - 1) < 1e-4, chances / np.where(total == 0, 1, total), chances)
        outputs[0][...] = _drawn(run.random, self.function, args, kwargs)

    def gradient(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> Any:
        from flowmx.numpy import gradients

        row = _METHODS.get(self.function.removesuffix("_n"))
        rule = None if row is None else row.gradient
        if row is None or rule is None:
            calls.refusal(f"random.{self.function}")(F, inputs, outputs, heads)
        np_of = gradients._functions(F)
        arrays = [gradients._faced(inputs[index]) for index in range(self.num_args)]
        args, _ = self.call.fill(arrays)
        found: list[Any] = [None] * self.num_args
        head, result = gradients.headed(heads[0]), gradients._faced(outputs[0])
        gradients._sort_out(self.call.args, rule(np_of, head, result, *args[: len(row.parameters)]), found)
        return [None if each is None else gradients.matched(np_of, each, arrays[at]) for at, each in enumerate(found)]


def _drawn(generator: Any, function: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Draw by a method of a generator; a Bernoulli's numbers are uniform ones below its probability."""
    if function in _POSITIVE and any((np.asarray(each) <= 0).any() for each in args):
        raise ValueError(f"random.{function}: a parameter is not above 0")
    if function == "choice" and len(args) == 4 and args[3] is not None:  # in float32 their sum may be more than 1
        chances = np.asarray(args[3], np.float64)
        args = [*args[:3], chances / chances.sum()]
    if function in ("uniform_n", "normal_n"):
        size = (*kwargs["size"], *np.broadcast_shapes(*(np.shape(each) for each in args)))
        return getattr(generator, function[:-2])(*args, size=size)
    if function == "multinomial" and not np.size(args[1]):
        return np.zeros((*np.atleast_1d(kwargs.get("size", ())).astype(int), 0))
    if function == "multivariate_normal" and (np.ndim(args[0]) > 1 or np.ndim(args[1]) > 2):
        return _of_batches(generator, *args, **kwargs)
    if not function.startswith("bernoulli"):
        return getattr(generator, function)(*args, **kwargs)
    chance = np.asarray(args[0] if function == "bernoulli" else 1 / (1 + np.exp(-np.asarray(args[0]))))
    if ((chance < 0) | (chance > 1)).any():
        raise ValueError("random.bernoulli: a probability is not from 0 to 1")
    return generator.random(kwargs.get("size", chance.shape)) < chance


def _of_batches(generator: Any, mean: Any, cov: Any, size: Any = ()) -> Any:
    """Normal vectors of many means or covariances, whose first axes are broadcast."""
    lead = np.broadcast_shapes(np.shape(mean)[:-1], np.shape(cov)[:-2])
    factor = np.linalg.cholesky(np.asarray(cov, np.float64))
    size = (size,) if isinstance(size, int) else tuple(size)
    drawn = generator.standard_normal((*size, *lead, np.shape(mean)[-1]))
    return mean + (factor @ drawn[..., None])[..., 0]


_POSITIVE = ("gamma", "pareto", "power", "weibull")
"""Distributions of which MXNet refuses parameters that are not above 0."""


_STANDING = {"binomial": 0.5, "geometric": 0.5, "multinomial": 0.0}
"""A value that is right for a parameter, where 1 is not."""


def _draw(method: str, args: Sequence[Any], size: Any, dtype: Any, ctx: Any, out: Any, named: bool = True) -> Any:
    found = conversion.arrays_of(list(args))
    context = found[0].context if found else ctx or current_context()
    sorter = calls._Sorter(context)
    kept = [sorter.sort(np.asarray(each) if isinstance(each, list) else each) for each in args]
    kwargs = {} if size is None else {"size": int(size) if isinstance(size, (int, np.integer)) else tuple(size)}
    parameters = {"num_args": len(sorter.arrays), "function": method, "form": encode(kept, kwargs), "dtype": dtype}
    op = NumPyRandom.create(**parameters)
    with raised_as_mxnet(ValueError):
        made = conversion.face(invoke(op, sorter.arrays, None, None if sorter.arrays else on_context(context), 4))
    return made if out is None else calls.into(method, made, out, None)


def _function(name: str, row: Row) -> Callable[..., Any]:
    kind = inspect.Parameter
    parameters = [
        kind(each, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if default is None else default)
        for each, default in row.parameters.items()
    ]
    others = [kind(each, kind.POSITIONAL_OR_KEYWORD, default=None) for each in ("size", "dtype", "ctx", "out")]
    signature = inspect.Signature([*parameters, *others])

    def function(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        dtype = conversion.given_dtype(values["dtype"]) or (np.dtype(np.int64) if row.whole else default_float())
        numbers = [row.parameters[each] if values[each] is None else values[each] for each in row.parameters]
        return _draw(row.method, numbers, values["size"], dtype, values["ctx"] or device, values["out"])

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = f"Numbers drawn as by :meth:`numpy.random.Generator.{row.method}`."
    return function


for _name, _row in TABLE.items():
    globals()[_name] = _function(_name, _row)
    __all__ += [_name]


def randint(low: Any, high: Any = None, size: Any = None, dtype: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """Whole numbers from ``low`` up to, and without, ``high`` (from 0 to ``low`` where it is None)."""
    bounds = (0, low) if high is None else (low, high)
    return _draw("integers", bounds, size, conversion.given_dtype(dtype) or np.dtype(np.int64), ctx, out)


def rand(*size: int, **kwargs: Any) -> Any:
    """Uniform numbers from 0 to 1, the shape given as arguments: ``rand(2, 3)``."""
    return globals()["uniform"](0.0, 1.0, size=size or None, **kwargs)


def randn(*size: int, **kwargs: Any) -> Any:
    """Normal numbers of mean 0 and standard deviation 1, the shape given as arguments: ``randn(2, 3)``."""
    return globals()["normal"](0.0, 1.0, size=size or None, **kwargs)


def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None, ctx: Any = None, out: Any = None) -> Any:
    """Elements of an array, or whole numbers below ``a``, chosen at random, with the probabilities ``p``."""
    count = a if isinstance(a, (int, np.integer)) else a.shape[0]
    if p is not None:
        p = np.asarray(p.asnumpy() if isinstance(p, BaseArray) else p, np.float64)  # type: ignore[attr-defined]
        p = tuple((p / p.sum()).tolist())
    args = (int(count), None if size is None else size, replace, p)
    drawn = _draw("choice", args, None, np.dtype(np.int64), ctx, None)
    made = drawn if isinstance(a, (int, np.integer)) else a[drawn]
    return made if out is None else calls.into("choice", made, out, None)


def shuffle(x: Any) -> None:
    """Put the rows of an array in another order, in place."""
    order = globals()["permutation"](x.shape[0])
    x[...] = x[order]


seed = _classic.seed
