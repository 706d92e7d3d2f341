"""Automatic differentiation: ``record`` operations, then compute gradients backward over the tape.

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
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from flowmx.engine import capture
from flowmx.errors import AutogradError
from flowmx.late_binding import late
from flowmx.lazy import lazy_attributes
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray, check_request
from flowmx.ndarray.backward import BackwardPass
from flowmx.ndarray.core import record as record_call
from flowmx.ndarray.recording import Leaf
from flowmx.ndarray.views import mark, separate, variable_of
from flowmx.scopes import assign

if TYPE_CHECKING:
    from flowmx.symbol import Symbol

__all__ = [
    "Function", "NDArray", "backward", "get_symbol", "grad", "is_recording", "is_training", "mark_variables", "pause",
    "predict_mode", "record", "set_recording", "set_training", "train_mode",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__, {"detect_anomaly": "flowmx.observability.safety:stop_at_nan"})


before_backward: list[Callable[[list[NDArray]], None]] = []
"""Functions that :func:`backward` first calls with its heads."""


def record(train_mode: bool = True) -> recording.Scope:
    """Record the operators called inside for :func:`backward`, in training or prediction mode."""
    return recording.Scope(True, train_mode)


def pause(train_mode: bool = False) -> recording.Scope:
    """Do not record the operators called inside."""
    return recording.Scope(False, train_mode)


def train_mode() -> recording.Scope:
    """Switch to training mode (Dropout drops, BatchNorm uses the batch); recording is unchanged."""
    return recording.Scope(None, True)


def predict_mode() -> recording.Scope:
    """Switch to prediction mode; recording is unchanged."""
    return recording.Scope(None, False)


def is_recording() -> bool:
    """Return whether operators are recorded."""
    return recording.state.get().recording


def is_training() -> bool:
    """Return whether training mode is on."""
    return recording.state.get().training


def set_recording(is_record: bool) -> bool:
    """Switch recording in this task on or off; return the previous state."""
    previous = recording.state.get()
    assign(recording.state, recording.State(is_record, previous.training, previous.backward, previous.notes))
    return previous.recording


def set_training(train_mode: bool) -> bool:
    """Switch training mode in this task on or off; return the previous state."""
    previous = recording.state.get()
    assign(recording.state, recording.State(previous.recording, train_mode, previous.backward, previous.notes))
    return previous.training


def mark_variables(
    variables: NDArray | Sequence[NDArray],
    gradients: NDArray | Sequence[NDArray],
    grad_reqs: str | Sequence[str] = "write",
) -> None:
    """Make arrays variables of autograd, with gradient buffers.

    Raises:
        ValueError: the numbers of variables and gradients differ, or a request is unknown.
    """
    variables = [variables] if isinstance(variables, NDArray) else list(variables)
    gradients = [gradients] if isinstance(gradients, NDArray) else list(gradients)
    requests = [grad_reqs] * len(variables) if isinstance(grad_reqs, str) else list(grad_reqs)
    if not len(variables) == len(gradients) == len(requests):
        raise ValueError(
            f"mark_variables: {len(variables)} variables, {len(gradients)} gradients and {len(requests)} "
            "requests, expected equal numbers"
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
    """Compute the gradients of ``heads`` into the buffers of the marked variables.

    Args:
        heads: recorded arrays.
        head_grads: gradients of the heads (default: ones).
        retain_graph: whether to keep the tape for another backward pass.
        train_mode: whether to run the backward pass in training mode.

    Raises:
        AutogradError: a head was not recorded, the tape was freed, or an array that a gradient needs was changed.
    """
    for callback in before_backward:
        callback(_as_list(heads))
    backward_pass = BackwardPass(retain_graph, False, train_mode, stores=True)
    if not backward_pass.run(_as_list(heads), _as_grads(head_grads, heads)):
        backward_pass.store()


def grad(
    heads: NDArray | Sequence[NDArray],
    variables: NDArray | Sequence[NDArray],
    head_grads: NDArray | Sequence[NDArray | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> list[NDArray]:
    """Return the gradients of ``heads`` with respect to ``variables``, without changing their buffers.

    Args:
        heads: recorded arrays.
        variables: the arrays to differentiate with respect to; they must be marked.
        head_grads: gradients of the heads (default: ones).
        retain_graph: whether to keep the tape (default: ``create_graph``).
        create_graph: whether to record the backward pass, for higher-order gradients.
        train_mode: whether to run the backward pass in training mode.

    Returns:
        a list with the gradient of every variable, even if ``variables`` is a single array.

    Raises:
        AutogradError: as for :func:`backward`, or the heads do not depend on a variable.

    Example:
        >>> x = mx.nd.array([1, 2, 3])
        >>> x.attach_grad()
        >>> with mx.autograd.record():
        ...     y = x * x
        >>> mx.autograd.grad(y, x)[0].asnumpy()
        array([2., 4., 6.], dtype=float32)
    """
    variable_list = _as_list(variables)
    leaves = []
    for position, variable in enumerate(variable_list):
        leaf = variable_of(variable)
        if leaf is None:
            raise AutogradError(f"grad: variable {position} was not marked: call attach_grad() on it before recording")
        leaves.append(leaf)
    retain = create_graph if retain_graph is None else retain_graph
    backward_pass = BackwardPass(retain, create_graph, train_mode, stores=False)
    backward_pass.run(_as_list(heads), _as_grads(head_grads, heads))
    for position, leaf in enumerate(leaves):
        if leaf not in backward_pass.leaves:
            raise AutogradError(f"grad: the heads do not depend on variable {position}")
    return backward_pass.gradients(leaves, variable_list)


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
        raise ValueError(f"backward: head_grads has {len(grads)} gradients, expected {count}")
    return grads


def get_symbol(x: NDArray) -> Symbol:
    """Return the recorded graph that computed an array; see :func:`flowmx.compat.tape_symbols.get_symbol`."""
    symbol: Symbol = late("compat.tape_symbols").get_symbol(x)
    return symbol


P = ParamSpec("P")
Result = TypeVar("Result", covariant=True)


class _HasForward(Protocol[P, Result]):
    """A function, seen by type checkers: a call takes and returns what ``forward`` does."""

    def forward(self, *inputs: P.args, **options: P.kwargs) -> Result: ...


class _NoApply:
    """The method ``apply`` of PyTorch's functions, which are called without an instance."""

    def __get__(self, instance: object, owner: type[object]) -> NoReturn:
        name = owner.__name__
        raise AttributeError(
            f"type object {name!r} has no attribute 'apply': use {name}()(x); forward(self, x) and backward(self, dy) "
            "are methods of an instance",
            name="apply",
        )


