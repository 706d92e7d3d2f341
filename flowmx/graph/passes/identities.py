"""Nodes that give back what they are given are left out, and those that undo each other.

Only what is exact to the bit: ``x * 1`` goes, ``x + 0`` stays, since it makes 0.0 of -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.effects import keeping_effects
from flowmx.graph.plan import VIEWS
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.registry.operators import lookup

CASTS = frozenset({"Cast", "amp_cast", "_cast_like"})
_BROADCASTS = frozenset({"broadcast_to", "broadcast_axis", "broadcast_like"})
_FILLED = {"_zeros": 0.0, "_ones": 1.0}


@keeping_effects
def drop_identities(graph: Graph, options: Options) -> Graph:
    """Leave out nodes that give back what they are given."""
    rewriter = Rewriter(graph)
    changing = written(rewriter.nodes, graph.train)
    for node in rewriter.nodes:
        if node.op is None:
            continue
        rule = RULES.get(node.op.name)
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
        shape, dtype: of its first output.
    """

    def __init__(self, rewriter: Rewriter, node: Node, changing: set[Node]) -> None:
        self.node = node
        self.op: Any = node.op
        self.inputs = [rewriter.new(entry) for entry in node.inputs]
        self.shape, self.dtype = rewriter.shapes[Entry(node, 0)], rewriter.dtypes[Entry(node, 0)]
        self.rewriter = rewriter
        self._changing = changing

    def is_like(self, entry: Entry) -> bool:
        """Tell whether the first output has the shape and the dtype of an entry."""
        return (self.shape, self.dtype) == (self.rewriter.shapes[entry], self.rewriter.dtypes[entry])

    def inner(self, names: Collection[str]) -> Entry | None:
        """The first input of the preceding node if that has one of these operators, else None."""
        before = self.inputs[0].node
        if before.op is None or before.op.name not in names or before.inputs[0].node in self._changing:
            return None
        return before.inputs[0]

    def is_only_reader(self) -> bool:
        """True if nothing else reads the first input."""
        return self.rewriter.uses[self.node.inputs[0]] == 1

    def make(self, name: str, inputs: list[Entry], **parameters: Any) -> Entry:
        """The output of a new node in its place."""
        return Entry(self.rewriter.make(lookup(name).create(**parameters), inputs, self.node), 0)

    def reshaped(self, entry: Entry) -> Entry | None:
        """An entry with the shape of the first output; None where Reshape has no words for it."""
        if self.rewriter.shapes[entry] == self.shape:
            return entry
        return self.make("Reshape", [entry], shape=self.shape) if self.shape and 0 not in self.shape else None


Rule = Callable[[_Site], Entry | None]


def _always(site: _Site) -> Entry | None:
    return site.inputs[0]


def _unchanged(site: _Site) -> Entry | None:
    """Operators that change nothing where shape and dtype stay."""
    return site.inputs[0] if site.is_like(site.inputs[0]) else None


def _alone(site: _Site) -> Entry | None:
    """Operators of many inputs that give one back."""
    return site.inputs[0] if len(site.inputs) == 1 else None


def _forwards(site: _Site) -> Entry | None:
    """A slice of everything, unless backwards."""
    return _unchanged(site) if all(step is None or step > 0 for step in site.op.step) else None


def _unmasked(site: _Site) -> Entry | None:
    return None if site.op.use_sequence_length else site.inputs[0]


def _dropout(site: _Site) -> Entry | None:
    """Dropout that drops nothing; its mask is ones."""
    if site.op.draws(site.rewriter.graph.train):
        return None
    mask = Entry(site.node, 1)
    if mask in site.rewriter.uses:
        shape, dtype = site.rewriter.shapes[mask], site.rewriter.dtypes[mask]
        if 0 in shape:
            return None
        site.rewriter.replace(mask, site.make("_ones", [], shape=shape, dtype=dtype))
    return site.inputs[0]


def _view(site: _Site) -> Entry | None:
    """The same elements with another shape: of what was given another shape before, in one."""
    source = site.inner(VIEWS)
    if source is not None and (site.is_like(source) or site.is_only_reader()):
        return site.reshaped(source)
    return _unchanged(site)


def _cast(site: _Site) -> Entry | None:
    """To another dtype and back, if that one holds every number of the first."""
    source = site.inner(CASTS)
    if source is not None and site.is_like(source):
        middle = site.rewriter.dtypes[site.inputs[0]]
        return source if np.can_cast(site.dtype, middle, "safe") else _unchanged(site)
    return _unchanged(site)


