"""The networks whose memory is measured, as symbols of flowmx or MXNet, with the shapes of their inputs.

Image networks take 224x224 images. The language model is a two-layer LSTM unrolled over 35 steps, 512 wide, with
10,000 words; the Transformer block is 512 wide, with 8 heads and 128 tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import networks  # a module of this folder: the peers cannot import the package
import transformer

HIDDEN, STEPS, WORDS, LAYERS = 512, 35, 10000, 2
WIDTH, HEADS, TOKENS = 512, 8, 128


class Model(NamedTuple):
    """A symbol, and the shapes of the inputs that are not parameters."""

    symbol: Any
    inputs: dict[str, tuple[int, ...]]

    def requests(self, grad_req: str) -> dict[str, str]:
        """Return the gradient request of each argument: "null" for inputs, `grad_req` for parameters."""
        return {name: "null" if name in self.inputs else grad_req for name in self.symbol.list_arguments()}


NAMES = [*networks.NETWORKS, "lstm", "transformer"]


def model(mx: Any, name: str, batch: int = 64, size: int = 224) -> Model:
    """Return a network by name.

    Args:
        mx: flowmx or MXNet.
        name: one of ``NAMES``.
        batch: the number of images or sequences.
        size: the images' height and width.
    """
    if name == "lstm":
        return language_model(mx, batch)
    if name == "transformer":
        return transformer_block(mx, batch)
    symbol = networks.symbol(mx, networks.NETWORKS[name])
    return Model(symbol, {"data": (batch, 3, size, size), "softmax_label": (batch,)})


def language_model(mx: Any, batch: int, steps: int = STEPS, hidden: int = HIDDEN, words: int = WORDS) -> Model:
    """The language model: its cells are products, slices and activations, with the same weights at each step."""
    sym, states = mx.sym, {}
    weights = {
        f"l{layer}_{each}": sym.Variable(f"l{layer}_{each}")
        for layer in range(LAYERS) for each in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
    }  # fmt: skip
    for layer in range(LAYERS):
        for state in ("c", "h"):
            states[f"l{layer}_init_{state}"] = (batch, hidden)
    state = {name: sym.Variable(name) for name in states}

    def cell(x: Any, layer: int, step: int) -> Any:
        def product(x: Any, name: str) -> Any:
            weight, bias = weights[f"l{layer}_{name}_weight"], weights[f"l{layer}_{name}_bias"]
            return sym.FullyConnected(x, weight, bias, num_hidden=4 * hidden, name=f"t{step}_l{layer}_{name}")

        gates = product(x, "i2h") + product(state[f"l{layer}_init_h"], "h2h")
        enter, new, forget, leave = sym.SliceChannel(gates, num_outputs=4, name=f"t{step}_l{layer}_slice")
        cell_state = sym.sigmoid(forget) * state[f"l{layer}_init_c"] + sym.sigmoid(enter) * sym.tanh(new)
        state[f"l{layer}_init_c"] = cell_state
        state[f"l{layer}_init_h"] = sym.sigmoid(leave) * sym.tanh(cell_state)
        return state[f"l{layer}_init_h"]

    embedded = sym.Embedding(sym.Variable("data"), input_dim=words, output_dim=hidden, name="embed")
    outputs = []
    for step, x in enumerate(sym.SliceChannel(embedded, num_outputs=steps, axis=0, squeeze_axis=1, name="words")):
        for layer in range(LAYERS):
            x = cell(x, layer, step)
        outputs.append(x)
    x = sym.FullyConnected(sym.Concat(*outputs, dim=0), num_hidden=words, name="decode")
    net = sym.SoftmaxOutput(x, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")
    return Model(net, {"data": (steps, batch), "softmax_label": (steps, batch), **states})


def transformer_block(mx: Any, batch: int, tokens: int = TOKENS, width: int = WIDTH, heads: int = HEADS) -> Model:
    """A pre-norm Transformer block."""
    weights = {name: mx.sym.Variable(name) for name in transformer.shapes(width)}
    net = transformer.block(mx.sym, mx.sym.Variable("data"), weights, width, heads, tokens, batch)
    return Model(net, {"data": (batch, tokens, width)})
