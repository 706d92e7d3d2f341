"""Checks of msgpack and JSON before anything is built from them: how deep they nest, how much they would become. Pure.

A byte of msgpack or two of JSON may become an object of 60 bytes, and to build millions of them holds the interpreter.
A scan builds nothing, stops at the first bound that is passed, and counts what a container says that it holds as soon
as it says so: its cost is bounded by the bounds, not by the data.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

__all__ = ["Bounds", "Excess", "scan_json", "scan_msgpack"]

Data = bytes | bytearray | memoryview


class Excess(ValueError):
    """Data would become more than is allowed; the message says what, and at which byte."""


class Bounds(NamedTuple):
    """Bounds of what data may become.

    Attributes:
        depth: most containers inside one another.
        containers: most lists and maps.
        items: most elements of lists, keys and values of maps, all together.
    """

    depth: int = 64
    containers: int = 1 << 16
    items: int = 1 << 19


def scan_msgpack(data: Data, bounds: Bounds, nested: Collection[int] = ()) -> None:
    """Check the first value of msgpack's bytes.

    Args:
        data: the bytes. What is damaged otherwise is left to the parser: the scan ends there.
        bounds: what is allowed.
        nested: types of extensions whose content is msgpack too, and counts as deeper by one.

    Raises:
        Excess: a bound is passed.
    """
    _Msgpack(bounds, frozenset(nested)).scan(memoryview(data), 0, 0)


class _Msgpack:
    """The count over one value, and over the extensions in it."""

    def __init__(self, bounds: Bounds, nested: frozenset[int]) -> None:
        self.bounds = bounds
        self.nested = nested
        self.containers = 0
        self.items = 0

    def scan(self, data: memoryview, base: int, depth: int) -> None:
        """Scan one value that stands at byte `base`, inside `depth` containers."""
        left, outer, at, size = 1, list[int](), 0, len(data)  # elements to come, here and in the containers around
        widths, runs, claims = _WIDTHS, _RUNS, _CLAIMS
        while at < size:
            first = data[at]
            count = 1
            if width := widths[first]:
                if left > 1 and (run := runs[width].match(data, at)) is not None:
                    # Numbers of one width, which long lists are made of, are counted together.
                    count, at = (run.end() - at) // width, run.end()
                else:
                    at += width
            elif first in claims:
                claimed, at = _claim(data, at)
                outer.append(left - 1)
                left, count = claimed, 0
                self._open(claimed, base + at, depth + len(outer))
            elif 0xA0 <= first < 0xC0:
                at += first - 0x9F
            else:
                at = self._skip(data, at, base, depth + len(outer))
            while count >= left:
                if not outer:
                    return
                count -= left
                left = outer.pop()
            left -= count

    def _skip(self, data: memoryview, at: int, base: int, depth: int) -> int:
        """The end of a text, bytes or an extension; scans the content of one that is msgpack."""
        kind, start, end = _string(data, at)
        if kind in self.nested:
            self._open(0, base + at, depth + 1)
            self.scan(data[start:end], base + start, depth + 1)
        return end

    def _open(self, claimed: int, at: int, depth: int) -> None:
        self.containers += 1
        self.items += claimed
        bounds = self.bounds
        if depth > bounds.depth or self.containers > bounds.containers or self.items > bounds.items:
            _check(bounds, depth, self.containers, self.items, f" at byte {at}")


def _check(bounds: Bounds, depth: int, containers: int, items: int, where: str = "") -> None:
    for found, most, what in (
        (depth, bounds.depth, "containers inside one another"),
        (containers, bounds.containers, "lists and maps"),
        (items, bounds.items, "elements of lists and maps"),
    ):
        if found > most:
            raise Excess(f"there are {found} {what}{where}; at most {most} are allowed")


_WIDTHS = [0] * 256
"""The bytes of a number or constant by its first byte; 0 for all else."""
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
_CLAIMS = frozenset((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
"""The content's bytes of extensions that are not followed by a length."""
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""The bytes of the length of texts, bytes and extensions."""
_EXTENSIONS = frozenset((*_FIXED, 0xC7, 0xC8, 0xC9))


def _claim(data: memoryview, at: int) -> tuple[int, int]:
    """The number of values that the head of a list or map announces (two for each pair), and the byte after it."""
    first = data[at]
    if first < 0xA0:
        return (first & 15) * (1 if first >= 0x90 else 2), at + 1
    width = 2 if first in (0xDC, 0xDE) else 4
    return int.from_bytes(data[at + 1 : at + 1 + width], "big") * (1 if first <= 0xDD else 2), at + 1 + width


def _string(data: memoryview, at: int) -> tuple[int, int, int]:
    """An extension's type (else -1), and where the content of a text, bytes or extension starts and ends."""
    first = data[at]
    if first in _FIXED:
        length, start = _FIXED[first], at + 1
    elif first in _COUNTED:
        start = at + 1 + _COUNTED[first]
        length = int.from_bytes(data[at + 1 : start], "big")
    else:  # nothing of msgpack's
        return -1, at, len(data)
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
        data: the text; what is no JSON is left to the parser.
        bounds: what is allowed. Brackets and commas inside of texts count as elements too.

    Raises:
        Excess: a bound is passed.
    """
    raw = bytes(data)
    containers = raw.count(b"[") + raw.count(b"{")
    _check(bounds, 0, containers, containers + raw.count(b","))
    if containers > bounds.depth:
        _check_depth(raw, bounds)


def _check_depth(raw: bytes, bounds: Bounds) -> None:
    """Check how deep JSON nests: block by block, since what texts and escapes are made of may be all of it."""
    # Pairs of backslashes from the left, so that one which is left escapes the quote that follows.
    plain = np.frombuffer(raw.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    is_inside, depth = False, 0
    for at in range(0, len(plain), _BLOCK):
        block = plain[at : at + _BLOCK]
        inside = np.logical_xor.accumulate(block == _QUOTE) ^ is_inside
        depths = np.cumsum(np.where(inside, np.int8(0), _STEPS[block]), dtype=np.int32) + depth
        _check(bounds, int(depths.max()), 0, 0)
        is_inside, depth = bool(inside[-1]), int(depths[-1])
