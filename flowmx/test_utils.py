"""``mx.test_utils``: comparing arrays, and checking gradients numerically."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowmx import autograd, random
from flowmx.devices import Context, current_context
from flowmx.devices import context as _context
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray, array
from flowmx.ops.registry import lookup

__all__ = [
    "almost_equal", "assert_almost_equal", "check_numeric_gradient", "default_context", "rand_ndarray", "rand_shape_2d",
    "rand_shape_3d", "rand_shape_nd", "same", "set_default_context",
]  # fmt: skip

Numbers = npt.NDArray[Any]

# Relative and absolute tolerance for results of each dtype.
_TOLERANCES: dict[str, tuple[float, float]] = {
    "float16": (1e-2, 1e-3),
    "float32": (1e-4, 1e-6),
    "float64": (1e-7, 1e-12),
}


def default_context() -> Context:
    """The device that tests run on: the current one."""
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Make a device the current one of this task."""
    _context.set_current_context(ctx)


def _host(value: Any) -> Numbers:
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


def _tolerance(a: Numbers, b: Numbers, rtol: float | None, atol: float | None) -> tuple[float, float]:
    known = [_TOLERANCES[each.dtype.name] for each in (a, b) if each.dtype.name in _TOLERANCES]
    relative, absolute = max(known, default=(0.0, 0.0))
    return relative if rtol is None else rtol, absolute if atol is None else atol


def same(a: Any, b: Any) -> bool:
    """Whether two arrays hold exactly the same."""
    return bool(np.array_equal(_host(a), _host(b)))


def almost_equal(a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False) -> bool:
    """Whether two arrays of one shape are equal within rtol·|b| + atol (defaults: by their dtype)."""
    one, other = _host(a), _host(b)
    rtol, atol = _tolerance(one, other, rtol, atol)
    return one.shape == other.shape and bool(np.allclose(one, other, rtol, atol, equal_nan))


def assert_almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None,
    names: tuple[str, str] = ("a", "b"), equal_nan: bool = False,
) -> None:  # fmt: skip
    """Raise AssertionError, naming the worst place, where :func:`almost_equal` is False."""
    one, other = _host(a), _host(b)
    rtol, atol = _tolerance(one, other, rtol, atol)
    if one.shape != other.shape:
        raise AssertionError(f"{names[0]} has shape {one.shape}, {names[1]} has {other.shape}")
    if np.allclose(one, other, rtol, atol, equal_nan):
        return
    wide, wider = one.astype(np.float64), other.astype(np.float64)
    excess = np.abs(wide - wider) / (atol + rtol * np.abs(wider) + 1e-300)
    bad = np.isnan(excess) & ~((wide == wider) | (equal_nan & np.isnan(wide) & np.isnan(wider)))
    worst = np.unravel_index(np.argmax(np.where(bad, np.inf, np.nan_to_num(excess))), one.shape)
    raise AssertionError(
        f"{names[0]} and {names[1]} differ in {int((excess > 1).sum() + bad.sum())} of {one.size} elements; "
        f"the most at "
        f"{tuple(map(int, worst))}: {one[worst]} and {other[worst]} (rtol {rtol}, atol {atol})"
    )


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape with axes up to ``dim`` long (NumPy's global generator)."""
    return tuple(int(n) for n in np.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, ...]:
    """A random shape of two axes, up to these lengths."""
    return int(np.random.randint(1, dim0 + 1)), int(np.random.randint(1, dim1 + 1))


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, ...]:
    """A random shape of three axes, up to these lengths."""
    return (*rand_shape_2d(dim0, dim1), int(np.random.randint(1, dim2 + 1)))


def rand_ndarray(
    shape: Sequence[int], stype: str = "default", density: float | None = None, dtype: Any = None,
    scale: float = 1.0, ctx: Context | None = None,
) -> NDArray:  # fmt: skip
    """An array of uniform numbers from -scale to scale.

    Raises:
        ValueError: another storage type than the dense one.
    """
    if stype != "default":
        raise ValueError(f"rand_ndarray: stype is {stype!r}, but only 'default' exists here")
    return random.uniform(-scale, scale, shape=tuple(shape), dtype=dtype, ctx=ctx)


