"""Checks of gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import autograd, random
from flowmx.cached_op import CachedOp
from flowmx.devices import Context
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import array
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import lookup
from flowmx.symbol.symbol import Symbol
from flowmx.test_utils.assertions import assert_almost_equal
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

# Differences in float64 are exact enough for strict tolerances.
_DOUBLE = np.dtype(np.float64)
_STEPS = {**default_numeric_eps(), _DOUBLE: 1e-5}
_RELATIVE = {**default_rtols(), _DOUBLE: 1e-5}
_ABSOLUTE = {**default_atols(), _DOUBLE: 1e-7}


class _Subject(NamedTuple):
    """A function under a gradient check.

    Attributes:
        label: its name in messages.
        function: a function of the inputs and the auxiliary states, which returns the outputs.
        names: names of the inputs.
        points: values of the inputs.
        states: values of the auxiliary states.
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

    The default dtype is float64. Random operators are seeded equally before every call.

    Args:
        sym: a symbol, an operator's name, or a function of arrays that returns one or a list.
        location: the inputs, in order or by name.
        aux_states: auxiliary states; they are restored before every call and have no gradient.
        numeric_eps: step of the differences (default: by dtype).
        rtol: relative tolerance (default: by dtype; 1e-5 for float64).
        atol: absolute tolerance (default: by dtype; 1e-7 for float64).
        grad_nodes: positions or names of the inputs to check (default: all); or their ``grad_req`` by name, where
            ``"null"`` excludes an input.
        use_forward_train: whether to run in training mode.
        ctx: the device.
        grad_stype_dict: ignored; gradients are dense.
        dtype: dtype of the computation.
        parameters: the operator's parameters.
        seed: seed of the projection, the directions and random operators.
        directions: inputs with more elements than this are compared by their slopes along this number of random
            directions, with two calls per direction (default: all inputs element by element, two calls each).

    Raises:
        AssertionError: a gradient differs; the message names the input and the worst element or direction.
        ValueError: the location does not match the symbol, or an input to check is unknown.
    """
    subject = _subject(sym, location, aux_states, parameters, np.dtype(dtype))
    positions = _positions(subject.names, grad_nodes)
    eps, relative, absolute = (
        get_tolerance(np.empty(0, dtype), tolerance, table)
        for tolerance, table in ((numeric_eps, _STEPS), (rtol, _RELATIVE), (atol, _ABSOLUTE))
    )
    rng = np.random.default_rng(seed)
    projection = _Projection(subject, ctx, seed, use_forward_train)
    for position, gradient in zip(positions, projection.gradients(positions, rng), strict=True):
        names = (f"{subject.label}: gradient of input {subject.names[position]}", "central difference")
        if directions is None or gradient.size <= directions:
            differences = _differences(projection, subject.points, position, eps)
            assert_almost_equal(gradient, differences, relative, absolute, names)
        else:
            vectors = _random_directions(rng, (directions, *gradient.shape)).astype(dtype)
            slopes = (vectors * gradient.asnumpy()).reshape(directions, -1).sum(axis=1)
            expected = np.array([_half_rise(projection, subject.points, position, eps * v) / eps for v in vectors])
            assert_almost_equal(slopes, expected, relative, absolute, (f"{names[0]}, along directions", names[1]))


def _random_directions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return random vectors without elements near 0."""
    directions: np.ndarray = rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape)
    return directions


class _Projection:
    """A random projection of the outputs of a subject, as a function of its inputs.

    Args:
        subject: the function.
        ctx: the device.
        seed: seed of random operators, set before every call.
        train_mode: whether to run in training mode.
    """

    def __init__(self, subject: _Subject, ctx: Context | None, seed: int, train_mode: bool) -> None:
        self._subject, self._ctx, self._seed, self._train_mode = subject, ctx, seed, train_mode
        self._weights: list[Numbers] = []

    def gradients(self, positions: Sequence[int], rng: np.random.Generator) -> list[NDArray]:
        """Draw the weights of the projection, and return the gradients of the inputs at these positions."""
        arrays = [array(point, self._ctx, point.dtype) for point in self._subject.points]
        for position in positions:
            arrays[position].attach_grad()
        with autograd.record(train_mode=self._train_mode):
            outputs = self._call(arrays)
        self._weights = [rng.uniform(0.5, 1.5, out.shape) * rng.choice([-1, 1], out.shape) for out in outputs]
        heads = [array(weight, self._ctx, out.dtype) for weight, out in zip(self._weights, outputs, strict=True)]
        autograd.backward(outputs, heads, train_mode=self._train_mode)
        return [gradient for position in positions if (gradient := arrays[position].grad) is not None]

    def __call__(self, points: Sequence[Numbers]) -> float:
        with autograd.pause(train_mode=self._train_mode):
            outputs = self._call([array(point, self._ctx, point.dtype) for point in points])
        return sum(float((weight * out.asnumpy()).sum()) for weight, out in zip(self._weights, outputs, strict=True))

    def _call(self, arrays: Sequence[NDArray]) -> list[NDArray]:
        random.seed(self._seed)
        states = [array(state, self._ctx, state.dtype) for state in self._subject.states]
        result = self._subject.function(*arrays, *states)
        return [result] if isinstance(result, NDArray) else list(result)


