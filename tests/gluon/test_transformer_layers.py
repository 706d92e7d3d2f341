"""Transformer layers and stacks: formulas, caches, modes, dtypes, training, ONNX, errors."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn

BATCH, LENGTH, UNITS, HEADS = 2, 5, 8, 2
TRIANGLE = np.tri(LENGTH)[None]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def ready(layer, dtype="float64"):
    mx.random.seed(0)
    layer.initialize(mx.init.Normal(0.4))
    layer.cast(dtype)
    return layer


def arrays(*values):
    return [mx.nd.array(value, dtype="float64") for value in values]


def dense(layer, x):
    return x @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()


def attend(layer, x, memory, visible):
    q, k, v = (
        dense(child, data).reshape(*data.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
        for child, data in ((layer.query, x), (layer.key, memory), (layer.value, memory))
    )
    weights = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(UNITS // HEADS)) * visible
    weights /= weights.sum(axis=-1, keepdims=True)
    return dense(layer.out, (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))


def normalize(layer, x):
    centered = x - x.mean(axis=-1, keepdims=True)
    hat = centered / np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + 1e-5)
    return hat * layer.gamma.data().asnumpy() + layer.beta.data().asnumpy()


def reference(layer, x, visible, memory=None, memory_visible=None, pre_norm=False):
    """Compute the formula of the paper for a layer with a ReLU."""
    parts = [lambda x: attend(layer.attention, x, x, visible)]
    if memory is not None:
        parts.append(lambda x: attend(layer.cross_attention, x, memory, memory_visible))
    parts.append(lambda x: dense(layer.narrow, np.maximum(dense(layer.widen, x), 0)))
    for part, norm in zip(parts, layer.norms, strict=True):
        x = x + part(normalize(norm, x)) if pre_norm else normalize(norm, x + part(x))
    return x


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_layers_compute_the_formula_of_the_paper(pre_norm, hybridized):
    encoder = ready(nn.TransformerEncoderLayer(UNITS, HEADS, 16, pre_norm=pre_norm))
    decoder = ready(nn.TransformerDecoderLayer(UNITS, HEADS, 16, pre_norm=pre_norm))
    encoder.hybridize(hybridized)
    decoder.hybridize(hybridized)
    x, memory = normal(BATCH, LENGTH, UNITS), normal(BATCH, 3, UNITS, seed=1)
    padding, hidden = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]), np.array([[1, 1, 0], [1, 1, 1]])
    data, other, shown, rest = arrays(x, memory, padding, hidden)
    encoder(data), decoder(data, other)
    out = encoder(data, padding=shown)
    expected = reference(encoder, x, padding[:, None, None], pre_norm=pre_norm)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-8)
    out = decoder(data, other, memory_padding=rest)
    expected = reference(decoder, x, TRIANGLE, memory, hidden[:, None, None], pre_norm)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-8)


def test_stacks_are_their_layers_in_order():
    encoder = ready(nn.TransformerEncoder(2, UNITS, HEADS, pre_norm=True))
    decoder = ready(nn.TransformerDecoder(2, UNITS, HEADS))
    x, memory = arrays(normal(BATCH, LENGTH, UNITS), normal(BATCH, 3, UNITS, seed=1))
    expected = encoder.norm(encoder.layers[1](encoder.layers[0](x)))
    np.testing.assert_allclose(encoder(x).asnumpy(), expected.asnumpy(), rtol=1e-12)
    expected = decoder.layers[1](decoder.layers[0](x, memory), memory)
    np.testing.assert_allclose(decoder(x, memory).asnumpy(), expected.asnumpy(), rtol=1e-12)
    assert decoder.norm is None


@pytest.mark.parametrize("hybridized", [False, True])
def test_step_wise_decoding_returns_the_same(hybridized):
    options = {"pre_norm": True, "norm": "rms", "activation": "swiglu", "rotary": True}
    nets = [nn.TransformerEncoder(2, UNITS, HEADS, causal=True, **options), nn.TransformerDecoder(2, UNITS, HEADS)]
    x, memory = arrays(normal(BATCH, LENGTH, UNITS), normal(BATCH, 3, UNITS, seed=1))
    for net, others in zip(nets, ((), (memory,)), strict=True):
        expected = ready(net)(x, *others).asnumpy()
        net.hybridize(hybridized)
        cache, steps = net.begin_cache(BATCH, LENGTH), []
        for start, stop in [(0, 2), (2, 3), (3, 4), (4, 5)]:
            out, cache = net(x[:, start:stop], *others, cache=cache)
            steps.append(out)
        np.testing.assert_allclose(mx.nd.concat(*steps, dim=1).asnumpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "glu", "swiglu", "geglu"])
def test_activations_in_every_dtype(activation):
    layer = ready(nn.TransformerEncoderLayer(UNITS, HEADS, 6, activation=activation, norm="rms", use_bias=False))
    x = normal(BATCH, LENGTH, UNITS)
    expected = layer(*arrays(x)).asnumpy()
    for dtype, atol in [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 2e-1)]:
        layer.cast(dtype)
        for hybridized in (False, True):
            layer.hybridize(hybridized)
            out = layer(mx.nd.array(x, dtype=dtype))
            np.testing.assert_allclose(out.astype("float64").asnumpy(), expected, rtol=atol, atol=atol)
        layer.hybridize(False)


def test_rates_of_dropout_are_independent():
    layer = nn.TransformerEncoderLayer(UNITS, HEADS, 6, dropout=0.1, attention_dropout=0.2, hidden_dropout=0.0)
    assert (layer.dropout._rate, layer.attention.dropout._rate, layer.hidden_dropout._rate) == (0.1, 0.2, 0.0)
    layer = ready(nn.TransformerEncoderLayer(UNITS, HEADS, 6, dropout=0.0, attention_dropout=0.5))
    x = mx.nd.array(normal(BATCH, LENGTH, UNITS), dtype="float64")
    with mx.autograd.record():
        trained = layer(x)
    assert np.abs(trained.asnumpy() - layer(x).asnumpy()).max() > 1e-3


def test_all_parameters_learn():
    net = ready(nn.TransformerDecoder(1, UNITS, HEADS, 16, dropout=0.0, activation="geglu"), "float32")
    x, memory = mx.nd.array(normal(BATCH, LENGTH, UNITS)), mx.nd.array(normal(BATCH, 3, UNITS, seed=1))
    target = mx.nd.array(normal(BATCH, LENGTH, UNITS, seed=2))
    net(x, memory)
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses = []
    for _ in range(8):
        with mx.autograd.record():
            loss = mx.nd.square(net(x, memory) - target).mean()
        loss.backward()
        trainer.step(1)
        losses.append(loss.asscalar())
    assert losses[-1] < 0.9 * losses[0]
    for name, param in net.collect_params().items():
        if not name.endswith("key_bias"):  # softmax does not depend on it
            assert np.abs(param.data().asnumpy() - before[name]).max() > 1e-3, name


def test_onnx_and_symbol_files_compute_the_same(tmp_path):
    options = {"pre_norm": True, "activation": "gelu", "causal": True}
    net = ready(nn.TransformerEncoder(2, UNITS, HEADS, 16, **options), "float32")
    net.hybridize()
    x = mx.nd.array(normal(BATCH, LENGTH, UNITS))
    expected = net(x).asnumpy()
    symbol, params = net.export(str(tmp_path / "net"))
    imported = mx.gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(imported(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(symbol, params, [x.shape], [np.float32], path)
    read = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    np.testing.assert_allclose(read(x).asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_parameters_survive_a_file(tmp_path):
    path = str(tmp_path / "net.params")
    x = mx.nd.array(normal(BATCH, LENGTH, UNITS))
    net = ready(nn.TransformerEncoder(2, UNITS, HEADS), "float32")
    expected = net(x).asnumpy()
    net.save_parameters(path)
    other = nn.TransformerEncoder(2, UNITS, HEADS)
    other.load_parameters(path)
    np.testing.assert_array_equal(other(x).asnumpy(), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.TransformerEncoderLayer(8, 2, activation="mish"), "activation is 'mish', expected one of 'relu'"),
        (lambda: nn.TransformerEncoderLayer(8, 2, norm="batch"), "norm is 'batch', expected 'layer' or 'rms'"),
        (lambda: nn.TransformerDecoderLayer(8, 2, hidden_units=0), "hidden_units is 0, expected 1 or more"),
        (lambda: nn.TransformerDecoder(0, 8, 2), "num_layers is 0, expected 1 or more"),
        (lambda: nn.TransformerEncoder(1, 8, 3), "units is 8 and num_heads 3"),
        (lambda: ready(nn.TransformerEncoderLayer(8, 2))(mx.nd.ones((5, 8))), "query has shape"),
    ],
)
def test_errors_of_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_arguments():
    x = mx.nd.ones((1, 2, 8))
    with pytest.raises(TypeError, match="'memory' is missing, expected the arguments x, memory, mask"):
        nn.TransformerDecoderLayer(8, 2)(x)
    with pytest.raises(TypeError, match="'tgt_mask' is unknown or passed twice"):
        nn.TransformerEncoder(1, 8, 2)(x, tgt_mask=x)
