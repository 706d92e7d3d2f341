"""Sequences of arrays, whose length is known while a file is read, and branches that are decided then."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, imports
from flowmx.contrib.onnx.import_constants import Array, Known, Values
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


@imports("SequenceConstruct", "SequenceEmpty")
def _construct(n: NodeImport) -> list[Values]:
    return [Values(n.item(at) for at in range(len(n)))]


@imports("SequenceInsert")
def _insert(n: NodeImport) -> list[Values]:
    values = list(n.sequence(0))
    values.insert(_place(n, 2, len(values)) if n.has(2) else len(values), n.item(1))
    return [Values(values)]


@imports("SequenceErase")
def _erase(n: NodeImport) -> list[Values]:
    values = list(n.sequence(0))
    del values[_place(n, 1, len(values)) if n.has(1) else -1]
    return [Values(values)]


@imports("SequenceAt")
def _at(n: NodeImport) -> list[Symbol | Known]:
    values = n.sequence(0)
    return [values[_place(n, 1, len(values))]]


@imports("SequenceLength")
def _length(n: NodeImport) -> Known:
    return Known.constant(np.array(len(n.sequence(0)), np.int64), n.name)


def _place(n: NodeImport, at: int, length: int) -> int:
    place = int(n.array(at).reshape(()))
    return place if place >= 0 else place + length


@imports("ConcatFromSequence")
def _concatenate(n: NodeImport) -> Symbol:
    symbols = [n.as_symbol(each) for each in n.sequence(0)]
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
def _if(n: NodeImport) -> list[Symbol | Known | Values]:
    """Read the branch that a known condition takes, as exporters write where the rank of an input decides."""
    try:
        condition: Array = n.array(0)
    except Unsupported as error:
        raise Unsupported(f"{error}; branches that are decided while the model runs are not read") from None
    return n.branch("then_branch" if condition.reshape(()) else "else_branch")
