"""``mx.nd.random``: arrays of random numbers.

Parameters may be numbers, or arrays, which then get a block of samples for each of their elements.
``uniform_like(data)`` and its kin draw in the shape and dtype of an array.
"""

from __future__ import annotations

from typing import Any

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
    name: str, numbers: dict[str, Any], shape: Any, dtype: Any, ctx: Context | None, out: NDArray | None
) -> NDArray:
    """Call ``_random_NAME`` for numbers, ``_sample_NAME`` for arrays."""
    arrays = [isinstance(value, NDArray) for value in numbers.values()]
    if any(arrays):
        if not all(arrays):
            given = ", ".join(f"{key} is {type(value).__name__}" for key, value in numbers.items())
            raise ArgumentTypeError(f"random.{name}: {given}; expected numbers, or arrays for all of them")
        made = F.op(f"_sample_{name}", *numbers.values(), shape=() if shape is None else shape, dtype=dtype, out=out)
    else:
        if shape is None:
            shape = (1,) if out is None else out.shape
        if dtype is None and out is not None:
            dtype = out.dtype
        made = F.op(f"_random_{name}", **numbers, shape=shape, dtype=dtype, ctx=ctx, out=out)
    drawn: NDArray = made
    return drawn


def uniform(
    low: Number = 0.0, high: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Uniform numbers from ``low`` up to ``high``."""
    return _draw("uniform", {"low": low, "high": high}, shape, dtype, ctx, out)


def normal(
    loc: Number = 0.0, scale: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Normal numbers of mean ``loc`` and standard deviation ``scale``."""
    return _draw("normal", {"loc": loc, "scale": scale}, shape, dtype, ctx, out)


def randn(
    *shape: int, loc: Number = 0.0, scale: Number = 1.0, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Normal numbers, the shape given as arguments: ``randn(2, 3)``."""
    return _draw("normal", {"loc": loc, "scale": scale}, shape or kwargs.get("shape"), dtype, ctx, out)


def gamma(
    alpha: Number = 1.0, beta: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Gamma numbers of shape ``alpha`` and scale ``beta``."""
    return _draw("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, ctx, out)


def exponential(
    scale: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Exponential numbers of mean ``scale``."""
    rate = F.reciprocal(scale) if isinstance(scale, NDArray) else 1.0 / scale
    return _draw("exponential", {"lam": rate}, shape, dtype, ctx, out)


def poisson(
    lam: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None, out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Poisson numbers of mean ``lam``."""
    return _draw("poisson", {"lam": lam}, shape, dtype, ctx, out)


def negative_binomial(
    k: Number = 1, p: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Draw from the negative binomial distribution: the failures before the ``k``-th success of probability ``p``."""
    return _draw("negative_binomial", {"k": k, "p": p}, shape, dtype, ctx, out)


def generalized_negative_binomial(
    mu: Number = 1.0, alpha: Number = 1.0, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Poisson numbers of mean ``mu`` and dispersion ``alpha``."""
    return _draw("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, ctx, out)


def randint(
    low: int, high: int, shape: Any = None, dtype: Any = None, ctx: Context | None = None,
    out: NDArray | None = None, **kwargs: Any,
) -> NDArray:  # fmt: skip
    """Uniform integers from ``low`` to ``high`` - 1, int32 by default."""
    return _draw("randint", {"low": low, "high": high}, shape, dtype, ctx, out)


def bernoulli(
    prob: Number = 0.5, shape: Any = None, dtype: Any = None, ctx: Context | None = None, out: NDArray | None = None
) -> NDArray:
    """1 with probability ``prob``, else 0.

    Raises:
        ValueError: ``prob`` is a number outside 0 ... 1.
    """
    if isinstance(prob, NDArray):
        drawn = _draw("uniform", {"low": F.zeros_like(prob), "high": F.ones_like(prob)}, shape, None, ctx, None)
        made = F.broadcast_lesser(drawn, prob.reshape((*prob.shape, *(1,) * (len(drawn.shape) - len(prob.shape)))))
    elif not 0 <= prob <= 1:
        raise ValueError(f"random.bernoulli: prob is {prob}, expected 0 to 1")
    else:
        made = F.op("_lesser_scalar", uniform(shape=shape, ctx=ctx), scalar=prob)
    if out is not None:
        made.astype(out.dtype, copy=False).copyto(out)
        return out
    drawn_as: NDArray = made if dtype is None else made.astype(dtype, copy=False)
    return drawn_as


def multinomial(
    data: NDArray, shape: Any = None, get_prob: bool = False, out: Any = None, dtype: Any = "int32", **kwargs: Any
) -> Any:
    """Class numbers drawn with the probabilities along the last axis of ``data``.

    With ``get_prob`` also the logarithms of their probabilities, through which gradients flow.
    """
    return F.op(
        "_sample_multinomial", data, shape=() if shape is None else shape, get_prob=get_prob, dtype=dtype, out=out
    )


def shuffle(data: NDArray, **kwargs: Any) -> NDArray:
    """The data in random order along the first axis."""
    made: NDArray = F.op("_shuffle", data, **kwargs)
    return made


def __getattr__(name: str) -> Any:
    if name.endswith("_like"):
        return getattr(F, f"_random_{name}")
    raise AttributeError(f"mx.nd.random has no function {name!r}")


__all__ += [name.removeprefix("_random_") for name in dir(F) if name.startswith("_random_") and name.endswith("_like")]


def __dir__() -> list[str]:
    return sorted(__all__)
