"""The command line's common parts: format of the help, parsing of shapes, exit statuses."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["EXITS", "FAILED", "FINE", "INTERRUPTED", "USAGE", "fixed_sizes", "parser", "port", "shapes", "sizes"]

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

EXITS = {FINE: "it was done", FAILED: "it failed; the error output says why", USAGE: "the arguments are wrong"}
"""The exit statuses of a command that says nothing else."""


def parser(
    name: str, about: str, examples: Sequence[str] = (), exits: Mapping[int, str] | None = None,
    usage: str | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    """The parser of a command, whose help ends with examples and the meaning of the exit statuses.

    Args:
        name: of the command.
        about: a sentence or two.
        examples: command lines, without ``flowmx`` and the name.
        exits: the meanings of exit statuses, in addition to (or instead of) the usual ones.
        usage: the first line of the help, where argparse's own would be hard to read.
    """
    lines = ["examples:", *(f"  flowmx {name} {each}".rstrip() for each in examples), ""] if examples else []
    statuses = {**EXITS, **(exits or {})}
    lines += ["exit status:", *(f"  {status:<4} {meaning}" for status, meaning in sorted(statuses.items()))]
    return argparse.ArgumentParser(
        prog=f"flowmx {name}", usage=usage, description=textwrap.fill(about, 80), epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip


def port(text: str) -> int:
    """A port's number, for argparse's ``type``; larger ones would be taken for others."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 to 65535")
    return int(text)


def sizes(text: str) -> tuple[int | None, ...]:
    """``3,32,?`` as ``(3, 32, None)``, for argparse's ``type``."""
    try:
        return tuple(None if part.strip() == "?" else int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected sizes such as 3,32,32") from None


def fixed_sizes(text: str) -> tuple[int, ...]:
    """``3,32,32`` as ``(3, 32, 32)``, for argparse's ``type``."""
    found = sizes(text)
    if None in found:
        raise argparse.ArgumentTypeError(f"{text!r}, expected numbers such as 3,32,32")
    return tuple(size for size in found if size is not None)


def shapes(given: Sequence[str] | None) -> Any:
    """Parse ``--shape``, given once or once per input: a tuple, a dict by input name, or None where it is not given.

    Raises:
        ValueError: they are no sizes.
    """
    if not given:
        return None
    try:
        if len(given) == 1 and "=" not in given[0]:
            return sizes(given[0])
        pairs = [each.partition("=") for each in given]
        return {name.strip(): sizes(each) for name, _, each in pairs}
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--shape: {error}") from None
