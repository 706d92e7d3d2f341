"""Remove nodes that return their input, and pairs of nodes that undo each other.

Only if the result is exact to the bit: ``x * 1`` is removed, but not ``x + 0``, which turns -0.0 into 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.effects import preserving_effects
from flowmx.ops.arrays.creation_ops import Fill, Ones
from flowmx.ops.arrays.permuting import Permuting, Transpose
from flowmx.ops.arrays.reshape import Reshape
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import Neutral, Passing


@preserving_effects
def drop_identities(graph: Graph, options: Options) -> Graph:
    """Remove nodes that return their input."""
    rewriter = Rewriter(graph)
    changing = written_variables(rewriter.nodes, graph.train)
    rules: dict[Operator, Rule | None] = {}
    for node in rewriter.nodes:
        if node.op is None:
            continue
        if node.op not in rules:
            rules[node.op] = _rule(node.op)
        rule = rules[node.op]
        equal = None if rule is None else rule(_Site(rewriter, node, changing))
        if equal is None or equal.node in changing:
            rewriter.keep(node)
        else:
            rewriter.replace(Entry(node, 0), equal)
            rewriter.note(f"{node.name} is removed: it equals {equal.node.output_name(equal.index)}")
    return rewriter.result()


class _Site:
    """A node that may be removed.

    Attributes:
        node: the old node.
        op: its operator.
        inputs: its inputs in the new graph.
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
        """The dtype of the first output."""
        return self.rewriter.dtypes[Entry(self.node, 0)]

    def is_like(self, entry: Entry) -> bool:
        """Return whether the first output has the shape and the dtype of an entry."""
        return (self.shape, self.dtype) == (self.rewriter.shapes[entry], self.rewriter.dtypes[entry])

    def inner(self, matches: Callable[[Operator], bool]) -> Entry | None:
        """Return the first input of the preceding node if that has a matching operator, else None."""
        before = self.inputs[0].node
        if before.op is None or not matches(before.op) or before.inputs[0].node in self._changing:
            return None
        return before.inputs[0]

    def is_only_reader(self) -> bool:
        """Return whether nothing else reads the first input."""
        return self.rewriter.uses[self.node.inputs[0]] == 1

    def make(self, op: Operator, inputs: list[Entry]) -> Entry:
        """Return the output of a new node in its place."""
        return Entry(self.rewriter.make(op, inputs, self.node), 0)

    def reshape(self, entry: Entry) -> Entry | None:
        """Return an entry in the shape of the first output; None if Reshape cannot express it."""
        if self.rewriter.shapes[entry] == self.shape:
            return entry
        return self.make(Reshape.create(shape=self.shape), [entry]) if self.shape and 0 not in self.shape else None


Rule = Callable[[_Site], Entry | None]


def _skip_identity(site: _Site) -> Entry | None:
    """Return the first input if the operator's traits say that it returns it unchanged."""
    passing = site.op.traits.passing
    if passing is Passing.ALIKE:
        return _skip_unchanged(site)
    return None if passing is Passing.ALONE and len(site.inputs) > 1 else site.inputs[0]


def _skip_unchanged(site: _Site) -> Entry | None:
    """Return the first input if the operator keeps its shape and dtype, and so changes nothing."""
    return site.inputs[0] if site.is_like(site.inputs[0]) else None


def _dropout(site: _Site) -> Entry | None:
    """Remove a Dropout that drops nothing; its mask is ones."""
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
    """Merge two views into one, or remove a view that keeps the shape."""
    source = site.inner(lambda op: op.traits.view)
    if source is not None and (site.is_like(source) or site.is_only_reader()):
        return site.reshape(source)
    return _skip_unchanged(site)


def _cast(site: _Site) -> Entry | None:
    """Remove casts to a different dtype and back, if the other dtype holds every number of the first."""
    source = site.inner(lambda op: op.traits.casts)
    if source is not None and site.is_like(source):
        middle = site.rewriter.dtypes[site.inputs[0]]
        return source if np.can_cast(site.dtype, middle, "safe") else _skip_unchanged(site)
    return _skip_unchanged(site)


def _merge_permutations(site: _Site) -> Entry | None:
    """Merge two permutations of axes into one, or remove one that moves nothing."""
    entry, axes = site.inputs[0], site.op.order(len(site.shape))
    source = site.inner(lambda op: isinstance(op, Permuting))
    if source is not None:
        inner: Any = entry.node.op
        before = inner.order(len(site.shape))
        both = tuple([before[axis] for axis in axes])
        if _moves_nothing(site, source, both) or site.is_only_reader():
            entry, axes = source, both
    if _moves_nothing(site, entry, axes):
        return site.reshape(entry)
    return site.make(Transpose.create(axes=axes), [entry]) if entry is source else None


def _moves_nothing(site: _Site, entry: Entry, axes: tuple[int, ...]) -> bool:
    """Return whether a permutation moves only axes of length 1."""
    moved = [axis for axis in axes if site.rewriter.shapes[entry][axis] != 1]
    return moved == sorted(moved)


# -- arithmetic with neutral numbers -----------------------------------------------------------------------


def _arithmetic(site: _Site) -> Entry | None:
    """Return the operand of an arithmetic operator whose other operand is neutral."""
    neutral: Neutral = site.op.traits.neutral
    if len(site.inputs) == 1:
        return _skip_unchanged(site) if _is_neutral(site.op.scalar, neutral, site.dtype) else None
    for side in neutral.sides:
        number = _number(site.inputs[side])  # rarely known
        if number is not None:
            other: Entry = site.inputs[1 - side]
            if site.is_like(other) and _is_neutral(number, neutral, site.dtype):
                return other
    return None


def _is_neutral(number: float | None, neutral: Neutral, dtype: DType) -> bool:
    """Return whether a number is the neutral element in the arithmetic of a dtype."""
    if number != neutral.number or dtype.kind not in neutral.kinds or dtype.itemsize < neutral.itemsize:
        return False
    return dtype.kind != "f" or math.copysign(1, number) == math.copysign(1, neutral.number)


def _number(entry: Entry) -> float | None:
    """Return the number that fills an array, if it is known."""
    node = entry.node
    while node.op is not None and (node.op.traits.view or node.op.traits.repeats):
        node = node.inputs[0].node
    op = node.op
    if isinstance(op, Constant):
        return op.number
    return float(op.constant()) if isinstance(op, Fill) else None


def _rule(op: Operator) -> Rule | None:
    """Return the rule that finds the entry equal to an operator's output, or None."""
    traits = op.traits
    if traits.view:
        return _view
    if traits.casts:
        return _cast
    if traits.neutral is not None:
        return _arithmetic
    if isinstance(op, Permuting):
        return _merge_permutations
    if type(op) is Dropout:
        return _dropout
    return None if traits.passing is Passing.NEVER else _skip_identity
