"""``mxnet.libinfo`` and ``mxnet.library``: MXNet's libraries, of which there are none here."""

from __future__ import annotations

from typing import NoReturn

from flowmx.compat.package import VERSION
from flowmx.errors import MXNetError

__all__ = ["__version__", "find_conf_path", "find_include_path", "find_lib_path", "load"]

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


def load(path: str, verbose: bool = True) -> NoReturn:
    """Raise: libraries of operators are made for MXNet's C interface.

    Raises:
        MXNetError: always.
    """
    raise MXNetError(
        f"library.load: {path} is made for MXNet's C interface, which flowmx has not: write the operators as "
        "mx.operator.CustomOp"
    )
