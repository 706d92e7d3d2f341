"""Tokenizers: one vocabulary as tokenizer.json and as GGUF metadata, and the text of tokens that come one by one."""

import json

import numpy as np
import pytest
import tokenizers

from benchmarks.text_models import SMOLLM2
from flowmx.generation.tokenizer import Tokenizer
from flowmx.serialization import gguf

TEXTS = ["Hello world, it's 2024!", "Grüße 🎉 日本語", "  two  spaces\n\n\tand a tab", "", "a<|end|>b"]


def trained(pattern=None):
    """Return a byte-level tokenizer, trained on the licences that come with Python."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator([str(copyright), str(license), *TEXTS], trainer)
    return backend


@pytest.fixture(scope="module")
def backend():
    return trained()


def metadata_of(backend, **more):
    """Return the vocabulary as GGUF has it."""
    model = json.loads(backend.to_str())["model"]
    texts = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    types = np.ones(len(texts), np.int32)
    types[:2] = 3
    names = {"model": "gpt2", "pre": "gpt-2", "tokens": texts, "merges": merges, "token_type": types} | more
    return {f"tokenizer.ggml.{name}": value for name, value in names.items() if value is not None}


def test_gguf_metadata_and_json_give_the_same_tokens(backend, tmp_path):
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    one = Tokenizer.from_json(tmp_path)
    other = Tokenizer.from_gguf(metadata_of(backend, bos_token_id=0, eos_token_id=1))
    assert (one.bos, one.eos, one.end_tokens) == (0, 1, {1, 7})
    assert (other.bos, other.eos, other.end_tokens) == (0, 1, {1})
    assert one.chat_template == "{{ messages }}"
    assert one.size == other.size == 400
    for text in TEXTS:
        tokens = one.encode(text)
        assert tokens == other.encode(text)
        assert one.decode(tokens) == other.decode(tokens) == text.replace("<|end|>", "")
    assert other.encode("<|end|>") == [1]
    assert other.token_text(1) == "<|end|>"


def test_words_of_tekken_begin_with_a_capital_and_digits_are_alone():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = ["oW", "12", "Wo", "'s", "ab", "abc", "/Ċ"]
    merges = ["o W", "1 2", "W o", "' s", "a b", "/ Ċ"]
    metadata = {
        "model": "gpt2", "pre": "tekken", "tokens": ["<s>", *alphabet, *words], "merges": merges,
        "token_type": np.array([3] + [1] * (len(alphabet) + len(words)), np.int32), "bos_token_id": 0,
    }  # fmt: skip

    def pieces(text, **more):
        names = {f"tokenizer.ggml.{name}": value for name, value in (metadata | more).items()}
        tokenizer = Tokenizer.from_gguf(names)
        return [tokenizer.token_text(token) for token in tokenizer.encode(text)]

    assert pieces("oWo") == ["<s>", "o", "Wo"]
    assert pieces("abc") == ["<s>", "abc"]  # a whole word, though no merge makes it
    assert pieces("Ab's12!/\n") == ["<s>", "A", "b", "'s", "1", "2", "!", "/\n"]
    assert pieces("oW", pre="qwen2") == ["oW"]
    assert pieces("12", pre="llama-bpe", add_bos_token=False) == ["12"]


def test_special_tokens_are_added_where_the_file_says_so(backend):
    metadata = metadata_of(backend, bos_token_id=0, eos_token_id=1, add_bos_token=True, add_eos_token=True)
    tokenizer = Tokenizer.from_gguf(metadata)
    plain = tokenizer.encode("Hello", special=False)
    assert tokenizer.encode("Hello") == [0, *plain, 1]


@pytest.mark.parametrize("text", [*TEXTS, "🎉" * 50, "é" * 30 + " end"])
def test_a_stream_returns_complete_characters(backend, text):
    tokenizer = Tokenizer.from_gguf(metadata_of(backend))
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text))
    assert "\ufffd" not in "".join(pieces)


def sentence_pieces(**more):
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "h", "e", "l", "o", "he", "ll", "▁he", "llo", "▁hello", "lo"]
    scores = np.zeros(len(words), np.float32)
    scores[259:] = -np.arange(len(words) - 259)
    types = np.array([2, 3, 3, *[6] * 256, *[1] * (len(words) - 259)], np.int32)
    names = {
        "model": "llama", "tokens": words, "scores": scores, "token_type": types, "bos_token_id": 1, "eos_token_id": 2,
        "unknown_token_id": 0,
    } | more  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in names.items()}


def test_sentence_pieces_join_the_best_pairs_and_fall_back_to_bytes():
    tokenizer = Tokenizer.from_gguf(sentence_pieces())
    texts = sentence_pieces()["tokenizer.ggml.tokens"]
    assert [texts[token] for token in tokenizer.encode("hello hello")] == ["<s>", "▁hello", "▁hello"]
    assert [texts[token] for token in tokenizer.encode("é", special=False)] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hello é hello")) == "hello é hello"
    assert tokenizer.encode("hello")[0] == 1
    without = Tokenizer.from_gguf(sentence_pieces(add_space_prefix=False, add_bos_token=False))
    assert [texts[token] for token in without.encode("hello")] == ["he", "llo"]


def test_the_bytes_of_tokens(backend):
    tokenizer = Tokenizer.from_gguf(metadata_of(backend))
    for text in TEXTS:
        content = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
        assert content == text.replace("<|end|>", "").encode()
    pieces = Tokenizer.from_gguf(sentence_pieces())
    content = [pieces.token_bytes(token) for token in pieces.encode("hello é")]
    assert content == [b"", b" hello", b" ", b"\xc3", b"\xa9"]
    with pytest.raises(IndexError, match="in the vocabulary"):
        pieces.token_bytes(-1)
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0, "##b": 1}))
    words.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(TypeError, match="the decoder of the tokenizer is WordPiece"):
        Tokenizer(words).token_bytes(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "wordpiece"}, "of the model 'wordpiece', expected one of gpt2, llama"),
        ({"pre": "gpt-3"}, r"pre-tokenizer is 'gpt-3'.*did you mean 'gpt-2'"),
        ({"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokens": [1, 2]}, "tokens that are not texts"),
        ({"merges": ["ab"]}, "the merge 'ab', expected two texts"),
        ({"merges": ["x yyyyyy"]}, "the vocabulary is malformed"),
        ({"pre": ["gpt-2"]}, "the pre-tokenizer is"),
        ({"bos_token_id": "one"}, "bos_token_id' is 'one', expected 0 to 399"),
        ({"token_type": ["a"]}, "invalid literal|malformed"),
        ({"bos_token_id": 400}, "bos_token_id' is 400, expected 0 to 399"),
    ],
)
def test_vocabularies_that_are_refused(backend, change, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_gguf(metadata_of(backend, **change))


def test_tokens_and_texts_that_do_not_exist(backend):
    tokenizer = Tokenizer.from_gguf(metadata_of(backend))
    for call in (lambda: tokenizer.decode([400]), lambda: tokenizer.token_text(-1)):
        with pytest.raises(IndexError, match="in the vocabulary, only 0 to 399"):
            call()
    with pytest.raises(ValueError, match="expected a string without surrogates"):
        tokenizer.encode("a\ud800")


def test_the_default_of_named_templates(backend, tmp_path):
    backend.save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.from_json(tmp_path).chat_template == "b"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not valid JSON"):
        Tokenizer.from_json(tmp_path)


def test_a_long_token_takes_no_quadratic_time():
    words = sentence_pieces()["tokenizer.ggml.tokens"]
    metadata = sentence_pieces(tokens=[*words, "h" * 400_000], scores=np.zeros(len(words) + 1, np.float32))
    assert Tokenizer.from_gguf(metadata).size == len(words) + 1


def test_files_that_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a \.gguf file or a folder with tokenizer\.json"):
        Tokenizer.from_json(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        Tokenizer.from_json(tmp_path)


@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs SmolLM2: make models")
def test_the_vocabulary_of_a_real_file():
    tokenizer = Tokenizer.from_gguf(gguf.load(SMOLLM2).metadata)
    assert tokenizer.encode("Hello world, it's 2024!") == [19556, 905, 28, 357, 506, 216, 34, 32, 34, 36, 17]
    assert tokenizer.end_tokens == {0, 2}
    for text in TEXTS[:4]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
