"""``mxnet.libinfo``: MXNet's C libraries, of which there are none here."""

from __future__ import annotations

from typing import NoReturn

from flowmx.compat.package import VERSION

__all__ = ["__version__", "find_conf_path", "find_include_path", "find_lib_path"]

__version__ = VERSION


def find_lib_path(prefix: str = "libmxnet") -> list[str]:
    """Raise: there is no C library.

    Raises:
        RuntimeError: always (what MXNet raises where it finds none).
    """
    raise RuntimeError(f"there is no library {prefix}: mxnet is flowmx here, which is written in Python")


def find_include_path() -> str:
    """Raise: there are no C headers.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("there are no C headers of MXNet: mxnet is flowmx here, which is written in Python")


def find_conf_path(prefix: str = "tvmop") -> NoReturn:
    """Raise: there are no operators made by TVM.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(f"there is no configuration {prefix}.conf: no operators here are made by TVM")
