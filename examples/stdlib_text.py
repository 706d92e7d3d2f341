"""The text that the language examples learn: the source of the standard library of the Python that runs them."""

from __future__ import annotations

import os
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ALPHABET = "\n" + "".join(sorted(set(string.printable) - set(string.whitespace) | {" "}))
"""A line's end and the 95 printable characters of ASCII; a character is the number of its place here."""

Text = NDArray[np.int32]


def load(characters: int, test_part: float = 0.05, seed: int = 7) -> tuple[Text, Text]:
    """The modules at the top of the standard library in random order, as much as is asked for.

    Returns:
        the characters to learn from, and those of other modules to be tested with.
    """
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    order = np.random.default_rng(seed).permutation(len(files))
    wanted = int(characters * (1 + test_part))
    texts: list[str] = []
    for index in order:
        texts.append(files[index].read_text(encoding="utf-8"))
        if sum(map(len, texts)) >= wanted:
            break
    text = encode("\n".join(texts))[:wanted]
    return text[:characters], text[characters:]


def encode(text: str) -> Text:
    """The numbers of characters; a tab is four spaces, and what is not in the alphabet a question mark."""
    table = np.full(128, ALPHABET.index("?"), np.int32)
    table[[ord(each) for each in ALPHABET]] = np.arange(len(ALPHABET))
    plain = text.replace("\t", "    ").encode("ascii", "replace")
    return table[np.frombuffer(plain, np.uint8)]


def decode(numbers: NDArray[np.integer]) -> str:
    """The text of the numbers."""
    return "".join(ALPHABET[number] for number in numbers)
