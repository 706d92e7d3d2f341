"""Suggestions for a name that nothing has: the nearest one, or what stands here for another library's word."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["STANDS_FOR", "did_you_mean", "nearest", "refuse_unknown"]

STANDS_FOR = {
    "avgpool2d": "Pooling",
    "batchnorm1d": "BatchNorm",
    "batchnorm2d": "BatchNorm",
    "conv1d": "Convolution",
    "conv2d": "Convolution",
    "conv3d": "Convolution",
    "convtranspose2d": "Deconvolution",
    "dense": "FullyConnected",
    "linear": "FullyConnected",
    "matmul": "dot",
    "maxpool2d": "Pooling",
    "cat": "concat",
    "permute": "transpose",
    "view": "reshape",
}
"""Names of operators in other libraries, in lower case, and the operators that do the same here."""


def nearest(name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str | None:
    """The known name that was probably meant, if any.

    The same word in another case comes first, then another library's word for it, then the most similar.

    Args:
        name: what was given.
        known: the names that there are.
        others: names that mean one of these, in lower case.

    Example:
        >>> nearest("convolution", ["Convolution", "Deconvolution"])
        'Convolution'
    """
    from difflib import get_close_matches  # only on the way to a message: importing it takes a while

    spelled: dict[str, list[str]] = {}
    for each in known:
        spelled.setdefault(each.lower(), []).append(each)
    given = name.lower()
    if given not in spelled:
        other = others.get(given, "").lower() if others else ""
        similar = [other] if other in spelled else get_close_matches(given, spelled, n=1)
        if not similar:
            return None
        given = similar[0]
    return get_close_matches(name, spelled[given], n=1, cutoff=0)[0]


def did_you_mean(name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """The end of a message, ``"; did you mean 'sgd'?"``; nothing where no name is similar. Arguments as above."""
    found = nearest(name, known, others)
    return f"; did you mean {found!r}?" if found is not None else ""


def refuse_unknown(cls: type[Any], given: Iterable[str]) -> None:
    """Raise TypeError for keyword arguments that no ``__init__`` of a class takes; nothing where none is given.

    Args:
        cls: the class.
        given: the names that were left over.
    """
    for name in given:
        known = _keywords(base.__dict__.get("__init__") for base in cls.__mro__)
        hint = did_you_mean(name, known, {"lr": "learning_rate"})
        raise TypeError(f"{cls.__name__} has no argument {name!r}, only {', '.join(known)}{hint}")


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _keywords(functions: Iterable[Callable[..., Any] | None]) -> list[str]:
    """The names of arguments of methods, the object itself and those with ``*`` left out."""
    found: dict[str, None] = {}
    for function in functions:
        if inspect.isfunction(function):
            _, *parameters = inspect.signature(function).parameters.values()
            found.update(dict.fromkeys(each.name for each in parameters if each.kind in _NAMED))
    return list(found)
