"""Counting the tokens of a text."""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["count_tokens_from_str"]


def count_tokens_from_str(
    source_str: str, token_delim: str = " ", seq_delim: str = "\n", to_lower: bool = False,
    counter_to_update: Counter[str] | None = None,
) -> Counter[str]:  # fmt: skip
    r"""Count the tokens of a text.

    Args:
        source_str: the text.
        token_delim: the delimiter of tokens, a regular expression.
        seq_delim: the delimiter of sequences, a regular expression.
        to_lower: count tokens in lower case.
        counter_to_update: a counter to update and return (default: a new one).

    Example:
        >>> mx.contrib.text.utils.count_tokens_from_str("Life is great\nlife is good", to_lower=True)["life"]
        2
    """
    tokens = [word for word in re.split(f"{token_delim}|{seq_delim}", source_str) if word]
    counter = Counter() if counter_to_update is None else counter_to_update
    counter.update([token.lower() for token in tokens] if to_lower else tokens)
    return counter
