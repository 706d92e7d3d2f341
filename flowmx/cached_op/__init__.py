"""Symbols as functions of arrays: the compiled form of hybridized blocks."""

from flowmx.cached_op.op import CachedOp

__all__ = ["CachedOp"]
