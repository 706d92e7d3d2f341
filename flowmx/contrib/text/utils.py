"""Tokens of a text, counted."""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["count_tokens_from_str"]


def count_tokens_from_str(
    source_str: str, token_delim: str = " ", seq_delim: str = "\n", to_lower: bool = False,
    counter_to_update: Counter[str] | None = None,
) -> Counter[str]:  # fmt: skip
    r"""The tokens of a text, with how often each occurs.

    Args:
        source_str: the text.
        token_delim: the delimiter of tokens, a regular expression.
        seq_delim: the delimiter of sequences, likewise.
        to_lower: count tokens in lower case.
        counter_to_update: a counter to add to, which is then returned (default: a new one).

    Example:
        >>> mx.contrib.text.utils.count_tokens_from_str("Life is great\nlife is good", to_lower=True)["life"]
        2
    """
    tokens = [each for each in re.split(f"{token_delim}|{seq_delim}", source_str) if each]
    counter = Counter() if counter_to_update is None else counter_to_update
    counter.update([each.lower() for each in tokens] if to_lower else tokens)
    return counter
