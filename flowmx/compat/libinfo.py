"""``mxnet.libinfo``: the paths of MXNet's C libraries, which flowmx lacks."""

from __future__ import annotations

from typing import NoReturn

from flowmx.compat.package import VERSION

__all__ = ["__version__", "find_conf_path", "find_include_path", "find_lib_path"]

__version__ = VERSION


def find_lib_path(prefix: str = "libmxnet") -> list[str]:
    """Raise: flowmx has no C library.

    Raises:
        RuntimeError: always (MXNet's exception for a missing library).
    """
    raise RuntimeError(f"there is no library {prefix}: mxnet is an alias of flowmx, which is written in Python")


def find_include_path() -> str:
    """Raise: flowmx has no C headers.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("there are no C headers of MXNet: mxnet is an alias of flowmx, which is written in Python")


def find_conf_path(prefix: str = "tvmop") -> NoReturn:
    """Raise: flowmx has no TVM operators.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(f"there is no configuration {prefix}.conf: flowmx has no TVM operators")
