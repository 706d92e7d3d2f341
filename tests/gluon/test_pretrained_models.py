"""Models from folders of Hugging Face's Transformers (recorded by tests/fixtures/record_huggingface.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.gluon.model_zoo import from_pretrained, text, vision
from flowmx.serialization import safetensors

FOLDER = Path(__file__).parent.parent / "fixtures" / "huggingface"
EXPECTED = np.load(FOLDER / "expected.npz")
LENGTH = 9
TEXTS, IMAGES = ("tokens", "types", "padding"), ("images",)
INPUTS = {
    "bert": TEXTS, "bert_masked": TEXTS, "bert_classifier": TEXTS, "bert_answers": TEXTS, "gpt2": ("tokens", "padding"),
    "llama": ("tokens", "padding"), "qwen3": ("tokens", "padding"), "mistral": ("tokens",), "qwen2": ("tokens",),
    "gemma3": ("tokens",), "vit": IMAGES, "vit_classifier": IMAGES,
}  # fmt: skip
CLASSES = {
    "bert": text.BERT, "bert_masked": text.BERTMaskedLM, "bert_classifier": text.BERTClassifier,
    "bert_answers": text.BERTTokenClassifier, "gpt2": text.GPT2LM, "vit": vision.ViT,
    "vit_classifier": vision.ViTClassifier,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma3"), text.LlamaLM),
}  # fmt: skip
CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma3")
"""The models that predict the next token. Rounding errors grow in Gemma's many normalizations."""
SINGLE = [name for name in INPUTS if name not in ("bert", "vit")]
"""The models with one output."""


def inputs(name, dtype="float32"):
    kinds = {"images": dtype, "padding": "float32"}
    return [mx.nd.array(EXPECTED[each], dtype=kinds.get(each, "int32")) for each in INPUTS[name]]


def expected(name):
    if name == "bert_answers":
        return [np.stack([EXPECTED[f"{name}.{each}_logits"] for each in ("start", "end")], axis=2)]
    return [EXPECTED[key] for key in EXPECTED.files if key.startswith(f"{name}.") and not key.endswith("losses")]


def check(outputs, name, atol=1e-5):
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    for output, values in zip(outputs, expected(name), strict=True):
        np.testing.assert_allclose(output.astype("float64").asnumpy(), values, rtol=0, atol=atol)


def copy(name, folder, config=None, change=None):
    """Copy a model; update its config, and change its dict of arrays."""
    shutil.copytree(FOLDER / name, folder, dirs_exist_ok=True)
    values = json.loads((folder / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(values))
    if change:
        arrays = safetensors.load(folder / "model.safetensors")
        change(arrays)
        safetensors.save(folder / "model.safetensors", arrays)
    return folder


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_outputs_are_those_of_hugging_face(name, hybridized):
    net = from_pretrained(FOLDER / name)
    assert type(net) is CLASSES[name]
    net.hybridize(hybridized)
    check(net(*inputs(name)), name)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("hybridized", [False, True])
def test_a_cache_returns_the_same(name, hybridized):
    net = from_pretrained(FOLDER / name)
    net.hybridize(hybridized)
    tokens, *padding = inputs(name)
    padding = mx.nd.concat(padding[0], mx.nd.ones((3, 3)), dim=1) if padding else None
    cache, steps = net.begin_cache(3, LENGTH + 3), []
    for start, stop in [(0, 4), *((place, place + 1) for place in range(4, LENGTH))]:
        logits, cache = net(tokens[:, start:stop], padding, cache)
        steps.append(logits)
    check(mx.nd.concat(*steps, dim=1), name)


def losses_of(net, name, hybridized=True):
    """Return the losses of ten steps."""
    net.hybridize(hybridized)
    targets = EXPECTED["tokens" if name in ("bert_masked", *CAUSAL) else "labels"]
    data, labels = inputs(name), mx.nd.array(targets[: len(EXPECTED[INPUTS[name][0]])])
    entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9, "multi_precision": True}
    )
    losses = []
    for _ in range(10):
        with mx.autograd.record():
            logits = net(*data)
            if name in CAUSAL:  # each token is predicted from those before it
                loss = entropy(logits[:, :-1].reshape((-1, 20)), labels[:, 1:].reshape((-1,))).mean()
            else:
                loss = entropy(logits, labels).mean()
        loss.backward()
        trainer.step(1)
        losses.append(loss.asscalar())
    return losses


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", ["bert_masked", "bert_classifier", *CAUSAL, "vit_classifier"])
def test_training_has_the_losses_of_hugging_face(name, hybridized):
    losses = losses_of(from_pretrained(FOLDER / name), name, hybridized)
    np.testing.assert_allclose(losses, EXPECTED[f"{name}.losses"], rtol=1e-4 if name == "gemma3" else 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SINGLE)
