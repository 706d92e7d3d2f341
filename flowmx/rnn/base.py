"""The base class of cells: parameters as variables, states, and a symbol for each step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.gluon.rnn.steps import Stepped
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

Weights = Mapping[str, NDArray]


class RNNParams:
    """Variables by name, which cells that are given the same one share.

    Args:
        prefix: of their names.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """The variable of a name, made now where there is none yet.

        Args:
            name: without the prefix.
            **kwargs: arguments of ``mx.sym.Variable``.
        """
        name = self._prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **kwargs)
        return self._params[name]


class BaseRNNCell:
    """Base of the cells: called with the input of a step and the states before it, gives output and states after it.

    Args:
        prefix: of the names of its layers, and of its parameters unless ``params`` are given.
        params: those to share with other cells.

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
        """Number the steps anew, for another graph."""
        self._init_counter = -1
        self._counter = -1
        for cell in getattr(self, "_cells", ()):
            cell.reset()

    def __call__(self, inputs: Symbol, states: list[Any]) -> Stepped:
        """Compose one step.

        Args:
            inputs: the input, of shape (batch, units).
            states: those before the step.

        Returns:
            the output, and the states after the step.
        """
        raise NotImplementedError(f"{type(self).__name__} can not be called step by step: use unroll()")

    @property
    def params(self) -> RNNParams:
        """Its parameters."""
        self._own_params = False
        return self._params

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """Shape and layout of each state; 0 stands for the length of the batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement state_info")

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The shape of each state."""
        return [each["shape"] for each in self.state_info]

    @property
    def _gate_names(self) -> Sequence[str]:
        return ()

    def _step_name(self) -> str:
        """The prefix of the next step's layers."""
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    # -- states ----------------------------------------------------------------------------------------

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> list[Any]:
        """The states before the first step.

        Args:
            func: makes them: ``mx.sym.zeros``, ``mx.sym.Variable`` to feed them as inputs, or another.
            **kwargs: further arguments of it.

        Raises:
            RuntimeError: a modifier holds this cell, and is what is to be called.
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
                f"begin_state: this {type(self).__name__} is part of a modifier, such as a ZoneoutCell: call that one"
            )

    # -- weights ---------------------------------------------------------------------------------------

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        """Parameters with the arrays of each gate by themselves, which :meth:`pack_weights` puts together again.

        Args:
            args: parameters by name; those of other layers stay as they are.
        """
        found = dict(args)
        units = getattr(self, "_num_hidden", 0)
        for whole, parts in self._gate_arrays():
            packed = found.pop(whole)
            for gate, name in enumerate(parts):
                found[name] = packed[gate * units : (gate + 1) * units].copy()
        return found

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        """Parameters as the cell takes them, from the arrays of each gate.

        Args:
            args: parameters by name, as :meth:`unpack_weights` gives them.
        """
        found = dict(args)
        for whole, parts in self._gate_arrays():
            pieces = [found.pop(name) for name in parts]
            found[whole] = nd.concat(*pieces, dim=0) if len(pieces) > 1 else pieces[0]
        return found

    def _gate_arrays(self) -> Iterator[tuple[str, list[str]]]:
        """The name of each packed array, and those of its gates; nothing for a cell without gates."""
        if self._gate_names:
            for group, kind in itertools.product(("i2h", "h2h"), ("weight", "bias")):
                start = f"{self._prefix}{group}"
                yield f"{start}_{kind}", [f"{start}{gate}_{kind}" for gate in self._gate_names]

    # -- many steps ------------------------------------------------------------------------------------

    def unroll(
        self, length: int, inputs: Any, begin_state: list[Any] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Compose all steps of a sequence.

        Args:
            length: the number of steps.
            inputs: a symbol with an axis of time, or a symbol for each step.
            begin_state: the states before the first step (default: :meth:`begin_state`).
            layout: ``"NTC"`` or ``"TNC"``: which axis of one symbol is time.
            merge_outputs: True gives one symbol, False a list; None what is at hand.

        Returns:
            the outputs, and the states after the last step.
        """
        self.reset()
        return self._unrolled(length, inputs, begin_state, layout, merge_outputs)

    def _unrolled(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> Stepped:
        """Compose all steps; the arguments are those of :meth:`unroll`."""
        steps = split(length, inputs, layout)
        states = self.begin_state() if begin_state is None else begin_state
        outputs = []
        for step in steps:
            output, states = self(step, states)
            outputs.append(output)
        return (merged(outputs, layout) if merge else outputs), states

    def _get_activation(self, inputs: Symbol, activation: Any, **kwargs: Any) -> Symbol:
        """An activation by name, or by a function of symbols."""
        if isinstance(activation, str):
            return sym.Activation(inputs, act_type=cast(Any, activation), **kwargs)
        found: Symbol = activation(inputs, **kwargs)
        return found


def time_axis(layout: str) -> int:
    """The index of the time axis.

    Raises:
        ValueError: none is.
    """
    axis = layout.find("T")
    if axis < 0:
        raise ValueError(f"unroll: layout is {layout!r}, expected 'NTC' or 'TNC'")
    return axis


def split(length: int, inputs: Any, layout: str) -> list[Symbol]:
    """A sequence as a symbol for each step.

    Raises:
        ValueError: it has another length, or is nothing.
    """
    if inputs is None:
        raise ValueError("unroll: inputs is None: make variables for the inputs, and give them")
    if isinstance(inputs, Symbol):
        if len(inputs.list_outputs()) != 1:
            raise ValueError("unroll: inputs is a group of symbols: give list(inputs), or one symbol")
        return list(sym.split(inputs, axis=time_axis(layout), num_outputs=length, squeeze_axis=True))
    if len(inputs) != length:
        raise ValueError(f"unroll: length is {length}, and there are {len(inputs)} inputs")
    return list(inputs)


def merged(steps: Any, layout: str) -> Symbol:
    """A sequence as one symbol."""
    if isinstance(steps, Symbol):
        return steps
    axis = time_axis(layout)
    return sym.concat(*(sym.expand_dims(each, axis=axis) for each in steps), dim=axis)
