"""Run the code of a page, ``python tests/tutorial.py PAGE``: its python blocks in order, in this process.

A ``text`` block that follows a ``python`` block is what that prints. Tracebacks have the page's own lines.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        line: where it begins.
        code: what it says.
        printed: what it should print, where the page says so.
    """

    line: int
    code: str
    printed: str | None


def blocks(page: str) -> Iterator[Block]:
    """The python blocks of a page, with what the page says that they print."""
    found = list(_BLOCK.finditer(page))
    for i, each in enumerate(found):
        if each[2] == "python":
            after = found[i + 1] if i + 1 < len(found) else None
            follows = after is not None and after[2] == "text" and not page[each.end() : after.start()].strip()
            yield Block(page.count("\n", 0, each.start()) + 1, each[3], after[3] if after and follows else None)


def run(path: Path, given: str = "", left_out: Collection[str] = ()) -> None:
    """Run a page; code that awaits runs on an event loop.

    Args:
        path: the page.
        given: code that runs before, for what the page takes as given.
        left_out: blocks with one of these words are not run.

    Raises:
        AssertionError: a block prints something else.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(given, namespace)
    for block in blocks(path.read_text(encoding="utf-8")):
        if any(word in block.code for word in left_out):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = compile("\n" * block.line + block.code, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, namespace)
            if waiting is not None:
                asyncio.run(waiting)
        found = printed.getvalue()
        if block.printed is not None and found != block.printed:
            raise AssertionError(f"{path}:{block.line} printed\n{found}\nand the page says\n{block.printed}")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
