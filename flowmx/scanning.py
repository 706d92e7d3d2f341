"""Limits on the nesting and size of msgpack and JSON, checked before anything is built from them.

This module does no I/O.

One byte of msgpack or two of JSON may become an object of 60 bytes, and building millions of objects holds the GIL. A
scan builds nothing and stops at the first exceeded bound. It counts the announced length of a container when it reads
its header, so the cost of a scan is limited by the bounds, not by the data.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Bounds", "Excess", "build_map", "check_key", "scan_json", "scan_msgpack"]

Data = bytes | bytearray | memoryview


class Excess(ValueError):
    """Data exceeds a bound; the message has the bound and the position."""


class Bounds(NamedTuple):
    """Bounds on parsed data.

    Attributes:
        depth: maximum nesting of containers.
        containers: maximum number of lists and maps.
        items: maximum total number of list elements, map keys and map values.
    """

    depth: int = 64
    containers: int = 1 << 16
    items: int = 1 << 19


def check_key(key: object) -> None:
    """Check a key of a map before it is hashed.

    Python's hash of an integer is its remainder modulo 2**61 - 1. An attacker can send many large integers with equal
    hashes; building a map of n of them takes time proportional to n squared. Hashes of texts and bytes are randomized.

    Raises:
        Excess: the key is an integer of more than 61 bits.
    """
    if isinstance(key, int) and not -_MODULUS < key < _MODULUS:
        raise Excess("a map has an integer of more than 61 bits as a key")


_MODULUS = sys.hash_info.modulus


def build_map(pairs: Sequence[tuple[Any, Any]]) -> dict[object, Any]:
    """Return the dict of pairs, for msgpack's ``object_pairs_hook``; raises as :func:`check_key`."""
    for key, _ in pairs:
        check_key(key)
    return dict(pairs)


def scan_msgpack(data: Data, bounds: Bounds, nested: Collection[int] = ()) -> None:
    """Check the first value of msgpack data.

    Args:
        data: the bytes. The scan stops at malformed data, which the parser reports.
        bounds: the bounds.
        nested: extension types with msgpack content, which counts as one level deeper.

    Raises:
        Excess: the data exceeds a bound.
    """
    _Msgpack(bounds, frozenset(nested)).scan(memoryview(data), 0, 0)


class _Msgpack:
    """The counts over one value and the extensions in it."""

    def __init__(self, bounds: Bounds, nested: frozenset[int]) -> None:
        self.bounds = bounds
        self.nested = nested
        self.containers = 0
        self.items = 0

    def scan(self, data: memoryview, base: int, depth: int) -> None:
        """Scan one value at byte `base`, inside `depth` containers."""
        remaining, outer, offset, size = (
            1,
            list[int](),
            0,
            len(data),
        )  # remaining elements here and in the outer containers
        widths, runs, containers = _WIDTHS, _RUNS, _CONTAINERS
        while offset < size:
            first = data[offset]
            count = 1
            if width := widths[first]:
                if remaining > 1 and (run := runs[width].match(data, offset)) is not None:
                    # Count runs of numbers of equal width at once; long lists consist of them.
                    count, offset = (run.end() - offset) // width, run.end()
                else:
                    offset += width
            elif first in containers:
                length, offset = _announced_length(data, offset)
                outer.append(remaining - 1)
                remaining, count = length, 0
                self._open(length, base + offset, depth + len(outer))
            elif 0xA0 <= first < 0xC0:
                offset += first - 0x9F
            else:
                offset = self._skip(data, offset, base, depth + len(outer))
            while count >= remaining:
                if not outer:
                    return
                count -= remaining
                remaining = outer.pop()
            remaining -= count

    def _skip(self, data: memoryview, offset: int, base: int, depth: int) -> int:
        """Return the end of a text, bytes or an extension, after scanning the msgpack content of extensions."""
        kind, start, end = _string(data, offset)
        if kind in self.nested:
            self._open(0, base + offset, depth + 1)
            self.scan(data[start:end], base + start, depth + 1)
        return end

    def _open(self, length: int, offset: int, depth: int) -> None:
        self.containers += 1
        self.items += length
        bounds = self.bounds
        if depth > bounds.depth or self.containers > bounds.containers or self.items > bounds.items:
            _check(bounds, depth, self.containers, self.items, f" at byte {offset}")


