"""Lengths that may vary: found by inferring a graph's shapes twice, with two lengths for each axis that may.

Whatever differs between the two trials depends on what varies; everything else is fixed, and converters may rely on
it. So each operator's own shape rule says all there is to know, and none had to be written for ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowmx.errors import ShapeError
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Shape


class Varying(NamedTuple):
    """A length that depends on the inputs': what it was in each of the trials."""

    first: int
    second: int

    def times(self, other: Varying) -> int | None:
        """The integer ratio of this length to another one, or None where the ratio is no positive int."""
        count, rest = divmod(self.first, other.first) if other.first else (0, 1)
        return count if not rest and count and count * other.second == self.second else None


Length = int | Varying
Lengths = tuple[Length, ...]
Shapes = dict[Entry, Lengths]


def varying(length: int, which: int) -> Varying:
    """A length that may vary: in the second trial a multiple, which keeps what it divides into.

    Lengths of different numbers ``which`` are distinguished by their multiples.
    """
    return Varying(length, length * (2 + which))


def joined(first: Shape, second: Shape) -> Lengths:
    """The lengths of two trials as one."""
    return tuple(a if a == b else Varying(a, b) for a, b in zip(first, second, strict=True))


def trials(nodes: Sequence[Node], fixed: Mapping[Node, Shape], inputs: Mapping[Node, Lengths]) -> Shapes:
    """The shapes of every entry, from those of the parameters (``fixed``) and of the inputs.

    Raises:
        ShapeError: they contradict each other, or are not enough.
    """
    both = [_infer(nodes, fixed, {node: trial(dims, turn) for node, dims in inputs.items()}) for turn in (0, 1)]
    return {entry: joined(both[0][entry], both[1][entry]) for entry in both[0]}


def trial(dims: Lengths, turn: int) -> Shape:
    """The lengths in one of the trials."""
    return tuple(length[turn] if isinstance(length, Varying) else length for length in dims)


def _infer(nodes: Sequence[Node], fixed: Mapping[Node, Shape], inputs: Mapping[Node, Shape]) -> dict[Entry, Shape]:
    return infer.known_shapes(nodes, {**fixed, **inputs})


def freest(nodes: Sequence[Node], fixed: Mapping[Node, Shape], shapes: Mapping[Node, Shape]) -> dict[Node, Lengths]:
    """Let vary whatever the graph lets: the axes are tried one by one, that of all inputs together."""
    inputs: dict[Node, Lengths] = {node: tuple(shape) for node, shape in shapes.items()}
    for axis, length in dict.fromkeys((i, n) for shape in shapes.values() for i, n in enumerate(shape)):
        wider = {node: _vary(dims, axis, length) for node, dims in inputs.items()}
        try:
            trials(nodes, fixed, wider)
        except ShapeError:
            continue
        inputs = wider
    return inputs


def _vary(dims: Lengths, axis: int, length: int) -> Lengths:
    if axis >= len(dims) or dims[axis] != length:
        return dims
    return (*dims[:axis], varying(length, axis), *dims[axis + 1 :])
