"""Varying lengths, detected by inferring a graph's shapes twice with two lengths for each dynamic axis.

Lengths that differ between the two trials depend on dynamic axes. All other lengths are fixed, and converters can rely
on them. The shape inference of the operators is sufficient for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowmx.errors import ShapeError
from flowmx.graph import infer
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Shape


class Varying(NamedTuple):
    """A length that depends on the inputs: its values in the two trials."""

    first: int
    second: int

    def ratio_to(self, other: Varying) -> int | None:
        """Return the ratio of this length to another length, or None if it is not a positive integer."""
        count, rest = divmod(self.first, other.first) if other.first else (0, 1)
        return count if not rest and count and count * other.second == self.second else None


Length = int | Varying
Lengths = tuple[Length, ...]
Shapes = dict[Entry, Lengths]


def varying(length: int, axis: int) -> Varying:
    """Return a varying length. In the second trial it is a multiple, to preserve divisibility.

    The factor depends on the axis, so that lengths of different axes stay distinguishable.
    """
    return Varying(length, length * (2 + axis))


def combine(first: Shape, second: Shape) -> Lengths:
    """Combine the lengths of two trials."""
    return tuple(a if a == b else Varying(a, b) for a, b in zip(first, second, strict=True))


def trials(nodes: Sequence[Node], fixed: Mapping[Node, Shape], inputs: Mapping[Node, Lengths]) -> Shapes:
    """Infer the shape of every entry from those of the parameters (``fixed``) and of the inputs.

    Raises:
        ShapeError: shapes are inconsistent or unknown.
    """
    both = [_infer(nodes, fixed, {node: trial(dims, index) for node, dims in inputs.items()}) for index in (0, 1)]
    return {entry: combine(both[0][entry], both[1][entry]) for entry in both[0]}


def trial(dims: Lengths, index: int) -> Shape:
    """Return the lengths in one trial."""
    return tuple(length[index] if isinstance(length, Varying) else length for length in dims)


def _infer(nodes: Sequence[Node], fixed: Mapping[Node, Shape], inputs: Mapping[Node, Shape]) -> dict[Entry, Shape]:
    return infer.known_shapes(nodes, {**fixed, **inputs})


def make_dynamic(
    nodes: Sequence[Node], fixed: Mapping[Node, Shape], shapes: Mapping[Node, Shape]
) -> dict[Node, Lengths]:
    """Make every axis that the graph permits dynamic. Axes are tried one by one, each in all inputs at once."""
    inputs: dict[Node, Lengths] = {node: tuple(shape) for node, shape in shapes.items()}
    for axis, length in dict.fromkeys((i, n) for shape in shapes.values() for i, n in enumerate(shape)):
        wider = {node: _with_varying(dims, axis, length) for node, dims in inputs.items()}
        try:
            trials(nodes, fixed, wider)
        except ShapeError:
            continue
        inputs = wider
    return inputs


def _with_varying(dims: Lengths, axis: int, length: int) -> Lengths:
    if axis >= len(dims) or dims[axis] != length:
        return dims
    return (*dims[:axis], varying(length, axis), *dims[axis + 1 :])
