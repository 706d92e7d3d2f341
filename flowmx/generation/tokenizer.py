"""Tokenizers: texts to tokens and back, from a ``tokenizer.json`` or the vocabulary of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from flowmx.generation.byte_table import ByteTable
from flowmx.suggestions import did_you_mean

if TYPE_CHECKING:
    import tokenizers

__all__ = ["TextStream", "Tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens in GGUF files: those that are not text, and words that are never split."""
_END_TEXTS = (
    "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "</s>",
)  # fmt: skip
"""Control tokens with which models end a text or a turn."""
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The words of Mistral's newer models: a capital letter begins one."""
_PATTERNS = {
    "default": None, "gpt-2": None, "smollm": None, "llama-bpe": _LLAMA, "llama3": _LLAMA, "llama-v3": _LLAMA,
    "qwen2": _QWEN, "qwen35": _QWEN, "deepseek-r1-qwen": _QWEN, "tekken": _TEKKEN,
}  # fmt: skip
"""The pattern of words by the name of a pre-tokenizer in GGUF files; None for GPT-2's."""
_SINGLE_DIGITS = ("smollm",)
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Pre-tokenizers whose words are tokens if the vocabulary has them, whatever the merges; texts begin with a token."""
_MAX_PIECE = 256
"""The maximum length of a token that is joined from pairs; longer ones only appear as they are."""


class TextStream:
    """The text of tokens as it becomes complete.

    Args:
        backend: the tokenizer.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend, self._stream = backend, DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        """Add a token; return the characters that it completes."""
        return self._stream.step(self._backend, token) or ""


class Tokenizer:
    """A tokenizer. It needs the package ``tokenizers``. Create it with :meth:`from_json` or :meth:`from_gguf`.

    Args:
        backend: a tokenizer of that package.
        bos: the token that begins a sequence, or None.
        eos: the token that ends a sequence, or None.
        end_tokens: tokens that end a text or a turn.
        prefix: tokens to put before a text.
        suffix: tokens to put after a text.

    Attributes:
        bos: as passed.
        eos: as passed.
        end_tokens: as passed, and ``eos``.
        chat_template: the source of the model's chat template, or None.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, bos: int | None = None, eos: int | None = None,
        end_tokens: Iterable[int] = (), prefix: Sequence[int] = (), suffix: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._backend, self.bos, self.eos = backend, bos, eos
        self.end_tokens = frozenset([*end_tokens, *([] if eos is None else [eos])])
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.chat_template: str | None = None
        self._bytes: ByteTable | None = None

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read a ``tokenizer.json``, and the files next to it that name the special tokens and the chat template.

        Args:
            path: the file, or its folder.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not a tokenizer.
            ImportError: ``tokenizers`` is not installed.
        """
        package = _package()
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist, expected a .gguf file or a folder with tokenizer.json; models are not "
                "downloaded by name"
            )
        try:
            backend = package.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises its base class
            raise ValueError(f"{path} is not a tokenizer: {error}") from None
        config = _json(path.with_name("tokenizer_config.json"))
        generation = _json(path.with_name("generation_config.json"))
        bos, eos = (_token_of(backend, config.get(f"{name}_token")) for name in ("bos", "eos"))
        ends = generation.get("eos_token_id")
        tokenizer = cls(backend, bos, eos, [*_integers(ends), *_end_tokens(backend)])
        source = path.with_name("chat_template.jinja")
        tokenizer.chat_template = _default_template(config.get("chat_template"))
        if source.exists():
            tokenizer.chat_template = source.read_text()
        return tokenizer

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """Build the tokenizer of a GGUF file from its metadata.

        Raises:
            ValueError: the vocabulary is missing, malformed, or of a kind that is not supported.
            ImportError: ``tokenizers`` is not installed.
        """
        _package()
        kind = _expect(metadata, "model", str)
        if kind not in _BUILDERS:
            raise ValueError(f"the vocabulary is of the model {kind!r}, expected one of {', '.join(_BUILDERS)}")
        texts = _expect(metadata, "tokens", list)
        try:
            backend = _BUILDERS[kind](metadata, texts)
            types = np.asarray(metadata.get("tokenizer.ggml.token_type", []), np.int64)
            _add_special_tokens(backend, texts, types)
        except ValueError:
            raise
        except Exception as error:  # the package raises its base class
            raise ValueError(f"the vocabulary is malformed: {error}") from None
        bos, eos = (_number(metadata, f"{name}_token_id", len(texts)) for name in ("bos", "eos"))
        has_bos = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
        adds_bos = metadata.get("tokenizer.ggml.add_bos_token", has_bos) and bos is not None
        adds_eos = metadata.get("tokenizer.ggml.add_eos_token", False) and eos is not None
        ends = [_number(metadata, f"{name}_token_id", len(texts)) for name in ("eot", "eom")]
        tokenizer = cls(
            backend, bos, eos, [*(each for each in ends if each is not None), *_end_tokens(backend)],
            [bos] if adds_bos and bos is not None else [], [eos] if adds_eos and eos is not None else [],
        )  # fmt: skip
        template = metadata.get("tokenizer.chat_template")
        tokenizer.chat_template = template if isinstance(template, str) else None
        return tokenizer

    @property
    def size(self) -> int:
        """The number of tokens."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: the text. Texts of special tokens in it, such as ``<|im_end|>``, become these tokens: remove them from
                the words of users that you do not trust.
            special: add the tokens that begin and end a sequence, if the model expects them.
        """
        try:
            tokens = list(self._backend.encode(text, add_special_tokens=special).ids)
        except TypeError:
            raise ValueError(f"the text is {text[:40]!r}, expected a string without surrogates") from None
        return [*self._prefix, *tokens, *self._suffix] if special else tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        for token in tokens:
            self._check(token)
        return str(self._backend.decode(list(tokens)))

    def stream(self) -> TextStream:
        """Return a decoder of tokens that come one by one."""
        return TextStream(self._backend)

    def token_text(self, number: int) -> str:
        """Return the text of one token; it may have replacement characters for parts of a character.

        Raises:
            IndexError: the token is not in the vocabulary.
        """
        self._check(number)
        return str(self._backend.decode([number], skip_special_tokens=False))

    def token_bytes(self, number: int) -> bytes:
        """Return what one token adds to a text in UTF-8; empty for control tokens.

        Raises:
            IndexError: the token is not in the vocabulary.
            TypeError: the tokenizer's decoder does not join the bytes of tokens.
        """
        self._check(number)
        if self._bytes is None:
            self._bytes = ByteTable(self._backend)
        return self._bytes.find(number)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.size:
            raise IndexError(f"there is no token {token} in the vocabulary, only 0 to {self.size - 1}")


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ImportError("tokenizers need the package tokenizers: pip install tokenizers") from None
    return tokenizers


