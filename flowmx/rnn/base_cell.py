"""The base class of cells: parameters as variables, states, and the graph of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

Weights = Mapping[str, NDArray]
StepResult = tuple[Any, list[Any]]
"""The output of a step, or the outputs of some, and the next states."""


class RNNParams:
    """Variables by name, which cells may share.

    Args:
        prefix: the prefix of the names.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """Return a variable by name; make it if necessary.

        Args:
            name: the name without the prefix.
            **kwargs: arguments of ``mx.sym.Variable``.
        """
        name = self._prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **kwargs)
        return self._params[name]


class BaseRNNCell:
    """Base class of cells: called with a step's input and the previous states, returns the output and the new states.

    Args:
        prefix: the prefix of the names of layers, and of parameters unless ``params`` is set.
        params: parameters to share with other cells.

    Example:
        >>> cell = mx.rnn.LSTMCell(num_hidden=100, prefix="lstm_")
        >>> outputs, states = cell.unroll(10, inputs=mx.sym.Variable("data"), merge_outputs=True)
    """

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._own_params = params is None
        self._params = RNNParams(prefix) if params is None else params
        self._prefix = prefix
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Reset the numbers of steps, for another graph."""
        self._init_counter = -1
        self._counter = -1
        for cell in getattr(self, "_cells", ()):
            cell.reset()

    def __call__(self, inputs: Symbol, states: list[Any]) -> StepResult:
        """Compose one step.

        Args:
            inputs: the input, of shape (batch, units).
            states: the states before the step.

        Returns:
            The output, and the states after the step.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be called step by step: use unroll()")

    @property
    def params(self) -> RNNParams:
        """The parameters."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """Shape and layout of each state; 0 stands for the batch size."""
        raise NotImplementedError(f"{type(self).__name__} must implement state_info")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The shape of each state."""
        return [info["shape"] for info in self.state_info]

    @property
    def _gate_names(self) -> Sequence[str]:
        return ()

    def _step_name(self) -> str:
        """Return the prefix of the next step's layers."""
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    # -- states ----------------------------------------------------------------------------------------

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: object) -> list[Any]:
        """Return the states before the first step.

        Args:
            func: makes a state: ``mx.sym.zeros``, ``mx.sym.Variable`` for states that are inputs, or another function.
            **kwargs: further arguments of ``func``.

        Raises:
            RuntimeError: the cell is part of a modifier, which must be called instead.
        """
        self._check_unmodified()
        states = []
        for info in self.state_info:
            self._init_counter += 1
            states.append(func(name=f"{self._prefix}begin_state_{self._init_counter}", **{**kwargs, **info}))
        return states

    def _check_unmodified(self) -> None:
        if self._modified:
            raise RuntimeError(
                f"begin_state: this {type(self).__name__} is part of a modifier, such as a ZoneoutCell: call that"
            )

    # -- weights ---------------------------------------------------------------------------------------

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        """Split packed parameters into an array for each gate; :meth:`pack_weights` is the inverse.

        Args:
            args: parameters by name; other layers' parameters are not changed.
        """
        params = dict(args)
        units = getattr(self, "_num_hidden", 0)
        for packed_name, parts in self._gate_arrays():
            packed = params.pop(packed_name)
            for gate, name in enumerate(parts):
                params[name] = packed[gate * units : (gate + 1) * units].copy()
        return params

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        """Pack the arrays of each gate into the parameters of the cell.

        Args:
            args: parameters by name, from :meth:`unpack_weights`.
        """
        params = dict(args)
        for packed_name, parts in self._gate_arrays():
            pieces = [params.pop(name) for name in parts]
            params[packed_name] = nd.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]
        return params

    def _gate_arrays(self) -> Iterator[tuple[str, list[str]]]:
        """Iterate over (name of a packed array, names of its gates); empty for a cell without gates."""
        if self._gate_names:
            for group, kind in itertools.product(("i2h", "h2h"), ("weight", "bias")):
                start = f"{self._prefix}{group}"
                yield f"{start}_{kind}", [f"{start}{gate}_{kind}" for gate in self._gate_names]

    # -- many steps ------------------------------------------------------------------------------------

    def unroll(
        self, length: int, inputs: object, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Compose all steps of a sequence.

        Args:
            length: the number of steps.
            inputs: a symbol with a time axis, or a symbol for each step.
            begin_state: the states before the first step (default: :meth:`begin_state`).
            layout: ``"NTC"`` or ``"TNC"``, where T is the time axis of a single symbol.
            merge_outputs: True returns one symbol, False a list; None returns either without conversion.

        Returns:
            The outputs, and the states after the last step.
        """
        self.reset()
        return self._unroll(length, inputs, begin_state, layout, merge_outputs)

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> StepResult:
        """Compose all steps; the arguments are those of :meth:`unroll`."""
        steps = split(length, inputs, layout)
        states = self.begin_state() if begin_state is None else begin_state
        outputs = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        return (merge_steps(outputs, layout) if merge else outputs), states

    def _get_activation(self, inputs: Symbol, activation: Any, **kwargs: Any) -> Symbol:
        """Apply an activation: a name, or a function of symbols."""
        if isinstance(activation, str):
            return sym.Activation(inputs, act_type=cast(Any, activation), **kwargs)
        output: Symbol = activation(inputs, **kwargs)
        return output


def time_axis(layout: str) -> int:
    """Return the index of the time axis.

    Raises:
        ValueError: the layout has no time axis.
    """
    axis = layout.find("T")
    if axis < 0:
        raise ValueError(f"unroll: layout is {layout!r}, expected 'NTC' or 'TNC'")
    return axis


def split(length: int, inputs: Any, layout: str) -> list[Symbol]:
    """Split a sequence into a symbol for each step.

    Raises:
        ValueError: the sequence has another length, or is None.
    """
    if inputs is None:
        raise ValueError("unroll: inputs is None: create variables for the inputs, and pass them")
    if isinstance(inputs, Symbol):
        if len(inputs.list_outputs()) != 1:
            raise ValueError("unroll: inputs is a group of symbols: pass list(inputs), or one symbol")
        return list(sym.split(inputs, axis=time_axis(layout), num_outputs=length, squeeze_axis=True))
    if len(inputs) != length:
        raise ValueError(f"unroll: length is {length}, and there are {len(inputs)} inputs")
    return list(inputs)


def merge_steps(steps: Any, layout: str) -> Symbol:
    """Stack a sequence's steps into one symbol."""
    if isinstance(steps, Symbol):
        return steps
    axis = time_axis(layout)
    return sym.concat(*(sym.expand_dims(step, axis=axis) for step in steps), dim=axis)
