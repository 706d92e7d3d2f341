"""Recurrent layers. MXNet's operator is a stack of layers in one vector of parameters; ONNX has a node a layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.import_constants import Array
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.recurrent.layout import Weights
from flowmx.symbol import Symbol

KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
# Where each of ONNX's gates stands among MXNet's: input, output, forget, cell; update, reset, hidden.
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


def _reordered(array: Array, order: tuple[int, ...]) -> Array:
    """The gates (first axis) in another order."""
    return np.concatenate([np.split(array, len(order))[at] for at in order])


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
    for at, layer in enumerate(layers):
        x, *last = _layer(n, x, at, layer, lengths)
        states.append(last)
    if not op.state_outputs:
        return [x]
    joined = [each[0] if len(each) == 1 else n.add("Concat", *each, axis=0) for each in zip(*states, strict=True)]
    return [x, *joined]


def _layer(n: NodeExport, x: str, at: int, layer: list[Weights], lengths: str) -> list[str]:
    """One layer: its output as (time, batch, directions·units), and its last states."""
    op, order, directions = n.op, GATES[n.op.mode], len(layer)
    weight, recurrent = (
        np.stack([_reordered(getattr(each, name), order) for each in layer]) for name in ("input", "recurrent")
    )
    bias = np.stack([
        np.concatenate([_reordered(each.input_bias, order), _reordered(each.recurrent_bias, order)]) for each in layer
    ])  # fmt: skip
    stored = [
        n.own(f"{n.inputs[1]}.{at}.{name}", array) for name, array in (("w", weight), ("r", recurrent), ("b", bias))
    ]
    begin = [_begin(n, position, at, directions) for position in ((2, 3) if op.mode == "lstm" else (2,))]
    activations = {"rnn_relu": ["Relu"], "rnn_tanh": ["Tanh"]}.get(op.mode)
    made, *last = n.add_many(
        KINDS[op.mode], 3 if op.mode == "lstm" else 2, x, *stored, lengths, *begin, hidden_size=op.state_size,
        direction="bidirectional" if op.bidirectional else None,
        linear_before_reset=1 if op.mode == "gru" else None,
        activations=activations and activations * directions,
    )  # fmt: skip
    if directions == 1:
        return [n.add("Squeeze", made, [1]), *last]
    return [n.add("Reshape", n.transpose(made, [0, 2, 1, 3]), [0, 0, directions * op.state_size]), *last]


def _begin(n: NodeExport, position: int, layer: int, directions: int) -> str:
    """A layer's first state; none where it is 0 anyway."""
    if n.source(position) == "_zeros":
        return ""
    if n.op.num_layers == 1:
        return n.inputs[position]
    return n.slice(n.inputs[position], 0, layer * directions, (layer + 1) * directions)


# -- reading -----------------------------------------------------------------------------------------------


@imports("LSTM", "GRU", "RNN")
def _import_rnn(n: NodeImport) -> list[Symbol]:
    mode = _mode(n)
    directions = 2 if n.attr("direction") == "bidirectional" else 1
    units = n.attr("hidden_size")
    backwards = n.attr("direction") == "reverse"
    x = n.symbol(0)
    lengths = n.symbol(4) if n.has(4) else None
    if backwards:
        x = _reversed(n, x, lengths)
    states = [_state(n, at, directions, units) for at in ((5, 6) if mode == "lstm" else (5,))]
    more: dict[str, Any] = {"use_sequence_length": True} if lengths is not None else {}
    made, *last = n.make(
        "RNN", x, n.parameter(_packed(n, mode), "parameters"), *states, *([] if lengths is None else [lengths]),
        mode=mode, state_size=units, num_layers=1, bidirectional=directions == 2, state_outputs=True, **more,
    )  # fmt: skip
    if backwards:
        made = _reversed(n, made, lengths)
    if directions == 1:
        return [n.make("expand_dims", made, axis=1), *last]
    split = n.make("Reshape", made, shape=(0, 0, directions, units))
    return [n.make("transpose", split, axes=(0, 2, 1, 3)), *last]


def _mode(n: NodeImport) -> str:
    """MXNet's name of the layer.

    Raises:
        Unsupported: it has attributes that MXNet's layers have not.
    """
    n.expect("layout", 0)
    n.expect("clip", None)
    n.expect("input_forget", 0)
    if n.kind == "LSTM" and n.has(7) and n.array(7).any():
        raise Unsupported("it has peepholes, expected none")
    if n.kind == "GRU" and not n.attr("linear_before_reset", 0):
        raise Unsupported("its linear_before_reset is 0, expected 1: MXNet's GRU has the reset gate after the product")
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}[n.kind]
    given = [each.decode().lower() for each in n.attr("activations", [])] or usual
    if n.kind == "RNN" and set(given) == {"relu"}:
        return "rnn_relu"
    if given != usual * (len(given) // len(usual)):
        raise Unsupported(f"its activations are {given}, expected {usual}")
    return {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[n.kind]


def _packed(n: NodeImport, mode: str) -> Array:
    """The parameters in one vector: all weights, then all biases."""
    order = tuple(int(at) for at in np.argsort(GATES[mode]))
    weight, recurrent = n.array(1), n.array(2)
    rows = weight.shape[1]
    bias = n.array(3) if n.has(3) else np.zeros((len(weight), 2 * rows), weight.dtype)
    parts = [_reordered(each, order) for pair in zip(weight, recurrent, strict=True) for each in pair]
    parts += [_reordered(half, order) for each in bias for half in (each[:rows], each[rows:])]
    return np.concatenate([part.reshape(-1) for part in parts])


def _state(n: NodeImport, at: int, directions: int, units: int) -> Symbol:
    if n.has(at) and not (n.is_known(at) and not n.known(at).trials[0].any() and not n.known(at).trials[1].any()):
        return n.symbol(at)
    return n.make("_zeros", shape=(directions, 0, units))


def _reversed(n: NodeImport, x: Symbol, lengths: Symbol | None) -> Symbol:
    if lengths is None:
        return n.make("reverse", x, axis=0)
    return n.make("SequenceReverse", x, lengths, use_sequence_length=True)
