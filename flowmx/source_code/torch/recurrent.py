"""PyTorch's code of recurrent layers and of attention on interleaved arrays."""

from __future__ import annotations

from flowmx.ops.recurrent.layout import Layout
from flowmx.ops.registry.operators import Array
from flowmx.source_code.description import Layer, State, Transform, Unsupported
from flowmx.source_code.reading import Code, Row, Site

__all__ = ["ROWS"]

_KINDS = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn_tanh": "nn.RNN", "rnn_relu": "nn.RNN"}
_NAMES = {
    "weight_ih": "input", "weight_hh": "recurrent", "bias_ih": "input_bias", "bias_hh": "recurrent_bias",
    "weight_hr": "projection",
}  # fmt: skip
"""The arrays of a layer in PyTorch and in MXNet's parameter vector; the gates are in the same order."""


def _rnn(n: Site) -> Code:
    op = n.op
    if op.lstm_state_clip_min is not None:
        raise Unsupported("it clips its cells, expected lstm_state_clip_min to be None")
    if op.use_sequence_length:
        raise Unsupported("it reads the lengths of sequences, expected use_sequence_length to be False")
    features = n.fixed(n.dims()[2], "the number of features")
    arguments = {
        "input_size": features, "hidden_size": op.state_size, "num_layers": op.num_layers,
        "bidirectional": op.bidirectional, "dropout": float(op.p) if op.num_layers > 1 else 0.0,
        "proj_size": op.projection_size or 0, "nonlinearity": "relu" if op.mode == "rnn_relu" else "tanh",
    }  # fmt: skip
    defaults = {"num_layers": 1, "bidirectional": False, "dropout": 0.0, "proj_size": 0, "nonlinearity": "tanh"}
    layer = Layer(_KINDS[op.mode], arguments, 2, defaults, _state(n, features), title=op.mode[:4].rstrip("_"))
    states = [] if n.source(2) == "_zeros" else ["{2}", "{3}"][: 2 if op.mode == "lstm" else 1]
    begin = f", ({', '.join(states)})" if len(states) > 1 else "".join(f", {state}" for state in states)
    call = f"{{layer}}({{0}}{begin})"
    if not op.state_outputs or not any(n.uses(index) for index in range(1, op.visible_outputs())):
        return Code(f"{call}[0]", {"layer": layer})
    if op.mode == "lstm":
        return Code(f"lstm_outputs(*{call})", {"layer": layer}, helpers=("lstm_outputs",), outputs=(0, 1, 2))
    return Code(call, {"layer": layer}, outputs=(0, 1))


def _state(n: Site, features: int) -> dict[str, State]:
    sources, vector = n.folded(1)
    layout: Layout = n.op.layout
    state = {}
    for index in range(layout.layers):
        for direction in range(layout.directions):
            suffix = f"_l{index}{'_reverse' if direction else ''}"
            for name, part in _NAMES.items():
                if part != "projection" or n.op.projection_size:
                    state[name + suffix] = State(sources, _part(vector, layout, features, (index, direction), part))
    return state


def _part(vector: Transform, layout: Layout, features: int, place: tuple[int, int], name: str) -> Transform:
    """Return the function that cuts an array out of the parameter vector."""

    def cut(*arrays: Array) -> Array:
        array: Array = getattr(layout.unpack(vector(*arrays), features)[place[0]][place[1]], name)
        return array

    return cut


# -- attention -------------------------------------------------------------------------------------------------------


def _interleaved(text: str) -> Row:
    def row(n: Site) -> Code:
        name = text.partition("(")[0]
        return Code(text, constants={"heads": n.op.heads}, helpers=(name,))

    return row


ROWS: dict[str, Row] = {
    "RNN": _rnn,
    "_contrib_interleaved_matmul_selfatt_qk": _interleaved("attention_scores({0}, {heads})"),
    "_contrib_interleaved_matmul_selfatt_valatt": _interleaved("attention_sums({0}, {1}, {heads})"),
    "_contrib_interleaved_matmul_encdec_qk": _interleaved("cross_attention_scores({0}, {1}, {heads})"),
    "_contrib_interleaved_matmul_encdec_valatt": _interleaved("cross_attention_sums({0}, {1}, {heads})"),
}
"""Recurrent layers and attention."""
