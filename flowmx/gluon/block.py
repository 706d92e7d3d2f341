"""The blocks, under MXNet's name of their module."""

from flowmx.gluon.base import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.symbol_block import SymbolBlock

__all__ = ["Block", "HybridBlock", "SymbolBlock"]
