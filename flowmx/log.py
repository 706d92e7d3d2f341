"""``mx.log``: loggers whose lines begin with level, time, process and place."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from logging import CRITICAL, DEBUG, ERROR, INFO, NOTSET, WARNING

__all__ = ["CRITICAL", "DEBUG", "ERROR", "INFO", "NOTSET", "WARNING", "getLogger", "get_logger"]

_BLUE, _GREEN, _RED, _PLAIN = "\x1b[34m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
_made: set[str] = set()


class _Formatter(logging.Formatter):
    """Lines such as ``W1121 16:43:01 3525 train.py:main:12] message``, in colours on a terminal."""

    def __init__(self, coloured: bool) -> None:
        super().__init__(datefmt="%m%d %H:%M:%S")
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        time = self.formatTime(record, self.datefmt)
        place = f"{record.pathname}:{record.funcName}:{record.lineno}"
        head = f"{record.levelname[:1]}{time} {record.process} {place}]"
        colour = _RED if record.levelno >= WARNING else _GREEN if record.levelno >= INFO else _BLUE
        return f"{colour}{head}{_PLAIN} {record.message}" if self._coloured else f"{head} {record.message}"

    def usesTime(self) -> bool:  # noqa: N802  (logging's name)
        return True


def get_logger(
    name: str | None = None, filename: str | os.PathLike[str] | None = None, filemode: str | None = None,
    level: int = WARNING,
) -> logging.Logger:  # fmt: skip
    """A logger; one with a name gets a handler the first time that it is asked for.

    Args:
        name: its name; without one it is the root logger, which is left as it is.
        filename: where its lines go, by default to the error output.
        filemode: the mode in which the file is opened, by default to append.
        level: the lowest level that is logged.
    """
    logger = logging.getLogger(name)
    if name is not None and name not in _made:
        _made.add(name)
        handler: logging.Handler
        if filename is not None:
            handler = logging.FileHandler(filename, filemode or "a")
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(_Formatter(sys.stderr.isatty()))
        logger.addHandler(handler)
        logger.setLevel(level)
    return logger


def getLogger(  # noqa: N802  (MXNet's name)
    name: str | None = None, filename: str | os.PathLike[str] | None = None, filemode: str | None = None,
    level: int = WARNING,
) -> logging.Logger:  # fmt: skip
    """The old name of :func:`get_logger`."""
    warnings.warn("getLogger is deprecated: use get_logger", DeprecationWarning, stacklevel=2)
    return get_logger(name, filename, filemode, level)
