"""Models in GGUF files: those that are written here from random networks, and a real one."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.model_zoo import from_pretrained, text
from flowmx.gluon.nn.packed import PackedDense, PackedEmbedding
from flowmx.serialization import gguf

TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]], np.int32)
SIZES = {
    "vocab_size": 40, "units": 32, "num_layers": 2, "num_heads": 4, "num_key_heads": 2, "hidden_units": 64,
    "max_length": 64, "epsilon": 1e-5,
}  # fmt: skip
GEMMA3 = {
    "head_units": 16, "head_norms": True, "out_norms": True, "activation": "geglu_tanh", "window": 3, "tied": True,
    "window_layers": [0], "rotary_base": 5000.0, "window_rotary_base": 10000.0, "embedding_scale": 32**0.5,
    "attention_scale": 0.25, "logit_cap": 9.0, "rotary_scaling": {"rope_type": "linear", "factor": 2.0},
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
OPTIONS = {
    "llama": {"rotary_base": 500.0, "rotary_scaling": LLAMA3, "tied": True},
    "qwen3": {"head_norms": True, "head_units": 16},
    "qwen2": {"attention_bias": True, "out_bias": False, "rotary_scaling": YARN}, "gemma3": GEMMA3,
}  # fmt: skip
NAMES = {
    "llama.words": "token_embd", "llama.norm": "output_norm", "output": "output", "attention.query": "attn_q",
    "attention.key": "attn_k", "attention.value": "attn_v", "attention.out": "attn_output",
    "attention.query_norm": "attn_q_norm", "attention.key_norm": "attn_k_norm", "attention_norm": "attn_norm",
    "attention_out_norm": "post_attention_norm", "hidden_norm": "ffn_norm", "hidden_out_norm": "post_ffw_norm",
    "narrow": "ffn_down", "gpt2.words": "token_embd", "gpt2.positions": "position_embd", "norms.0": "attn_norm",
    "norms.1": "ffn_norm", "widen": "ffn_up", "gpt2.decoder.norm": "output_norm",
}  # fmt: skip
ENDS = {"gamma": "weight", "beta": "bias"}


def metadata(name, options):
    """Return the metadata of a network."""
    sizes = SIZES | options
    values = {
        "block_count": 2, "embedding_length": 32, "feed_forward_length": 64, "context_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": sizes.get("rotary_base", 10000.0),
        "attention.key_length": sizes.get("head_units", 8),
    }  # fmt: skip
    scaling = options.get("rotary_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        values |= {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": scaling["factor"]}
        values["rope.scaling.original_context_length"] = scaling.get("original_max_position_embeddings", 64)
    if name == "gemma3":
        values |= {"attention.sliding_window": 3, "attention.sliding_window_pattern": 2, "final_logit_softcapping": 9.0}
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in values.items()}


def neighbors(array, heads):
    """Return rows in the order of llama.cpp, where the features of a pair are neighbors."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def tensors(net, name):
    """Return the tensors of a network as a file has them."""
    result, joined = {}, {}
    for path, parameter in net._collect_params_with_prefix().items():
        block, _, kind = path.rpartition(".")
        layer, _, place = block.partition("layers.")[2].partition(".")
        array, end = parameter.data().asnumpy(), ENDS.get(kind, kind)
        if name == "llama" and place in ("attention.query", "attention.key"):
            array = neighbors(array, 4 if place.endswith("query") else 2)
        if place == "widen" and name != "gpt2":
            up, gate = np.split(array, 2)
            result |= {f"blk.{layer}.ffn_up.{end}": up, f"blk.{layer}.ffn_gate.{end}": gate}
        elif name == "gpt2" and place in ("attention.query", "attention.key", "attention.value"):
            joined.setdefault(f"blk.{layer}.attn_qkv.{end}", []).append(array)
        elif block != "output" or not net_is_tied(net):
            result[f"blk.{layer}.{NAMES[place]}.{end}" if place else f"{NAMES[block]}.{end}"] = array
    return result | {key: np.concatenate(parts) for key, parts in joined.items()}


def net_is_tied(net):
    words = net.gpt2.words if isinstance(net, text.GPT2LM) else net.llama.words
    return net.output.weight is words.weight


