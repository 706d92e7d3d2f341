"""The gradients of selecting and counting elements, and of reshape."""

from __future__ import annotations

from typing import Any

from flowmx.numpy.rules.registry import extension, is_array, rule

__all__: list[str] = []


@rule("select")
def _select(xp: Any, g: Any, r: Any, conditions: Any, choices: Any, default: Any = 0) -> Any:
    remaining, gradients = None, []
    for condition in conditions:
        selected = condition if remaining is None else condition & remaining
        gradients.append(xp.where(selected, g, 0.0))
        negation = xp.logical_not(condition)
        remaining = negation if remaining is None else remaining & negation
    return None, gradients, xp.where(remaining, g, 0.0) if is_array(default) else None


@rule("extract")
def _extract(xp: Any, g: Any, r: Any, condition: Any, arr: Any) -> Any:
    places = xp.flatnonzero(condition)
    return None, xp.reshape(extension(places, "added_at", g, arr.size), arr.shape)


@rule("compress")
def _compress(xp: Any, g: Any, r: Any, condition: Any, a: Any, axis: Any = None, *_: Any) -> Any:
    places = xp.flatnonzero(xp.asarray(condition))
    if axis is None:
        return None, xp.reshape(extension(places, "added_at", g, a.size), a.shape)
    gradient = xp.zeros(tuple(a.shape[index] for index in _axis_first(axis % a.ndim, a.ndim)), dtype=g.dtype)
    gradient[places] = xp.moveaxis(g, axis, 0)
    return None, xp.moveaxis(gradient, 0, axis)


def _axis_first(axis: int, ndim: int) -> list[int]:
    return [axis, *(index for index in range(ndim) if index != axis)]


@rule("reshape")
def _reshape(xp: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    return (xp.reshape(g, x.shape),)


@rule("bincount")
def _bincount(xp: Any, g: Any, r: Any, x: Any, weights: Any = None, minlength: int = 0) -> Any:
    return None, None if weights is None else xp.take(g, x)