def test_models_in_16_bits(name, dtype):
    net = from_pretrained(FOLDER / name, dtype=dtype)
    for hybridized in (False, True):
        net.hybridize(hybridized)
        out = net(*inputs(name, dtype))
        assert str(np.dtype(out.dtype)) == dtype
        check(out, name, (0.02 if dtype == "float16" else 0.15) * (2 if name == "gemma3" else 1))


def test_files_in_bfloat16_make_models_in_bfloat16(tmp_path):
    def cast(arrays):
        arrays |= {key: mx.nd.array(value).astype("bfloat16").asnumpy() for key, value in arrays.items()}

    net = from_pretrained(copy("bert_classifier", tmp_path, change=cast))
    assert {str(param.dtype) for param in net.collect_params().values()} == {"bfloat16"}
    check(net(*inputs("bert_classifier")), "bert_classifier", 0.15)


@pytest.mark.parametrize("name", SINGLE)
def test_symbols_parameter_files_and_onnx(name, tmp_path):
    net = from_pretrained(FOLDER / name)
    net.hybridize()
    data = inputs(name)
    if name.startswith("bert"):
        data = [each.astype("float32") for each in data]
    net(*data)
    symbol, params = net.export(tmp_path / "net")
    names = mx.sym.load(str(symbol)).list_inputs()[: len(data)]
    names = ["data"] if len(data) == 1 else [f"data{index}" for index in range(len(data))]
    check(mx.gluon.SymbolBlock.imports(str(symbol), names, str(params))(*data), name)
    path = str(tmp_path / "net.onnx")
    mx.onnx.export_model(str(symbol), str(params), [each.shape for each in data], [each.dtype for each in data], path)
    check(mx.contrib.onnx.import_to_gluon(path, mx.cpu())(*data), name)
    net.save_parameters(tmp_path / "net.safetensors")
    other = from_pretrained(FOLDER / name)
    other.initialize(mx.init.Zero(), force_reinit=True)
    other.load_parameters(tmp_path / "net.safetensors")
    check(other(*inputs(name)), name)


@pytest.mark.parametrize("name", SINGLE)
def test_mixed_precision_and_forks(name):
    net, data = from_pretrained(FOLDER / name), inputs(name)
    data = [each.astype("float32") for each in data]
    net.hybridize()
    check(net(*data), name)
    check(mx.amp.convert_hybrid_block(net, target_dtype="bfloat16")(*data), name, 0.2 if name == "gemma3" else 0.1)
    pid = os.fork()
    if not pid:
        try:
            check(net(*data), name)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_training_in_16_bits(dtype):
    losses = losses_of(from_pretrained(FOLDER / "bert_classifier", dtype=dtype), "bert_classifier")
    np.testing.assert_allclose(losses, EXPECTED["bert_classifier.losses"], atol=0.03)


