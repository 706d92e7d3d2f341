"""``mxnet.contrib.autograd``: the predecessor of ``mx.autograd``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flowmx import autograd
from flowmx import ndarray as nd
from flowmx.ndarray import NDArray

__all__ = [
    "TrainingStateScope", "backward", "compute_gradient", "grad", "grad_and_loss", "mark_variables", "set_is_training",
    "test_section", "train_section",
]  # fmt: skip

mark_variables = autograd.mark_variables


def set_is_training(is_train: bool) -> bool:
    """Switch recording and training mode on or off; return whether recording was on."""
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


class TrainingStateScope:
    """A context manager that switches recording and training mode on or off.

    Args:
        enter_state: True switches both on, False switches both off.
    """

    def __init__(self, enter_state: bool) -> None:
        self._state, self._before = enter_state, False

    def __enter__(self) -> None:
        self._before = set_is_training(self._state)

    def __exit__(self, *error: object) -> None:
        set_is_training(self._before)


def train_section() -> TrainingStateScope:
    """Return a context manager that records operators in training mode."""
    return TrainingStateScope(True)


def test_section() -> TrainingStateScope:
    """Return a context manager that does not record operators."""
    return TrainingStateScope(False)


def backward(outputs: Sequence[NDArray], out_grads: Any = None, retain_graph: bool = False) -> None:
    """Compute the gradients of outputs with respect to the marked variables.

    Raises:
        AssertionError: ``outputs`` is not a list (MXNet's exception).
    """
    if not isinstance(outputs, (list, tuple)):
        raise AssertionError(f"backward: outputs is {type(outputs).__name__}, expected a list of arrays")
    autograd.backward(list(outputs), out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """Compute the gradients of outputs, as :func:`backward`."""
    backward(outputs)


def grad_and_loss(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """Return a function that computes the gradients of ``func``'s arguments, and its outputs.

    Args:
        func: a function of arrays.
        argnum: indices of the arguments (default: all).
    """

    @functools.wraps(func)
    def wrapped(*args: NDArray) -> tuple[list[NDArray], Any]:
        numbers = range(len(args)) if argnum is None else argnum if isinstance(argnum, list) else [argnum]
        variables = [args[i] for i in numbers]
        grads = [nd.zeros_like(variable) for variable in variables]
        mark_variables(variables, grads)
        with train_section():
            outputs = func(*args)
        backward([outputs] if isinstance(outputs, NDArray) else outputs)
        return grads, outputs

    return wrapped


def grad(func: Callable[..., object], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """Return a function that computes the gradients of ``func``'s arguments; see :func:`grad_and_loss`."""
    compute = grad_and_loss(func, argnum)
    return functools.wraps(func)(lambda *args: compute(*args)[0])
