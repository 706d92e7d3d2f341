"""Layers of cells as one operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from flowmx import initializer as init
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.rnn.base import BaseRNNCell, RNNParams, Weights, merged, split, time_axis
from flowmx.rnn.cells import GRUCell, LSTMCell, RNNCell
from flowmx.rnn.modifiers import DropoutCell
from flowmx.rnn.stacks import BidirectionalCell, SequentialRNNCell

_GATES: dict[str, tuple[str, ...]] = {
    "rnn_relu": ("",), "rnn_tanh": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o"),
}  # fmt: skip


class FusedRNNCell(BaseRNNCell):
    """Layers of cells as one operator, ``mx.sym.RNN``, with all parameters in one array.

    Args:
        num_hidden: units of each layer.
        num_layers: the number of layers.
        mode: ``"rnn_relu"``, ``"rnn_tanh"``, ``"lstm"`` or ``"gru"``.
        bidirectional: also go through the sequence from its end.
        dropout: the part of each layer's output that is dropped between layers in training.
        get_next_state: give the states after the last step.
        forget_bias: the initial bias of the forget gates of an LSTM.
        prefix: of names (default: the mode).
        params: those to share with other cells.

    Raises:
        ValueError: there is no such mode.
    """

    def __init__(
        self, num_hidden: int, num_layers: int = 1, mode: str = "lstm", bidirectional: bool = False,
        dropout: float = 0.0, get_next_state: bool = False, forget_bias: float = 1.0, prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:  # fmt: skip
        if mode not in _GATES:
            raise ValueError(f"FusedRNNCell: mode is {mode!r}, expected one of {', '.join(_GATES)}")
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode = mode
        self._bidirectional = bidirectional
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._directions = ["l", "r"] if bidirectional else ["l"]
        first = init.FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias)
        self._parameter = self.params.get("parameters", init=first)
        self._name = str(self._parameter.name)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        shape = (len(self._directions) * self._num_layers, 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(2 if self._mode == "lstm" else 1)]

    @property
    def _gate_names(self) -> tuple[str, ...]:
        return _GATES[self._mode]

    # -- weights ---------------------------------------------------------------------------------------

    def _pieces(self, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the parts of the one array, in order."""
        units, layers = self._num_hidden, range(self._num_layers)
        widths = [inputs] + [len(self._directions) * units] * (self._num_layers - 1)
        for kind, columns in (("weight", True), ("bias", False)):
            for layer in layers:
                for direction in self._directions:
                    for group, width in (("i2h", widths[layer]), ("h2h", units)):
                        for gate in self._gate_names:
                            name = f"{self._prefix}{direction}{layer}_{group}{gate}_{kind}"
                            yield name, (units, width) if columns else (units,)

    def _sliced(self, packed: NDArray, inputs: int) -> Iterator[tuple[str, NDArray]]:
        start = 0
        for name, shape in self._pieces(inputs):
            size = shape[0] * (shape[1] if len(shape) > 1 else 1)
            yield name, packed[start : start + size].reshape(shape)
            start += size
        if start != packed.size:
            raise ValueError(f"FusedRNNCell: the parameters have {packed.size} elements, expected {start}")

    def _size(self, inputs: int) -> int:
        return sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for _, shape in self._pieces(inputs))

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        found = dict(args)
        packed = found.pop(self._name)
        per_input = len(self._directions) * self._num_hidden * len(self._gate_names)
        inputs = (packed.size - self._size(0)) // per_input
        return found | {name: piece.copy() for name, piece in self._sliced(packed, inputs)}

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        found = dict(args)
        first = found[f"{self._prefix}l0_i2h{self._gate_names[0]}_weight"]
        packed = nd.zeros((self._size(first.shape[1]),), first.context, first.dtype)
        for name, piece in self._sliced(packed, first.shape[1]):
            piece[:] = found.pop(name)
        return {**found, self._name: packed}

    # -- graphs ----------------------------------------------------------------------------------------

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: list[Any] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, list[Any]]:
        self.reset()
        time_first = time_axis(layout) == 0
        data = merged(inputs if isinstance(inputs, sym.Symbol) else split(length, inputs, layout), layout)
        data = data if time_first else sym.swapaxes(data, dim1=0, dim2=1)
        states = self.begin_state() if begin_state is None else begin_state
        named = dict(zip(("state", "state_cell"), states, strict=False))
        made = sym.RNN(
            data=data, parameters=self._parameter, state_size=self._num_hidden, num_layers=self._num_layers,
            bidirectional=self._bidirectional, p=self._dropout, state_outputs=self._get_next_state,
            mode=cast(Any, self._mode), name=f"{self._prefix}rnn", **named,
        )  # fmt: skip
        outputs, after = (made[0], [made[1 + i] for i in range(len(named))]) if self._get_next_state else (made, [])
        outputs = outputs if time_first else sym.swapaxes(outputs, dim1=0, dim2=1)
        return (split(length, outputs, layout) if merge_outputs is False else outputs), after

    def unfuse(self) -> SequentialRNNCell:
        """The same layers as a stack of single cells, whose parameters ``unpack_weights`` gives."""
        made: dict[str, Any] = {
            "rnn_relu": lambda prefix: RNNCell(self._num_hidden, "relu", prefix),
            "rnn_tanh": lambda prefix: RNNCell(self._num_hidden, "tanh", prefix),
            "lstm": lambda prefix: LSTMCell(self._num_hidden, prefix),
            "gru": lambda prefix: GRUCell(self._num_hidden, prefix),
        }
        cell, stack = made[self._mode], SequentialRNNCell()
        for layer in range(self._num_layers):
            first, *others = (cell(f"{self._prefix}{direction}{layer}_") for direction in self._directions)
            if others:
                first = BidirectionalCell(first, others[0], output_prefix=f"{self._prefix}bi_l{layer}_")
            stack.add(first)
            if self._dropout > 0 and layer != self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack
