"""``mx.log``: loggers with level, time, process id and source position in front of messages."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from logging import CRITICAL, DEBUG, ERROR, INFO, NOTSET, WARNING

__all__ = ["CRITICAL", "DEBUG", "ERROR", "INFO", "NOTSET", "WARNING", "getLogger", "get_logger"]

_BLUE, _GREEN, _RED, _PLAIN = "\x1b[34m", "\x1b[32m", "\x1b[31m", "\x1b[0m"
_configured: set[str] = set()


class _Formatter(logging.Formatter):
    """Formats lines such as ``W1121 16:43:01 3525 train.py:main:12] message``, in colors on a terminal."""

    def __init__(self, colored: bool) -> None:
        super().__init__(datefmt="%m%d %H:%M:%S")
        self._colored = colored

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        time = self.formatTime(record, self.datefmt)
        place = f"{record.pathname}:{record.funcName}:{record.lineno}"
        head = f"{record.levelname[:1]}{time} {record.process} {place}]"
        color = _RED if record.levelno >= WARNING else _GREEN if record.levelno >= INFO else _BLUE
        return f"{color}{head}{_PLAIN} {record.message}" if self._colored else f"{head} {record.message}"

    def usesTime(self) -> bool:  # noqa: N802  (logging's name)
        return True


def get_logger(
    name: str | None = None, filename: str | os.PathLike[str] | None = None, filemode: str | None = None,
    level: int = WARNING,
) -> logging.Logger:  # fmt: skip
    """Return a logger; a named logger gets a handler at its first request.

    Args:
        name: its name; None: the root logger, which is not configured.
        filename: the log file (default: stderr).
        filemode: the mode of the file (default: append).
        level: the minimum level.
    """
    logger = logging.getLogger(name)
    if name is not None and name not in _configured:
        _configured.add(name)
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
    """Call :func:`get_logger`; a deprecated name."""
    warnings.warn("getLogger is deprecated: use get_logger", DeprecationWarning, stacklevel=2)
    return get_logger(name, filename, filemode, level)
