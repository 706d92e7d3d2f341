"""``mx.nd``: arrays, and every operator as a function on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowmx.engine import waitall, waitall_async
from flowmx.late_binding import late
from flowmx.ndarray import binary, composite_functions, contrib, creation, files, image, interchange, linalg, random
from flowmx.ndarray import functions as op
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.binary import *  # noqa: F403
from flowmx.ndarray.composite_functions import *  # noqa: F403
from flowmx.ndarray.creation import *  # noqa: F403
from flowmx.ndarray.files import *  # noqa: F403
from flowmx.ndarray.interchange import *  # noqa: F403

__all__ = ["NDArray", "contrib", "image", "linalg", "op", "random", "waitall", "waitall_async"]
_internal = op  # MXNet's name for the operators whose names begin with an underscore
__all__ += binary.__all__ + composite_functions.__all__ + creation.__all__ + files.__all__ + interchange.__all__
__all__ += ["sparse", *(each for each in dir(op) if not each.startswith("_") and each not in __all__)]


if TYPE_CHECKING:
    from flowmx.ndarray import sparse as sparse
    from flowmx.ndarray.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "sparse":  # few programs need it
            return late("ndarray.sparse")
        if name in ("np", "npx"):  # on a higher floor, so imported late
            value = late("numpy" if name == "np" else "numpy_extension")
        else:
            value = getattr(op, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(op)})
