"""The training text of the language examples: the source of the running Python's standard library."""

from __future__ import annotations

import os
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ALPHABET = "\n" + "".join(sorted(set(string.printable) - set(string.whitespace) | {" "}))
"""Newline and the 95 printable ASCII characters; a character is encoded as its position here."""

Text = NDArray[np.int32]


def load(characters: int, test_part: float = 0.05, seed: int = 7) -> tuple[Text, Text]:
    """Load the top-level modules of the standard library in random order, up to a length.

    Returns:
        the characters to learn from, and those of other modules to be tested with.
    """
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    order = np.random.default_rng(seed).permutation(len(files))
    length = int(characters * (1 + test_part))
    texts: list[str] = []
    for index in order:
        texts.append(files[index].read_text(encoding="utf-8"))
        if sum(map(len, texts)) >= length:
            break
    text = encode("\n".join(texts))[:length]
    return text[:characters], text[characters:]


def encode(text: str) -> Text:
    """Encode characters as numbers; a tab becomes four spaces, and unknown characters question marks."""
    table = np.full(128, ALPHABET.index("?"), np.int32)
    table[[ord(each) for each in ALPHABET]] = np.arange(len(ALPHABET))
    plain = text.replace("\t", "    ").encode("ascii", "replace")
    return table[np.frombuffer(plain, np.uint8)]


def decode(numbers: NDArray[np.integer]) -> str:
    """Decode numbers to text."""
    return "".join(ALPHABET[number] for number in numbers)
