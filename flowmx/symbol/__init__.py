"""``mx.sym``: symbolic expressions, and every operator as a function on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowmx.late_binding import late
from flowmx.symbol import composite_functions, contrib, image, linalg, random
from flowmx.symbol import functions as op
from flowmx.symbol.backends import register_partitioner, register_pass
from flowmx.symbol.composite_functions import *  # noqa: F403
from flowmx.symbol.partition import Candidate, Partitioner
from flowmx.symbol.symbol import Group, Symbol, Variable, load, load_json

var = Variable
fromjson = load_json
_internal = op  # MXNet's name for the operators whose names begin with an underscore

__all__ = [
    "Candidate", "Group", "Partitioner", "Symbol", "Variable", "contrib", "fromjson", "image", "linalg", "load",
    "load_json", "op", "random", "register_partitioner", "register_pass", "var",
]  # fmt: skip
__all__ += composite_functions.__all__
__all__ += ["sparse", *(label for label in dir(op) if not label.startswith("_") and label not in __all__)]


if TYPE_CHECKING:
    from flowmx.symbol import sparse as sparse
    from flowmx.symbol.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name == "sparse":
            return late("symbol.sparse")
        if name in ("np", "npx"):  # of a higher layer, and imported late
            value = getattr(late("numpy.symbols"), f"{name}_functions")()
        else:
            value = getattr(op, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(op)})
