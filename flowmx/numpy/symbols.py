"""``mx.sym.np``: not there yet; what asks for it is told so at the line that does."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["NoSymbols"]


class NoSymbols:
    """In place of a module of symbols: refuses each name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"mx.sym.{self._name}.{name}: there are no symbols of mx.np yet, so this block can not be hybridized or "
            "exported: use it without hybridize(), or write hybrid_forward with F's own operators, such as F.dot"
        )
