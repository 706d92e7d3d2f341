"""Vocabularies: a number for each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["UNKNOWN", "Vocabulary"]

UNKNOWN = 0
"""The number of every unknown token."""


class Vocabulary:
    """Numbers for tokens: the unknown one, reserved ones, then those of a text, the most frequent first.

    Args:
        counter: the tokens of the text, with how often each occurs.
        most_freq_count: the maximum number of tokens, the most frequent first (default: all).
        min_freq: the least number of occurrences of a token.
        unknown_token: stands for every token that has no number of its own.
        reserved_tokens: tokens that always have a number, such as those for padding.

    Raises:
        AssertionError: ``min_freq`` is not positive, the reserved tokens are not all different, the unknown one is
            among them, or ``counter`` is none (what MXNet raises).

    Example:
        >>> vocab = mx.contrib.text.vocab.Vocabulary(collections.Counter("a b b".split()))
        >>> vocab.to_indices(["b", "a", "c"])
        [1, 2, 0]
    """

    def __init__(
        self, counter: Counter[Any] | None = None, most_freq_count: int | None = None, min_freq: int = 1,
        unknown_token: Hashable = "<unk>", reserved_tokens: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        reserved = list(reserved_tokens or ())
        if min_freq <= 0:
            raise AssertionError(f"Vocabulary: min_freq is {min_freq}, expected a positive number")
        if unknown_token in reserved or len(set(reserved)) != len(reserved):
            raise AssertionError(
                f"Vocabulary: reserved_tokens is {reserved}, expected different tokens without {unknown_token!r}"
            )
        if counter is not None and not isinstance(counter, Counter):
            raise AssertionError(f"Vocabulary: counter is {type(counter).__name__}, expected a collections.Counter")
        self._unknown_token = unknown_token
        self._reserved_tokens = None if reserved_tokens is None else reserved
        self._idx_to_token: list[Any] = [unknown_token, *reserved]
        self._idx_to_token += _frequent(counter or Counter(), most_freq_count, min_freq, set(self._idx_to_token))
        self._token_to_idx = {token: number for number, token in enumerate(self._idx_to_token)}

    def __len__(self) -> int:
        return len(self._idx_to_token)

    @property
    def token_to_idx(self) -> dict[Any, int]:
        """The number of each token."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[Any]:
        """The token of each number."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> Any:
        """The token that stands for unknown ones."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[Any] | None:
        """The reserved tokens, or None."""
        return self._reserved_tokens

    def to_indices(self, tokens: Any) -> Any:
        """The number of a token, or those of a list of tokens."""
        if not isinstance(tokens, list):
            return self._token_to_idx.get(tokens, UNKNOWN)
        return [self._token_to_idx.get(token, UNKNOWN) for token in tokens]

    def to_tokens(self, indices: Any) -> Any:
        """The token of a number, or those of a list of numbers.

        Raises:
            ValueError: a number belongs to no token.
        """
        given = indices if isinstance(indices, list) else [indices]
        for number in given:
            if not isinstance(number, int) or number >= len(self):
                raise ValueError(f"to_tokens: {number!r} is no token's number, expected one below {len(self)}")
        found = [self._idx_to_token[number] for number in given]
        return found if isinstance(indices, list) else found[0]


def _frequent(counter: Counter[Any], most: int | None, least: int, known: set[Any]) -> list[Any]:
    """The tokens to number: the most frequent first, those that are as frequent in their own order."""
    ordered = sorted(sorted(counter.items()), key=lambda each: -each[1])
    chosen = [token for token, count in ordered if count >= least and token not in known]
    return chosen[:most]
