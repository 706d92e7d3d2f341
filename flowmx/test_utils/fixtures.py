"""Test fixtures: devices, environment variables, repetitions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowmx import engine, random, settings
from flowmx.devices import Context, current_context, num_gpus
from flowmx.devices import context as _context
from flowmx.optimizer import Optimizer
from flowmx.test_utils.assertions import assert_almost_equal, compare_ndarray_tuple

__all__ = [
    "assert_exception", "compare_optimizer", "default_context", "discard_stderr", "environment", "is_op_runnable",
    "list_gpus", "retry", "set_default_context",
]  # fmt: skip


def default_context() -> Context:
    """Return the device for tests, the current one."""
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Make a device the current one in this task."""
    _context.set_current_context(ctx)


def list_gpus() -> range:
    """Return the ids of the available GPUs."""
    return range(num_gpus())


def is_op_runnable() -> bool:
    """Return True: every operator runs on every device (MXNet's tests call it)."""
    return True


@contextmanager
def environment(*args: Any) -> Iterator[None]:
    """Set environment variables in the context, and reload flowmx's settings.

    Args:
        *args: a name and a value, or a dict of names and values; None removes a variable.

    Raises:
        TypeError: the arguments are neither.
        SettingError: the value of a setting is invalid.
    """
    if len(args) not in (1, 2) or (len(args) == 1 and not isinstance(args[0], Mapping)):
        raise TypeError(f"environment: {len(args)} arguments, expected a name and a value, or a dict")
    variables = args[0] if len(args) == 1 else {args[0]: args[1]}
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        engine.waitall()
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    settings.reload()


def retry(n: int) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Repeat a failing test up to ``n`` times in total, for tests with random numbers.

    Raises:
        ValueError: ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"retry: n is {n}, expected at least 1")

    def decorate(function: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(function)
        def repeated(*args: object, **kwargs: object) -> None:
            for _ in range(n - 1):
                try:
                    function(*args, **kwargs)
                    return
                except AssertionError:
                    engine.waitall()
            function(*args, **kwargs)

        return repeated

    return decorate


def assert_exception(
    f: Callable[..., object], exception_type: type[BaseException] | tuple[type[BaseException], ...], *args: object,
    **kwargs: object,
) -> None:  # fmt: skip
    """Check that a call raises an exception.

    Raises:
        AssertionError: it does not.
    """
    try:
        f(*args, **kwargs)
        engine.waitall()  # operations raise later
    except exception_type:
        return
    raise AssertionError(f"{getattr(f, '__name__', f)} did not raise {exception_type}")


@contextmanager
def discard_stderr() -> Iterator[None]:
    """Discard the process's output to stderr in the context."""
    original = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def compare_optimizer(
    opt1: Optimizer, opt2: Optimizer, shape: Sequence[object], dtype: object, w_stype: str = "default",
    g_stype: str = "default", rtol: float = 1e-4, atol: float = 1e-5, compare_states: bool = True, ntensors: int = 1,
) -> None:  # fmt: skip
    """Check that two optimizers update equal weights equally.

    Args:
        opt1: updates arrays one by one.
        opt2: updates a single array, or a list of arrays in one call.
        shape: shape of an array, or a list of shapes.
        dtype: dtype of the weights.
        w_stype: storage type of the weights.
        g_stype: storage type of the gradients.
        rtol: relative tolerance.
        atol: absolute tolerance.
        compare_states: whether to compare the states too.
        ntensors: ignored; the length of the list.

    Raises:
        AssertionError: a weight or a state differs.
    """
    is_list = isinstance(shape, list)
    shapes = shape if is_list else [shape]
    numbers = list(range(len(shapes)))
    w1 = [random.uniform(shape=size, dtype=dtype).tostype(w_stype) for size in shapes]
    grads = [random.uniform(shape=size, dtype=dtype).tostype(g_stype) for size in shapes]
    w2 = [weight.copy() for weight in w1]
    states1, states2 = (
        [opt.create_state_multi_precision(i, weight) for i, weight in zip(numbers, weights, strict=True)]
        for opt, weights in ((opt1, w1), (opt2, w2))
    )
    for i in numbers:
        opt1.update_multi_precision(i, w1[i], grads[i], states1[i])
    if is_list:
        opt2.update_multi_precision(numbers, w2, [grad.copy() for grad in grads], states2)
    else:
        opt2.update_multi_precision(0, w2[0], grads[0].copy(), states2[0])
    for i in numbers:
        assert_almost_equal(w1[i], w2[i], rtol, atol)
        if compare_states:
            compare_ndarray_tuple(states1[i], states2[i], rtol, atol)
