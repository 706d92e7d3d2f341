"""``mx.sym.sparse``: the operators with sparse implementations, as functions on symbols.

The same functions in ``mx.sym`` use them too: MXNet lists them under both names.
"""

from __future__ import annotations

from typing import Any

from flowmx.ops.registry.namespaces import SPARSE
from flowmx.symbol import functions

__all__ = [*SPARSE]


def __getattr__(name: str) -> Any:
    return getattr(functions, f"_sparse_{name}" if name in ("adagrad_update", "retain") else name)


def __dir__() -> list[str]:
    return sorted(__all__)
