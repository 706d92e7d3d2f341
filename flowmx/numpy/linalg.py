"""``mx.np.linalg``: linear algebra, by the table of ``mx.np``."""

from __future__ import annotations

from typing import Any

from numpy.linalg import LinAlgError  # noqa: F401

from flowmx.numpy import table as _table
from flowmx.numpy.functions import call_of, finder, waiting_of

_svd = call_of("linalg.svd")


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """The singular value decomposition, as :func:`numpy.linalg.svd`.

    Without ``full_matrices``, which is MXNet's default, there are as many vectors on both sides as singular values.
    """
    return _svd(a, full_matrices=full_matrices, compute_uv=compute_uv, hermitian=hermitian)


_KINDS = {
    "calls": (_table.LINALG - {"svd"}, lambda name: call_of(f"linalg.{name}")),
    "waiting": (_table.LINALG_WAITING, lambda name: waiting_of(f"linalg.{name}")),
}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    found = globals()[name] = _find(name)
    return found


__all__ = sorted({"LinAlgError", "svd", *(each for names, _ in _KINDS.values() for each in names)})


def __dir__() -> list[str]:
    return __all__
