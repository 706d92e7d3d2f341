"""Run the code of a page, ``python tests/tutorial.py PAGE``: its python blocks in order, in this process.

A ``text`` block after a ``python`` block is its expected output. Tracebacks show the lines of the page.
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
        line: its line in the page.
        code: its text.
        printed: the expected output, if the page contains it.
    """

    line: int
    code: str
    printed: str | None


def blocks(page: str) -> Iterator[Block]:
    """Return the python blocks of a page, with their expected output."""
    matches = list(_BLOCK.finditer(page))
    for i, each in enumerate(matches):
        if each[2] == "python":
            after = matches[i + 1] if i + 1 < len(matches) else None
            follows = after is not None and after[2] == "text" and not page[each.end() : after.start()].strip()
            yield Block(page.count("\n", 0, each.start()) + 1, each[3], after[3] if after and follows else None)


def run(path: Path, input_text: str = "", left_out: Collection[str] = ()) -> None:
    """Run a page; code that awaits runs on an event loop.

    Args:
        path: the path of the page.
        given: code that runs first, for names that the page assumes.
        left_out: blocks that contain one of these words are skipped.

    Raises:
        AssertionError: a block prints something else.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(input_text, namespace)
    for block in blocks(path.read_text(encoding="utf-8")):
        if any(word in block.code for word in left_out):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = compile("\n" * block.line + block.code, str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, namespace)
            if waiting is not None:
                asyncio.run(waiting)
        printed_text = printed.getvalue()
        if block.printed is not None and printed_text != block.printed:
            raise AssertionError(f"{path}:{block.line} printed\n{printed_text}\nand the page says\n{block.printed}")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