def _byte_pairs(metadata: Mapping[str, Any], texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer of pairs of bytes, as GPT-2's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in _PATTERNS:
        hint = did_you_mean(str(name), list(_PATTERNS))
        raise ValueError(f"the pre-tokenizer is {name!r}, expected one of {', '.join(_PATTERNS)}{hint}")
    merges = [_pair(merge) for merge in _expect(metadata, "merges", list)]
    backend = Tokenizer(models.BPE(vocab=_numbers(texts), merges=merges, ignore_merges=name in _WHOLE_WORDS))
    pattern = _PATTERNS[name]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if name in _SINGLE_DIGITS else []
    if pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_pieces(metadata: Mapping[str, Any], texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer of SentencePiece, which joins the pair with the highest score first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = np.asarray(metadata.get("tokenizer.ggml.scores", []), np.float64)
    if len(scores) != len(texts):
        raise ValueError(f"the vocabulary has {len(texts)} tokens and {len(scores)} scores, expected as many")
    numbers = _numbers(texts)
    pairs = sorted(_pairs(texts, numbers, scores))
    unknown = _number(metadata, "unknown_token_id", len(texts)) or 0
    merges = [pair for *_, pair in pairs]
    model = models.BPE(vocab=numbers, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=texts[unknown])
    backend = Tokenizer(model)
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    prepend = [normalizers.Prepend("▁")] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


_BUILDERS: dict[str, Callable[[Mapping[str, Any], Sequence[str]], tokenizers.Tokenizer]] = {
    "gpt2": _byte_pairs, "llama": _sentence_pieces,
}  # fmt: skip
"""The kinds of vocabularies of GGUF files."""


def _pairs(
    texts: Sequence[str], numbers: Mapping[str, int], scores: np.ndarray[Any, Any]
) -> Iterable[tuple[float, int, int, tuple[str, str]]]:
    """Iterate over the pairs of tokens that form a token: its negative score, the numbers, and the pair."""
    for number, text in enumerate(texts):
        for place in range(1, len(text)) if len(text) <= _MAX_PIECE else ():
            left, right = text[:place], text[place:]
            if left in numbers and right in numbers:
                yield -float(scores[number]), numbers[left], numbers[right], (left, right)


def _add_special_tokens(backend: tokenizers.Tokenizer, texts: Sequence[str], types: np.ndarray[Any, Any]) -> None:
    """Add the tokens that are found in texts as they are."""
    from tokenizers import AddedToken

    for kind in (_CONTROL, _USER_DEFINED):
        words = [texts[number] for number in map(int, np.flatnonzero(types == kind)) if number < len(texts)]
        tokens = [AddedToken(word, special=kind == _CONTROL, normalized=False) for word in words if word]
        (backend.add_special_tokens if kind == _CONTROL else backend.add_tokens)(tokens)


def _numbers(texts: Sequence[str]) -> dict[str, int]:
    """Return the numbers of tokens by their texts."""
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("the vocabulary has tokens that are not texts")
    numbers: dict[str, int] = {}
    for number, text in enumerate(texts):
        numbers.setdefault(text, number)
    return numbers


def _pair(merge: object) -> tuple[str, str]:
    left, separator, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not separator or " " in right:
        raise ValueError(f"the vocabulary has the merge {merge!r}, expected two texts with a space between them")
    return left, right


def _expect(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a part of the vocabulary."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, kind):
        state = "missing" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"the metadata 'tokenizer.ggml.{name}' is {state}, expected a {kind.__name__}")
    return value


def _number(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    """Return the number of a special token, or None."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, (int, np.integer)) or not 0 <= int(value) < size:
        raise ValueError(f"the metadata 'tokenizer.ggml.{name}' is {value!r}, expected 0 to {size - 1}")
    return int(value)


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    return values if isinstance(values, dict) else {}


def _default_template(value: object) -> str | None:
    """Return the chat template of a config: a text, or the default one of a list of named texts."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _token_of(backend: tokenizers.Tokenizer, value: object) -> int | None:
    """Return the number of a token that a config names."""
    text = value.get("content") if isinstance(value, dict) else value
    return backend.token_to_id(text) if isinstance(text, str) else None


def _integers(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int)]


def _end_tokens(backend: tokenizers.Tokenizer) -> list[int]:
    """Return the known end tokens that a vocabulary has."""
    numbers = (backend.token_to_id(text) for text in _END_TEXTS)
    return [number for number in numbers if number is not None]
