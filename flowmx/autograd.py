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
from contextlib import nullcontext
from contextvars import Token
from typing import Any, ClassVar, cast

from flowmx.engine import describe, layer_scope, origin
from flowmx.errors import AutogradError
from flowmx.ndarray import functions as F
from flowmx.ndarray import recording
from flowmx.ndarray.array import NDArray, check_request
from flowmx.ndarray.core import may_store, store
from flowmx.ndarray.core import record as record_call
from flowmx.ndarray.recording import Entry, Leaf, State, TapeNode
from flowmx.ops.registry import Operator

__all__ = [
    "Function", "backward", "grad", "is_recording", "is_training", "mark_variables", "pause", "predict_mode", "record",
    "set_recording", "set_training", "train_mode",
]  # fmt: skip


before_backward: list[Callable[[list[NDArray]], None]] = []
"""Called with the heads of each :func:`backward`, before it computes anything."""


class _Scope:
    """A ``with`` block that changes the task's autograd state, and puts it back."""

    def __init__(self, recording_: bool | None, training: bool | None, backward: bool | None = None) -> None:
        self._change = (recording_, training, backward)
        self._tokens: list[Token[State]] = []

    def __enter__(self) -> None:
        now = recording.state.get()
        recording_, training, backward = self._change
        self._tokens.append(
            recording.state.set(
                State(
                    now.recording if recording_ is None else recording_,
                    now.training if training is None else training,
                    now.backward if backward is None else backward,
                )
            )
        )

    def __exit__(self, *error: object) -> None:
        recording.state.reset(self._tokens.pop())


def record(train_mode: bool = True) -> _Scope:
    """Record the operators called inside, in training mode (or not), for :func:`backward`."""
    return _Scope(True, train_mode)


def pause(train_mode: bool = False) -> _Scope:
    """Do not record what is called inside."""
    return _Scope(False, train_mode)


def train_mode() -> _Scope:
    """Training mode (Dropout drops, BatchNorm uses the batch) without changing what is recorded."""
    return _Scope(None, True)


def predict_mode() -> _Scope:
    """Prediction mode without changing what is recorded."""
    return _Scope(None, False)


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
    totals = _walk(_as_list(heads), _as_grads(head_grads, heads), retain_graph, False, train_mode)
    with _Scope(False, train_mode):
        seen = set()
        for total in totals.values():
            if total._storage in seen:  # the same array may be the gradient of several
                total._storage.shared = True
            seen.add(total._storage)
        for leaf, total in totals.items():
            _store(leaf, total)


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
    totals = _walk(_as_list(heads), _as_grads(head_grads, heads), retain, create_graph, train_mode)
    for position, leaf in enumerate(leaves):
        if leaf not in totals:
            raise AutogradError(f"grad: the heads do not depend on variable {position}")
    found = [totals[leaf] for leaf in leaves]
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


def _order(heads: Sequence[NDArray]) -> list[TapeNode]:
    """The nodes that the heads depend on, each after all its inputs' nodes."""
    done: dict[TapeNode, None] = {}
    entered: set[TapeNode] = set()
    stack: list[TapeNode] = [
        head._entry.node for head in heads if head._entry is not None and isinstance(head._entry.node, TapeNode)
    ]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        before = [e.node for e in node.entries if e is not None and isinstance(e.node, TapeNode)]
        todo = [n for n in before if n not in done and n not in entered] if node not in entered else []
        entered.add(node)
        if todo:
            stack += todo
        else:
            done[node] = None
            stack.pop()
    return list(done)


def _walk(
    heads: list[NDArray], head_grads: list[NDArray | None], retain: bool, create_graph: bool, train_mode: bool
) -> dict[Leaf, NDArray]:
    """The total gradient of every leaf that the heads depend on."""
    sums: dict[Entry, NDArray] = {}

    def add(entry: Entry, gradient: NDArray) -> None:
        before = sums.get(entry)
        sums[entry] = gradient if before is None else before + gradient

    with _Scope(create_graph, train_mode, True):
        for position, (head, given) in enumerate(zip(heads, head_grads, strict=True)):
            if head._entry is None:
                raise AutogradError(
                    f"backward: head {position} (shape {head.shape}) was not computed inside autograd.record() from "
                    "arrays with attach_grad()"
                )
            if given is not None and given.shape != head.shape:
                raise AutogradError(
                    f"backward: head gradient {position} has shape {given.shape}, expected {head.shape}"
                )
            if given is None:
                given = F.ones_like(head.detach())
            else:
                given._storage.shared = True
            add(head._entry, given)
        for node in reversed(_order(heads)):
            grads = [sums.pop(Entry(node, index), None) for index in range(node.visible)]
            if all(each is None for each in grads):
                continue
            for entry, gradient in zip(node.entries, _gradients(node, grads), strict=False):
                if entry is not None and gradient is not None:
                    add(entry, gradient)
            if not retain:
                node.release()
    return {entry.node: total for entry, total in sums.items() if isinstance(entry.node, Leaf)}


def _gradients(node: TapeNode, grads: list[NDArray | None]) -> Sequence[NDArray | None]:
    if node.inputs is None or node.outputs is None:
        place = f" (called at {describe(node.origin)})" if node.origin is not None else ""
        raise AutogradError(
            f"backward: the tape of {node.name!r}{place} was freed by an earlier backward pass; "
            "pass retain_graph=True to that one"
        )
    heads = [
        F.op("zeros_like", node.outputs.unchecked(index)) if each is None else each for index, each in enumerate(grads)
    ]
    # Inputs handed out with their history, so that a recorded backward pass continues the graph.
    inputs = _with_history(node)
    layer = node.origin[2] if origin.names_layers and node.origin is not None else None
    try:
        with layer_scope(layer, fresh=True) if layer else nullcontext():
            found = cast("Sequence[NDArray | None]", node.gradient(F, inputs, _outputs(node), heads))
    except NotImplementedError:
        raise AutogradError(f"backward: operator {node.name!r} has no gradient") from None
    if not isinstance(getattr(node.gradient, "__self__", None), Operator):
        for each in found:  # code of the user's may have kept it
            if each is not None:
                each._storage.shared = True
    return found


class _History(Sequence[Any]):
    """The saved arrays of a node, with the place on the tape that each came from."""

    def __init__(self, saved: recording.Saved, entries: Sequence[Entry | None]) -> None:
        self._saved, self._entries = saved, entries

    def __len__(self) -> int:
        return len(self._saved)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        array = self._saved[index]._plain()
        array._entry = self._entries[index]
        return array

    def unchecked(self, index: int) -> Any:
        return self._saved.unchecked(index)

    def wanted(self, index: int) -> bool:
        return self._entries[index] is not None


def _with_history(node: TapeNode) -> Sequence[Any]:
    assert node.inputs is not None
    return _History(node.inputs, node.entries) if is_recording() else node.inputs


def _outputs(node: TapeNode) -> Sequence[Any]:
    assert node.outputs is not None
    if not is_recording():
        return node.outputs
    entries: list[Entry | None] = [
        Entry(node, index) if index < node.visible else None for index in range(len(node.outputs))
    ]
    return _History(node.outputs, entries)


def _store(leaf: Leaf, total: NDArray) -> None:
    """Put a total into a leaf's buffer, as its request says."""
    target = cast("NDArray | None", leaf.grad)
    if target is None or leaf.request == "null":
        return
    if total._dtype != target._dtype:
        total = total.astype(target._dtype)
    if leaf.request == "add":
        F.op("elemwise_add", target, total, out=target)
    elif may_store(total, target):
        store(total, target)
    else:
        F.op("_copy", total, out=target)


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
