"""Recurrent layers that go through whole sequences in one operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.errors import ArgumentError
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.cells import GRUCell, LSTMCell, RNNCell
from flowmx.gluon.rnn.modifiers import DropoutCell
from flowmx.gluon.rnn.recurrent import HybridRecurrentCell, make_state
from flowmx.gluon.rnn.stacks import HybridSequentialRNNCell
from flowmx.ndarray import NDArray
from flowmx.ops.recurrent.layout import GATES
from flowmx.symbol import Symbol

__all__ = ["GRU", "LSTM", "RNN"]

_PARAMETER = re.compile(r"(l|r)(\d+)_(i2h|h2h|h2r)_(weight|bias)\Z")


class _RNNLayer(HybridBlock):
    """Layers on top of each other, called as ``output = layer(x)`` or ``output, states = layer(x, states)``.

    Inputs and outputs are (time, batch, channels), or with the layout ``"NTC"`` (batch, time, channels); each state is
    (layers * directions, batch, units). Without states they begin at zero, and only the output is returned. Without
    ``input_size`` the length of the inputs is seen at the first call.
    """

    states: ClassVar[int] = 1

    def __init__(
        self, mode: str, hidden_size: int, num_layers: int, layout: str, dropout: float, bidirectional: bool,
        input_size: int, initializers: dict[str, Any], dtype: Any, projection_size: int | None = None,
        clip: tuple[float | None, float | None, bool] = (None, None, False), use_sequence_length: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if layout not in ("TNC", "NTC"):
            raise ArgumentError(f"{type(self).__name__}: layout is {layout!r}, expected 'TNC' or 'NTC'")
        super().__init__(**kwargs)
        self._mode, self._hidden_size, self._num_layers = mode, hidden_size, num_layers
        self._layout, self._dropout, self._input_size, self._dtype = layout, dropout, input_size, dtype
        self._dir = 2 if bidirectional else 1
        self._projection_size = projection_size or None
        self._clip, self._use_sequence_length = clip, use_sequence_length
        self._gates = len(GATES[mode])
        self._initializers = initializers
        self._make_params()

    def _make_params(self) -> None:
        rows, inputs = self._gates * self._hidden_size, self._input_size
        outputs = self._projection_size or self._hidden_size
        for layer in range(self._num_layers):
            shapes = {"i2h_weight": (rows, inputs), "h2h_weight": (rows, outputs), "i2h_bias": (rows,)}
            shapes["h2h_bias"] = (rows,)
            if self._projection_size:
                shapes["h2r_weight"] = (outputs, self._hidden_size)
            for direction in "lr"[: self._dir]:
                for kind, shape in shapes.items():
                    name, init = f"{direction}{layer}_{kind}", self._initializers[kind]
                    made = self.params.get(name, shape=shape, init=init, allow_deferred_init=True, dtype=self._dtype)
                    setattr(self, name, made)
            inputs = outputs * self._dir

    def __repr__(self) -> str:
        rows, inputs = self._reg_params["l0_i2h_weight"].shape or (0, 0)
        parts = [f"{inputs or None} -> {rows // self._gates}", self._layout]
        parts += [f"num_layers={self._num_layers}"] if self._num_layers != 1 else []
        parts += [f"dropout={self._dropout}"] if self._dropout else []
        parts += ["bidirectional"] if self._dir == 2 else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Any]:
        """The parameters by the names of the equivalent cells: files of layers and of cells are interchangeable."""
        prefix = f"{prefix}." if prefix else ""
        found = {}
        for key, param in self._reg_params.items():
            matched = _PARAMETER.match(key)
            assert matched is not None
            direction, layer, kind, what = matched.groups()
            cell = f"{direction}_cell." if self._dir == 2 else ""
            found[f"{prefix}_unfused.{layer}.{cell}{kind}_{what}"] = param
        return found

    def cast(self, dtype: Any) -> None:
        """Change the element type of its parameters, and of the states that it makes."""
        super().cast(dtype)
        self._dtype = dtype

    # -- states ----------------------------------------------------------------------------------------

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The shape, layout and dtype of each state."""
        lengths = [self._projection_size or self._hidden_size, self._hidden_size][: self.states]
        rows = self._num_layers * self._dir
        return [{"shape": (rows, batch_size, length), "__layout__": "LNC", "dtype": self._dtype} for length in lengths]

    def begin_state(self, batch_size: int = 0, func: Callable[..., Any] = nd.zeros, **kwargs: Any) -> list[Any]:
        """The first states.

        Args:
            batch_size: the number of instances.
            func: makes an array or a symbol of a shape, such as ``mx.nd.zeros`` or ``mx.sym.zeros``.
            **kwargs: further arguments of it, such as ``ctx``.
        """
        return [
            make_state(func, f"{self.prefix}h0_{number}", info, kwargs)
            for number, info in enumerate(self.state_info(batch_size))
        ]

    def _zero_states(self, inputs: Any) -> list[Any]:
        if isinstance(inputs, Symbol):
            return self.begin_state(0, func=sym.zeros)
        return self.begin_state(inputs.shape[self._layout.index("N")], ctx=inputs.context, dtype=inputs.dtype)

    def _check(self, inputs: NDArray, states: list[Any]) -> None:
        expected = [info["shape"] for info in self.state_info(inputs.shape[self._layout.index("N")])]
        given = [state.shape for state in states]
        if given != expected:
            raise ValueError(f"{type(self).__name__} {self.name!r}: states have shapes {given}, expected {expected}")

    # -- calling ---------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """The output, and with given states the last ones too.

        Args:
            inputs: the sequences.
            states: the first states: a list, or the only one.
            sequence_length: with ``use_sequence_length``: the length of each instance, shape (batch,).

        Raises:
            ValueError: states of other shapes; lengths without ``use_sequence_length``, or the other way round.
        """
        if (sequence_length is not None) != self._use_sequence_length:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: sequence_length is {'' if self._use_sequence_length else 'not '}"
                f"expected, since use_sequence_length is {self._use_sequence_length}"
            )
        given = [states] if isinstance(states, (NDArray, Symbol)) else states
        if sequence_length is not None:
            return super().__call__(inputs, given, sequence_length)
        return super().__call__(inputs) if given is None else super().__call__(inputs, list(given))

    def hybrid_forward(
        self, F: Any, inputs: Any, states: Any = None, sequence_length: Any = None, **params: Any
    ) -> Any:
        first = self._zero_states(inputs) if states is None else list(states)
        if isinstance(inputs, NDArray):
            self._check(inputs, first)
        data = F.swapaxes(inputs, 0, 1) if self._layout == "NTC" else inputs
        vector = F._internal._rnn_param_concat(*(params[name].reshape(-1) for name in self._order()), dim=0)
        lengths = [] if sequence_length is None else [sequence_length]
        low, high, nan = self._clip
        output, *last = F.RNN(
            data, vector, *first, *lengths, use_sequence_length=self._use_sequence_length,
            state_size=self._hidden_size, projection_size=self._projection_size, num_layers=self._num_layers,
            bidirectional=self._dir == 2, p=self._dropout, state_outputs=True, mode=self._mode,
            lstm_state_clip_min=low, lstm_state_clip_max=high, lstm_state_clip_nan=nan,
        )  # fmt: skip
        output = F.swapaxes(output, 0, 1) if self._layout == "NTC" else output
        return output if states is None else (output, last)

    def _order(self) -> Iterator[str]:
        """The names of the parameters in the order of the operator's vector: all weights, then all biases."""
        groups = ("i2h", "h2h", "h2r") if self._projection_size else ("i2h", "h2h")
        for what in ("weight", "bias"):
            for layer in range(self._num_layers):
                for direction in "lr"[: self._dir]:
                    yield from (f"{direction}{layer}_{g}_{what}" for g in groups if (g, what) != ("h2r", "bias"))

    # -- as cells --------------------------------------------------------------------------------------

    def _unfuse(self) -> HybridSequentialRNNCell:
        """A stack of cells that computes the same with the same parameters.

        Raises:
            ValueError: it projects or clips, which no stack of these cells does.
        """
        if self._projection_size or self._clip[:2] != (None, None):
            raise ValueError(f"{type(self).__name__} {self.name!r}: a layer that projects or clips can not be unfused")
        stack = HybridSequentialRNNCell(prefix=self.prefix, params=self.params)
        with stack.name_scope():
            inputs = self._input_size
            for layer in range(self._num_layers):
                cells = [self._cell(f"{direction}{layer}_", inputs) for direction in "lr"[: self._dir]]
                stack.add(BidirectionalCell(cells[0], cells[1]) if self._dir == 2 else cells[0])
                if self._dropout > 0 and layer != self._num_layers - 1:
                    stack.add(DropoutCell(self._dropout))
                inputs = self._hidden_size * self._dir
        return stack

    def _cell(self, prefix: str, input_size: int) -> HybridRecurrentCell:
        given = {f"{kind}_initializer": init for kind, init in self._initializers.items() if kind != "h2r_weight"}
        given |= {"prefix": prefix, "input_size": input_size}
        if self._mode == "lstm":
            return LSTMCell(self._hidden_size, **given)
        if self._mode == "gru":
            return GRUCell(self._hidden_size, **given)
        return RNNCell(self._hidden_size, activation=self._mode.removeprefix("rnn_"), **given)


