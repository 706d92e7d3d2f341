"""The bytes of tokens: what each adds to a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

__all__ = ["ByteTable"]

_JOINING = frozenset(["ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"])
"""Kinds of decoders that join the bytes of tokens, except for spaces at the beginning of a text."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class ByteTable:
    """The bytes of the tokens of a tokenizer.

    Args:
        backend: a tokenizer of the package ``tokenizers``.

    Raises:
        TypeError: the tokenizer joins tokens in another way, for example with spaces between them.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        kinds = list(_kinds(json.loads(backend.to_str()).get("decoder")))
        if not kinds or not _JOINING.issuperset(kinds):
            raise TypeError(
                f"the decoder of the tokenizer is {', '.join(kinds) or 'missing'}, expected one that joins the bytes "
                f"of tokens: of {', '.join(sorted(_JOINING))}"
            )
        self._is_byte_level = "ByteLevel" in kinds
        self._has_fallback, self._has_spaces = "ByteFallback" in kinds, {"Metaspace", "Replace"} & set(kinds)
        self._added = dict(backend.get_added_tokens_decoder().items())

    def find(self, number: int) -> bytes:
        """Return the bytes of a token; none for a control token or a number without a token."""
        added = self._added.get(number)
        if added is not None:
            return b"" if added.special else added.content.encode()
        text = self._backend.id_to_token(number)
        if text is None:
            return b""
        if self._is_byte_level:
            table = _byte_letters()
            return bytes(table[letter] for letter in text) if table.keys() >= set(text) else text.encode()
        if self._has_fallback and (match := _BYTE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return (text.replace("▁", " ") if self._has_spaces else text).encode(errors="replace")


def _kinds(decoder: object) -> Iterator[str]:
    """Iterate over the kinds of decoders in the JSON of one."""
    if not isinstance(decoder, dict):
        return
    kind = decoder.get("type")
    if kind == "Sequence":
        for each in decoder["decoders"]:
            yield from _kinds(each)
    elif isinstance(kind, str):
        yield kind


@cache
def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter in the vocabularies of GPT-2's kind: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
