"""References of the documentation's pages: settings, commands, names of flowmx, links, titles. Pure."""

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
        path: of the page, "" for this one.
        anchor: in it, or "".
    """

    path: str
    anchor: str


def settings(page: str) -> set[str]:
    """The names of settings, ``FLOWMX_...``."""
    return {name for name in _SETTING.findall(page) if name.startswith("FLOWMX_")}


def commands(page: str) -> set[str]:
    """The commands of ``python -m flowmx COMMAND``."""
    return set(_COMMAND.findall(page))


def command_lines(page: str) -> Iterator[tuple[str, list[str]]]:
    """The command lines in ``sh`` blocks, each a command with the options that it is given."""
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            found = _COMMAND.search(line)
            if found:
                rest = line[found.end() :].split(" -- ")[0].split("#")[0]
                yield found[1], _OPTION.findall(rest)


def names(page: str) -> set[str]:
    """The names that begin with ``mx.`` in code spans."""
    prose = _CODE.sub("", page)
    return {name for span in _SPAN.findall(prose) for name in _NAME.findall(span)}


def links(page: str) -> Iterator[Link]:
    """The links that stay in the documentation."""
    for target in _LINK.findall(_CODE.sub("", page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield Link(path, anchor)


def anchors(page: str) -> set[str]:
    """The anchors of a page: its titles, as GitHub and the site turn them into anchors."""
    titles = re.findall(r"^#{1,6} (.+)$", _CODE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def listed(index: str) -> list[str]:
    """The pages that the index's tables of contents list."""
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