class RNN(_RNNLayer):
    """Elman's layers: ``h = activation(W x + b + R h' + c)``.

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        activation: ``"relu"`` or ``"tanh"``.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: in training, the part of the outputs between layers that becomes zero.
        bidirectional: go through the sequence in both directions, and join the outputs.
        i2h_weight_initializer: of the weights for the inputs.
        h2h_weight_initializer: of the weights for the states.
        i2h_bias_initializer: of the biases for the inputs.
        h2h_bias_initializer: of the biases for the states.
        input_size: the number of inputs (default: seen at the first call).
        dtype: of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.

    Example:
        >>> layer = mx.gluon.rnn.RNN(100, 3)
        >>> layer.initialize()
        >>> output = layer(mx.nd.ones((5, 3, 10)))
        >>> output, states = layer(mx.nd.ones((5, 3, 10)), layer.begin_state(batch_size=3))
    """

    def __init__(
        self, hidden_size: int, num_layers: int = 1, activation: str = "relu", layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, i2h_weight_initializer: Any = None, h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros", input_size: int = 0,
        dtype: Any = "float32", **kwargs: Any,
    ) -> None:  # fmt: skip
        if activation not in ("relu", "tanh"):
            raise ValueError(f"RNN: activation is {activation!r}, expected 'relu' or 'tanh'")
        initializers = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer,
        }  # fmt: skip
        super().__init__(
            f"rnn_{activation}", hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers,
            dtype, **kwargs,
        )  # fmt: skip


