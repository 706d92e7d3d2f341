"""One step of each kind of recurrent cell, for arrays and symbols: Gluon's cells and those of ``mx.rnn``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from flowmx.ndarray.functions import op
from flowmx.ops.recurrent.layout import GATES

Stepped = tuple[Any, list[Any]]


class CellStep:
    """The functions and node names of a step.

    Args:
        F: ``mx.nd`` or ``mx.sym``.
        prefix: of the names of the step's nodes.
        act: the cell's activation, a function of an input that takes a name.
        gate: that of the gates (default: sigmoid).
        out: the name of the output.
        axis: that of the gates, which lie side by side on it (default: 1, unnamed in graphs).
        named: name sums and products too; else they get names by number.
    """

    def __init__(
        self, F: Any, prefix: str, act: Callable[..., Any], gate: Callable[..., Any] | None = None,
        out: str | None = None, axis: int | None = None, named: bool = False,
    ) -> None:  # fmt: skip
        self.F, self.prefix, self.act, self._named = F, prefix, act, named
        self._slice = partial(F.SliceChannel, **({} if axis is None else {"axis": axis}))
        self.gate = gate or (lambda gate, name: F.Activation(gate, act_type="sigmoid", name=name))
        self.out = f"{prefix}out" if out is None else out

    def add(self, one: Any, other: Any, name: str) -> Any:
        """The sum of two arrays of one shape."""
        return self.F.elemwise_add(one, other, name=self.prefix + name) if self._named else one + other

    def multiply(self, one: Any, other: Any, name: str) -> Any:
        """Their product, elementwise."""
        return self.F.elemwise_mul(one, other, name=self.prefix + name) if self._named else one * other

    def squash(self, memory: Any) -> Any:
        """The activation of an LSTM's memory."""
        return self.act(memory, name=f"{self.prefix}activation0") if self._named else self.act(memory)

    def gates(self, values: Any, count: int, name: str) -> Any:
        """Each gate by itself."""
        return self._slice(values, num_outputs=count, name=self.prefix + name)


def elman(step: CellStep, i2h: Any, h2h: Any, states: list[Any]) -> Stepped:
    """``output = activation(i2h + h2h)`` (Elman)."""
    output = step.act(step.add(i2h, h2h, "plus0"), name=step.out)
    return output, [output]


def lstm(step: CellStep, i2h: Any, h2h: Any, states: list[Any]) -> Stepped:
    """Long short-term memory with a forget gate; gates in the order input, forget, memory, output."""
    F, t = step.F, step.prefix
    gates = step.gates(step.add(i2h, h2h, "plus0"), 4, "slice")
    enter = step.gate(gates[0], name=f"{t}i")
    keep = step.gate(gates[1], name=f"{t}f")
    change = step.act(gates[2], name=f"{t}c")
    leave = step.gate(gates[3], name=f"{t}o")
    kept, added = step.multiply(keep, states[1], "mul0"), step.multiply(enter, change, "mul1")
    memory = F.elemwise_add(kept, added, name=f"{t}state")
    output = F.elemwise_mul(leave, step.squash(memory), name=step.out)
    return output, [output, memory]


def gru(step: CellStep, i2h: Any, h2h: Any, states: list[Any]) -> Stepped:
    """A gated recurrent unit in cuDNN's form, in which the reset gate acts on the transformed state.

    Gates come in the order reset, update, new.
    """
    t, state = step.prefix, states[0]
    i_reset, i_update, i_new = step.gates(i2h, 3, "i2h_slice")
    h_reset, h_update, h_new = step.gates(h2h, 3, "h2h_slice")
    reset = step.gate(step.add(i_reset, h_reset, "plus0"), name=f"{t}r_act")
    update = step.gate(step.add(i_update, h_update, "plus1"), name=f"{t}z_act")
    new = step.act(step.add(i_new, step.multiply(reset, h_new, "mul0"), "plus2"), name=f"{t}h_act")
    changed, kept = step.multiply(1.0 - update, new, "mul1"), step.multiply(update, state, "mul20")
    output = step.F.elemwise_add(changed, kept, name=step.out)
    return output, [output]


def _lstm_at_once(i2h: Any, h2h: Any, states: list[Any]) -> Stepped:
    output, memory = op("_lstm_step", i2h, h2h, states[1])
    return output, [output, memory]


def _gru_at_once(i2h: Any, h2h: Any, states: list[Any]) -> Stepped:
    output = op("_gru_step", i2h, h2h, states[0])
    return output, [output]


class CellKind(NamedTuple):
    """A kind of cell.

    Attributes:
        gates: the suffix of each gate's arrays in unpacked weights.
        states: the number of its states.
        step: computes output and following states of a step from transformed input, transformed state, and states.
        at_once: does the same on arrays, by one operator, where gates are sigmoids and the activation is tanh.
    """

    gates: tuple[str, ...]
    states: int
    step: Callable[[CellStep, Any, Any, list[Any]], Stepped]
    at_once: Callable[[Any, Any, list[Any]], Stepped] | None = None


ELMAN, LSTM, GRU = (
    CellKind(GATES["rnn_tanh"], 1, elman),
    CellKind(GATES["lstm"], 2, lstm, _lstm_at_once),
    CellKind(GATES["gru"], 1, gru, _gru_at_once),
)
