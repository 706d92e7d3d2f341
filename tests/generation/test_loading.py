"""Generators from files, the chat command, and a service over one."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import tokenizers

import flowmx as mx
from benchmarks.text_models import SMOLLM2
from flowmx import cli
from flowmx.generation import is_text_model, load
from flowmx.serve.aiohttp_app import app
from tests.serve.test_http import JSON, Client

FOLDER = Path(__file__).parent.parent / "fixtures" / "huggingface"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama with a tokenizer of letters; token 0 ends a text."""
    shutil.copytree(FOLDER / "llama", tmp_path, dirs_exist_ok=True)
    letters = ["</s>", *"abcdefghijklmnopqrs"]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


async def test_a_folder_is_a_generator(folder):
    assert is_text_model(folder)
    assert not is_text_model(FOLDER / "llama")
    assert not is_text_model(FOLDER / "bert")
    async with load(folder, max_bytes=1 << 20) as generator:
        assert generator.max_length == 64
        text = await generator("abc", max_tokens=8, temperature=0, ignore_end=True)
        chat = await generator([{"role": "user", "content": "abc"}], max_tokens=8, temperature=0, ignore_end=True)
        assert chat == text._replace(usage=chat.usage)
        assert len(text.tokens) == 8
        with pytest.raises(ValueError, match="the prompt has 64 tokens, expected at most 63"):
            generator("a" * 64)


def test_what_cannot_be_loaded(folder):
    with pytest.raises(ValueError, match="less than one page"):
        load(folder, max_bytes=10)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for %}"}))
    with pytest.raises(ValueError, match="the chat template is invalid"):
        load(folder)
    with pytest.raises(FileNotFoundError, match=r"missing\.gguf"):
        load("missing.gguf")


def test_the_chat_command_prints_an_answer(folder, capsys):
    assert cli.main(["chat", str(folder), "abc", "--temperature", "0", "--max-tokens", "5"]) == 0
    first = capsys.readouterr().out
    assert first.endswith("\n")
    cli.main(["chat", str(folder), "abc", "--temperature", "0", "--max-tokens", "5", "--system", ""])
    assert capsys.readouterr().out == first


def test_the_chat_command_reads_messages(folder, capsys, monkeypatch):
    lines = iter(["abc", "", "/new", "abc"])

    def read(prompt=""):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert cli.main(["chat", str(folder), "--temperature", "0", "--max-tokens", "5"]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other


async def test_a_service_over_files(folder):
    async with Client(load(folder, name="tiny", max_bytes=1 << 20)) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 3}
        status, _, reply = await client("POST", "/v1/chat/completions", json.dumps(body).encode(), Content_Type=JSON)
        assert status == 200
        assert json.loads(reply)["usage"]["prompt_tokens"] == 3


@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs SmolLM2: make models")
def test_a_real_model_answers():
    async def main():
        async with mx.generation.load(SMOLLM2, max_bytes=1 << 26) as generator:
            completion = await generator("The capital of France is", max_tokens=3, temperature=0)
            assert completion.text.startswith(" Paris.")

    asyncio.run(main())


def test_an_application_takes_no_other_object():
    with pytest.raises(TypeError, match="expected a Predictor"):
        app("model.gguf")


@pytest.mark.parametrize("name", ["model.onnx", "model-0000.params"])
def test_a_file_that_is_no_language_model_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x08\xff\xff")
    with pytest.raises(ValueError, match=r"is not a language model: expected a \.gguf file"):
        load(tmp_path / name)
