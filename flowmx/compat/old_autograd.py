"""``mxnet.contrib.autograd``: the interface that came before ``mx.autograd``."""

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
    """Record, in training mode, or neither of both; returns how it was."""
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


class TrainingStateScope:
    """A ``with`` block in which operators are recorded, in training mode, or not.

    Args:
        enter_state: True to record in training mode, False for neither.
    """

    def __init__(self, enter_state: bool) -> None:
        self._state, self._before = enter_state, False

    def __enter__(self) -> None:
        self._before = set_is_training(self._state)

    def __exit__(self, *error: object) -> None:
        set_is_training(self._before)


def train_section() -> TrainingStateScope:
    """A ``with`` block in which operators are recorded."""
    return TrainingStateScope(True)


def test_section() -> TrainingStateScope:
    """A ``with`` block in which they are not."""
    return TrainingStateScope(False)


def backward(outputs: Sequence[NDArray], out_grads: Any = None, retain_graph: bool = False) -> None:
    """Compute the gradients of outputs with respect to the marked variables.

    Raises:
        AssertionError: the outputs are no list (what MXNet raises).
    """
    if not isinstance(outputs, (list, tuple)):
        raise AssertionError(f"backward: outputs is {type(outputs).__name__}, expected a list of arrays")
    autograd.backward(list(outputs), out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """Compute the gradients of outputs, as :func:`backward`."""
    backward(outputs)


def grad_and_loss(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """A function that gives the gradients of a function's arguments, and what the function gives.

    Args:
        func: takes and gives arrays.
        argnum: the numbers of the arguments (default: all).
    """

    @functools.wraps(func)
    def wrapped(*args: NDArray) -> tuple[list[NDArray], Any]:
        numbers = range(len(args)) if argnum is None else argnum if isinstance(argnum, list) else [argnum]
        variables = [args[i] for i in numbers]
        grads = [nd.zeros_like(each) for each in variables]
        mark_variables(variables, grads)
        with train_section():
            outputs = func(*args)
        backward([outputs] if isinstance(outputs, NDArray) else outputs)
        return grads, outputs

    return wrapped


def grad(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """A function that gives the gradients of a function's arguments; see :func:`grad_and_loss`."""
    both = grad_and_loss(func, argnum)
    return functools.wraps(func)(lambda *args: both(*args)[0])
