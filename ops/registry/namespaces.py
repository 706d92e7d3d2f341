"""Modules whose functions are derived from operators on first access."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from flowmx.ops.registry.operators import registered_operators

_SPARSE = """
    ElementWiseSum Embedding FullyConnected LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput abs
    adagrad_update adam_update add_n arccos arccosh arcsin arcsinh arctan arctanh broadcast_add broadcast_div
    broadcast_minus broadcast_mul broadcast_plus broadcast_sub cast_storage cbrt ceil clip concat cos cosh degrees
    dot elemwise_add elemwise_div elemwise_mul elemwise_sub exp expm1 fix floor ftrl_update gamma gammaln log log10
    log1p log2 make_loss mean negative norm radians relu retain rint round rsqrt sgd_mom_update sgd_update sigmoid
    sign sin sinh slice sqrt square stop_gradient sum tan tanh trunc where zeros_like
"""
SPARSE = _SPARSE.split()
"""The operators that ``mx.nd.sparse`` and ``mx.sym.sparse`` list, as in MXNet; they offer all others too."""

Finders = tuple[Callable[[str], Any], Callable[[], list[str]]]


def operator_attributes(make: Callable[[str], Any]) -> Finders:
    """Return the ``__getattr__`` and ``__dir__`` of a module with a function for each operator.

    Args:
        make: makes the function of an operator from its name; called once per operator.
    """

    @functools.cache
    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make(name)

    return find, lambda: sorted(name for name, cls in registered_operators().items() if not cls.traits.hidden)


def prefixed_attributes(functions: ModuleType, prefix: str, own: Iterable[str] = ()) -> Finders:
    """Return the ``__getattr__`` and ``__dir__`` of a module whose names are operator names without a common prefix.

    Args:
        functions: the module of all operators.
        prefix: the prefix, such as ``_linalg_``.
        own: the names of functions that the module defines itself.
    """

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(functions, prefix + name)

    def names() -> list[str]:
        return sorted(
            {*own, *(name.removeprefix(prefix) for name in registered_operators() if name.startswith(prefix))}
        )

    return find, names
