"""Automatic differentiation: ``record`` what runs, then walk the tape backwards.

Example:
    >>> x = mx.nd.array([1, 2, 3])
    >>> x.attach_grad()
    >>> with mx.autograd.record():
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad.asnumpy()
    array([2., 4., 6.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from flowmx.errors import AutogradError
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray, check_request
from flowmx.ndarray.backward import Walk
from flowmx.ndarray.core import record as record_call
from flowmx.ndarray.recording import Entry, Leaf

__all__ = [
    "Function", "backward", "grad", "is_recording", "is_training", "mark_variables", "pause", "predict_mode", "record",
    "set_recording", "set_training", "train_mode",
]  # fmt: skip


before_backward: list[Callable[[list[NDArray]], None]] = []
"""Called with the heads of each :func:`backward`, before it computes anything."""


def record(train_mode: bool = True) -> recording.Scope:
    """Record the operators called inside, in training mode (or not), for :func:`backward`."""
    return recording.Scope(True, train_mode)


def pause(train_mode: bool = False) -> recording.Scope:
    """Do not record what is called inside."""
    return recording.Scope(False, train_mode)


def train_mode() -> recording.Scope:
    """Training mode (Dropout drops, BatchNorm uses the batch) without changing what is recorded."""
    return recording.Scope(None, True)


def predict_mode() -> recording.Scope:
    """Prediction mode without changing what is recorded."""
    return recording.Scope(None, False)


def is_recording() -> bool:
    """True where operators are recorded."""
    return recording.state.get().recording


def is_training() -> bool:
    """True in training mode."""
    return recording.state.get().training


def set_recording(is_record: bool) -> bool:
    """Switch recording for this task; returns what it was."""
    before = recording.state.get()
    recording.state.set(before._replace(recording=is_record))
    return before.recording


def set_training(train_mode: bool) -> bool:
    """Switch training mode for this task; returns what it was."""
    before = recording.state.get()
    recording.state.set(before._replace(training=train_mode))
    return before.training


def mark_variables(
    variables: NDArray | Sequence[NDArray],
    gradients: NDArray | Sequence[NDArray],
    grad_reqs: str | Sequence[str] = "write",
) -> None:
    """Make arrays variables of autograd, with these gradient buffers.

    Raises:
        ValueError: the numbers of variables and gradients differ, or an unknown request.
    """
    variables = [variables] if isinstance(variables, NDArray) else list(variables)
    gradients = [gradients] if isinstance(gradients, NDArray) else list(gradients)
    requests = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else list(grad_reqs)
    if not len(variables) == len(gradients) == len(requests):
        raise ValueError(
            f"mark_variables: {len(variables)} variables, {len(gradients)} gradients and {len(requests)} requests "
            "were given, expected the same number of each"
        )
    for variable, gradient, request in zip(variables, gradients, requests, strict=True):
        check_request(request)
        variable._entry = Entry(Leaf(gradient, request), 0)


def backward(
    heads: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool = False,
    train_mode: bool = True,
) -> None:
    """Compute gradients of ``heads`` into the buffers of the marked variables.

    Args:
        heads: recorded arrays.
        head_grads: gradients of the heads (default: ones).
        retain_graph: keep the tape for another backward pass.
        train_mode: whether the backward pass counts as training.

    Raises:
        AutogradError: a head was not recorded, or the tape is gone, or an array it needs was changed.
    """
    for tell in before_backward:
        tell(_as_list(heads))
    walk = Walk(retain_graph, False, train_mode)
    walk.go(_as_list(heads), _as_grads(head_grads, heads))
    walk.store()


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> Any:
    """Return the gradients of ``heads`` with respect to ``variables``, without touching their buffers.

    Args:
        heads: recorded arrays.
        variables: the arrays to differentiate by; they must have been marked.
        head_grads: gradients of the heads (default: ones).
        retain_graph: keep the tape (default: as ``create_graph``).
        create_graph: record the backward pass, for gradients of gradients.
        train_mode: whether the backward pass counts as training.

    Returns:
        a list of gradients, or one where ``variables`` is one array.

    Raises:
        AutogradError: as :func:`backward`; also where a head does not depend on a variable.
    """
    leaves = []
    for position, variable in enumerate(_as_list(variables)):
        leaf = variable._entry.node if variable._entry is not None else None
        if not isinstance(leaf, Leaf):
            raise AutogradError(f"grad: variable {position} was not marked: call attach_grad() on it before recording")
        leaves.append(leaf)
    retain = create_graph if retain_graph is None else retain_graph
    walk = Walk(retain, create_graph, train_mode)
    walk.go(_as_list(heads), _as_grads(head_grads, heads))
    totals = walk.totals()
    for position, leaf in enumerate(leaves):
        if leaf not in totals:
            raise AutogradError(f"grad: the heads do not depend on variable {position}")
    found = walk.arrays([totals[leaf] for leaf in leaves])
    return found[0] if isinstance(variables, NDArray) else found


def _as_list(arrays: NDArray | Sequence[NDArray]) -> list[NDArray]:
    return [arrays] if isinstance(arrays, NDArray) else list(arrays)


def _as_grads(
    head_grads: NDArray | Sequence[NDArray | None] | None, heads: NDArray | Sequence[NDArray]
) -> list[NDArray | None]:
    count = len(_as_list(heads))
    if head_grads is None:
        return [None] * count
    grads: list[NDArray | None] = [head_grads] if isinstance(head_grads, NDArray) else list(head_grads)
    if len(grads) != count:
        raise ValueError(f"backward: {len(grads)} head gradients were given, expected {count}")
    return grads


class Function:
    """A differentiable function with a gradient of the user's own.

    Subclass it with ``forward`` and ``backward`` on arrays; call an instance once.

    Example:
        >>> class Sigmoid(mx.autograd.Function):
        ...     def forward(self, x):
        ...         y = 1 / (1 + mx.nd.exp(-x))
        ...         self.save_for_backward(y)
        ...         return y
        ...     def backward(self, dy):
        ...         y, = self.saved_tensors
        ...         return dy * y * (1 - y)
    """

    saved_tensors: tuple[NDArray, ...] = ()
    _used: ClassVar[bool] = False

    def save_for_backward(self, *args: NDArray) -> None:
        """Keep arrays for :meth:`backward`, as ``self.saved_tensors``."""
        self.saved_tensors = args

    def __call__(self, *inputs: NDArray) -> Any:
        if "_used" in self.__dict__:
            raise AutogradError(f"{type(self).__name__}: each Function instance can only be called once")
        self.__dict__["_used"] = True
        with pause(train_mode=is_training()):
            result = self.forward(*inputs)
        outputs = [result] if isinstance(result, NDArray) else list(result)
        if is_recording():
            outputs = [each.detach() for each in outputs]

            def gradient(F: Any, saved: Any, made: Any, heads: Sequence[NDArray]) -> Sequence[NDArray | None]:
                grads = self.backward(*heads)
                found = [grads] if isinstance(grads, NDArray) or grads is None else list(grads)
                if len(found) != len(inputs):
                    raise AutogradError(
                        f"{type(self).__name__}.backward returned {len(found)} gradients, expected {len(inputs)}"
                    )
                return found

            record_call(type(self).__name__, gradient, inputs, outputs, len(outputs))
            result = outputs[0] if isinstance(result, NDArray) else outputs
        return result

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def backward(self, *output_grads: Any) -> Any:
        """Compute a gradient for each input from those of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define backward")
