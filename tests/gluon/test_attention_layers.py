"""Attention with several heads, and positions: formulas, masks, caches, modes, dtypes, ONNX, errors."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn

BATCH, LENGTH, UNITS, HEADS = 2, 5, 8, 2


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def attention(dtype="float64", **options):
    mx.random.seed(0)
    layer = nn.MultiHeadAttention(UNITS, HEADS, bias_initializer=mx.init.Normal(0.5), **options)
    layer.initialize(mx.init.Xavier(magnitude=6))
    layer.cast(dtype)
    return layer


def dense(layer, x):
    return x @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()


def reference(layer, query, key, value, visible=1, rotate=lambda x: x):
    """Compute the formula of the paper for arrays of NumPy; ``visible`` broadcasts to (batch, heads, query, key)."""
    q, k, v = (
        dense(child, x).reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
        for child, x in ((layer.query, query), (layer.key, key), (layer.value, value))
    )
    scores = rotate(q) @ rotate(k).swapaxes(2, 3) / np.sqrt(UNITS // HEADS)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * visible
    weights /= weights.sum(axis=-1, keepdims=True)
    return dense(layer.out, (weights @ v).transpose(0, 2, 1, 3).reshape(*query.shape[:2], UNITS))


def check(result, expected):
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-9, atol=1e-12)


def arrays(*values):
    return [mx.nd.array(value, dtype="float64") for value in values]


@pytest.mark.parametrize("hybridized", [False, True])
def test_query_key_and_value_are_separate(hybridized):
    layer = attention()
    layer.hybridize(hybridized)
    query, key, value = normal(BATCH, LENGTH, 6), normal(BATCH, 3, 4, seed=1), normal(BATCH, 3, 7, seed=2)
    out = layer(*arrays(query, key, value))
    check(out, reference(layer, query, key, value))


@pytest.mark.parametrize("hybridized", [False, True])
def test_masks(hybridized):
    x = normal(BATCH, LENGTH, UNITS)
    mask = (normal(BATCH, LENGTH, LENGTH, seed=1) > 0) | np.eye(LENGTH, dtype=bool)
    padding = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    triangle = np.tri(LENGTH)
    layer, causal = attention(), attention(causal=True)
    layer.hybridize(hybridized)
    causal.hybridize(hybridized)
    (data,) = arrays(x)
    layer(data), causal(data)
    ours, hidden = mx.nd.array(mask, dtype="bool"), mx.nd.array(padding, dtype="int32")
    check(layer(data, mask=ours), reference(layer, x, x, x, mask[:, None]))
    check(layer(data, mask=ours[:1]), reference(layer, x, x, x, mask[:1, None]))
    check(layer(data, padding=hidden), reference(layer, x, x, x, padding[:, None, None]))
    check(causal(data), reference(causal, x, x, x, triangle))
    every = mask[:, None] * padding[:, None, None] * triangle
    every[1, 0, 3:] = every[1, 0, :1]  # rows 3 and 4 may see nothing
    out = causal(data, mask=ours, padding=hidden).asnumpy()
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[0], reference(causal, x, x, x, every)[0], rtol=1e-9)


def test_the_last_query_and_the_last_key_are_at_the_same_position():
    layer, x = attention(causal=True), normal(BATCH, LENGTH, UNITS)
    check(layer(*arrays(x[:, 3:], x)), reference(layer, x, x, x, np.tri(LENGTH))[:, 3:])


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("hybridized", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_step_wise_decoding_returns_the_same(rotary, hybridized):
    layer, x = attention(causal=True, rotary=rotary), normal(BATCH, LENGTH, UNITS)
    (data,) = arrays(x)
    expected = layer(data).asnumpy()
    if hybridized is not None:
        layer.hybridize(**hybridized)
    first = cache = layer.begin_cache(BATCH, LENGTH + 2)
    steps = []
    for start, stop in [(0, 2), (2, 3), (3, 4), (4, 5)]:
        out, cache = layer(data[:, start:stop], cache=cache)
        steps.append(out)
    check(mx.nd.concat(*steps, dim=1), expected)
    assert cache[2].asscalar() == LENGTH
    assert first[2].asscalar() == 0
    with pytest.raises(IndexError, match="expected 0 to 6"):
        layer(data, cache=cache)[0].wait_to_read()


def test_padding_with_a_cache_hides_the_start_of_a_prompt():
    layer, x = attention(causal=True), normal(BATCH, LENGTH, UNITS)
    (data,) = arrays(x)
    padding = np.ones((BATCH, LENGTH + 1))
    padding[1, :2] = 0
    out, _ = layer(data, padding=mx.nd.array(padding), cache=layer.begin_cache(BATCH, LENGTH + 1))
    np.testing.assert_allclose(out.asnumpy()[1, 2:], layer(data[1:, 2:]).asnumpy()[0], rtol=1e-9)


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("hybridized", [False, True])
def test_heads_of_queries_share_keys_and_see_a_window(hybridized):
    options = {"num_key_heads": 1, "head_units": 6, "scale": 0.3, "score_cap": 1.5, "out_bias": False}
    layer, x = attention(causal=True, window=2, **options), normal(BATCH, LENGTH, UNITS)
    layer.hybridize(hybridized)
    out = layer(*arrays(x)).asnumpy()
    assert layer.key.weight.shape == (6, UNITS) and layer.out.bias is None
    q, k, v = (dense(child, x) for child in (layer.query, layer.key, layer.value))
    heads = [q[..., :6] @ k.swapaxes(1, 2), q[..., 6:] @ k.swapaxes(1, 2)]
    distances = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    visible = np.where((distances >= 0) & (distances < 2), 0, -np.inf)
    mixed = [softmax(1.5 * np.tanh(each * 0.3 / 1.5) + visible) @ v for each in heads]
    np.testing.assert_allclose(out, np.concatenate(mixed, axis=-1) @ layer.out.weight.data().asnumpy().T, rtol=1e-6)
    cache, steps = layer.begin_cache(BATCH, LENGTH), []
    for place in range(LENGTH):
        step, cache = layer(*arrays(x[:, place : place + 1]), cache=cache)
        steps.append(step.asnumpy())
    np.testing.assert_allclose(np.concatenate(steps, axis=1), out, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations(interleaved):
    layer = nn.RotaryPositions(6, base=100, interleaved=interleaved)
    x = normal(2, 4, 6)
    pairs = x.reshape(2, 4, 3, 2) if interleaved else x.reshape(2, 4, 2, 3).swapaxes(2, 3)
    for positions in (np.arange(4), np.array([7, 2, 0, 1])):
        angles = positions[:, None] * 100.0 ** (-np.arange(3) / 3)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        both = np.stack([turned.real, turned.imag], axis=-1 if interleaved else -2).reshape(x.shape)
        more = () if positions[0] == 0 else (mx.nd.array(positions, dtype="int32"),)
        np.testing.assert_allclose(layer(mx.nd.array(x), *more).asnumpy(), both, rtol=1e-4, atol=1e-5)


def test_rotated_attention_depends_on_distances_only():
    layer, x = attention(rotary={"base": 100}), normal(BATCH, LENGTH, UNITS)

    def rotate(heads):
        angles = np.arange(LENGTH)[:, None] * 100.0 ** (-np.arange(2) / 2)
        turned = (heads[..., :2] + 1j * heads[..., 2:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    np.testing.assert_allclose(layer(*arrays(x)).asnumpy(), reference(layer, x, x, x, rotate=rotate), rtol=1e-5)


def test_learned_positions():
    layer = nn.LearnedPositions(6, UNITS)
    layer.initialize()
    x, weight = normal(BATCH, LENGTH, UNITS), layer.weight.data().asnumpy()
    np.testing.assert_allclose(layer(mx.nd.array(x)).asnumpy(), x + weight[:LENGTH], rtol=1e-5, atol=1e-6)
    steps = layer(mx.nd.array(x[:, :2]), mx.nd.array([5, 1]))
    np.testing.assert_allclose(steps.asnumpy(), x[:, :2] + weight[[5, 1]], rtol=1e-5, atol=1e-6)
    with pytest.raises(mx.errors.ShapeError, match="expected at most 6 on axis 1"):
        layer(mx.nd.ones((1, 7, UNITS)))
    with pytest.raises(IndexError):
        layer(mx.nd.ones((1, 1, UNITS)), mx.nd.array([6])).wait_to_read()


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-4), ("float16", 2e-2), ("bfloat16", 1e-1)])
def test_dtypes(dtype, rtol):
    layer, x = attention(causal=True, rotary=True), normal(BATCH, LENGTH, UNITS)
    expected = layer(*arrays(x)).asnumpy()
    layer.cast(dtype)
    for hybridized in (False, True):
        layer.hybridize(hybridized)
        out = layer(mx.nd.array(x, dtype=dtype), padding=mx.nd.ones((BATCH, LENGTH)))
        assert out.dtype == layer.out.weight.data().dtype
        np.testing.assert_allclose(out.astype("float64").asnumpy(), expected, rtol=rtol, atol=rtol)


def test_gradients_match_differences():
    layer, x = attention(causal=True, rotary=True), normal(1, 3, UNITS)
    mask = mx.nd.array([[1, 1, 0]])
    head = mx.nd.array(normal(1, 3, UNITS, seed=1), dtype="float64")
    for hybridized in (False, True):
        layer.hybridize(hybridized)
        (data,) = arrays(x)
        data.attach_grad()
        with mx.autograd.record():
            loss = (layer(data, padding=mask) * head).sum()
        loss.backward()
        for at in [(0, 0, 0), (0, 1, 5), (0, 2, 3)]:
            sides = []
            for step in (1e-5, -1e-5):
                moved = x.copy()
                moved[at] += step
                sides.append((layer(*arrays(moved), padding=mask) * head).sum().asscalar())
            np.testing.assert_allclose(data.grad.asnumpy()[at], (sides[0] - sides[1]) / 2e-5, rtol=1e-5, atol=1e-6)


def test_dropped_weights_in_training_only():
    layer, x = attention("float32", dropout=0.5), mx.nd.array(normal(BATCH, LENGTH, UNITS))
    expected = layer(x).asnumpy()
    with mx.autograd.train_mode():
        assert np.abs(layer(x).asnumpy() - expected).max() > 1e-3
    np.testing.assert_allclose(layer(x).asnumpy(), expected, rtol=1e-6)


def test_long_sequences_run_fused_attention():
    layer = nn.MultiHeadAttention(64, 2, causal=True, in_units=64)
    layer.initialize(mx.init.Xavier())
    x = mx.nd.array(normal(1, 512, 64))
    expected = layer(x).asnumpy()
    layer.hybridize()
    np.testing.assert_allclose(layer(x).asnumpy(), expected, rtol=1e-3, atol=1e-4)
    bound = layer(mx.sym.Variable("data")).simple_bind(mx.cpu(), data=(1, 512, 64), grad_req="null")
    assert "fused with its softmax" in bound.plan.explain()


def test_onnx_and_symbol_files_compute_the_same(tmp_path):
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.LearnedPositions(9, UNITS), attention("float32", causal=True, rotary=True))
    net[0].initialize()
    net.hybridize()
    x = mx.nd.array(normal(BATCH, LENGTH, UNITS))
    expected = net(x).asnumpy()
    symbol, params = net.export(str(tmp_path / "net"))
    imported = mx.gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(imported(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(symbol, params, [x.shape], [np.float32], path)
    read = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    np.testing.assert_allclose(read(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_arrays_of_numpys_interface():
    layer, x = attention("float32", causal=True, rotary=True), normal(BATCH, 1, UNITS)
    expected = layer(mx.nd.array(x)).asnumpy()
    with mx.util.np_array(True), mx.util.np_shape(True):
        out, cache = layer(mx.np.array(x, dtype="float32"), cache=layer.begin_cache(BATCH, 3))
        assert type(out) is type(cache[0]) is mx.np.ndarray
        np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("rotary", [False, True, {"interleaved": True}])
def test_an_empty_batch(rotary, hybrid):
    layer = attention("float32", causal=True, rotary=rotary)
    layer.hybridize(hybrid)
    layer(mx.nd.ones((BATCH, 3, UNITS)))
    x = mx.nd.zeros((0, 3, UNITS))
    x.attach_grad()
    with mx.autograd.record():
        out = layer(x, padding=mx.nd.zeros((0, 3)))
    out.backward()
    assert out.shape == layer(x).shape == x.grad.asnumpy().shape == x.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.MultiHeadAttention(8, 3), "units is 8 and num_heads 3, expected a multiple"),
        (lambda: nn.MultiHeadAttention(8, 2, dropout=1.0), "dropout is 1.0, expected a probability"),
        (lambda: attention()(mx.nd.ones((3, 8))), r"query has shape \(3, 8\), expected 3 axes.*expand_dims"),
        (
            lambda: attention()(mx.nd.ones((2, 3, 8)), mask=mx.nd.ones((3, 4))),
            r"mask has shape \(3, 4\), expected \(2, 3, 3\) or \(1, 3, 3\)",
        ),
        (lambda: attention()(mx.nd.ones((2, 3, 8)), padding=mx.nd.ones((2, 4))), r"padding .* expected \(2, 3\)"),
        (lambda: attention()(mx.nd.ones((2, 3, 8)), mx.nd.ones((1, 3, 8))), r"key has shape .* expected \(2, 3, 8\)"),
        (lambda: attention().begin_cache(1, 0), "max_length 0, expected 1 or more"),
        (
            lambda: nn.MultiHeadAttention(8, 4, num_key_heads=3),
            "num_heads is 4 and num_key_heads 3, expected a divisor",
        ),
        (lambda: nn.MultiHeadAttention(8, 2, window=4), "window is 4 and causal False, expected 1 or more"),
        (lambda: nn.MultiHeadAttention(8, 3, head_units=0), "head_units is 0, expected 1 or more"),
        (lambda: nn.RotaryPositions(4, scaling={"rope_type": "yarm"}), "rope_type is 'yarm', expected one of default"),
        (lambda: nn.RotaryPositions(4, scaling={"type": "linear"}), "factor is None, expected a number above 0"),
        (lambda: nn.RotaryPositions(3), "size is 3, expected an even number"),
        (lambda: nn.RotaryPositions(4, base=0), "base is 0, expected a number above 0"),
        (lambda: nn.LearnedPositions(0, 4), "max_length is 0, expected 1 or more"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
