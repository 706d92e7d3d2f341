"""The networks of ``prediction.py`` that are not in flowmx's model zoo, as symbols, and their data.

``prediction_peers.py`` has them as PyTorch modules.
"""

from __future__ import annotations

from typing import Any

EFFICIENTNET = [
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
]  # fmt: skip
"""The stages of EfficientNet-B0: expansion, channels, blocks, stride, kernel."""
BLOCKS, WIDTH, HEADS, TOKENS = 12, 768, 12, 128
"""The sizes of the encoder, BERT-base."""
STEPS, FEATURES, UNITS = 64, 256, 512
"""The sizes of the LSTM."""


def data_shape(network: str, batch: int) -> tuple[int, ...]:
    """Return the shape of a network's data."""
    if network == "encoder":
        return batch, TOKENS, WIDTH
    if network == "lstm":
        return STEPS, batch, FEATURES
    size = 299 if "inception" in network else 224
    return batch, 3, size, size


def build(mx: Any, network: str, batch: int) -> Any:
    """Return a network as a block."""
    symbols = {"efficientnet_b0": efficientnet, "encoder": encoder}
    if network in symbols:
        return mx.gluon.SymbolBlock(symbols[network](mx, batch), mx.sym.Variable("data"))
    if network == "lstm":
        return mx.gluon.rnn.LSTM(UNITS, num_layers=2, input_size=FEATURES)
    return getattr(mx.gluon.model_zoo.vision, network)()


def efficientnet(mx: Any, batch: int) -> Any:
    """Return EfficientNet-B0 as a symbol."""
    F = mx.sym

    def conv(x: Any, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
        pad = kernel // 2
        x = F.Convolution(
            x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), num_filter=filters, num_group=groups,
            no_bias=True,
        )  # fmt: skip
        return F.BatchNorm(x, fix_gamma=False, eps=1e-3)

    def swish(x: Any) -> Any:
        return x * F.sigmoid(x)

    x, inside = swish(conv(F.Variable("data"), 32, 3, 2)), 32
    for times, filters, count, stride, kernel in EFFICIENTNET:
        for number in range(count):
            wide = times * inside
            hidden = swish(conv(x, wide)) if times > 1 else x
            hidden = swish(conv(hidden, wide, kernel, 1 if number else stride, wide))
            mean = F.Pooling(hidden, global_pool=True, pool_type="avg", kernel=(1, 1))
            gate = swish(F.Convolution(mean, kernel=(1, 1), num_filter=max(1, inside // 4)))
            gate = F.sigmoid(F.Convolution(gate, kernel=(1, 1), num_filter=wide))
            hidden = conv(F.broadcast_mul(hidden, gate), filters)
            x = x + hidden if number else hidden
            inside = filters
    x = F.Pooling(swish(conv(x, 1280)), global_pool=True, pool_type="avg", kernel=(1, 1))
    return F.FullyConnected(x, num_hidden=1000)


def encoder(mx: Any, batch: int) -> Any:
    """Return the encoder of BERT-base, without its embedding, as a symbol."""
    F = mx.sym

    def linear(x: Any, name: str, units: int) -> Any:
        return F.FullyConnected(x, num_hidden=units, flatten=False, name=name)

    def norm(x: Any, name: str) -> Any:
        return F.LayerNorm(x, F.Variable(f"{name}_gamma"), F.Variable(f"{name}_beta"), eps=1e-5, name=name)

    def split_heads(x: Any) -> Any:
        x = F.transpose(F.Reshape(x, shape=(batch, TOKENS, HEADS, -1)), axes=(0, 2, 1, 3))
        return F.Reshape(x, shape=(batch * HEADS, TOKENS, -1))

    x = F.Variable("data")
    for at in range(BLOCKS):
        query, key, value = (split_heads(linear(x, f"{name}{at}", WIDTH)) for name in ("query", "key", "value"))
        scores = F.batch_dot(query, key, transpose_b=True) * (WIDTH // HEADS) ** -0.5
        mixed = F.Reshape(F.batch_dot(F.softmax(scores, axis=-1), value), shape=(batch, HEADS, TOKENS, -1))
        mixed = F.Reshape(F.transpose(mixed, axes=(0, 2, 1, 3)), shape=(batch, TOKENS, WIDTH))
        x = norm(x + linear(mixed, f"project{at}", WIDTH), f"norm{at}")
        hidden = F.LeakyReLU(linear(x, f"up{at}", 4 * WIDTH), act_type="gelu")
        x = norm(x + linear(hidden, f"down{at}", WIDTH), f"outer_norm{at}")
    return x