def _permuted(site: _Site) -> Entry | None:
    """Axes in another order, and in another one again."""
    entry, axes = site.inputs[0], order_of_axes(site.op, len(site.shape))
    source = site.inner(("transpose", "SwapAxis"))
    if source is not None:
        before = order_of_axes(entry.node.op, len(site.shape))
        both = tuple([before[axis] for axis in axes])
        if _moves_nothing(site, source, both) or site.is_only_reader():
            entry, axes = source, both
    if _moves_nothing(site, entry, axes):
        return site.reshaped(entry)
    return site.make("transpose", [entry], axes=axes) if entry is source else None


def order_of_axes(op: Any, ndim: int) -> tuple[int, ...]:
    """The axes of the input in the order of the output's."""
    if op.name == "transpose":
        return tuple([axis % ndim for axis in op.axes]) or tuple(reversed(range(ndim)))
    axes = list(range(ndim))
    axes[op.dim1], axes[op.dim2] = axes[op.dim2], axes[op.dim1]
    return tuple(axes)


def _moves_nothing(site: _Site, entry: Entry, axes: tuple[int, ...]) -> bool:
    """Tell whether a permutation moves only axes of length 1."""
    moved = [axis for axis in axes if site.rewriter.shapes[entry][axis] != 1]
    return moved == sorted(moved)


# -- arithmetic with neutral numbers -----------------------------------------------------------------------

NEUTRAL = {"add": (-0.0, (0, 1)), "sub": (0.0, (1,)), "mul": (1.0, (0, 1)), "div": (1.0, (1,))}
"""The number that changes nothing, and where it may stand. Of the zeros only -0.0 is neutral in a sum."""
_SCALAR = {"_plus_scalar": "add", "_minus_scalar": "sub", "_mul_scalar": "mul", "_div_scalar": "div"}


def _with_neutral_number(site: _Site) -> Entry | None:
    neutral = NEUTRAL[_SCALAR[site.op.name]][0]
    return _unchanged(site) if _is(site, site.op.scalar, neutral) else None


def _with_neutral_array(site: _Site) -> Entry | None:
    neutral, sides = NEUTRAL[site.op.name.rpartition("_")[2]]
    for side in sides:
        other = site.inputs[1 - side]
        if site.is_like(other) and _is(site, _number(site.inputs[side]), neutral):
            return other
    return None


def _to_the_first(site: _Site) -> Entry | None:
    """A power of 1; half precision may be rounded on the way."""
    return _unchanged(site) if site.op.scalar == 1 and site.dtype.kind == "f" and site.dtype.itemsize >= 4 else None


def _is(site: _Site, number: float | None, neutral: float) -> bool:
    """Tell whether a number is the neutral element in the arithmetic of the site's dtype."""
    if number != neutral:
        return False
    if site.dtype.kind == "f":
        return math.copysign(1, number) == math.copysign(1, neutral)
    return site.dtype.kind in "iu" and "div" not in site.op.name  # which goes through floating numbers


def _number(entry: Entry) -> float | None:
    """The number that an array is full of, where that is known."""
    node = entry.node
    while node.op is not None and (node.op.name in VIEWS or node.op.name in _BROADCASTS):
        node = node.inputs[0].node
    op: Any = node.op
    if isinstance(op, Constant):
        return op.number
    if op is None:
        return None
    return float(op.value) if op.name == "_full" else _FILLED.get(op.name)


RULES: dict[str, Rule] = {
    **dict.fromkeys(["_copy", "BlockGrad", "make_loss", "MakeLoss"], _always),
    **dict.fromkeys(["broadcast_to", "broadcast_axis", "broadcast_like", "_sum_like"], _unchanged),
    **dict.fromkeys(["tile", "repeat", "Pad", "slice_axis", "slice_like", "SliceChannel", "_split_v2"], _unchanged),
    **dict.fromkeys(["Concat", "add_n"], _alone),
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(["transpose", "SwapAxis"], _permuted),
    **dict.fromkeys(_SCALAR, _with_neutral_number),
    **dict.fromkeys([f"{kind}_{name}" for kind in ("elemwise", "broadcast") for name in NEUTRAL],
                    _with_neutral_array),
    "slice": _forwards,
    "SequenceMask": _unmasked,
    "Dropout": _dropout,
    "_power_scalar": _to_the_first,
}  # fmt: skip
"""By operator, the rule that finds the entry equal to its output, or None where it changes something."""
