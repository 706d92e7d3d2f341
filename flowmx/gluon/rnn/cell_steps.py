"""The step of each kind of recurrent cell, for arrays and symbols, used by Gluon's cells and by ``mx.rnn``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from flowmx.ndarray.functions import op
from flowmx.ops.recurrent.layout import GATES
from flowmx.ops.registry.tensors import Functions, Tensor, Tensors

StepResult = tuple[Tensor, Tensors]
StateInfo: TypeAlias = dict[str, Any]
"""The description of a state: its ``shape``, and the layout ``__layout__``."""
Unrolled: TypeAlias = tuple[Any, list[Any]]
"""The outputs of all steps, as one sequence or a list, and the last states."""


class CellStep:
    """The functions and node names of a step.

    Args:
        F: ``mx.nd`` or ``mx.sym``.
        prefix: the prefix of the names of the step's nodes.
        act: the cell's activation, a function of an input and a name.
        gate: the activation of the gates (default: sigmoid).
        out: the name of the output.
        axis: the axis along which the gates are concatenated (default: 1, not set in graphs).
        named: whether sums and products get names; otherwise they are numbered.
    """

    def __init__(
        self, F: Functions, prefix: str, act: Callable[..., Tensor], gate: Callable[..., Tensor] | None = None,
        out: str | None = None, axis: int | None = None, named: bool = False,
    ) -> None:  # fmt: skip
        self.F, self.prefix, self.act, self._named = F, prefix, act, named
        self._slice = partial(F.SliceChannel, **({} if axis is None else {"axis": axis}))
        self.gate = gate or (lambda gate, name: F.Activation(gate, act_type="sigmoid", name=name))
        self.out = f"{prefix}out" if out is None else out

    def add(self, one: Tensor, other: Tensor, name: str) -> Tensor:
        """Add two arrays of the same shape."""
        return self.F.elemwise_add(one, other, name=self.prefix + name) if self._named else one + other

    def multiply(self, one: Tensor, other: Tensor, name: str) -> Tensor:
        """Multiply two arrays of the same shape elementwise."""
        return self.F.elemwise_mul(one, other, name=self.prefix + name) if self._named else one * other

    def activate(self, memory: Tensor) -> Tensor:
        """Apply the activation to an LSTM's memory."""
        return self.act(memory, name=f"{self.prefix}activation0") if self._named else self.act(memory)

    def gates(self, values: Tensor, count: int, name: str) -> Tensor:
        """Split the gates."""
        return self._slice(values, num_outputs=count, name=self.prefix + name)


def elman(step: CellStep, i2h: Tensor, h2h: Tensor, states: Tensors) -> StepResult:
    """``output = activation(i2h + h2h)`` (Elman)."""
    output = step.act(step.add(i2h, h2h, "plus0"), name=step.out)
    return output, [output]


def lstm(step: CellStep, i2h: Tensor, h2h: Tensor, states: Tensors) -> StepResult:
    """Long short-term memory with a forget gate; gates in the order input, forget, memory, output."""
    F, prefix = step.F, step.prefix
    gates = step.gates(step.add(i2h, h2h, "plus0"), 4, "slice")
    input_gate = step.gate(gates[0], name=f"{prefix}i")
    forget_gate = step.gate(gates[1], name=f"{prefix}f")
    candidate = step.act(gates[2], name=f"{prefix}c")
    output_gate = step.gate(gates[3], name=f"{prefix}o")
    old, new = step.multiply(forget_gate, states[1], "mul0"), step.multiply(input_gate, candidate, "mul1")
    memory = F.elemwise_add(old, new, name=f"{prefix}state")
    output = F.elemwise_mul(output_gate, step.activate(memory), name=step.out)
    return output, [output, memory]


def gru(step: CellStep, i2h: Tensor, h2h: Tensor, states: Tensors) -> StepResult:
    """A gated recurrent unit in cuDNN's form, in which the reset gate acts on the transformed state.

    Gates come in the order reset, update, new.
    """
    prefix, state = step.prefix, states[0]
    i_reset, i_update, i_new = step.gates(i2h, 3, "i2h_slice")
    h_reset, h_update, h_new = step.gates(h2h, 3, "h2h_slice")
    reset = step.gate(step.add(i_reset, h_reset, "plus0"), name=f"{prefix}r_act")
    update = step.gate(step.add(i_update, h_update, "plus1"), name=f"{prefix}z_act")
    new = step.act(step.add(i_new, step.multiply(reset, h_new, "mul0"), "plus2"), name=f"{prefix}h_act")
    changed, unchanged = step.multiply(1.0 - update, new, "mul1"), step.multiply(update, state, "mul20")
    output = step.F.elemwise_add(changed, unchanged, name=step.out)
    return output, [output]


def _fused_lstm_step(i2h: Tensor, h2h: Tensor, states: Tensors) -> StepResult:
    output, memory = op("_lstm_step", i2h, h2h, states[1])
    return output, [output, memory]


def _fused_gru_step(i2h: Tensor, h2h: Tensor, states: Tensors) -> StepResult:
    output = op("_gru_step", i2h, h2h, states[0])
    return output, [output]


class CellKind(NamedTuple):
    """A kind of cell.

    Attributes:
        gates: the suffix of each gate's arrays in unpacked weights.
        states: the number of states.
        step: computes the output and the next states from transformed input, transformed state, and states.
        fused_step: the same on arrays, by one operator, for sigmoid gates and tanh activation.
    """

    gates: tuple[str, ...]
    states: int
    step: Callable[[CellStep, Tensor, Tensor, Tensors], StepResult]
    fused_step: Callable[[Tensor, Tensor, Tensors], StepResult] | None = None


ELMAN, LSTM, GRU = (
    CellKind(GATES["rnn_tanh"], 1, elman),
    CellKind(GATES["lstm"], 2, lstm, _fused_lstm_step),
    CellKind(GATES["gru"], 1, gru, _fused_gru_step),
)