# -- gradients ---------------------------------------------------------------------------------------------

Function = Callable[..., Any]


def check_numeric_gradient(
    sym: str | Function,
    location: Sequence[Any] | Mapping[str, Any],
    aux_states: Sequence[Any] = (),
    numeric_eps: float = 1e-5,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    grad_nodes: Sequence[int | str] | None = None,
    use_forward_train: bool = True,
    ctx: Context | None = None,
    dtype: Any = np.float64,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Compare gradients with central differences of a random projection of the outputs.

    Everything is computed in float64. Random operators are seeded alike before every call.

    Args:
        sym: an operator's name, or a function of arrays that returns one or a list.
        location: the inputs, in order or by name.
        aux_states: auxiliary states; they are restored before every call and have no gradient.
        numeric_eps: the step of the differences.
        rtol: relative tolerance.
        atol: absolute tolerance.
        grad_nodes: positions (or names) of the inputs to check, by default all.
        use_forward_train: whether to run in training mode.
        ctx: the device.
        dtype: what to compute in.
        parameters: the operator's parameters.
        seed: of the projection and of random operators.

    Raises:
        AssertionError: a gradient differs; the message names the input and the worst element.
    """
    names = list(location) if isinstance(location, Mapping) else [str(n) for n in range(len(location))]
    values = list(location.values()) if isinstance(location, Mapping) else list(location)
    points = [np.array(_host(value), dtype) for value in values]
    states = [np.array(_host(value), dtype) for value in aux_states]
    checked = range(len(points)) if grad_nodes is None else [
        names.index(node) if isinstance(node, str) else node for node in grad_nodes
    ]  # fmt: skip
    label = sym if isinstance(sym, str) else getattr(sym, "__name__", "function")
    function = _operator_function(sym, parameters) if isinstance(sym, str) else sym
    rng = np.random.default_rng(seed)
    weights: list[Numbers] = []

    def call(arrays: Sequence[NDArray]) -> list[NDArray]:
        random.seed(seed)
        made = function(*arrays, *(array(state, ctx, dtype) for state in states))
        return [made] if isinstance(made, NDArray) else list(made)

    def projected(at: Sequence[Numbers]) -> float:
        with autograd.pause(train_mode=use_forward_train):
            made = call([array(point, ctx, dtype) for point in at])
        return sum(float((weight * each.asnumpy()).sum()) for weight, each in zip(weights, made, strict=True))

    arrays = [array(point, ctx, dtype) for point in points]
    for position in checked:
        arrays[position].attach_grad()
    with autograd.record(train_mode=use_forward_train):
        outputs = call(arrays)
    weights += [rng.uniform(0.5, 1.5, each.shape) * rng.choice([-1, 1], each.shape) for each in outputs]
    heads = [array(weight, ctx, each.dtype) for weight, each in zip(weights, outputs, strict=True)]
    autograd.backward(outputs, heads, train_mode=use_forward_train)
    for position in checked:
        expected = _differences(projected, points, position, numeric_eps)
        gradient = arrays[position].grad
        assert gradient is not None
        assert_almost_equal(
            gradient, expected, rtol, atol, (f"{label}: gradient of input {names[position]}", "central difference")
        )


def _operator_function(name: str, parameters: Mapping[str, Any] | None) -> Function:
    lookup(name)
    return lambda *arrays: F.op(name, *arrays, **(parameters or {}))


def _differences(
    projected: Callable[[Sequence[Numbers]], float], points: list[Numbers], position: int, eps: float
) -> Numbers:
    """The central difference of every element of one input."""
    moved = list(points)
    found = np.zeros(points[position].shape)
    for index in np.ndindex(found.shape):
        sides = []
        for step in (eps, -eps):
            moved[position] = points[position].copy()
            moved[position][index] += step
            sides.append(projected(moved))
        found[index] = (sides[0] - sides[1]) / (2 * eps)
    return found