class Function:
    """A differentiable function with a custom gradient.

    Subclasses define ``forward`` and ``backward`` on arrays. An instance can be called only once.

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
    if not TYPE_CHECKING:
        apply = _NoApply()

    def save_for_backward(self, *args: NDArray) -> None:
        """Store arrays for :meth:`backward` in ``self.saved_tensors``."""
        self.saved_tensors = args

    @overload
    def __call__(self: _HasForward[P, Result], *inputs: P.args, **options: P.kwargs) -> Result: ...

    @overload
    def __call__(self, *inputs: NDArray) -> Any: ...

    def __call__(self, *inputs: Any) -> Any:  # type: ignore[misc]  # keywords are refused
        if "_used" in self.__dict__:
            raise AutogradError(f"{type(self).__name__}: a Function instance can only be called once")
        self.__dict__["_used"] = True
        with pause(train_mode=is_training()):
            result = self.forward(*inputs)
        if not is_recording():
            return result
        results = [result] if isinstance(result, NDArray) else list(result)
        outputs = [cast("NDArray", array.without_history()) for array in results]
        record_call(type(self).__name__, self._gradient(len(inputs)), inputs, outputs, len(outputs), capture(2))
        for array, output in zip(results, outputs, strict=True):
            separate(output, array)
        return outputs[0] if isinstance(result, NDArray) else outputs

    def _gradient(self, count: int) -> Callable[..., Sequence[NDArray | None]]:
        """Return the gradient function for the tape; it checks that the arrays stored by ``forward`` are unchanged."""
        name, arrays = type(self).__name__, _arrays_in(vars(self).values())
        stored = [(array, array.storage.version) for array in arrays]

        def gradient(F: object, inputs: Any, outputs: object, heads: Sequence[NDArray]) -> Sequence[NDArray | None]:
            for array, version in stored:
                if array.storage.version != version:
                    raise AutogradError(
                        f"backward: an array that {name}.forward stored (shape {array.shape}) was changed in place, "
                        "so the gradient would be wrong; store a copy (x.copy()), or call backward before the change"
                    )
            is_recorded = is_recording()
            with pause(train_mode=is_training()):
                grads = self.backward(*heads)
            gradients = [grads] if isinstance(grads, NDArray) or grads is None else list(grads)
            if len(gradients) != count:
                raise AutogradError(f"{name}.backward returned {len(gradients)} gradients, expected {count}")
            return _differentiable_once(name, gradients, inputs, heads) if is_recorded else gradients

        return gradient

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def backward(self, *output_grads: Any, **options: Any) -> Any:
        """Compute the gradients of the inputs from the gradients of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define backward")


def _arrays_in(values: Iterable[object]) -> Iterator[NDArray]:
    for value in values:
        if isinstance(value, NDArray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _arrays_in(value)


def _differentiable_once(
    name: str, gradients: Sequence[NDArray | None], inputs: Sequence[NDArray], heads: Sequence[NDArray]
) -> Sequence[NDArray | None]:
    """Return gradients that raise AutogradError when differentiated, since user code computed them without a record."""

    def refuse(*_: object) -> Any:
        raise AutogradError(
            f"backward: the gradient of {name} is not differentiable, because its backward() is not recorded; write "
            "the function with operators for higher-order gradients"
        )

    sources = [*(inputs[at] for at in range(len(inputs))), *heads]
    outputs = [None if gradient is None else gradient.without_history() for gradient in gradients]
    recorded_outputs = [output for output in outputs if output is not None]
    record_call(f"{name}.backward", refuse, sources, recorded_outputs, len(recorded_outputs))
    return outputs