def create(name):
    """Return a random network."""
    mx.random.seed(0)
    if name == "gpt2":
        sizes = {key: value for key, value in SIZES.items() if key != "num_key_heads"}
        net = text.GPT2LM(**sizes, dropout=0.0)
    else:
        net = text.LlamaLM(**SIZES | OPTIONS[name])
    net.initialize(mx.init.Normal(0.3))
    net(mx.nd.array(TOKENS))
    return net


def write(path, net, name, form="F32"):
    """Write a file with the matrices in a format."""
    arrays = tensors(net, name)
    if name == "llama":
        speeds = 500.0 ** (-np.arange(4) / 4)
        slowed = 1 - np.clip((speeds * 8192 / (2 * np.pi) - 1) / 3, 0, 1)
        arrays["rope_freqs.weight"] = (1 / (1 - slowed + slowed / 8)).astype(np.float32)
    packed = {
        key: gguf.GGUFTensor.quantize(key, value, form) if value.ndim == 2 and "position" not in key else value
        for key, value in arrays.items()
    }
    gguf.save(path, metadata(name, OPTIONS.get(name, {})), packed)
    return path


def logits(net, hybridized=False):
    net.hybridize(hybridized)
    return net(mx.nd.array(TOKENS)).asnumpy()


@pytest.mark.parametrize("name", [*OPTIONS, "gpt2"])
def test_a_file_of_float32_is_the_same_network(name, tmp_path):
    net = create(name)
    loaded = from_pretrained(write(tmp_path / "net.gguf", net, name))
    np.testing.assert_allclose(logits(loaded), logits(net), rtol=0, atol=1e-5)
    assert {str(each.dtype) for each in loaded.collect_params().values()} == {"float32"}


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1", "Q4_0", "F16", "BF16"])
@pytest.mark.parametrize("name", [*OPTIONS, "gpt2"])
def test_quantized_matrices_stay_packed(name, form, tmp_path):
    path = write(tmp_path / "net.gguf", create(name), name, form)
    packed, dense = from_pretrained(path), from_pretrained(path, dtype="float32")
    body = packed.gpt2 if name == "gpt2" else packed.llama
    layers = body.decoder.layers if name == "gpt2" else body.layers
    assert isinstance(body.words, PackedEmbedding)
    kinds = {type(layer) for layer in (packed.output, layers[0].attention.query, layers[1].narrow)}
    assert kinds == {PackedDense}
    assert net_is_tied(packed) == net_is_tied(dense) == (name in ("llama", "gemma3", "gpt2"))
    expected = logits(dense)
    scale = np.abs(expected).max()
    for hybridized in (False, True):
        np.testing.assert_allclose(logits(packed, hybridized) / scale, expected / scale, rtol=0, atol=1e-3)
    near = logits(from_pretrained(path, data_bits=8))
    np.testing.assert_allclose(near / scale, expected / scale, rtol=0, atol=0.05)
    assert form in ("F16", "BF16") or np.abs(near - expected).max() > np.abs(logits(packed) - expected).max()


