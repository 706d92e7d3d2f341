"""Recurrent layers. MXNet's operator is a stack of layers with one parameter vector; ONNX has one node per layer."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.recurrent.layout import Weights
from flowmx.ops.registry.operators import Array
from flowmx.symbol import Symbol

KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
# The position of ONNX's gates in MXNet: input, output, forget, cell; update, reset, hidden.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


def _reorder(array: Array, order: tuple[int, ...]) -> Array:
    """Reorder the gates (first axis)."""
    return np.concatenate([np.split(array, len(order))[index] for index in order])


@exports("RNN")
def _rnn(n: NodeExport) -> list[str]:
    op = n.op
    if op.projection_size is not None:
        raise Unsupported(f"its projection_size is {op.projection_size}, expected None")
    if op.lstm_state_clip_min is not None:
        raise Unsupported("it clips its cells, expected lstm_state_clip_min to be None")
    features = n.fixed(n.dims()[2], "the number of features")
    layers = op.layout.unpack(n.content(1), features)
    lengths = n.add("Cast", n.inputs[-1], to=6) if op.use_sequence_length else ""
    x, states = n.inputs[0], []
    for index, layer in enumerate(layers):
        x, *last = _layer(n, x, index, layer, lengths)
        states.append(last)
    if not op.state_outputs:
        return [x]
    joined = [state[0] if len(state) == 1 else n.add("Concat", *state, axis=0) for state in zip(*states, strict=True)]
    return [x, *joined]


def _layer(n: NodeExport, x: str, index: int, layer: list[Weights], lengths: str) -> list[str]:
    """Export a layer. Return its output, (time, batch, directions·units), and its last states."""
    op, order, directions = n.op, GATES[n.op.mode], len(layer)
    weight, recurrent = (
        np.stack([_reorder(getattr(weights, name), order) for weights in layer]) for name in ("input", "recurrent")
    )
    bias = np.stack([
        np.concatenate([_reorder(weights.input_bias, order), _reorder(weights.recurrent_bias, order)])
        for weights in layer
    ])  # fmt: skip
    constants = [
        n.own_constant(f"{n.inputs[1]}.{index}.{name}", array)
        for name, array in (("w", weight), ("r", recurrent), ("b", bias))
    ]
    begin = [_begin(n, position, index, directions) for position in ((2, 3) if op.mode == "lstm" else (2,))]
    activations = {"rnn_relu": ["Relu"], "rnn_tanh": ["Tanh"]}.get(op.mode)
    result, *last = n.add_many(
        KINDS[op.mode], 3 if op.mode == "lstm" else 2, x, *constants, lengths, *begin, hidden_size=op.state_size,
        direction="bidirectional" if op.bidirectional else None,
        linear_before_reset=1 if op.mode == "gru" else None,
        activations=activations and activations * directions,
    )  # fmt: skip
    if directions == 1:
        return [n.add("Squeeze", result, [1]), *last]
    return [n.add("Reshape", n.transpose(result, [0, 2, 1, 3]), [0, 0, directions * op.state_size]), *last]


def _begin(n: NodeExport, position: int, layer: int, directions: int) -> str:
    """Return the initial state of a layer, or "" for zeros."""
    if n.source(position) == "_zeros":
        return ""
    if n.op.num_layers == 1:
        return n.inputs[position]
    return n.slice(n.inputs[position], 0, layer * directions, (layer + 1) * directions)


# -- import -----------------------------------------------------------------------------------------------


@imports("LSTM", "GRU", "RNN")
def _import_rnn(n: NodeImport) -> list[Symbol]:
    mode = _mode(n)
    directions = 2 if n.attr("direction") == "bidirectional" else 1
    units = n.attr("hidden_size")
    backwards = n.attr("direction") == "reverse"
    x = n.symbol(0)
    lengths = n.symbol(4) if n.has(4) else None
    if backwards:
        x = _reverse(n, x, lengths)
    states = [_state(n, index, directions, units) for index in ((5, 6) if mode == "lstm" else (5,))]
    options: dict[str, object] = {"use_sequence_length": True} if lengths is not None else {}
    result, *last = n.make(
        "RNN", x, n.parameter(_parameters(n, mode), "parameters", n.source(1, 2, 3)), *states,
        *([] if lengths is None else [lengths]),
        mode=mode, state_size=units, num_layers=1, bidirectional=directions == 2, state_outputs=True, **options,
    )  # fmt: skip
    if backwards:
        result = _reverse(n, result, lengths)
    if directions == 1:
        return [n.make("expand_dims", result, axis=1), *last]
    split = n.make("Reshape", result, shape=(0, 0, directions, units))
    return [n.make("transpose", split, axes=(0, 2, 1, 3)), *last]


def _mode(n: NodeImport) -> str:
    """Return MXNet's name of the layer.

    Raises:
        Unsupported: it has attributes that MXNet's layers do not support.
    """
    n.expect("layout", 0)
    n.expect("clip", None)
    n.expect("input_forget", 0)
    if n.kind == "LSTM" and n.has(7) and n.array(7).any():
        raise Unsupported("it has peepholes, expected none")
    if n.kind == "GRU" and not n.attr("linear_before_reset", 0):
        raise Unsupported(
            "its linear_before_reset is 0, expected 1: MXNet's GRU applies the reset gate after the product"
        )
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}[n.kind]
    values = [name.decode().lower() for name in n.attr("activations", [])] or usual
    if n.kind == "RNN" and set(values) == {"relu"}:
        return "rnn_relu"
    if values != usual * (len(values) // len(usual)):
        raise Unsupported(f"its activations are {values}, expected {usual}")
    return {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[n.kind]


def _parameters(n: NodeImport, mode: str) -> Array:
    """Return the parameter vector: all weights, then all biases."""
    order = tuple(int(index) for index in np.argsort(GATES[mode]))
    weight, recurrent = n.array(1), n.array(2)
    rows = weight.shape[1]
    bias = n.array(3) if n.has(3) else np.zeros((len(weight), 2 * rows), weight.dtype)
    parts = [_reorder(matrix, order) for pair in zip(weight, recurrent, strict=True) for matrix in pair]
    parts += [_reorder(half, order) for vector in bias for half in (vector[:rows], vector[rows:])]
    return np.concatenate([part.reshape(-1) for part in parts])


def _state(n: NodeImport, index: int, directions: int, units: int) -> Symbol:
    if n.has(index) and not (
        n.is_known(index) and not n.known_value(index).trials[0].any() and not n.known_value(index).trials[1].any()
    ):
        return n.symbol(index)
    return n.make("_zeros", shape=(directions, 0, units))


def _reverse(n: NodeImport, x: Symbol, lengths: Symbol | None) -> Symbol:
    if lengths is None:
        return n.make("reverse", x, axis=0)
    return n.make("SequenceReverse", x, lengths, use_sequence_length=True)
