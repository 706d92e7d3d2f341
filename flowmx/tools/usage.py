"""Common parts of the commands: the format of the help, parsing of shapes, exit statuses."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flowmx.suggestions import did_you_mean

__all__ = [
    "EXITS",
    "FAILED",
    "INTERRUPTED",
    "SUCCESS",
    "USAGE",
    "fixed_sizes",
    "parser",
    "port",
    "seconds",
    "shapes",
    "sizes",
]

SUCCESS, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

EXITS = {SUCCESS: "success", FAILED: "failure; the error output has the reason", USAGE: "invalid arguments"}
"""The default exit statuses of commands."""
_UNRECOGNIZED = "unrecognized arguments: "
"""The begin of argparse's message for unknown options."""


_EQUIVALENTS = {
    "batch": "--max-batch", "batch_size": "--max-batch", "input_shape": "--shape", "max_batch_size": "--max-batch",
    "model_name": "--name", "model_repository": "--repository", "model_store": "--repository", "models": "--repository",
    "nnodes": "--hosts", "np": "--workers", "nproc": "--workers", "nproc_per_node": "--workers",
    "num_processes": "--workers", "ssl_certfile": "--tls-cert", "ssl_keyfile": "--tls-key", "world_size": "--workers",
}  # fmt: skip
"""Options of other programs, without dashes, and the equivalent ones."""


class _Parser(argparse.ArgumentParser):
    """A parser that names the equivalent of another program's option, and says what is wrong with a value."""

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNRECOGNIZED):
            words = message.removeprefix(_UNRECOGNIZED).split()
            option = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
            message += self._suggestion(option) if option else ""
        super().error(message)

    def _suggestion(self, option: str) -> str:
        equivalent = _EQUIVALENTS.get(option.removeprefix("--").replace("-", "_"))
        if equivalent in self._option_string_actions:
            return f"; {option} is {equivalent} here"
        return did_you_mean(option, self._option_string_actions)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Parse a value; the error of a function has the message that the function raised."""
        function = self._registry_get("type", action.type, action.type)
        if isinstance(function, type) or not callable(function):
            return super()._get_value(action, arg_string)
        try:
            return function(arg_string)
        except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
            raise argparse.ArgumentError(action, str(error)) from None


def parser(
    name: str, about: str, examples: Sequence[str] = (), exits: Mapping[int, str] | None = None,
    usage: str | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    """Return the parser of a command. Its help ends with examples and the meaning of exit statuses.

    Args:
        name: name of the command.
        about: a description of one or two sentences.
        examples: command lines, without ``flowmx`` and the name.
        exits: meanings of exit statuses, in addition to or instead of the default ones.
        usage: the usage line, if argparse's would be hard to read.
    """
    lines = ["examples:", *(f"  flowmx {name} {example}".rstrip() for example in examples), ""] if examples else []
    statuses = {**EXITS, **(exits or {})}
    lines += ["exit status:", *(f"  {status:<4} {meaning}" for status, meaning in sorted(statuses.items()))]
    return _Parser(
        prog=f"flowmx {name}", usage=usage, description=textwrap.fill(about, 80), epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip


def port(text: str) -> int:
    """Parse a port, for argparse's ``type``."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """Parse a number of seconds, for argparse's ``type``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of seconds of at least 0")
    return value


def sizes(text: str) -> tuple[int | None, ...]:
    """Parse ``3,32,?`` as ``(3, 32, None)``, for argparse's ``type``."""
    try:
        return tuple(None if part.strip() == "?" else int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected sizes such as 3,32,32") from None


def fixed_sizes(text: str) -> tuple[int, ...]:
    """Parse ``3,32,32`` as ``(3, 32, 32)``, for argparse's ``type``."""
    result = sizes(text)
    if None in result:
        raise argparse.ArgumentTypeError(f"{text!r}, expected numbers such as 3,32,32")
    return tuple(size for size in result if size is not None)


def shapes(options: Sequence[str] | None) -> Any:
    """Parse the ``--shape`` options: return a tuple, a dict by input name, or None without options.

    Raises:
        ValueError: a shape is invalid.
    """
    if not options:
        return None
    try:
        if len(options) == 1 and "=" not in options[0]:
            return sizes(options[0])
        pairs = [option.partition("=") for option in options]
        return {name.strip(): sizes(text) for name, _, text in pairs}
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--shape: {error}") from None
