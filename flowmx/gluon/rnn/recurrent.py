"""The base of recurrent cells: states, and a cell unrolled over a sequence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from flowmx import ndarray as nd
from flowmx.gluon.base import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn import LeakyReLU
from flowmx.gluon.rnn import sequences

__all__ = ["HybridRecurrentCell", "RecurrentCell"]

_FUNCTIONS = ("tanh", "relu", "sigmoid", "softsign")


class RecurrentCell(Block):
    """A block called as ``output, states = cell(input, states)``.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
    """

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Begin to count the steps anew, before another sequence."""
        self._init_counter = -1
        self._counter = -1
        for cell in self._children.values():
            if isinstance(cell, RecurrentCell):
                cell.reset()

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape and layout of each state."""
        raise NotImplementedError(f"{type(self).__name__} must define state_info()")

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """The first states.

        Args:
            batch_size: the number of instances.
            func: makes an array or a symbol of a shape, such as ``mx.nd.zeros`` or ``mx.sym.zeros``.
            **kwargs: further arguments of it, such as ``ctx``.

        Raises:
            RuntimeError: the cell is inside another one that modifies it, and which is to be asked.
        """
        self._refuse_modified()
        states = []
        for info in self.state_info(batch_size):
            self._init_counter += 1
            states.append(make_state(func, f"{self._prefix}begin_state_{self._init_counter}", info, kwargs))
        return states

    def _refuse_modified(self) -> None:
        if self._modified:
            raise RuntimeError(
                f"begin_state: the cell {self.name!r} is inside a cell that modifies it, such as a ZoneoutCell: call "
                "that one instead"
            )

    def forward(self, inputs: Any, states: Any) -> Any:
        """Compute one step: the output and the next states."""
        self._counter += 1
        return super().forward(inputs, states)

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None, valid_length: Any = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Call the cell for each step of a sequence.

        Args:
            length: the number of steps.
            inputs: an array or symbol with an axis of time, or a list of steps.
            begin_state: the first states (default: zeros).
            layout: ``"NTC"`` or ``"TNC"``: batch, time, channels.
            merge_outputs: return one array with an axis of time, and no list of steps.
            valid_length: for each instance, how many steps count: outputs after them are zero, and the states are
                those after the last.

        Returns:
            the outputs and the last states.

        Raises:
            ValueError: the inputs have another length, or an unknown layout.
        """
        self.reset()
        each = sequences.steps(inputs, length, layout)
        states = sequences.zero_states(self.begin_state, each) if begin_state is None else begin_state
        outputs, history = [], []
        for step in each:
            output, states = self(step, states)
            outputs.append(output)
            history.append(states)
        if valid_length is None:
            return (sequences.merged(outputs, layout) if merge_outputs else outputs), states
        whole = sequences.masked(sequences.merged(outputs, layout), valid_length, layout)
        states = sequences.last_valid(history, valid_length)
        # As in MXNet, outputs that were masked stay merged unless a list is asked for.
        return (sequences.steps(whole, length, layout) if merge_outputs is False else whole), states

    def _get_activation(self, F: Any, inputs: Any, activation: Any, **kwargs: Any) -> Any:
        """Apply an activation: a name, or a block."""
        if activation in _FUNCTIONS:
            return getattr(F, activation)(inputs, **kwargs)
        if isinstance(activation, str):
            return F.Activation(inputs, act_type=activation, **kwargs)
        if isinstance(activation, LeakyReLU):
            return F.LeakyReLU(inputs, act_type="leaky", slope=activation._alpha, **kwargs)
        return activation(inputs, **kwargs)


class HybridRecurrentCell(RecurrentCell, HybridBlock):
    """A recurrent cell that can be hybridized."""


def make_state(func: Callable[..., Any], name: str, info: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """Make an initial state from ``state_info`` and the caller's arguments."""
    return func(**_accepted(func, {"name": name, **info, **kwargs}, kwargs))


def _accepted(func: Callable[..., Any], given: dict[str, Any], always: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a function takes: arrays have no names and layouts, as symbols do."""
    parameters = inspect.signature(func).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return given
    return {key: value for key, value in given.items() if key in parameters or key in always}
