"""``mx.sym.random``: symbols of random numbers, drawn again in each forward pass.

Parameters may be numbers, or symbols, which then yield a block of samples for each of their elements. ``name`` and
``attr`` work as for every operator. ``uniform_like(data)`` and similar functions draw in the shape and dtype of a
symbol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowmx.errors import ArgumentTypeError
from flowmx.symbol import functions as F
from flowmx.symbol.symbol import Symbol, call

__all__ = [
    "exponential", "gamma", "generalized_negative_binomial", "multinomial", "negative_binomial", "normal", "poisson",
    "randint", "randn", "shuffle", "uniform",
]  # fmt: skip

Number = float | Symbol


def _draw(
    name: str, numbers: Mapping[str, object], shape: object, dtype: object, kwargs: Mapping[str, object]
) -> Symbol:
    """Compose ``_random_NAME`` of numbers, or ``_sample_NAME`` of symbols."""
    symbols = [isinstance(value, Symbol) for value in numbers.values()]
    if any(symbols) and not all(symbols):
        types = ", ".join(f"{key} is {type(value).__name__}" for key, value in numbers.items())
        raise ArgumentTypeError(f"random.{name}: {types}; expected numbers, or symbols for all of them")
    parameters = {key: value for key, value in (("shape", shape), ("dtype", dtype)) if value is not None}
    operator = f"_{'sample' if any(symbols) else 'random'}_{name}"
    return call(operator, tuple(numbers.values()), {**parameters, **kwargs})


def uniform(low: Number = 0, high: Number = 1, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw uniform numbers from ``low`` up to ``high``."""
    return _draw("uniform", {"low": low, "high": high}, shape, dtype, kwargs)


def normal(loc: Number = 0, scale: Number = 1, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw normal numbers with mean ``loc`` and standard deviation ``scale``."""
    return _draw("normal", {"loc": loc, "scale": scale}, shape, dtype, kwargs)


def randn(*shape: int, loc: Number = 0, scale: Number = 1, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw normal numbers, with the shape as arguments: ``randn(2, 3)``."""
    return normal(loc, scale, shape or kwargs.pop("shape", None), dtype, **kwargs)


def poisson(lam: Number = 1, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw Poisson numbers with mean ``lam``."""
    return _draw("poisson", {"lam": lam}, shape, dtype, kwargs)


def exponential(scale: Number = 1, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw exponential numbers with mean ``scale``."""
    return _draw("exponential", {"lam": 1.0 / scale}, shape, dtype, kwargs)


def gamma(alpha: Number = 1, beta: Number = 1, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw gamma numbers with shape ``alpha`` and scale ``beta``."""
    return _draw("gamma", {"alpha": alpha, "beta": beta}, shape, dtype, kwargs)


def negative_binomial(
    k: Number = 1, p: Number = 1, shape: object = None, dtype: object = None, **kwargs: object
) -> Symbol:
    """Draw from the negative binomial distribution: the failures before the ``k``-th success of probability ``p``."""
    return _draw("negative_binomial", {"k": k, "p": p}, shape, dtype, kwargs)


def generalized_negative_binomial(
    mu: Number = 1, alpha: Number = 1, shape: object = None, dtype: object = None, **kwargs: object
) -> Symbol:
    """Draw Poisson numbers with mean ``mu`` and dispersion ``alpha``."""
    return _draw("generalized_negative_binomial", {"mu": mu, "alpha": alpha}, shape, dtype, kwargs)


def multinomial(
    data: Symbol, shape: object = None, get_prob: bool = True, dtype: object = "int32", **kwargs: object
) -> Symbol:
    """Draw class numbers with the probabilities along the last axis of ``data``.

    With ``get_prob`` (the default, unlike in ``mx.nd.random``) also return the logarithms of their probabilities,
    through which gradients flow.
    """
    parameters = {"shape": shape, "get_prob": get_prob, "dtype": dtype, **kwargs}
    return call("_sample_multinomial", (data,), parameters)


def shuffle(data: Symbol, **kwargs: object) -> Symbol:
    """Shuffle the data along the first axis."""
    return call("_shuffle", (data,), kwargs)


def randint(low: object, high: object, shape: object = None, dtype: object = None, **kwargs: object) -> Symbol:
    """Draw uniform integers from ``low`` to ``high`` - 1 (default: int32), for numbers only."""
    for key, value in (("low", low), ("high", high)):
        if isinstance(value, Symbol):
            raise TypeError(f"random.randint: {key} is a Symbol, expected a number")
    return _draw("randint", {"low": low, "high": high}, shape, dtype, kwargs)


if TYPE_CHECKING:
    from flowmx.symbol.functions import _random_exponential_like as exponential_like
    from flowmx.symbol.functions import _random_gamma_like as gamma_like
    from flowmx.symbol.functions import _random_generalized_negative_binomial_like as generalized_negative_binomial_like
    from flowmx.symbol.functions import _random_negative_binomial_like as negative_binomial_like
    from flowmx.symbol.functions import _random_normal_like as normal_like
    from flowmx.symbol.functions import _random_poisson_like as poisson_like
    from flowmx.symbol.functions import _random_uniform_like as uniform_like
else:

    def __getattr__(name: str) -> Any:
        if name.endswith("_like"):
            return getattr(F, f"_random_{name}")
        raise AttributeError(f"mx.sym.random has no function {name!r}")


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
