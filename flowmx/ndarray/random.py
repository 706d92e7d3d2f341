"""``mx.nd.random``: arrays of random numbers.

Parameters are numbers, or arrays: then each element gets a block of samples. ``uniform_like(data)`` and the other
``*_like`` functions draw in the shape and dtype of an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from flowmx.devices import Context
from flowmx.errors import ArgumentTypeError
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray

__all__ = [
    "bernoulli", "exponential", "gamma", "generalized_negative_binomial", "multinomial", "negative_binomial", "normal",
    "poisson", "randint", "randn", "shuffle", "uniform",
]  # fmt: skip

Number = float | NDArray


def _draw(
    name: str, numbers: Mapping[str, object], shape: object, dtype: object, ctx: Context | None, out: NDArray | None
) -> NDArray:
    """Call ``_random_NAME`` for numbers, ``_sample_NAME`` for arrays."""
    arrays = [isinstance(value, NDArray) for value in numbers.values()]
    if any(arrays):
        if not all(arrays):
            types = ", ".join(f"{key} is {type(value).__name__}" for key, value in numbers.items())
            raise ArgumentTypeError(f"random.{name}: {types}; expected numbers, or arrays for all of them")
        drawn = F.op(f"_sample_{name}", *numbers.values(), shape=() if shape is None else shape, dtype=dtype, out=out)
    else:
        if shape is None:
            shape = (1,) if out is None else out.shape
        if dtype is None and out is not None:
            dtype = out.dtype
        drawn = F.op(f"_random_{name}", **numbers, shape=shape, dtype=dtype, ctx=ctx, out=out)
    return cast("NDArray", drawn)


def uniform(
    low: Number = 0.0, high: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the uniform distribution on [``low``, ``high``)."""
    return _draw("uniform", {"low": low, "high": high}, shape, dtype, ctx, out)


def normal(
    loc: Number = 0.0, scale: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the normal distribution with mean ``loc`` and standard deviation ``scale``."""
    return _draw("normal", {"loc": loc, "scale": scale}, shape, dtype, ctx, out)


def randn(
    *shape: int, loc: Number = 0.0, scale: Number = 1.0, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the normal distribution, with the shape as arguments: ``randn(2, 3)``."""
    return _draw("normal", {"loc": loc, "scale": scale}, shape or kwargs.get("shape"), dtype, ctx, out)


def gamma(
    alpha: Number = 1.0, beta: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the gamma distribution with shape ``alpha`` and scale ``beta``."""
    return _draw("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, ctx, out)


def exponential(
    scale: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the exponential distribution with mean ``scale``."""
    rate = F.reciprocal(scale) if isinstance(scale, NDArray) else 1.0 / scale
    return _draw("exponential", {"lam": rate}, shape, dtype, ctx, out)


def poisson(
    lam: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the Poisson distribution with mean ``lam``."""
    return _draw("poisson", {"lam": lam}, shape, dtype, ctx, out)


def negative_binomial(
    k: Number = 1, p: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the negative binomial distribution: failures before the ``k``-th success, with probability ``p``."""
    return _draw("negative_binomial", {"k": k, "p": p}, shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Number = 1.0, alpha: Number = 1.0, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw from the negative binomial distribution with mean ``mu`` and dispersion ``alpha``."""
    return _draw("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, ctx, out)


def randint(
    low: int, high: int, shape: object = None, dtype: object = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: object,
) -> NDArray:  # fmt: skip
    """Draw integers uniformly from ``low`` to ``high`` - 1, int32 by default."""
    return _draw("randint", {"low": low, "high": high}, shape, dtype, ctx, out)


def bernoulli(
    prob: Number = 0.5,
    shape: object = None,
    dtype: object = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
) -> NDArray:
    """Draw 1 with probability ``prob``, else 0.

    Raises:
        ValueError: ``prob`` is a number outside 0 ... 1.
    """
    if isinstance(prob, NDArray):
        drawn = _draw("uniform", {"low": F.zeros_like(prob), "high": F.ones_like(prob)}, shape, None, ctx, None)
        ones = F.broadcast_lesser(drawn, prob.reshape((*prob.shape, *(1,) * (len(drawn.shape) - len(prob.shape)))))
    elif not 0 <= prob <= 1:
        raise ValueError(f"random.bernoulli: prob is {prob}, expected 0 to 1")
    else:
        ones = F.op("_lesser_scalar", uniform(shape=shape, ctx=ctx), scalar=prob)
    if out is not None:
        ones.astype(out.dtype, copy=False).copyto(out)
        return out
    drawn_as: NDArray = ones if dtype is None else ones.astype(dtype, copy=False)
    return drawn_as


@overload
def multinomial(
    data: NDArray, shape: object = None, get_prob: Literal[False] = False, out: object = None, dtype: object = "int32",
    **kwargs: object,
) -> NDArray: ...  # fmt: skip


@overload
def multinomial(
    data: NDArray, shape: object = None, *, get_prob: Literal[True], out: object = None, dtype: object = "int32",
    **kwargs: object,
) -> list[NDArray]: ...  # fmt: skip


def multinomial(
    data: NDArray,
    shape: object = None,
    get_prob: bool = False,
    out: object = None,
    dtype: object = "int32",
    **kwargs: object,
) -> Any:
    """Draw class numbers with the probabilities along the last axis of ``data``.

    With ``get_prob``, also return the logarithms of their probabilities, which are differentiable.
    """
    return F.op(
        "_sample_multinomial", data, shape=() if shape is None else shape, get_prob=get_prob, dtype=dtype, out=out
    )


def shuffle(data: NDArray, **kwargs: object) -> NDArray:
    """Shuffle the data along the first axis."""
    result: NDArray = F.op("_shuffle", data, **kwargs)
    return result


if TYPE_CHECKING:
    from flowmx.ndarray.functions import _random_exponential_like as exponential_like
    from flowmx.ndarray.functions import _random_gamma_like as gamma_like
    from flowmx.ndarray.functions import (
        _random_generalized_negative_binomial_like as generalized_negative_binomial_like,
    )
    from flowmx.ndarray.functions import _random_negative_binomial_like as negative_binomial_like
    from flowmx.ndarray.functions import _random_normal_like as normal_like
    from flowmx.ndarray.functions import _random_poisson_like as poisson_like
    from flowmx.ndarray.functions import _random_uniform_like as uniform_like
else:

    def __getattr__(name: str) -> Any:
        if name.endswith("_like"):
            return getattr(F, f"_random_{name}")
        raise AttributeError(f"mx.nd.random has no function {name!r}")


__all__ += [
    "exponential_like",
    "gamma_like",
    "generalized_negative_binomial_like",
    "negative_binomial_like",
    "normal_like",
    "poisson_like",
    "uniform_like",
]


def __dir__() -> list[str]:
    return sorted(__all__)