def _subject(
    sym: str | Symbol | Function, location: Sequence[Any] | Mapping[str, Any], aux_states: Values,
    parameters: Mapping[str, object] | None, dtype: DType,
) -> _Subject:  # fmt: skip
    if isinstance(sym, Symbol):
        names = sym.list_arguments()
        points = _in_order("location", names, location)
        states = _in_order("aux_states", sym.list_auxiliary_states(), aux_states or ())
        subject = _Subject(sym.name or "symbol", _symbol_function(sym), names, points, states)
    else:
        label = sym if isinstance(sym, str) else getattr(sym, "__name__", "function")
        function = _operator_function(sym, parameters) if isinstance(sym, str) else sym
        names = list(location) if isinstance(location, Mapping) else [str(n) for n in range(len(location))]
        subject = _Subject(label, function, names, _values(location), _values(aux_states or ()))
    points, states = (
        [np.array(on_host(value), dtype) for value in values] for values in (subject.points, subject.states)
    )
    return subject._replace(points=points, states=states)


def _values(source: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    return list(source.values()) if isinstance(source, Mapping) else list(source)


def _in_order(argument: str, names: Sequence[str], values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """Return values in the order of names."""
    fits = set(values) == set(names) if isinstance(values, Mapping) else len(values) == len(names)
    if not fits:
        actual = list(values) if isinstance(values, Mapping) else f"{len(values)} values"
        raise ValueError(f"check_numeric_gradient: {argument} has {actual}, expected one for each of {list(names)}")
    return [values[name] for name in names] if isinstance(values, Mapping) else list(values)


def _positions(names: Sequence[str], nodes: Sequence[int | str] | Mapping[str, str] | None) -> list[int]:
    """Return the positions of the inputs to check."""
    if nodes is None:
        return list(range(len(names)))
    if isinstance(nodes, Mapping):
        nodes = [name for name, request in nodes.items() if request != "null"]
    unknown = [node for node in nodes if isinstance(node, str) and node not in names]
    if unknown:
        raise ValueError(f"check_numeric_gradient: grad_nodes has {unknown}, expected some of {list(names)}")
    return [names.index(node) if isinstance(node, str) else node for node in nodes]


def _operator_function(name: str, parameters: Mapping[str, object] | None) -> Function:
    lookup(name)
    return lambda *arrays: F.op(name, *arrays, **(parameters or {}))


def _symbol_function(symbol: Symbol) -> Function:
    """Return a symbol as a function of its arguments, followed by its auxiliary states."""
    op, names = CachedOp(symbol), [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    order = [names.index(name) for name in symbol.list_inputs()]
    return lambda *arrays: op(*(arrays[position] for position in order))


def _differences(
    function: Callable[[Sequence[Numbers]], float], points: list[Numbers], position: int, eps: float
) -> Numbers:
    """Return the central differences by the elements of one input."""
    differences = np.zeros(points[position].shape)
    step = np.zeros_like(points[position])
    for index in np.ndindex(differences.shape):
        step[index] = eps
        differences[index] = _half_rise(function, points, position, step) / eps
        step[index] = 0
    return differences


def _half_rise(
    function: Callable[[Sequence[Numbers]], float], points: list[Numbers], position: int, step: Numbers
) -> float:
    """Return half the difference of the function between a step above and a step below the value of one input."""
    above, below = (
        function([*points[:position], moved, *points[position + 1 :]])
        for moved in (points[position] + step, points[position] - step)
    )
    return (above - below) / 2


def numeric_grad(
    executor: Any, location: Mapping[str, object], aux_states: Mapping[str, Any] | None = None, eps: float = 1e-4,
    use_forward_train: bool = True, dtype: Any = np.float32,
) -> dict[str, Numbers]:  # fmt: skip
    """Return the central differences of the sum of an executor's first output, by argument.

    Args:
        executor: a bound symbol.
        location: values of all arguments by name; only floating-point ones are varied.
        aux_states: values of auxiliary states, restored before every run.
        eps: distance between the two sides of a difference.
        use_forward_train: whether to run in training mode.
        dtype: dtype of the differences.
    """
    points = {name: np.array(on_host(value)) for name, value in location.items()}
    names = list(points)

    def sum_at(values: Sequence[Numbers]) -> float:
        executor.copy_params_from(dict(zip(names, values, strict=True)), aux_states)
        return float(executor.forward(is_train=use_forward_train)[0].asnumpy().sum(dtype=np.float64))

    return {
        name: _differences(sum_at, list(points.values()), position, eps / 2).astype(dtype)
        if points[name].dtype.kind == "f"
        else np.zeros(points[name].shape, dtype)
        for position, name in enumerate(names)
    }
