"""Private helpers of ``mxnet.symbol`` that packages import."""

from __future__ import annotations

from flowmx.symbol import Symbol

__all__ = ["SymbolBase", "_symbol_cls"]

_symbol_cls = SymbolBase = Symbol