@pytest.mark.parametrize("name", ["bert_classifier", "gpt2", "vit_classifier"])
async def test_a_folder_is_served(name):
    names = [each for each in INPUTS[name] if each != "types"]
    async with mx.serve.Predictor(FOLDER / name, max_batch=2, lengths=(4, 12)) as predictor:
        rows = [{each: EXPECTED[each][place].astype("float32") for each in names} for place in range(2)]
        answers = await asyncio.gather(*(predictor(row if len(row) > 1 else row[names[0]]) for row in rows))
    net, data = from_pretrained(FOLDER / name), [mx.nd.array(EXPECTED[each][:2]) for each in names]
    if name == "bert_classifier":
        data.insert(1, None)
    for answer, wanted in zip(answers, net(*data).asnumpy(), strict=True):
        answer = answer if answer.ndim == 1 else answer[: len(wanted)]  # outputs are as long as the padded inputs
        np.testing.assert_allclose(answer, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit_classifier"])
def test_a_folder_is_converted(name, tmp_path, capsys):
    for target in ("net.onnx", "net"):
        assert cli.main(["convert", str(FOLDER / name), str(tmp_path / target), "--check"]) == 0
        assert "the outputs of a random input differ by" in capsys.readouterr().out
    with pytest.raises(ValueError, match="the inputs are words, expected some of"):
        mx.serve.Predictor(FOLDER / name, shape={"words": (4,)})


def test_older_names_of_weights(tmp_path):
    """The names that files on the hub have: gamma and beta, no prefix, computed values, heads."""

    def rename(arrays):
        for name in list(arrays):
            older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            arrays[f"bert.{older}"] = arrays.pop(name)
        arrays["bert.embeddings.position_ids"] = np.arange(12)[None]
        arrays["cls.seq_relationship.weight"] = np.ones((2, 8), np.float32)

    check(from_pretrained(copy("bert", tmp_path, change=rename))(*inputs("bert")), "bert")
    arrays = {}
    for file in sorted((FOLDER / "gpt2").glob("*.safetensors")):
        arrays |= {name.removeprefix("transformer."): array for name, array in safetensors.load(file).items()}
    arrays["h.0.attn.bias"] = np.tri(12, dtype=np.float32)[None, None]
    folder = tmp_path / "gpt2"
    folder.mkdir()
    shutil.copy(FOLDER / "gpt2" / "config.json", folder)
    mx.nd.save(str(folder / "pytorch_model.bin"), {k: mx.nd.array(v) for k, v in arrays.items()}, format="torch")
    check(from_pretrained(folder)(*inputs("gpt2")), "gpt2")


def test_a_new_head_is_initialized_and_trained():
    with pytest.warns(UserWarning, match=r"'bert.pooler.bias', 'output.weight', 'output.bias' of BERTClassifier"):
        net = from_pretrained(FOLDER / "bert_masked", text.BERTClassifier, classes=3)
    assert net.output.weight.shape == (3, 8)
    body = from_pretrained(FOLDER / "bert_masked", text.BERT)
    np.testing.assert_array_equal(
        net.bert.words.weight.data().asnumpy(), body.words.weight.data().asnumpy()
    )  # fmt: skip
    losses = losses_of(net, "bert_classifier")
    assert losses[-1] < losses[0]


def test_sizes_come_from_the_config_and_the_options():
    net = from_pretrained(FOLDER / "vit_classifier", vision.ViT, dropout=0.3)
    assert net.dropout._rate == 0.3
    assert net.pooler is None
    assert len(net.encoder.layers) == 2
    with pytest.raises(TypeError, match="units_of_head"):
        from_pretrained(FOLDER / "vit", units_of_head=3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "berta"}, "model_type is 'berta', expected one of bert, gpt2, vit"),
        ({"architectures": ["BertForMultipleChoice"]}, "'BertForMultipleChoice', expected .* pass model=BERT"),
        ({"hidden_size": "8"}, "hidden_size is '8', expected an integer of 1 or more"),
        ({"hidden_size": 16}, r"has shape \(20, 8\), expected \(20, 16\): config.json or the options do not fit"),
        ({"num_hidden_layers": 3}, "has no weight 'encoder.layer.2.attention.self.query.weight'"),
        ({"num_hidden_layers": 1}, "has the weight 'encoder.layer.1..*', which BERT does not have"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish', expected one of gelu, gelu_new"),
        ({"is_decoder": True}, "is_decoder is True, expected False: nothing else is supported"),
        ({"num_attention_heads": 3}, "units is 8 and num_heads 3"),
    ],
)  # fmt: skip
def test_configs_that_do_not_fit(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(copy("bert", tmp_path, config))


@pytest.mark.parametrize("name", ["bert_classifier", "gpt2", "vit_classifier"])
def test_any_value_in_a_config_loads_or_is_refused(name, tmp_path):
    copy(name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in config:
        for value in (None, -1, 10**12, math.nan, "x", [[]], True):
            (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
            with contextlib.suppress(ValueError):
                from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "expected a JSON object"),
        ("{", "is not valid JSON"),
        ('{"weight_map": {"a": 1}}', "expected the file of each array"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "expected a file in the same folder"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "'a' is not in model-00001"),
    ],
)
def test_indices_of_shards_that_are_invalid(content, message, tmp_path):
    copy("gpt2", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


def test_missing_files_and_other_classes(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"bert-base-uncased has no config.json.*not downloaded"):
        from_pretrained("bert-base-uncased")
    copy("gpt2", tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002"):
        from_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no weights: expected model.safetensors or"):
        from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model is ViT, but .* is of the type 'bert', expected BERT or"):
        from_pretrained(FOLDER / "bert", vision.ViT)


def test_sizes_and_inputs_that_are_refused():
    with pytest.raises(ValueError, match="image_size is 30 and patch_size 4"):
        vision.ViT(30, 4)
    net = from_pretrained(FOLDER / "gpt2")
    with pytest.raises(ValueError, match="13"):
        net(mx.nd.zeros((1, 13))).wait_to_read()


@pytest.mark.parametrize("hybridized", [False, True])
def test_an_empty_batch_has_empty_outputs(hybridized):
    tokens = mx.nd.zeros((0, 5), dtype="int32")
    calls = {"bert": [tokens], "gpt2": [tokens], "vit": [mx.nd.zeros((0, *EXPECTED["images"].shape[1:]))]}
    for name, arguments in calls.items():
        net = from_pretrained(FOLDER / name)
        net.hybridize(hybridized)
        outputs = net(*arguments)
        for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            assert output.asnumpy().shape[0] == 0
