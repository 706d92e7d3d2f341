"""``mx.np.linalg``: linear algebra."""

from __future__ import annotations

from typing import Any

from numpy.linalg import LinAlgError  # noqa: F401

from flowmx.numpy import table as _table
from flowmx.numpy.functions import finder, make_blocking, make_call

_svd = make_call("linalg.svd")


def svd(a: object, full_matrices: bool = False, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Compute the singular value decomposition, as :func:`numpy.linalg.svd`.

    By default, as in MXNet, ``full_matrices`` is False: both sides have as many vectors as there are singular values.
    """
    return _svd(a, full_matrices=full_matrices, compute_uv=compute_uv, hermitian=hermitian)


_KINDS = {
    "calls": (_table.LINALG - {"svd"}, lambda name: make_call(f"linalg.{name}")),
    "waiting": (_table.LINALG_BLOCKING, lambda name: make_blocking(f"linalg.{name}")),
}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    function = globals()[name] = _find(name)
    return function


_names = {name for names, _ in _KINDS.values() for name in names}
__all__ = sorted({"LinAlgError", "svd", *(name for name in _names if f"linalg.{name}" not in _table.ABSENT)})


def __dir__() -> list[str]:
    return __all__
