"""The base class of recurrent cells: states, and unrolling over a sequence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, overload

from flowmx import ndarray as nd
from flowmx.gluon.base_block import A, Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn import LeakyReLU
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.cell_steps import StateInfo, Unrolled
from flowmx.ndarray import NDArray
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["HybridRecurrentCell", "RecurrentCell"]

_FUNCTIONS = ("tanh", "relu", "sigmoid", "softsign")


class _BeginState(Protocol):
    """The method ``begin_state`` of a cell, seen by type checkers."""

    @overload
    def __call__(self, batch_size: int = 0, *, func: Callable[..., A], **kwargs: Any) -> list[A]: ...

    @overload
    def __call__(self, batch_size: int, func: Callable[..., A], **kwargs: Any) -> list[A]: ...

    @overload
    def __call__(self, batch_size: int = 0, **kwargs: Any) -> list[NDArray]: ...


class _Unroll(Protocol):
    """The method ``unroll`` of a cell, seen by type checkers."""

    @overload
    def __call__(
        self, length: int, inputs: A | Sequence[A], begin_state: list[A] | None = None, layout: str = "NTC", *,
        merge_outputs: Literal[True], valid_length: object = None,
    ) -> tuple[A, list[A]]: ...  # fmt: skip

    @overload
    def __call__(
        self, length: int, inputs: A | Sequence[A], begin_state: list[A] | None, layout: str,
        merge_outputs: Literal[True], valid_length: object = None,
    ) -> tuple[A, list[A]]: ...  # fmt: skip

    @overload
    def __call__(
        self, length: int, inputs: A | Sequence[A], begin_state: list[A] | None = None, layout: str = "NTC",
        merge_outputs: Literal[False] | None = None, valid_length: None = None,
    ) -> tuple[list[A], list[A]]: ...  # fmt: skip

    @overload
    def __call__(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled: ...  # fmt: skip


class _BeginStateMethod(Protocol):
    def __get__(self, cell: object, owner: type | None = None) -> _BeginState: ...


class _UnrollMethod(Protocol):
    def __get__(self, cell: object, owner: type | None = None) -> _Unroll: ...


def begins_state(method: Callable[..., list[Any]]) -> _BeginStateMethod:
    """Return a method ``begin_state``, with its type."""
    return cast("_BeginStateMethod", method)


def unrolls(method: Callable[..., tuple[Any, list[Any]]]) -> _UnrollMethod:
    """Return a method ``unroll``, with its type."""
    return cast("_UnrollMethod", method)


class RecurrentCell(Block):
    """A block called as ``output, states = cell(input, states)``.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Reset the counters of steps, before another sequence."""
        self._init_counter = -1
        self._counter = -1
        for cell in self._children.values():
            if isinstance(cell, RecurrentCell):
                cell.reset()

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape and layout of each state."""
        raise NotImplementedError(f"{type(self).__name__} must define state_info()")

    @begins_state
    def begin_state(self, batch_size: int = 0, func: Callable[..., object] = nd.zeros, **kwargs: object) -> list[Any]:
        """Return the initial states.

        Args:
            batch_size: the number of samples.
            func: makes an array or a symbol of a shape, such as ``mx.nd.zeros`` or ``mx.sym.zeros``.
            **kwargs: further arguments of ``func``, such as ``ctx``.

        Raises:
            RuntimeError: the cell is inside a modifier, which must be called instead.
        """
        self._check_unmodified()
        states = []
        for info in self.state_info(batch_size):
            self._init_counter += 1
            states.append(make_state(func, f"{self._prefix}begin_state_{self._init_counter}", info, kwargs))
        return states

    def _check_unmodified(self) -> None:
        if self._modified:
            raise RuntimeError(
                f"begin_state: the cell {self.name!r} is inside a cell that modifies it, such as a ZoneoutCell: call "
                "the outer cell instead"
            )

    if TYPE_CHECKING:

        def __call__(self, inputs: A, states: Sequence[A], /) -> tuple[A, list[A]]: ...

    def _explain(self, error: Exception, inputs: Sequence[object]) -> str | None:
        if not (isinstance(error, TypeError) and len(inputs) == 1 and "argument: 'states'" in str(error)):
            return None
        return (
            f"{type(self).__name__} {self.name!r}: the states are missing: a cell computes one step, output, states = "
            "cell(x, cell.begin_state(batch_size)); unroll(length, inputs) computes a sequence, and "
            "mx.serve.Predictor(cell, shape, states=True) serves sessions"
        )

    def forward(self, inputs: Tensor, states: Any) -> Any:
        """Compute one step: the output and the next states."""
        self._counter += 1
        return super().forward(inputs, states)

    @unrolls
    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: object = None,
    ) -> Unrolled:  # fmt: skip
        """Call the cell for each step of a sequence.

        Args:
            length: the number of steps.
            inputs: an array or symbol with a time axis, or a list of steps.
            begin_state: the initial states (default: zeros).
            layout: ``"NTC"`` or ``"TNC"``: batch, time, channels.
            merge_outputs: return one array with a time axis instead of a list of steps.
            valid_length: the number of valid steps of each sequence: later outputs are zero, and the states are
                those after the last valid step.

        Returns:
            The outputs and the last states.

        Raises:
            ValueError: the inputs have another length, or the layout is unknown.
        """
        self.reset()
        steps = sequences.steps(inputs, length, layout)
        states = sequences.zero_states(self.begin_state, steps) if begin_state is None else begin_state
        outputs, history = [], []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
            history.append(states)
        if valid_length is None:
            return (sequences.merge_steps(outputs, layout) if merge_outputs else outputs), states
        merged = sequences.mask(sequences.merge_steps(outputs, layout), valid_length, layout)
        states = sequences.last_valid(history, valid_length)
        # As in MXNet, masked outputs stay merged unless merge_outputs is False.
        return (sequences.steps(merged, length, layout) if merge_outputs is False else merged), states

    def _get_activation(self, F: Functions, inputs: Tensor, activation: Any, **kwargs: Any) -> Tensor:
        """Apply an activation: a name, or a block."""
        if activation in _FUNCTIONS:
            output: Tensor = getattr(F, activation)(inputs, **kwargs)
            return output
        if isinstance(activation, str):
            return F.Activation(inputs, act_type=activation, **kwargs)
        if isinstance(activation, LeakyReLU):
            return F.LeakyReLU(inputs, act_type="leaky", slope=activation._alpha, **kwargs)
        return cast("Tensor", activation(inputs, **kwargs))


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A recurrent cell that can be hybridized."""


def make_state(func: Callable[..., object], name: str, info: Mapping[str, object], kwargs: Mapping[str, object]) -> Any:
    """Make an initial state from ``state_info`` and the caller's arguments."""
    return func(**_accepted_arguments(func, {"name": name, **info, **kwargs}, kwargs))


def _accepted_arguments(
    func: Callable[..., object], arguments: dict[str, Any], always: Mapping[str, object]
) -> dict[str, Any]:
    """Return the arguments that a function accepts: arrays have no names and layouts, unlike symbols."""
    parameters = inspect.signature(func).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {key: value for key, value in arguments.items() if key in parameters or key in always}
