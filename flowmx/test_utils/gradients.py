"""Gradients compared with differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import autograd, random
from flowmx.cached_op import CachedOp
from flowmx.devices import Context
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray, array
from flowmx.ops.registry.operators import lookup
from flowmx.symbol.symbol import Symbol
from flowmx.test_utils.comparing import assert_almost_equal
from flowmx.test_utils.tolerance import (
    Numbers,
    Tolerance,
    default_atols,
    default_numeric_eps,
    default_rtols,
    get_tolerance,
    on_host,
)

__all__ = ["check_numeric_gradient", "numeric_grad"]

Function = Callable[..., Any]
Values = Sequence[Any] | Mapping[str, Any] | None

# In float64 differences are so exact that tests can be strict.
_DOUBLE = np.dtype(np.float64)
_STEPS = {**default_numeric_eps(), _DOUBLE: 1e-5}
_RELATIVE = {**default_rtols(), _DOUBLE: 1e-5}
_ABSOLUTE = {**default_atols(), _DOUBLE: 1e-7}


class _Subject(NamedTuple):
    """A function under a gradient check.

    Attributes:
        label: its name in messages.
        function: from the inputs and the auxiliary states to the outputs.
        names: the inputs'.
        points: where it is checked.
        states: the auxiliary states there.
    """

    label: str
    function: Function
    names: list[str]
    points: list[Numbers]
    states: list[Numbers]


def check_numeric_gradient(
    sym: str | Symbol | Function,
    location: Sequence[Any] | Mapping[str, Any],
    aux_states: Values = None,
    numeric_eps: Tolerance = None,
    rtol: Tolerance = None,
    atol: Tolerance = None,
    grad_nodes: Sequence[int | str] | Mapping[str, str] | None = None,
    use_forward_train: bool = True,
    ctx: Context | None = None,
    grad_stype_dict: Mapping[str, str] | None = None,
    dtype: Any = np.float64,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    directions: int | None = None,
) -> None:
    """Compare gradients with central differences of a random projection of the outputs.

    Everything is computed in float64, unless another dtype is asked for. Random operators are seeded alike before
    every call.

    Args:
        sym: a symbol, an operator's name, or a function of arrays that returns one or a list.
        location: the inputs, in order or by name.
        aux_states: auxiliary states; they are restored before every call and have no gradient.
        numeric_eps: the step of the differences, by default one that suits the dtype.
        rtol: relative tolerance, by default one that suits the dtype (1e-5 in float64).
        atol: absolute tolerance (1e-7 in float64).
        grad_nodes: positions (or names) of the inputs to check, by default all; or their ``grad_req`` by name, of
            which those that are ``"null"`` are left out.
        use_forward_train: run in training mode.
        ctx: the device.
        grad_stype_dict: kept for MXNet's tests: gradients are dense.
        dtype: the dtype of the computation.
        parameters: the operator's parameters.
        seed: of the projection, of the directions and of random operators.
        directions: compare an input of more elements than this by its slopes along so many random directions, which
            takes two calls for each of them; by default every element is compared, at two calls an element.

    Raises:
        AssertionError: a gradient differs; the message names the input and the worst element, or direction.
        ValueError: the location does not fit the symbol, or an input to check is none.
    """
    subject = _subject(sym, location, aux_states, parameters, np.dtype(dtype))
    checked = _checked(subject.names, grad_nodes)
    eps, relative, absolute = (
        get_tolerance(np.empty(0, dtype), given, table)
        for given, table in ((numeric_eps, _STEPS), (rtol, _RELATIVE), (atol, _ABSOLUTE))
    )
    rng = np.random.default_rng(seed)
    weights: list[Numbers] = []

    def call(arrays: Sequence[NDArray]) -> list[NDArray]:
        random.seed(seed)
        made = subject.function(*arrays, *(array(state, ctx, state.dtype) for state in subject.states))
        return [made] if isinstance(made, NDArray) else list(made)

    def projected(at: Sequence[Numbers]) -> float:
        with autograd.pause(train_mode=use_forward_train):
            made = call([array(point, ctx, point.dtype) for point in at])
        return sum(float((weight * each.asnumpy()).sum()) for weight, each in zip(weights, made, strict=True))

    arrays = [array(point, ctx, point.dtype) for point in subject.points]
    for position in checked:
        arrays[position].attach_grad()
    with autograd.record(train_mode=use_forward_train):
        outputs = call(arrays)
    weights += [rng.uniform(0.5, 1.5, each.shape) * rng.choice([-1, 1], each.shape) for each in outputs]
    heads = [array(weight, ctx, each.dtype) for weight, each in zip(weights, outputs, strict=True)]
    autograd.backward(outputs, heads, train_mode=use_forward_train)
    for position in checked:
        gradient = arrays[position].grad
        assert gradient is not None
        names = (f"{subject.label}: gradient of input {subject.names[position]}", "central difference")
        if directions is None or gradient.size <= directions:
            expected = _differences(projected, subject.points, position, eps)
            assert_almost_equal(gradient, expected, relative, absolute, names)
        else:
            shape = directions, *gradient.shape
            ways = (rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)).astype(dtype)
            slopes = (ways * gradient.asnumpy()).reshape(directions, -1).sum(axis=1)
            expected = np.array([_half_rise(projected, subject.points, position, eps * way) / eps for way in ways])
            assert_almost_equal(slopes, expected, relative, absolute, (f"{names[0]}, along directions", names[1]))


def _subject(
    sym: str | Symbol | Function, location: Sequence[Any] | Mapping[str, Any], aux_states: Values,
    parameters: Mapping[str, Any] | None, dtype: np.dtype[Any],
) -> _Subject:  # fmt: skip
    if isinstance(sym, Symbol):
        names = sym.list_arguments()
        points = _in_order("location", names, location)
        states = _in_order("aux_states", sym.list_auxiliary_states(), aux_states or ())
        found = _Subject(sym.name or "symbol", _symbol_function(sym), names, points, states)
    else:
        label = sym if isinstance(sym, str) else getattr(sym, "__name__", "function")
        function = _operator_function(sym, parameters) if isinstance(sym, str) else sym
        names = list(location) if isinstance(location, Mapping) else [str(n) for n in range(len(location))]
        found = _Subject(label, function, names, _values(location), _values(aux_states or ()))
    made = [[np.array(on_host(value), dtype) for value in values] for values in (found.points, found.states)]
    return found._replace(points=made[0], states=made[1])


def _values(given: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    return list(given.values()) if isinstance(given, Mapping) else list(given)


def _in_order(what: str, names: Sequence[str], given: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """Values in the order of names."""
    fits = set(given) == set(names) if isinstance(given, Mapping) else len(given) == len(names)
    if not fits:
        shown = list(given) if isinstance(given, Mapping) else f"{len(given)} values"
        raise ValueError(f"check_numeric_gradient: {what} has {shown}, expected one for each of {list(names)}")
    return [given[name] for name in names] if isinstance(given, Mapping) else list(given)


def _checked(names: Sequence[str], nodes: Sequence[int | str] | Mapping[str, str] | None) -> list[int]:
    """The positions of the inputs to check."""
    if nodes is None:
        return list(range(len(names)))
    if isinstance(nodes, Mapping):
        nodes = [name for name, request in nodes.items() if request != "null"]
    unknown = [node for node in nodes if isinstance(node, str) and node not in names]
    if unknown:
        raise ValueError(f"check_numeric_gradient: grad_nodes has {unknown}, expected some of {list(names)}")
    return [names.index(node) if isinstance(node, str) else node for node in nodes]


def _operator_function(name: str, parameters: Mapping[str, Any] | None) -> Function:
    lookup(name)
    return lambda *arrays: F.op(name, *arrays, **(parameters or {}))


def _symbol_function(symbol: Symbol) -> Function:
    """A symbol as a function of its arguments, and then of its auxiliary states."""
    op, names = CachedOp(symbol), [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    order = [names.index(name) for name in symbol.list_inputs()]
    return lambda *arrays: op(*(arrays[position] for position in order))


def _differences(
    projected: Callable[[Sequence[Numbers]], float], points: list[Numbers], position: int, eps: float
) -> Numbers:
    """The central difference of every element of one input."""
    found = np.zeros(points[position].shape)
    step = np.zeros_like(points[position])
    for index in np.ndindex(found.shape):
        step[index] = eps
        found[index] = _half_rise(projected, points, position, step) / eps
        step[index] = 0
    return found


def _half_rise(
    projected: Callable[[Sequence[Numbers]], float], points: list[Numbers], position: int, step: Numbers
) -> float:
    """Half the rise from a step before one input's point to a step behind it."""
    above, below = (
        projected([*points[:position], moved, *points[position + 1 :]])
        for moved in (points[position] + step, points[position] - step)
    )
    return (above - below) / 2


def numeric_grad(
    executor: Any, location: Mapping[str, Any], aux_states: Mapping[str, Any] | None = None, eps: float = 1e-4,
    use_forward_train: bool = True, dtype: Any = np.float32,
) -> dict[str, Numbers]:  # fmt: skip
    """The central differences of the sum of an executor's first output, for each of its arguments.

    Args:
        executor: a bound symbol.
        location: values of all arguments by name; only those of floating point are moved.
        aux_states: values of auxiliary states, put back before each run.
        eps: the distance between the two sides of a difference.
        use_forward_train: run in training mode.
        dtype: the differences' dtype.
    """
    points = {name: np.array(on_host(value)) for name, value in location.items()}
    names = list(points)

    def summed(at: Sequence[Numbers]) -> float:
        executor.copy_params_from(dict(zip(names, at, strict=True)), aux_states)
        return float(executor.forward(is_train=use_forward_train)[0].asnumpy().sum(dtype=np.float64))

    return {
        name: _differences(summed, list(points.values()), position, eps / 2).astype(dtype)
        if points[name].dtype.kind == "f"
        else np.zeros(points[name].shape, dtype)
        for position, name in enumerate(names)
    }
