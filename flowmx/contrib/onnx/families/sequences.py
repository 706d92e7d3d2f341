"""Sequences of arrays with a length that is known during import, and branches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.contrib.onnx.converters import imports
from flowmx.contrib.onnx.import_constants import Known, Values
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


@imports("SequenceConstruct", "SequenceEmpty")
def _construct(n: NodeImport) -> list[Values]:
    return [Values(n.item(index) for index in range(len(n)))]


@imports("SequenceInsert")
def _insert(n: NodeImport) -> list[Values]:
    values = list(n.sequence(0))
    values.insert(_index(n, 2, len(values)) if n.has(2) else len(values), n.item(1))
    return [Values(values)]


@imports("SequenceErase")
def _erase(n: NodeImport) -> list[Values]:
    values = list(n.sequence(0))
    del values[_index(n, 1, len(values)) if n.has(1) else -1]
    return [Values(values)]


@imports("SequenceAt")
def _at(n: NodeImport) -> list[Symbol | Known]:
    values = n.sequence(0)
    return [values[_index(n, 1, len(values))]]


@imports("SequenceLength")
def _length(n: NodeImport) -> Known:
    return Known.constant(np.array(len(n.sequence(0)), np.int64), n.name)


def _index(n: NodeImport, position: int, length: int) -> int:
    index = int(n.array(position).reshape(()))
    return index if index >= 0 else index + length


@imports("ConcatFromSequence")
def _concatenate(n: NodeImport) -> Symbol:
    symbols = [n.as_symbol(item) for item in n.sequence(0)]
    axis = int(n.attr("axis"))
    rank = n.rank(symbols[0]) + n.attr("new_axis", 0)
    if n.attr("new_axis", 0):
        return n.make("stack", *symbols, axis=axis % rank)
    return n.make("Concat", *symbols, dim=axis % rank)


@imports("SplitToSequence")
def _split(n: NodeImport) -> list[Values]:
    axis = n.axis(0)
    length = n.fixed(n.dims()[axis], "the length of its axis")
    sizes = n.array(1) if n.has(1) else np.array(1)
    ends = (
        np.cumsum(sizes) if sizes.ndim else np.minimum(np.arange(int(sizes), length + int(sizes), int(sizes)), length)
    )
    parts, begin = [], 0
    for end in ends.tolist():
        part = n.make("slice_axis", n.symbol(0), axis=axis, begin=begin, end=end)
        is_one = not n.has(1) and not n.attr("keepdims", 1)
        parts.append(n.make("squeeze", part, axis=axis) if is_one else part)
        begin = end
    return [Values(parts)]


@imports("If")
def _if(n: NodeImport) -> Sequence[Symbol | Known | Values]:
    """Import the branch that a constant condition selects; exporters write one where the rank of an input decides."""
    if n.is_known(0):
        return n.branch("then_branch" if n.array(0).reshape(()) else "else_branch")
    return n.select(0, "then_branch", "else_branch")