class LSTM(_RNNLayer):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); states are the outputs and the cells.

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: in training, the part of the outputs between layers that becomes zero.
        bidirectional: go through the sequence in both directions, and join the outputs.
        input_size: the number of inputs (default: seen at the first call).
        i2h_weight_initializer: of the weights for the inputs.
        h2h_weight_initializer: of the weights for the states.
        i2h_bias_initializer: of the biases for the inputs.
        h2h_bias_initializer: of the biases for the states.
        projection_size: project outputs to that length (Sak et al., 2014).
        h2r_weight_initializer: of the weights of the projections.
        state_clip_min: the least value of the cells; both bounds or none.
        state_clip_max: the greatest value of the cells.
        state_clip_nan: clip NaN too.
        dtype: of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.
    """

    states = 2

    def __init__(
        self, hidden_size: int, num_layers: int = 1, layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, input_size: int = 0, i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros",
        projection_size: int | None = None, h2r_weight_initializer: Any = None, state_clip_min: float | None = None,
        state_clip_max: float | None = None, state_clip_nan: bool = False, dtype: Any = "float32", **kwargs: Any,
    ) -> None:  # fmt: skip
        initializers = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer, "h2r_weight": h2r_weight_initializer,
        }  # fmt: skip
        super().__init__(
            "lstm", hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers, dtype,
            projection_size, (state_clip_min, state_clip_max, state_clip_nan), **kwargs,
        )  # fmt: skip


class GRU(_RNNLayer):
    """Gated recurrent units as cuDNN has them (Cho et al., 2014).

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: in training, the part of the outputs between layers that becomes zero.
        bidirectional: go through the sequence in both directions, and join the outputs.
        input_size: the number of inputs (default: seen at the first call).
        i2h_weight_initializer: of the weights for the inputs.
        h2h_weight_initializer: of the weights for the states.
        i2h_bias_initializer: of the biases for the inputs.
        h2h_bias_initializer: of the biases for the states.
        dtype: of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.
    """

    def __init__(
        self, hidden_size: int, num_layers: int = 1, layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, input_size: int = 0, i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None, i2h_bias_initializer: Any = "zeros", h2h_bias_initializer: Any = "zeros",
        dtype: Any = "float32", **kwargs: Any,
    ) -> None:  # fmt: skip
        initializers = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer,
        }  # fmt: skip
        super().__init__(
            "gru", hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers, dtype, **kwargs
        )
