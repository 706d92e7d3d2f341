"""Vocabularies: a number for each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["UNKNOWN", "Vocabulary"]

UNKNOWN = 0
"""The number of every unknown token."""


class Vocabulary:
    """The numbers of tokens: the unknown token, reserved tokens, then those of a text, the most frequent first.

    Args:
        counter: the counts of the tokens of the text.
        most_freq_count: the maximum number of tokens, the most frequent first (default: all).
        min_freq: the minimum number of occurrences of a token.
        unknown_token: represents all tokens without a number.
        reserved_tokens: tokens that always have a number, such as a padding token.

    Raises:
        AssertionError: ``min_freq`` is not positive, the reserved tokens have duplicates or contain the unknown token,
            or ``counter`` is not a Counter (as in MXNet).

    Example:
        >>> vocab = mx.contrib.text.vocab.Vocabulary(collections.Counter("a b b".split()))
        >>> vocab.to_indices(["b", "a", "c"])
        [1, 2, 0]
    """

    def __init__(
        self, counter: Counter[Any] | None = None, most_freq_count: int | None = None, min_freq: int = 1,
        unknown_token: Hashable = "<unk>", reserved_tokens: Sequence[object] | None = None,
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
    def token_to_idx(self) -> dict[object, int]:
        """The number of each token."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> list[Any]:
        """The token of each number."""
        return self._idx_to_token

    @property
    def unknown_token(self) -> Hashable:
        """The token that represents unknown tokens."""
        return self._unknown_token

    @property
    def reserved_tokens(self) -> list[Any] | None:
        """The reserved tokens, or None."""
        return self._reserved_tokens

    def to_indices(self, tokens: object) -> int | list[int]:
        """Return the number of a token, or the numbers of a list of tokens."""
        if not isinstance(tokens, list):
            return self._token_to_idx.get(tokens, UNKNOWN)
        return [self._token_to_idx.get(token, UNKNOWN) for token in tokens]

    def to_tokens(self, indices: Any) -> Any:
        """Return the token of a number, or the tokens of a list of numbers.

        Raises:
            ValueError: an unknown number.
        """
        numbers = indices if isinstance(indices, list) else [indices]
        for number in numbers:
            if not isinstance(number, int) or number >= len(self):
                raise ValueError(f"to_tokens: no token has the number {number!r}, expected one below {len(self)}")
        tokens = [self._idx_to_token[number] for number in numbers]
        return tokens if isinstance(indices, list) else tokens[0]


def _frequent(counter: Counter[Any], limit: int | None, min_freq: int, excluded: set[object]) -> list[Any]:
    """Return the tokens by decreasing frequency; equally frequent tokens are sorted."""
    by_frequency = sorted(sorted(counter.items()), key=lambda item: -item[1])
    tokens = [token for token, count in by_frequency if count >= min_freq and token not in excluded]
    return tokens[:limit]
