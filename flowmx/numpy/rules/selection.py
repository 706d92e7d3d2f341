"""The gradients of selecting and counting elements, and of reshape."""

from __future__ import annotations

from typing import Any, cast

from flowmx.numpy.rules.registry import extension, is_array, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


@rule("select")
def _select(xp: Functions, g: Tensor, r: Tensor, conditions: Any, choices: object, default: Tensor | float = 0) -> Any:
    remaining: Any = None
    gradients = []
    for condition in conditions:
        selected = condition if remaining is None else condition & remaining
        gradients.append(xp.where(selected, g, 0.0))
        negation = xp.logical_not(condition)
        remaining = negation if remaining is None else remaining & negation
    return None, gradients, xp.where(remaining, g, 0.0) if is_array(default) else None


@rule("extract")
def _extract(xp: Functions, g: Tensor, r: Tensor, condition: Tensor, arr: Tensor) -> Gradients:
    places = xp.flatnonzero(condition)
    return None, xp.reshape(extension(places, "added_at", g, arr.size), arr.shape)


@rule("compress")
def _compress(
    xp: Functions, g: Tensor, r: Tensor, condition: Tensor, a: Tensor, axis: int | None = None, *_: object
) -> Gradients:
    places = xp.flatnonzero(xp.asarray(condition))
    if axis is None:
        return None, xp.reshape(extension(places, "added_at", g, a.size), a.shape)
    gradient = xp.zeros(tuple(a.shape[index] for index in _axis_first(axis % a.ndim, a.ndim)), dtype=g.dtype)
    cast("Any", gradient)[places] = xp.moveaxis(g, axis, 0)
    return None, xp.moveaxis(gradient, 0, axis)


def _axis_first(axis: int, ndim: int) -> list[int]:
    return [axis, *(index for index in range(ndim) if index != axis)]


@rule("reshape")
def _reshape(xp: Functions, g: Tensor, r: Tensor, x: Tensor, *_: object, **others: object) -> Gradients:
    return (xp.reshape(g, x.shape),)


@rule("bincount")
def _bincount(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Gradients:
    return None, None if weights is None else xp.take(g, x)
