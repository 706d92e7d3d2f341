"""Block classes under MXNet's module name."""

from flowmx.gluon.base_block import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.symbol_block import SymbolBlock

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
