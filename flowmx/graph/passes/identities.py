"""Nodes that give back what they are given are left out, and those that undo each other.

Only what is exact to the bit: ``x * 1`` goes, ``x + 0`` stays, since it makes 0.0 of -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.effects import keeping_effects
from flowmx.ops.arrays.creation import Filled, Ones
from flowmx.ops.arrays.permuting import Permuting, Transpose
from flowmx.ops.arrays.shape import Reshape
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import Neutral, Passing


@keeping_effects
def drop_identities(graph: Graph, options: Options) -> Graph:
    """Leave out nodes that give back what they are given."""
    rewriter = Rewriter(graph)
    changing = written(rewriter.nodes, graph.train)
    rules: dict[Operator, Rule | None] = {}
    for node in rewriter.nodes:
        if node.op is None:
            continue
        if node.op not in rules:
            rules[node.op] = _rule(node.op)
        rule = rules[node.op]
        found = None if rule is None else rule(_Site(rewriter, node, changing))
        if found is None or found.node in changing:
            rewriter.keep(node)
        else:
            rewriter.replace(Entry(node, 0), found)
            rewriter.note(f"{node.name} is left out: it is {found.node.output_name(found.index)}")
    return rewriter.result()


class _Site:
    """A node that may go.

    Attributes:
        node: the old node.
        op: its operator.
        inputs: what stands for its inputs.
    """

    def __init__(self, rewriter: Rewriter, node: Node, changing: set[Node]) -> None:
        self.node = node
        self.op: Any = node.op
        self.inputs = [rewriter.new(entry) for entry in node.inputs]
        self.rewriter = rewriter
        self._changing = changing

    @property
    def shape(self) -> Shape:
        """The shape of the first output."""
        return self.rewriter.shapes[Entry(self.node, 0)]

    @property
    def dtype(self) -> DType:
        """The element type of the first output."""
        return self.rewriter.dtypes[Entry(self.node, 0)]

    def is_like(self, entry: Entry) -> bool:
        """Tell whether the first output has the shape and the dtype of an entry."""
        return (self.shape, self.dtype) == (self.rewriter.shapes[entry], self.rewriter.dtypes[entry])

    def inner(self, is_kin: Callable[[Operator], bool]) -> Entry | None:
        """The first input of the preceding node if that has an operator of this kind, else None."""
        before = self.inputs[0].node
        if before.op is None or not is_kin(before.op) or before.inputs[0].node in self._changing:
            return None
        return before.inputs[0]

    def is_only_reader(self) -> bool:
        """True if nothing else reads the first input."""
        return self.rewriter.uses[self.node.inputs[0]] == 1

    def make(self, op: Operator, inputs: list[Entry]) -> Entry:
        """The output of a new node in its place."""
        return Entry(self.rewriter.make(op, inputs, self.node), 0)

    def reshaped(self, entry: Entry) -> Entry | None:
        """An entry with the shape of the first output; None where Reshape has no words for it."""
        if self.rewriter.shapes[entry] == self.shape:
            return entry
        return self.make(Reshape.create(shape=self.shape), [entry]) if self.shape and 0 not in self.shape else None


Rule = Callable[[_Site], Entry | None]


def _passing(site: _Site) -> Entry | None:
    """Operators that say of themselves when they give back the first input."""
    passing = site.op.traits.passing
    if passing is Passing.ALIKE:
        return _unchanged(site)
    return None if passing is Passing.ALONE and len(site.inputs) > 1 else site.inputs[0]


def _unchanged(site: _Site) -> Entry | None:
    """Operators that change nothing where shape and dtype stay."""
    return site.inputs[0] if site.is_like(site.inputs[0]) else None


def _dropout(site: _Site) -> Entry | None:
    """Dropout that drops nothing; its mask is ones."""
    if site.op.draws(site.rewriter.graph.train):
        return None
    mask = Entry(site.node, 1)
    if mask in site.rewriter.uses:
        shape, dtype = site.rewriter.shapes[mask], site.rewriter.dtypes[mask]
        if 0 in shape:
            return None
        site.rewriter.replace(mask, site.make(Ones.create(shape=shape, dtype=dtype), []))
    return site.inputs[0]


def _view(site: _Site) -> Entry | None:
    """The same elements with another shape: of what was given another shape before, in one."""
    source = site.inner(lambda op: op.traits.view)
    if source is not None and (site.is_like(source) or site.is_only_reader()):
        return site.reshaped(source)
    return _unchanged(site)


def _cast(site: _Site) -> Entry | None:
    """To another dtype and back, if that one holds every number of the first."""
    source = site.inner(lambda op: op.traits.casts)
    if source is not None and site.is_like(source):
        middle = site.rewriter.dtypes[site.inputs[0]]
        return source if np.can_cast(site.dtype, middle, "safe") else _unchanged(site)
    return _unchanged(site)


def _permuted(site: _Site) -> Entry | None:
    """Axes in another order, and in another one again."""
    entry, axes = site.inputs[0], site.op.order(len(site.shape))
    source = site.inner(lambda op: isinstance(op, Permuting))
    if source is not None:
        inner: Any = entry.node.op
        before = inner.order(len(site.shape))
        both = tuple([before[axis] for axis in axes])
        if _moves_nothing(site, source, both) or site.is_only_reader():
            entry, axes = source, both
    if _moves_nothing(site, entry, axes):
        return site.reshaped(entry)
    return site.make(Transpose.create(axes=axes), [entry]) if entry is source else None


def _moves_nothing(site: _Site, entry: Entry, axes: tuple[int, ...]) -> bool:
    """Tell whether a permutation moves only axes of length 1."""
    moved = [axis for axis in axes if site.rewriter.shapes[entry][axis] != 1]
    return moved == sorted(moved)


# -- arithmetic with neutral numbers -----------------------------------------------------------------------


def _arithmetic(site: _Site) -> Entry | None:
    """An operand of arithmetic whose other one is neutral."""
    neutral: Neutral = site.op.traits.neutral
    if len(site.inputs) == 1:
        return _unchanged(site) if _is(site.op.scalar, neutral, site.dtype) else None
    for side in neutral.sides:
        number = _number(site.inputs[side])  # seldom one is known
        if number is not None:
            other: Entry = site.inputs[1 - side]
            if site.is_like(other) and _is(number, neutral, site.dtype):
                return other
    return None


def _is(number: float | None, neutral: Neutral, dtype: DType) -> bool:
    """Tell whether a number is the neutral element in the arithmetic of a dtype."""
    if number != neutral.number or dtype.kind not in neutral.kinds or dtype.itemsize < neutral.itemsize:
        return False
    return dtype.kind != "f" or math.copysign(1, number) == math.copysign(1, neutral.number)


def _number(entry: Entry) -> float | None:
    """The number that an array is full of, where that is known."""
    node = entry.node
    while node.op is not None and (node.op.traits.view or node.op.traits.repeats):
        node = node.inputs[0].node
    op = node.op
    if isinstance(op, Constant):
        return op.number
    return float(op.constant()) if isinstance(op, Filled) else None


def _rule(op: Operator) -> Rule | None:
    """The rule that finds the entry equal to an operator's output, or None where it changes something."""
    traits = op.traits
    if traits.view:
        return _view
    if traits.casts:
        return _cast
    if traits.neutral is not None:
        return _arithmetic
    if isinstance(op, Permuting):
        return _permuted
    if type(op) is Dropout:
        return _dropout
    return None if traits.passing is Passing.NEVER else _passing
