"""Layers of cells as one operator."""

from __future__ import annotations

from typing import Any, cast

from flowmx import initializer as init
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.ops.recurrent.layout import GATES, PackedWeights, carve
from flowmx.rnn.base_cell import BaseRNNCell, RNNParams, StepResult, Weights, merge_steps, split, time_axis
from flowmx.rnn.modifiers import DropoutCell
from flowmx.rnn.stacks import BidirectionalCell, SequentialRNNCell
from flowmx.rnn.standard_cells import GRUCell, LSTMCell, RNNCell


class FusedRNNCell(BaseRNNCell):
    """Layers of cells as one operator, ``mx.sym.RNN``, with all parameters in one array.

    Args:
        num_hidden: the number of units of a layer.
        num_layers: the number of layers.
        mode: ``"rnn_relu"``, ``"rnn_tanh"``, ``"lstm"`` or ``"gru"``.
        bidirectional: also process the sequence from its end.
        dropout: the fraction of each layer's output that is dropped between layers in training.
        get_next_state: return the states after the last step.
        forget_bias: the initial bias of the forget gates of an LSTM.
        prefix: the prefix of names (default: the mode).
        params: parameters to share with other cells.

    Raises:
        ValueError: the mode is unknown.
    """

    def __init__(
        self, num_hidden: int, num_layers: int = 1, mode: str = "lstm", bidirectional: bool = False,
        dropout: float = 0.0, get_next_state: bool = False, forget_bias: float = 1.0, prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:  # fmt: skip
        if mode not in GATES:
            raise ValueError(f"FusedRNNCell: mode is {mode!r}, expected one of {', '.join(GATES)}")
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode = mode
        self._bidirectional = bidirectional
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._packed = PackedWeights(mode, num_hidden, num_layers, "lr" if bidirectional else "l")
        first = init.FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias)
        self._parameter = self.params.get("parameters", init=first)
        self._name = str(self._parameter.name)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        shape = (len(self._packed.directions) * self._num_layers, 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(2 if self._mode == "lstm" else 1)]

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return GATES[self._mode]

    # -- weights ---------------------------------------------------------------------------------------

    def _slice_weights(self, arr: NDArray, li: int, lh: int) -> dict[str, NDArray]:
        """Return the parts of the packed array by name, in order, for ``li`` inputs and ``lh`` units."""
        del lh  # the cell's number of units
        names, shapes = zip(*self._packed.parts(li), strict=True)
        return dict(zip((self._prefix + name for name in names), carve(cast("Any", arr), shapes), strict=True))

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        params = dict(args)
        packed = params.pop(self._name)
        inputs = self._packed.inputs(packed.size)
        if inputs is None:
            raise ValueError(f"FusedRNNCell: {packed.size} parameters do not match these layers, for any input size")
        return params | {
            name: piece.copy() for name, piece in self._slice_weights(packed, inputs, self._num_hidden).items()
        }

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        params = dict(args)
        first = params[f"{self._prefix}l0_i2h{self._gate_names[0]}_weight"]
        packed = nd.zeros((self._packed.size(first.shape[1]),), first.context, first.dtype)
        for name, piece in self._slice_weights(packed, first.shape[1], self._num_hidden).items():
            piece[:] = params.pop(name)
        return {**params, self._name: packed}

    # -- graphs ----------------------------------------------------------------------------------------

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> StepResult:
        time_first = time_axis(layout) == 0
        data = merge_steps(inputs if isinstance(inputs, sym.Symbol) else split(length, inputs, layout), layout)
        data = data if time_first else sym.swapaxes(data, dim1=0, dim2=1)
        states = self.begin_state() if begin_state is None else begin_state
        state_inputs = dict(zip(("state", "state_cell"), states, strict=False))
        output = sym.RNN(
            data=data, parameters=self._parameter, state_size=self._num_hidden, num_layers=self._num_layers,
            bidirectional=self._bidirectional, p=self._dropout, state_outputs=self._get_next_state,
            mode=cast(Any, self._mode), name=f"{self._prefix}rnn", **state_inputs,
        )  # fmt: skip
        outputs, after = output, []
        if self._get_next_state:
            outputs, after = output[0], [output[1 + i] for i in range(len(state_inputs))]
        outputs = outputs if time_first else sym.swapaxes(outputs, dim1=0, dim2=1)
        return (split(length, outputs, layout) if merge is False else outputs), after

    def unfuse(self) -> SequentialRNNCell:
        """Return the same layers as a stack of single cells, whose parameters ``unpack_weights`` returns."""
        cells: dict[str, Any] = {
            "rnn_relu": lambda prefix: RNNCell(self._num_hidden, "relu", prefix),
            "rnn_tanh": lambda prefix: RNNCell(self._num_hidden, "tanh", prefix),
            "lstm": lambda prefix: LSTMCell(self._num_hidden, prefix),
            "gru": lambda prefix: GRUCell(self._num_hidden, prefix),
        }
        cell, stack = cells[self._mode], SequentialRNNCell()
        for layer in range(self._num_layers):
            first, *others = (cell(f"{self._prefix}{direction}{layer}_") for direction in self._packed.directions)
            if others:
                first = BidirectionalCell(first, others[0], output_prefix=f"{self._prefix}bi_l{layer}_")
            stack.add(first)
            if self._dropout > 0 and layer != self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack
