"""Symbols as functions of arrays: what ``hybridize`` turns a block into."""

from flowmx.cached_op.op import CachedOp

__all__ = ["CachedOp"]
