"""Low-rank adapters: training, merging, and files of Hugging Face's PEFT (from tests/fixtures/record_peft.py)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import lora, nn
from flowmx.gluon.model_zoo import from_pretrained
from flowmx.gluon.nn.packed import PackedDense
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.serialization import safetensors

FIXTURES = Path(__file__).parent.parent / "fixtures"
EXPECTED = np.load(FIXTURES / "peft" / "expected.npz")
TOKENS = mx.nd.array([[1, 2, 3, 4, 5]])
ALL = "attention|widen|narrow"


def model(name="llama"):
    return from_pretrained(FIXTURES / "huggingface" / name)


def logits(net):
    return net(TOKENS).asnumpy()


def train(net, parameters, steps=5, rate=0.01):
    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": rate})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(steps):
        with mx.autograd.record():
            loss = loss_of(net(TOKENS)[0, :-1], TOKENS[0, 1:])
        loss.backward()
        trainer.step(4)
    return float(loss.mean().asscalar())


def randomize(adapter):
    mx.random.seed(1)
    for parameter in adapter.parameters():
        parameter.set_data(mx.nd.random.normal(0, 0.3, shape=parameter.shape))


# -- files of PEFT -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_an_adapter_of_peft_has_its_outputs_and_training(name, hybrid, tmp_path):
    net = model(name)
    if hybrid:
        net.hybridize()
    plain = logits(net)
    adapter = lora.load(net, FIXTURES / "peft" / name)
    np.testing.assert_allclose(logits(net), EXPECTED[name], atol=1e-5)
    adapter.save(tmp_path)
    if name == "llama":  # Gemma's large features amplify rounding, and GPT-2 learns three A where PEFT learns one
        train(net, adapter.collect_params())
        np.testing.assert_allclose(logits(net), EXPECTED[f"{name}_trained"], atol=1e-5)
    adapter.detach()
    np.testing.assert_array_equal(logits(net), plain)
    lora.load(net, tmp_path)
    np.testing.assert_allclose(logits(net), EXPECTED[name], atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_saved_files_have_the_names_of_peft(name, tmp_path):
    adapter = lora.load(model(name), FIXTURES / "peft" / name)
    adapter.save(tmp_path)
    theirs = safetensors.load(FIXTURES / "peft" / name / "adapter_model.safetensors")
    saved = safetensors.load(tmp_path / "adapter_model.safetensors")
    assert saved.keys() == theirs.keys()
    if name == "gpt2":
        assert {key: each.shape for key, each in saved.items()} == {key: each.shape for key, each in theirs.items()}
    train(adapter.net, adapter.collect_params(), 1)
    trained = logits(adapter.net)
    adapter.save(tmp_path)  # queries, keys and values of GPT-2 now have different A, which need a higher rank
    adapter.detach()
    lora.load(adapter.net, tmp_path)
    np.testing.assert_allclose(logits(adapter.net), trained, atol=1e-5)


def test_a_part_of_joined_layers_may_have_an_adapter(tmp_path):
    net, folder = model(), FIXTURES / "peft" / "llama"
    shutil.copy(folder / "adapter_config.json", tmp_path)
    arrays = safetensors.load(folder / "adapter_model.safetensors")
    part = {key: array for key, array in arrays.items() if "up_proj" in key}
    safetensors.save(tmp_path / "adapter_model.safetensors", part)
    adapter = lora.load(net, tmp_path)
    assert list(adapter.layers) == ["llama.layers.0.widen", "llama.layers.1.widen"]
    difference = adapter.layers["llama.layers.0.widen"].difference().asnumpy()
    assert np.any(difference[:12])
    assert not np.any(difference[12:])


# -- training ----------------------------------------------------------------------------------------------


def test_a_new_adapter_changes_nothing_and_only_it_is_trained():
    net = model()
    plain, paths = logits(net), list(net._collect_params_with_prefix())
    adapter = lora.attach(net, ALL, rank=2, alpha=4)
    np.testing.assert_array_equal(logits(net), plain)
    before = {name: each.data().asnumpy() for name, each in net.collect_params().items()}
    first = train(net, adapter.collect_params(), 1)
    assert train(net, adapter.collect_params(), 30, 0.3) < first - 0.5
    own = adapter.collect_params()
    assert len(own) == 2 * 12
    for name, each in net.collect_params().items():
        assert np.array_equal(each.data().asnumpy(), before[name]) is (name not in own)
        assert each.grad_req == ("write" if name in own else "null")
    assert [path for path in net._collect_params_with_prefix() if "lora" not in path] == paths
    adapter.detach()
    np.testing.assert_array_equal(logits(net), plain)
    assert {each.grad_req for each in net.collect_params().values()} == {"write"}


def test_a_network_of_yours_and_16_bits():
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=6), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    net.cast("bfloat16")
    x = mx.nd.random.normal(shape=(4, 6)).astype("bfloat16")
    net(x)
    adapter = lora.attach(net, "1", rank=2, dropout=0.5)
    assert list(adapter.layers) == ["1"]
    randomize(adapter)
    assert net(x).dtype == x.dtype
    with mx.autograd.record():
        outs = [net(x), net(x)]
    outs[0].backward()
    assert np.any(outs[0].asnumpy() != outs[1].asnumpy())  # dropout
    assert adapter.layers["1"].lora_a.grad().dtype == np.float32


def test_quantized_weights_stay_constant():
    mx.random.seed(0)
    net = mx.gluon.model_zoo.text.LlamaLM(
        vocab_size=20, units=32, num_layers=1, num_heads=2, hidden_units=32, prefix="net_"
    )
    net.initialize(mx.init.Normal(0.3))
    logits(net)
    for path, layer in lora.layers.dense_layers(net).items():
        rows = FORMATS["Q8_0"].quantize(layer.weight.data().asnumpy())
        packed = PackedDense(len(rows), 32, "Q8_0")
        packed.set_rows(rows)
        lora.layers.replace(net, path, packed)
    plain = logits(net)
    adapter = lora.attach(net, ALL, rank=4)
    np.testing.assert_array_equal(logits(net), plain)
    first = train(net, adapter.collect_params(), 1)
    assert train(net, adapter.collect_params(), 40, 0.3) < first - 0.5
    with pytest.raises(TypeError, match=r"the weight of .* is quantized \(Q8_0\)"):
        adapter.merge()


# -- merging -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
def test_merged_adapters_have_the_same_outputs(hybrid):
    net = model()
    if hybrid:
        net.hybridize()
    plain = logits(net)
    adapter = lora.attach(net, ALL, rank=3)
    randomize(adapter)
    changed = logits(net)
    assert abs(changed - plain).max() > 0.1
    adapter.merge()
    np.testing.assert_allclose(logits(net), changed, atol=1e-5)
    with pytest.raises(AssertionError, match="already merged"):
        adapter.merge()
    adapter.unmerge()
    np.testing.assert_allclose(logits(net), changed, atol=1e-5)
    with pytest.raises(AssertionError, match="not merged"):
        adapter.unmerge()
    adapter.merge()
    adapter.detach()
    np.testing.assert_allclose(logits(net), changed, atol=1e-5)


def test_a_shared_weight_is_not_merged():
    adapter = lora.attach(model("gemma3"), "output")
    with pytest.raises(ValueError, match="output shares its weight with another layer"):
        adapter.merge()


# -- errors ------------------------------------------------------------------------------------------------


def test_what_cannot_be_attached():
    net = model()
    with pytest.raises(ValueError, match=r"no dense layer matches 'nothing'.*attention\.query"):
        lora.attach(net, "nothing")
    for options in ({"rank": 0}, {"dropout": 1.0}):
        with pytest.raises(ValueError, match=r"rank is 0|dropout is 1\.0"):
            lora.attach(net, **options)
    adapter = lora.attach(net)
    with pytest.raises(ValueError, match=r"attention\.query has an adapter already"):
        lora.attach(net)
    adapter.detach()
    lora.attach(net)
    activated = nn.HybridSequential()
    activated.add(nn.Dense(4, activation="relu", in_units=3))
    activated.initialize()
    with pytest.raises(TypeError, match="has the activation"):
        lora.attach(activated, ".")
    deferred = nn.HybridSequential()
    deferred.add(nn.Dense(4))
    deferred.initialize()
    with pytest.raises(ValueError, match="expected a known number of inputs"):
        lora.attach(deferred, ".")


def _config(change):
    def apply(folder, arrays):
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | change))

    return apply


def _arrays(change):
    def apply(folder, arrays):
        key = next(key for key in arrays if "q_proj.lora_A" in key)
        change(arrays, key)
        safetensors.save(folder / "adapter_model.safetensors", arrays)

    return apply


def _text(name, text):
    return lambda folder, arrays: (folder / name).write_text(text)


def _pop(arrays, key):
    arrays.pop(key)


DAMAGED = {
    "no JSON": (_text("adapter_config.json", "{"), "is not valid JSON"),
    "no object": (_text("adapter_config.json", "[]"), "expected a JSON object"),
    "nested": (_text("adapter_config.json", "[" * 100_000), "is not valid JSON"),
    "long": (_text("adapter_config.json", " " * (1 << 21)), "expected at most 1048576"),
    "kind": (_config({"peft_type": "IA3"}), "peft_type is 'IA3'"),
    "DoRA": (_config({"use_dora": True}), "use_dora is True"),
    "saved": (_config({"modules_to_save": ["lm_head"]}), "modules_to_save"),
    "bias": (_config({"bias": "all"}), "bias is 'all'"),
    "alpha": (_config({"lora_alpha": "much", "alpha_pattern": {}}), "lora_alpha is 'much', expected a number"),
    "pattern": (_config({"alpha_pattern": {"(a*)*b": 1}}), "regular expressions are not supported"),
    "no arrays": (_text("adapter_model.safetensors", "x"), "adapter_model"),
    "name": (_arrays(lambda arrays, key: arrays.update(weight=arrays[key])), r"expected names such as LAYER\.lora_A"),
    "alone": (_arrays(_pop), "has B "),
    "NaN": (_arrays(lambda arrays, key: arrays.update({key: arrays[key] * np.nan})), "not finite"),
    "axes": (
        _arrays(lambda arrays, key: arrays.update({key: arrays[key][0]})),
        "expected floating point with two axes",
    ),
    "rank": (_arrays(lambda arrays, key: arrays.update({key: arrays[key][:1]})), r"expected A \(rank, inputs\)"),
    "inputs": (_arrays(lambda arrays, key: arrays.update({key: arrays[key][:, 1:]})), "has 7 inputs"),
    "layer": (
        _arrays(lambda arrays, key: arrays.update({k.replace("0", "9"): a for k, a in arrays.items()})),
        "layers that the network does not have",
    ),
    "empty": (_arrays(lambda arrays, key: arrays.clear()), "no weights"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_folders_are_refused(name, tmp_path):
    damage, message = DAMAGED[name]
    shutil.copytree(FIXTURES / "peft" / "llama", tmp_path, dirs_exist_ok=True)
    damage(tmp_path, safetensors.load(tmp_path / "adapter_model.safetensors"))
    net = model()
    plain = logits(net)
    with pytest.raises(ValueError, match=message):
        lora.load(net, tmp_path)
    np.testing.assert_array_equal(logits(net), plain)


def test_folders_that_are_incomplete_or_large(tmp_path):
    net = model()
    with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
        lora.load(net, tmp_path)
    shutil.copy(FIXTURES / "peft" / "llama" / "adapter_config.json", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"expected adapter_model\.safetensors"):
        lora.load(net, tmp_path)
    with pytest.raises(ValueError, match="expected at most 100: raise max_bytes"):
        lora.load(net, FIXTURES / "peft" / "llama", max_bytes=100)