def _check(bounds: Bounds, depth: int, containers: int, items: int, where: str = "") -> None:
    for count, limit, kind in (
        (depth, bounds.depth, "nested containers"),
        (containers, bounds.containers, "lists and maps"),
        (items, bounds.items, "elements of lists and maps"),
    ):
        if count > limit:
            raise Excess(f"there are {count} {kind}{where}; at most {limit} are allowed")


_WIDTHS = [0] * 256
"""Size in bytes of a number or constant by its first byte; 0 for other values."""
for _first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
    _WIDTHS[_first] = 1
for _width, _firsts in {2: b"\xcc\xd0", 3: b"\xcd\xd1", 5: b"\xca\xce\xd2", 9: b"\xcb\xcf\xd3"}.items():
    for _first in _firsts:
        _WIDTHS[_first] = _width

_RUNS = {
    1: re.compile(rb"[\x00-\x7f\xe0-\xff\xc0-\xc3]+"),
    2: re.compile(rb"(?:[\xcc\xd0].)+", re.DOTALL),
    3: re.compile(rb"(?:[\xcd\xd1]..)+", re.DOTALL),
    5: re.compile(rb"(?:[\xca\xce\xd2].{4})+", re.DOTALL),
    9: re.compile(rb"(?:[\xcb\xcf\xd3].{8})+", re.DOTALL),
}
_CONTAINERS = frozenset((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""Content sizes in bytes of extensions of fixed size."""
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Sizes in bytes of the length field of texts, bytes and extensions."""
_EXTENSIONS = frozenset((*_FIXED, 0xC7, 0xC8, 0xC9))


def _announced_length(data: memoryview, offset: int) -> tuple[int, int]:
    """Return the number of values that the header of a list or map announces (two per pair), and the byte after it."""
    first = data[offset]
    if first < 0xA0:
        return (first & 15) * (1 if first >= 0x90 else 2), offset + 1
    width = 2 if first in (0xDC, 0xDE) else 4
    return int.from_bytes(data[offset + 1 : offset + 1 + width], "big") * (
        1 if first <= 0xDD else 2
    ), offset + 1 + width


def _string(data: memoryview, offset: int) -> tuple[int, int, int]:
    """Return the type of an extension (else -1), and the start and end of the content of a text, bytes or extension."""
    first = data[offset]
    if first in _FIXED:
        length, start = _FIXED[first], offset + 1
    elif first in _COUNTED:
        start = offset + 1 + _COUNTED[first]
        length = int.from_bytes(data[offset + 1 : start], "big")
    else:  # not valid msgpack
        return -1, offset, len(data)
    if first not in _EXTENSIONS:
        return -1, start, start + length
    kind = data[start] if start < len(data) else -1
    return kind, start + 1, start + 1 + length


_QUOTE = ord('"')
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_BLOCK = 1 << 16


def scan_json(data: Data, bounds: Bounds) -> None:
    """Check a JSON text in UTF-8.

    Args:
        data: the text; the parser reports invalid JSON.
        bounds: the bounds. Brackets and commas inside strings count as elements too.

    Raises:
        Excess: the text exceeds a bound.
    """
    raw = bytes(data)
    containers = raw.count(b"[") + raw.count(b"{")
    _check(bounds, 0, containers, containers + raw.count(b","))
    if containers > bounds.depth:
        _check_depth(raw, bounds)


def _check_depth(raw: bytes, bounds: Bounds) -> None:
    """Check the nesting of JSON, in blocks, which limits the memory for strings and escapes."""
    # Remove pairs of backslashes from the left; a remaining backslash escapes the following quote.
    plain = np.frombuffer(raw.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    is_inside, depth = False, 0
    for offset in range(0, len(plain), _BLOCK):
        block = plain[offset : offset + _BLOCK]
        inside = np.logical_xor.accumulate(block == _QUOTE) ^ is_inside
        depths = np.cumsum(np.where(inside, np.int8(0), _STEPS[block]), dtype=np.int32) + depth
        _check(bounds, int(depths.max()), 0, 0)
        is_inside, depth = bool(inside[-1]), int(depths[-1])
