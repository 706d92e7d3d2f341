"""References of the documentation's pages: settings, commands, names of flowmx, links, titles.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_CODE = re.compile(r"```.*?```", re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_SETTING = re.compile(r"\b(?:FLOWMX|MXNET)_[A-Z][A-Z0-9_]*(?<!_)\b(?!\.\.\.)")
_COMMAND = re.compile(r"python -m flowmx(?: --[a-z0-9-]+)* ([a-z][a-z0-9-]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_NAME = re.compile(r"(?<![\w.`])mx(?:\.[A-Za-z_]\w*)+")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Link(NamedTuple):
    """A link to another page, or into one.

    Attributes:
        path: the path of the page; "" for the page with the link.
        anchor: the anchor in that page, or "".
    """

    path: str
    anchor: str


def settings(page: str) -> set[str]:
    """Return the names of settings, ``FLOWMX_...``."""
    return {name for name in _SETTING.findall(page) if name.startswith("FLOWMX_")}


def commands(page: str) -> set[str]:
    """Return the commands of ``python -m flowmx COMMAND``."""
    return set(_COMMAND.findall(page))


def command_lines(page: str) -> Iterator[tuple[str, list[str]]]:
    """Return the command lines in ``sh`` blocks: each command with its options."""
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            match = _COMMAND.search(line)
            if match:
                rest = line[match.end() :].split(" -- ")[0].split("#")[0]
                yield match[1], _OPTION.findall(rest)


def names(page: str) -> set[str]:
    """Return the names that begin with ``mx.`` in code spans."""
    prose = _CODE.sub("", page)
    return {name for span in _SPAN.findall(prose) for name in _NAME.findall(span)}


def links(page: str) -> Iterator[Link]:
    """Return the links to pages of the documentation."""
    for target in _LINK.findall(_CODE.sub("", page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield Link(path, anchor)


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub and the site make of a page's titles."""
    titles = re.findall(r"^#{1,6} (.+)$", _CODE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def listed(index: str) -> list[str]:
    """Return the names of the pages that the index lists."""
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
