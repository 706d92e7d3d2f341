"""Recurrent layers that process whole sequences in one operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Unpack, overload

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.errors import ArgumentError
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.rnn.bidirectional import BidirectionalCell
from flowmx.gluon.rnn.cell_steps import StateInfo, Unrolled
from flowmx.gluon.rnn.gated_cells import GRUCell, LSTMCell, RNNCell
from flowmx.gluon.rnn.modifiers import DropoutCell
from flowmx.gluon.rnn.recurrent_cell import HybridRecurrentCell, make_state
from flowmx.gluon.rnn.stacks import HybridSequentialRNNCell
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ndarray import NDArray
from flowmx.ops.recurrent.layout import GATES
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.symbol import Symbol

__all__ = ["GRU", "LSTM", "RNN"]

_PARAMETER = re.compile(r"(l|r)(\d+)_(i2h|h2h|h2r)_(weight|bias)\Z")


class _RNNLayer(HybridBlock):
    """Stacked layers, called as ``output = layer(x)`` or ``output, states = layer(x, states)``.

    Inputs and outputs are (time, batch, channels), or (batch, time, channels) with the layout ``"NTC"``; each state is
    (layers * directions, batch, units). If no states are passed, they begin at zero, and only the output is returned.
    Without ``input_size``, the number of inputs is inferred at the first call.
    """

    states: ClassVar[int] = 1

    def __init__(
        self, mode: str, hidden_size: int, num_layers: int, layout: str, dropout: float, bidirectional: bool,
        input_size: int, initializers: dict[str, Any], dtype: Any, projection_size: int | None = None,
        clip: tuple[float | None, float | None, bool] = (None, None, False), use_sequence_length: bool = False,
        **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        if layout not in ("TNC", "NTC"):
            name = type(self).__name__
            raise ArgumentError(
                f"{name}: layout is {layout!r}, expected 'TNC' or 'NTC'; the arguments are {name}(hidden_size, "
                "num_layers, ...), and input_size is inferred at the first call"
            )
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
                    self._register_param(f"{direction}{layer}_{kind}", shape, self._initializers[kind], self._dtype)
            inputs = outputs * self._dir

    def _register_param(self, name: str, shape: tuple[int, ...], init: Any, dtype: DTypeLike) -> Any:
        """Create a parameter, and set it as an attribute of the same name."""
        param = self.params.get(name, shape=shape, init=init, allow_deferred_init=True, dtype=dtype)
        setattr(self, name, param)
        return param

    def __repr__(self) -> str:
        rows, inputs = self._reg_params["l0_i2h_weight"].shape or (0, 0)
        parts = [f"{inputs or None} -> {rows // self._gates}", self._layout]
        parts += [f"num_layers={self._num_layers}"] if self._num_layers != 1 else []
        parts += [f"dropout={self._dropout}"] if self._dropout else []
        parts += ["bidirectional"] if self._dir == 2 else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Any]:
        """Return the parameters by the names of the equivalent cells, so that both can load the same files."""
        prefix = f"{prefix}." if prefix else ""
        params = {}
        for key, param in self._reg_params.items():
            match = _PARAMETER.match(key)
            assert match is not None
            direction, layer, source, kind = match.groups()
            cell = f"{direction}_cell." if self._dir == 2 else ""
            params[f"{prefix}_unfused.{layer}.{cell}{source}_{kind}"] = param
        return params

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the parameters, and of initial states."""
        super().cast(dtype)
        self._dtype = dtype

    # -- states ----------------------------------------------------------------------------------------

    def state_info(self, batch_size: int = 0) -> list[StateInfo]:
        """Return the shape, layout and dtype of each state."""
        lengths = [self._projection_size or self._hidden_size, self._hidden_size][: self.states]
        rows = self._num_layers * self._dir
        return [{"shape": (rows, batch_size, length), "__layout__": "LNC", "dtype": self._dtype} for length in lengths]

    @overload
    def begin_state(self, batch_size: int = 0, *, func: Callable[..., A], **kwargs: Any) -> list[A]: ...

    @overload
    def begin_state(self, batch_size: int = 0, **kwargs: Any) -> list[NDArray]: ...

    def begin_state(self, batch_size: int = 0, func: Callable[..., object] = nd.zeros, **kwargs: Any) -> list[Any]:
        """Return the initial states.

        Args:
            batch_size: the number of samples.
            func: makes an array or a symbol with a shape, such as ``mx.nd.zeros`` or ``mx.sym.zeros``.
            **kwargs: further arguments of ``func``, such as ``ctx``.
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
        shapes = [state.shape for state in states]
        if shapes != expected:
            raise ValueError(f"{type(self).__name__} {self.name!r}: states have shapes {shapes}, expected {expected}")

    # -- calling ---------------------------------------------------------------------------------------

    @overload
    def __call__(self, inputs: A, states: None = None, sequence_length: A | None = None) -> A: ...

    @overload
    def __call__(self, inputs: A, states: A | Sequence[A], sequence_length: A | None = None) -> tuple[A, list[A]]: ...

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """Return the output; with ``states``, also the last states.

        Args:
            inputs: the sequences.
            states: the initial states: a list, or a single state.
            sequence_length: with ``use_sequence_length``: the length of each sequence, shape (batch,).

        Raises:
            ValueError: the states have wrong shapes; or lengths are missing or superfluous for ``use_sequence_length``.
        """
        if (sequence_length is not None) != self._use_sequence_length:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: sequence_length is {'' if self._use_sequence_length else 'not '}"
                f"expected, because use_sequence_length is {self._use_sequence_length}"
            )
        state_list = [states] if isinstance(states, (NDArray, Symbol)) else states
        if sequence_length is not None:
            return super().__call__(inputs, state_list, sequence_length)
        return super().__call__(inputs) if state_list is None else super().__call__(inputs, list(state_list))

    def hybrid_forward(
        self, F: Functions, inputs: Tensor, states: Any = None, sequence_length: Tensor | None = None, **params: Any
    ) -> Any:
        initial = self._zero_states(inputs) if states is None else list(states)
        if len(initial) != self.states:
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the number of states is {len(initial)}, expected {self.states}, "
                "as begin_state(batch_size) returns them"
            )
        if isinstance(inputs, NDArray):
            self._check(inputs, initial)
        output, last = self._forward_kernel(F, inputs, initial, sequence_length, **params)
        return output if states is None else (output, last)

    def _forward_kernel(
        self, F: Functions, inputs: Tensor, states: Sequence[object], sequence_length: Tensor | None, **params: Any
    ) -> Unrolled:
        """Compute the outputs and the last states."""
        data = F.swapaxes(inputs, 0, 1) if self._layout == "NTC" else inputs
        vector = F._internal._rnn_param_concat(*(params[name].reshape(-1) for name in self._packed_names()), dim=0)
        lengths = [] if sequence_length is None else [sequence_length]
        low, high, nan = self._clip
        output, *last = F.RNN(
            data, vector, *states, *lengths, use_sequence_length=self._use_sequence_length,
            state_size=self._hidden_size, projection_size=self._projection_size, num_layers=self._num_layers,
            bidirectional=self._dir == 2, p=self._dropout, state_outputs=True, mode=self._mode,
            lstm_state_clip_min=low, lstm_state_clip_max=high, lstm_state_clip_nan=nan,
        )  # fmt: skip
        return (F.swapaxes(output, 0, 1) if self._layout == "NTC" else output), last

    def _packed_names(self) -> Iterator[str]:
        """Iterate over the parameters' names in the order of the operator's vector: all weights, then all biases."""
        groups = ("i2h", "h2h", "h2r") if self._projection_size else ("i2h", "h2h")
        for kind in ("weight", "bias"):
            for layer in range(self._num_layers):
                for direction in "lr"[: self._dir]:
                    yield from (f"{direction}{layer}_{g}_{kind}" for g in groups if (g, kind) != ("h2r", "bias"))

    # -- conversion to cells ---------------------------------------------------------------------------

    def _unfuse(self) -> HybridSequentialRNNCell:
        """Return an equivalent stack of cells with the same parameters.

        Raises:
            ValueError: the layer projects or clips, which cells do not support.
        """
        if self._projection_size or self._clip[:2] != (None, None):
            raise ValueError(f"{type(self).__name__} {self.name!r}: a layer that projects or clips cannot be unfused")
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
        options = {f"{kind}_initializer": init for kind, init in self._initializers.items() if kind != "h2r_weight"}
        options |= {"prefix": prefix, "input_size": input_size}
        if self._mode == "lstm":
            return LSTMCell(self._hidden_size, **options)
        if self._mode == "gru":
            return GRUCell(self._hidden_size, **options)
        return RNNCell(self._hidden_size, activation=self._mode.removeprefix("rnn_"), **options)


class RNN(_RNNLayer):
    """Elman RNN layers: ``h = activation(W x + b + R h' + c)``.

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        activation: ``"relu"`` or ``"tanh"``.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: the fraction of the outputs between layers that is dropped in training.
        bidirectional: process the sequence in both directions, and concatenate the outputs.
        i2h_weight_initializer: the initializer of the inputs' weights.
        h2h_weight_initializer: the initializer of the states' weights.
        i2h_bias_initializer: the initializer of the inputs' biases.
        h2h_bias_initializer: the initializer of the states' biases.
        input_size: the number of inputs (default: inferred at the first call).
        dtype: the element type of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.

    Example:
        >>> layer = mx.gluon.rnn.RNN(100, 3)
        >>> layer.initialize()
        >>> output = layer(mx.nd.ones((5, 3, 10)))
        >>> output, states = layer(mx.nd.ones((5, 3, 10)), layer.begin_state(batch_size=3))
    """

    def __init__(
        self, hidden_size: int, num_layers: int = 1, activation: str = "relu", layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None,
        i2h_bias_initializer: InitializerLike = "zeros", h2h_bias_initializer: InitializerLike = "zeros",
        input_size: int = 0,
        dtype: DTypeLike = "float32", **kwargs: Unpack[BlockOptions],
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
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); the states are the outputs and the cell states.

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: the fraction of the outputs between layers that is dropped in training.
        bidirectional: process the sequence in both directions, and concatenate the outputs.
        input_size: the number of inputs (default: inferred at the first call).
        i2h_weight_initializer: the initializer of the inputs' weights.
        h2h_weight_initializer: the initializer of the states' weights.
        i2h_bias_initializer: the initializer of the inputs' biases.
        h2h_bias_initializer: the initializer of the states' biases.
        projection_size: project outputs to this length (Sak et al., 2014).
        h2r_weight_initializer: the initializer of the projections' weights.
        state_clip_min: the lower bound of the cell states; set both bounds or neither.
        state_clip_max: the upper bound of the cell states.
        state_clip_nan: clip NaN too.
        dtype: the element type of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.
    """

    states = 2

    def __init__(
        self, hidden_size: int, num_layers: int = 1, layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, input_size: int = 0, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, i2h_bias_initializer: InitializerLike = "zeros",
        h2h_bias_initializer: InitializerLike = "zeros",
        projection_size: int | None = None, h2r_weight_initializer: InitializerLike = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None, state_clip_nan: bool = False, dtype: DTypeLike = "float32",
        **kwargs: Unpack[BlockOptions],
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
    """Gated recurrent units in cuDNN's form (Cho et al., 2014).

    Args:
        hidden_size: the number of units.
        num_layers: the number of layers.
        layout: ``"TNC"`` or ``"NTC"``: time, batch, channels.
        dropout: the fraction of the outputs between layers that is dropped in training.
        bidirectional: process the sequence in both directions, and concatenate the outputs.
        input_size: the number of inputs (default: inferred at the first call).
        i2h_weight_initializer: the initializer of the inputs' weights.
        h2h_weight_initializer: the initializer of the states' weights.
        i2h_bias_initializer: the initializer of the inputs' biases.
        h2h_bias_initializer: the initializer of the states' biases.
        dtype: the element type of the parameters and states.
        **kwargs: ``prefix``, ``params`` and ``use_sequence_length``.
    """

    def __init__(
        self, hidden_size: int, num_layers: int = 1, layout: str = "TNC", dropout: float = 0,
        bidirectional: bool = False, input_size: int = 0, i2h_weight_initializer: InitializerLike = None,
        h2h_weight_initializer: InitializerLike = None, i2h_bias_initializer: InitializerLike = "zeros",
        h2h_bias_initializer: InitializerLike = "zeros",
        dtype: DTypeLike = "float32", **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        initializers = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer,
        }  # fmt: skip
        super().__init__(
            "gru", hidden_size, num_layers, layout, dropout, bidirectional, input_size, initializers, dtype, **kwargs
        )
