"""Results of a generator: tokens, completions, and the numbers of tokens."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Completion", "Token", "TokenLogprob", "Usage"]


class TokenLogprob(NamedTuple):
    """A token and the logarithm of its probability.

    Attributes:
        number: its number in the vocabulary.
        text: its text; parts of a character are replacement characters.
        logprob: the logarithm of its probability.
        bytes: what it adds to a text in UTF-8; None for a control token, or if the tokenizer does not know it.
    """

    number: int
    text: str
    logprob: float
    bytes: bytes | None = None


class Token(NamedTuple):
    """A generated token.

    Attributes:
        number: its number in the vocabulary.
        text: the text that is complete with it; it may be empty, or have characters of earlier tokens.
        logprob: the logarithm of its probability; None if log-probabilities were not requested.
        top_logprobs: the most probable tokens at its position, as many as were requested.
        version: the version of the weights that computed it.
        finish_reason: ``"stop"`` or ``"length"`` for the last token, else None.
        name: its text as that of one token, as in :class:`TokenLogprob`; only with log-probabilities.
        bytes: what it adds to a text in UTF-8, as in :class:`TokenLogprob`; only with log-probabilities.
    """

    number: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    version: int = 0
    finish_reason: str | None = None
    name: str = ""
    bytes: bytes | None = None


class Usage(NamedTuple):
    """The numbers of tokens of a generation.

    Attributes:
        prompt_tokens: the number of tokens of the prompt.
        completion_tokens: the number of generated tokens.
        cached_tokens: the number of tokens of the prompt whose keys and values were in the cache already.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Completion(NamedTuple):
    """A finished text.

    Attributes:
        text: the text, without the stop string.
        tokens: its tokens.
        finish_reason: ``"stop"`` for an end token or a stop string, ``"length"`` at the maximum number of tokens,
            ``"cancelled"`` if the generation was cancelled.
        usage: the numbers of tokens.
    """

    text: str
    tokens: tuple[Token, ...]
    finish_reason: str
    usage: Usage
