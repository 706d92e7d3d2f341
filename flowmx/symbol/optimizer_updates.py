"""Optimizer updates of ``mx.sym.contrib``. Their ``rescale_grad`` may be a symbol or a number."""

from __future__ import annotations

from flowmx.symbol import functions as F
from flowmx.symbol.composite_functions import full
from flowmx.symbol.symbol import Symbol

__all__ = ["adamw_update", "mp_adamw_update"]


def _factor(rescale_grad: float | Symbol) -> Symbol:
    return rescale_grad if isinstance(rescale_grad, Symbol) else full((1,), rescale_grad)


def adamw_update(
    weight: Symbol, grad: Symbol, mean: Symbol, var: Symbol, rescale_grad: float | Symbol, lr: float, eta: float,
    **kwargs: object,
) -> Symbol:  # fmt: skip
    """Update weights with AdamW, like :func:`flowmx.nd.contrib.adamw_update`."""
    return F.op("_adamw_update", weight, grad, mean, var, _factor(rescale_grad), lr=lr, eta=eta, **kwargs)


def mp_adamw_update(
    weight: Symbol, grad: Symbol, mean: Symbol, var: Symbol, weight32: Symbol, rescale_grad: float | Symbol, lr: float,
    eta: float, **kwargs: object,
) -> Symbol:  # fmt: skip
    """Update weights with AdamW in mixed precision, like :func:`flowmx.nd.contrib.mp_adamw_update`."""
    return F.op("_mp_adamw_update", weight, grad, mean, var, weight32, _factor(rescale_grad), lr=lr, eta=eta, **kwargs)