@pytest.mark.parametrize(("form", "values"), [("Q4_K", "Q4_K"), ("Q6_K", "Q6_K"), ("Q4_K", "Q6_K")])
def test_networks_in_blocks_of_256_values(form, values, tmp_path):
    mx.random.seed(0)
    net = text.LlamaLM(**SIZES | {"units": 256, "hidden_units": 512}, attention_bias=True, out_bias=False)
    net.initialize(mx.init.Normal(0.1))
    net(mx.nd.array(TOKENS))
    sizes = {"embedding_length": 256, "feed_forward_length": 512, "attention.key_length": 64}
    packed = {
        key: gguf.GGUFTensor.quantize(key, array, values if "attn_v" in key or "ffn_down" in key else form)
        if array.ndim == 2 else array
        for key, array in tensors(net, "qwen2").items()
    }  # fmt: skip
    path = tmp_path / "net.gguf"
    gguf.save(path, metadata("qwen2", {}) | {f"qwen2.{key}": value for key, value in sizes.items()}, packed)
    loaded = from_pretrained(path)
    layer = loaded.llama.layers[1]
    assert (layer.attention.query.format, layer.attention.value.format, layer.narrow.format) == (form, values, values)
    expected = logits(from_pretrained(path, dtype="float32"))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits(loaded) / scale, expected / scale, rtol=0, atol=1e-3)
    places, decoder = np.arange(8, dtype=np.int32), mx.generation.PagedDecoder(loaded, 2, 16)
    batch = mx.generation.StepBatch(TOKENS[0], places, places, 0 * places, places[None, :1], places)
    np.testing.assert_allclose(decoder.step(batch).asnumpy() / scale, expected[0] / scale, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_unpacks_the_matrices(dtype, tmp_path):
    net = from_pretrained(write(tmp_path / "net.gguf", create("qwen2"), "qwen2", "Q8_0"), dtype=dtype)
    assert {str(np.dtype(each.dtype)) for each in net.collect_params().values()} == {dtype}
    assert str(np.dtype(net(mx.nd.array(TOKENS)).dtype)) == dtype


def test_only_the_ordinary_parameters_of_packed_networks_are_trained(tmp_path):
    net = from_pretrained(write(tmp_path / "net.gguf", create("qwen2"), "qwen2", "Q8_0"))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    before = net.llama.norm.gamma.data().asnumpy()
    with mx.autograd.record():
        loss = net(mx.nd.array(TOKENS)).square().mean()
    loss.backward()
    trainer.step(1)
    assert np.abs(net.llama.norm.gamma.data().asnumpy() - before).max() > 0
    assert net.llama.layers[0].attention.query.bias.grad().asnumpy().any()


def change(path, values=(), more=(), missing=()):
    """Write a file again with other metadata and tensors."""
    file = gguf.load(path)
    entries = {key: value for key, value in {**file.metadata, **dict(values)}.items() if value is not None}
    others = {key: value for key, value in file.tensors.items() if key not in missing}
    gguf.save(path, entries, others | dict(more))


@pytest.mark.parametrize(
    ("values", "more", "missing", "message"),
    [
        (
            {"general.architecture": "lama"},
            {},
            [],
            "general.architecture is 'lama', expected one of llama.*did you mean",
        ),
        ({"general.architecture": None}, {}, [], "general.architecture is None, expected the name"),
        ({"qwen2.block_count": 0}, {}, [], "qwen2.block_count is 0, expected an integer of 1 or more"),
        ({"qwen2.block_count": 10**6}, {}, [], "block_count is 1000000, but there are"),
        ({"qwen2.embedding_length": None}, {}, [], "qwen2.embedding_length is None, expected an integer"),
        ({"qwen2.rope.freq_base": "x"}, {}, [], "qwen2.rope.freq_base is 'x', expected a number above 0"),
        ({"qwen2.rope.scaling.type": "su"}, {}, [], "rope.scaling.type is 'su', expected none, linear or yarn"),
        ({"qwen2.feed_forward_length": 32}, {}, [], "widen.weight has shape .*, expected"),
        ({}, {"blk.7.attn_q.weight": np.ones((2, 2), np.float32)}, [], "has the tensor 'blk.7.attn_q.weight', which"),
        ({}, {}, ["blk.1.ffn_up.weight"], "has no tensor 'blk.1.ffn_up.weight', but 'token_embd.weight'"),
        ({}, {"output_norm.weight": np.ones(7, np.float32)}, [], r"has shape \(7,\), expected \(32,\)"),
        ({}, {"rope_freqs.weight": np.ones(3, np.float32)}, [], "rope_freqs.weight are not those of Llama 3"),
    ],
)
def test_files_that_do_not_fit(values, more, missing, message, tmp_path):
    path = write(tmp_path / "net.gguf", create("qwen2"), "qwen2")
    change(path, values, more, missing)
    with pytest.raises(ValueError, match=message):
        from_pretrained(path)


def test_the_class_of_a_file_is_checked(tmp_path):
    path = write(tmp_path / "net.gguf", create("gpt2"), "gpt2")
    assert isinstance(from_pretrained(path, text.GPT2LM), text.GPT2LM)
    with pytest.raises(ValueError, match=r"model is LlamaLM, but .* is a GPT2LM"):
        from_pretrained(path, text.LlamaLM)
