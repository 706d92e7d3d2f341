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

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

from flowmx.engine import capture
from flowmx.errors import AutogradError
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray, check_request
from flowmx.ndarray.backward import Walk
from flowmx.ndarray.core import record as record_call
from flowmx.ndarray.recording import Leaf
from flowmx.ndarray.views import mark, set_apart, variable_of

__all__ = [
    "Function", "NDArray", "backward", "grad", "is_recording", "is_training", "mark_variables", "pause", "predict_mode",
    "record", "set_recording", "set_training", "train_mode",
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
        mark(variable, Leaf(gradient, request))


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
        train_mode: run the backward pass in training mode.

    Raises:
        AutogradError: a head was not recorded, or the tape was freed, or an array it needs was changed.
    """
    for tell in before_backward:
        tell(_as_list(heads))
    walk = Walk(retain_graph, False, train_mode, stores=True)
    if not walk.go(_as_list(heads), _as_grads(head_grads, heads)):
        walk.store()


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> list[NDArray]:
    """Return the gradients of ``heads`` with respect to ``variables``, without touching their buffers.

    Args:
        heads: recorded arrays.
        variables: the arrays to differentiate by; they must have been marked.
        head_grads: gradients of the heads (default: ones).
        retain_graph: keep the tape (default: as ``create_graph``).
        create_graph: record the backward pass, for gradients of gradients.
        train_mode: run the backward pass in training mode.

    Returns:
        a list of gradients, one for each variable, also where ``variables`` is one array.

    Raises:
        AutogradError: as :func:`backward`; also where a head does not depend on a variable.

    Example:
        >>> x = mx.nd.array([1, 2, 3])
        >>> x.attach_grad()
        >>> with mx.autograd.record():
        ...     y = x * x
        >>> mx.autograd.grad(y, x)[0].asnumpy()
        array([2., 4., 6.], dtype=float32)
    """
    marked = _as_list(variables)
    leaves = []
    for position, variable in enumerate(marked):
        leaf = variable_of(variable)
        if leaf is None:
            raise AutogradError(f"grad: variable {position} was not marked: call attach_grad() on it before recording")
        leaves.append(leaf)
    retain = create_graph if retain_graph is None else retain_graph
    walk = Walk(retain, create_graph, train_mode, stores=False)
    walk.go(_as_list(heads), _as_grads(head_grads, heads))
    for position, leaf in enumerate(leaves):
        if leaf not in walk.leaves:
            raise AutogradError(f"grad: the heads do not depend on variable {position}")
    return walk.gradients(leaves, marked)


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
        if not is_recording():
            return result
        made = [result] if isinstance(result, NDArray) else list(result)
        outputs = [cast("NDArray", each._plain()) for each in made]
        record_call(type(self).__name__, self._gradient(len(inputs)), inputs, outputs, len(outputs), capture(2))
        for each, output in zip(made, outputs, strict=True):
            set_apart(output, each)
        return outputs[0] if isinstance(result, NDArray) else outputs

    def _gradient(self, count: int) -> Callable[..., Sequence[NDArray | None]]:
        """The gradient for the tape, of what forward has kept, which must not change any more."""
        name, kept = type(self).__name__, [(each, each._storage.version) for each in _arrays_in(vars(self).values())]

        def gradient(F: Any, inputs: Any, outputs: Any, heads: Sequence[NDArray]) -> Sequence[NDArray | None]:
            for each, version in kept:
                if each._storage.version != version:
                    raise AutogradError(
                        f"backward: an array that {name}.forward kept (shape {each.shape}) was changed in place since, "
                        "so the gradient would be wrong; keep a copy (x.copy()), or call backward before the change"
                    )
            twice = is_recording()
            with pause(train_mode=is_training()):
                grads = self.backward(*heads)
            found = [grads] if isinstance(grads, NDArray) or grads is None else list(grads)
            if len(found) != count:
                raise AutogradError(f"{name}.backward returned {len(found)} gradients, expected {count}")
            return _differentiable_once(name, found, inputs, heads) if twice else found

        return gradient

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def backward(self, *output_grads: Any, **options: Any) -> Any:
        """Compute a gradient for each input from those of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define backward")


def _arrays_in(values: Iterable[Any]) -> Iterator[NDArray]:
    for each in values:
        if isinstance(each, NDArray):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _arrays_in(each)


def _differentiable_once(
    name: str, found: Sequence[NDArray | None], inputs: Sequence[NDArray], heads: Sequence[NDArray]
) -> Sequence[NDArray | None]:
    """Gradients that can be used, but not differentiated, since user code computed them without a record."""

    def refuse(*_: Any) -> Any:
        raise AutogradError(
            f"backward: the gradient of {name} is not differentiable, since its backward() is not recorded; write the "
            "function with operators for gradients of gradients"
        )

    sources = [*(inputs[at] for at in range(len(inputs))), *heads]
    outputs = [None if each is None else cast("NDArray", each._plain()) for each in found]
    made = [each for each in outputs if each is not None]
    record_call(f"{name}.backward", refuse, sources, made, len(made))
    return outputs
