"""``mx.nd``: arrays, and every operator as a function on them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowmx.engine import waitall, waitall_async
from flowmx.ndarray import binary, contrib, creation, image, linalg, random
from flowmx.ndarray import functions as op
from flowmx.ndarray.array import NDArray, array, empty, full
from flowmx.ndarray.binary import *  # noqa: F403
from flowmx.ndarray.creation import *  # noqa: F403

__all__ = [
    "NDArray", "array", "contrib", "empty", "full", "image", "linalg", "op", "random", "waitall", "waitall_async",
]  # fmt: skip
_internal = op  # MXNet's name for the operators whose names begin with an underscore
__all__ += binary.__all__ + creation.__all__


if TYPE_CHECKING:
    from flowmx.ndarray import sparse as sparse
    from flowmx.ndarray.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "sparse":  # which few programs need
            return importlib.import_module("flowmx.ndarray.sparse")
        if name in ("np", "npx"):  # of a higher floor, and imported late
            found = importlib.import_module(f"flowmx.{'numpy' if name == 'np' else 'numpy_extension'}")
        else:
            found = getattr(op, name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(op)})
