"""The optimizer updates of ``mx.nd.contrib``, such as AdamW and LAMB; ``rescale_grad`` is a number or an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import full

__all__ = [
    "adamw_update", "mp_adamw_update", "multi_adamw_update", "multi_lamb_update", "multi_mp_adamw_update",
    "multi_mp_lamb_update",
]  # fmt: skip

Arrays = Sequence[NDArray]
Numbers = Sequence[float]


def _scale_array(rescale_grad: float | NDArray, like: NDArray) -> NDArray:
    if isinstance(rescale_grad, NDArray):
        return rescale_grad.as_in_context(like.context)
    return full((1,), rescale_grad, like.context)


def _interleave(*lists: Arrays) -> list[NDArray]:
    return [array for group in zip(*lists, strict=True) for array in group]


def adamw_update(
    weight: NDArray, grad: NDArray, mean: NDArray, var: NDArray, rescale_grad: float | NDArray, lr: float, eta: float,
    beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, wd: float = 0, clip_gradient: float = -1,
    out: object = None, name: str | None = None, **kwargs: object,
) -> Any:  # fmt: skip
    """AdamW (Loshchilov and Hutter, 2019): w -= eta · (lr · mean/(√var + epsilon) + wd · w).

    The update is skipped if ``rescale_grad``, the gradient's scale, is 0, infinite or NaN.
    """
    return F.op(
        "_adamw_update", weight, grad, mean, var, _scale_array(rescale_grad, weight), lr=lr, eta=eta, beta1=beta1,
        beta2=beta2, epsilon=epsilon, wd=wd, clip_gradient=clip_gradient, out=out,
    )  # fmt: skip


def mp_adamw_update(
    weight: NDArray, grad: NDArray, mean: NDArray, var: NDArray, weight32: NDArray, rescale_grad: float | NDArray,
    lr: float, eta: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, wd: float = 0,
    clip_gradient: float = -1, out: object = None, name: str | None = None, **kwargs: object,
) -> Any:  # fmt: skip
    """Like :func:`adamw_update`, for a 16-bit weight with a float32 copy; both are updated."""
    return F.op(
        "_mp_adamw_update", weight, grad, mean, var, weight32, _scale_array(rescale_grad, weight), lr=lr, eta=eta,
        beta1=beta1, beta2=beta2, epsilon=epsilon, wd=wd, clip_gradient=clip_gradient, out=out,
    )  # fmt: skip


def multi_adamw_update(
    weights: Arrays, grads: Arrays, mean: Arrays, var: Arrays, rescale_grad: float | NDArray, lrs: Numbers,
    wds: Numbers, etas: Numbers, out: object = None, name: str | None = None, size: int = 0, **kwargs: object,
) -> Any:  # fmt: skip
    """Apply :func:`adamw_update` to many weights, with a rate, decay and eta for each."""
    arrays = [*_interleave(weights, grads, mean, var), _scale_array(rescale_grad, weights[0])]
    return F.op(
        "_multi_adamw_update", *arrays, num_weights=size or len(weights), lrs=lrs, wds=wds, etas=etas, out=out, **kwargs
    )


def multi_mp_adamw_update(
    weights: Arrays, grads: Arrays, mean: Arrays, var: Arrays, weights32: Arrays, rescale_grad: float | NDArray,
    lrs: Numbers, wds: Numbers, etas: Numbers, out: object = None, name: str | None = None, size: int = 0,
    **kwargs: object,
) -> Any:  # fmt: skip
    """Apply :func:`mp_adamw_update` to many weights."""
    arrays = [*_interleave(weights, grads, mean, var, weights32), _scale_array(rescale_grad, weights[0])]
    return F.op(
        "_multi_mp_adamw_update", *arrays, num_weights=size or len(weights), lrs=lrs, wds=wds, etas=etas, out=out,
        **kwargs,
    )  # fmt: skip


def multi_lamb_update(
    weights: Arrays, grads: Arrays, mean: Arrays, var: Arrays, step_count: Sequence[int], lrs: Numbers, wds: Numbers,
    out: object = None, num_tensors: int = 0, **kwargs: object,
) -> Any:  # fmt: skip
    """LAMB (You et al., 2019) for many weights, with an update number, a rate and a decay for each."""
    return F.op(
        "_multi_lamb_update", *_interleave(weights, grads, mean, var), num_tensors=num_tensors or len(weights),
        step_count=step_count, learning_rates=lrs, wds=wds, out=out, **kwargs,
    )  # fmt: skip


def multi_mp_lamb_update(
    weights: Arrays, grads: Arrays, mean: Arrays, var: Arrays, weights32: Arrays, step_count: Sequence[int],
    lrs: Numbers, wds: Numbers, out: object = None, num_tensors: int = 0, **kwargs: object,
) -> Any:  # fmt: skip
    """Apply :func:`multi_lamb_update` to 16-bit weights with float32 copies."""
    return F.op(
        "_multi_mp_lamb_update", *_interleave(weights, grads, mean, var, weights32),
        num_tensors=num_tensors or len(weights), step_count=step_count, learning_rates=lrs, wds=wds, out=out, **kwargs,
    )  # fmt: skip
