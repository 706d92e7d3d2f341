"""Layers between conversions from and to bytes, as ONNX's quantized models have them: in prediction they work on bytes.

A layer whose data and weight are made of bytes, with the sum, the activation and the conversion to bytes behind it, is
one step. What only moves bytes, or takes their maxima, is done to bytes where the conversions around it are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import activation_of
from flowmx.ops.arrays.repeating import Pad
from flowmx.ops.math.binary import SUMS
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.quantization.linear import (
    BytesPooling,
    DequantizeConstant,
    DequantizeLinear,
    LinearEnds,
    QuantizeLinear,
)
from flowmx.ops.quantization.ranges import INT8, UINT8
from flowmx.ops.quantization.sums import Int8Convolution, Int8FullyConnected, layer_of
from flowmx.ops.registry.operators import Operator

_LAYERS: dict[type, type[Operator]] = {Convolution: Int8Convolution, FullyConnected: Int8FullyConnected}
_FROM_INT8 = 128
"""The number that is added to an int8 to count it as uint8."""


def join_bytes(graph: Graph, options: Options) -> Graph:
    """Let layers between conversions from and to bytes compute on bytes."""
    if graph.train or graph.heads or not any(isinstance(node.op, DequantizeLinear) for node in graph.nodes()):
        return graph
    return _Joining(_unsigned(graph)).result()


def _readers(graph: Graph) -> dict[Entry, list[Node]]:
    found: dict[Entry, list[Node]] = {}
    for node in graph.nodes():
        for entry in node.inputs:
            found.setdefault(entry, []).append(node)
    return found


def _unsigned(graph: Graph) -> Graph:
    """The graph with uint8 in the place of int8 that has its zero below 0: what is never negative begins at 0 then."""
    rewriter, readers, wanted = Rewriter(graph), _readers(graph), set(graph.wanted())
    for node in rewriter.nodes:
        op, made = node.op, Entry(node, 0)
        users = readers.get(made, [])
        if (
            isinstance(op, QuantizeLinear)
            and op.dtype == INT8
            and op.zero < 0
            and made not in wanted
            and all(isinstance(user.op, DequantizeLinear) and user.op.zero == op.zero for user in users)
        ):
            other = QuantizeLinear.create(scale=op.scale, zero=op.zero + _FROM_INT8, made="uint8")
            new = rewriter.make(other, [rewriter.new(node.inputs[0])], node)
            for user in users:
                assert isinstance(user.op, DequantizeLinear)
                back = DequantizeLinear.create(scale=user.op.scale, zero=user.op.zero + _FROM_INT8)
                rewriter.replace(Entry(user, 0), Entry(rewriter.make(back, [Entry(new, 0)], user), 0))
        elif op is not None and not rewriter.is_replaced(made):
            rewriter.keep(node)
    return rewriter.result()


@dataclass
class _Group:
    """A layer on bytes and what goes into it.

    Attributes:
        layer: the layer of real numbers.
        end: the last node that it stands for.
        inner: those in between, in order.
        bias: what is added to each row, where the layer has no bias itself.
        addend: the conversion of what is added.
        then: the activation, as :class:`Int8` has it.
        top: the upper end of clip, a real number.
        made: the conversion of the output; None where that stays real.
        first: another one before the addend or the activation.
    """

    layer: Node
    end: Node
    inner: list[Node] = field(default_factory=list)
    bias: Entry | None = None
    addend: Node | None = None
    then: str = ""
    top: float = 0.0
    made: QuantizeLinear | None = None
    first: QuantizeLinear | None = None


class _Joining:
    """One walk over a graph."""

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph = graph
        self._users = _readers(graph)
        self._wanted = set(graph.wanted())
        groups: dict[Node, _Group] = {}
        taken: set[Node] = set()
        for node in reversed(self._rewriter.nodes):
            if node not in taken and self._is_layer(node):
                group = self._grown(node, taken)
                groups[group.end] = group
                taken.update((group.layer, *group.inner, group.end))
        for node in self._rewriter.nodes:
            if node in groups:
                self._put(groups[node])
            elif node.op is not None and node not in taken and not self._moved(node):
                self._rewriter.keep(node)

    def result(self) -> Graph:
        """The new graph."""
        return self._rewriter.result()

    def _is_layer(self, node: Node) -> bool:
        if type(node.op) not in _LAYERS or not isinstance(_viewed(node.inputs[0])[0].op, DequantizeLinear):
            return False
        weight = node.inputs[1].node
        if not isinstance(weight.op, DequantizeConstant) or self._graph.dtypes[weight.inputs[0]] != INT8:
            return False
        if self._graph.shapes[weight.inputs[1]] != (1,) and weight.op.axis != 0:
            return False
        plain = not isinstance(node.op, Convolution) or (node.op.layout in (None, "NCHW") and len(node.op.kernel) == 2)
        return plain and all(_stays(entry) for entry in node.inputs[2:])

    def _only_user(self, node: Node) -> Node | None:
        """The one node that reads the output of another, which nobody else wants."""
        entry = Entry(node, 0)
        users = self._users.get(entry, [])
        return users[0] if len(users) == 1 and entry not in self._wanted else None

    def _grown(self, layer: Node, taken: set[Node]) -> _Group:
        """A layer with all that goes into it."""
        group = _Group(layer, layer)
        self._shift(group)
        self._activate(group)
        self._convert(group)
        if group.made is not None and not group.then:
            self._go_on(group, taken)
        return group

    def _shift(self, group: _Group) -> None:
        """Take in the sum of a product's rows and a vector that stays the same."""
        user, op = self._only_user(group.end), group.layer.op
        if user is None or not isinstance(user.op, SUMS) or not isinstance(op, FullyConnected) or not op.no_bias:
            return
        others = [entry for entry in user.inputs if entry.node is not group.end]
        if len(others) == 1 and _stays(others[0]) and self._graph.shapes[others[0]] == (op.num_hidden,):
            self._take(group, user)
            group.bias = others[0]

    def _activate(self, group: _Group) -> None:
        user = self._only_user(group.end)
        kind = "" if user is None else activation_of(user)
        if user is not None and kind in ("relu", "clip"):
            self._take(group, user)
            group.then, group.top = kind, getattr(user.op, "a_max", 0.0)

    def _convert(self, group: _Group) -> None:
        user = self._only_user(group.end)
        # An activation comes last, when a zero point would have been added.
        if user is not None and isinstance(user.op, QuantizeLinear) and not (group.then and user.op.zero):
            self._take(group, user)
            group.made = user.op

    def _go_on(self, group: _Group, taken: set[Node]) -> None:
        """Take in the sum with other bytes, or the activation, behind the conversions, and what converts that."""
        back = self._only_user(group.end)
        if back is None or not isinstance(back.op, DequantizeLinear):
            return
        wide = _Group(group.layer, back, [*group.inner, group.end], group.bias, first=group.made)
        total = self._only_user(back)
        if total is not None and isinstance(total.op, SUMS) and isinstance(group.layer.op, Convolution):
            wide.addend = self._other(total, back)
            if wide.addend is None:
                return
            self._take(wide, total)
        self._activate(wide)
        if wide.end is not back:
            self._convert(wide)
        if wide.made is not None and not taken.intersection((*wide.inner, wide.end)):
            group.__dict__.update(wide.__dict__)

    def _other(self, total: Node, back: Node) -> Node | None:
        """The conversion of bytes that a node adds to another conversion, of arrays of one shape."""
        others = [entry.node for entry in total.inputs if entry.node is not back]
        shapes = {self._graph.shapes[entry] for entry in (*total.inputs, Entry(total, 0))}
        fits = len(others) == 1 and isinstance(others[0].op, DequantizeLinear) and len(shapes) == 1
        return others[0] if fits else None

    @staticmethod
    def _take(group: _Group, node: Node) -> None:
        if group.end is not group.layer:
            group.inner.append(group.end)
        group.end = node

    def _put(self, group: _Group) -> None:
        """Put a layer on bytes in the place of a group."""
        rewriter, node, op = self._rewriter, group.layer, group.layer.op
        assert op is not None
        (back, views), weight = _viewed(node.inputs[0]), node.inputs[1].node
        source, made, addend = back.op, group.made, group.addend
        assert isinstance(source, DequantizeLinear)
        out_scale, shift, factor = (made.scale, float(made.zero), 0.0) if made is not None else (1.0, 0.0, 0.0)
        given: dict[str, Any] = {**layer_of(op), "scaled": True, "no_bias": False}
        if addend is not None:
            assert isinstance(addend.op, DequantizeLinear)
            factor = addend.op.scale / out_scale
            shift -= factor * addend.op.zero
        scale, first = out_scale, group.first
        if first is not None:
            ends_of_type = np.iinfo(first.dtype)
            low, high = float(ends_of_type.min - first.zero), float(ends_of_type.max - first.zero)
            given |= {"inner": first.scale / out_scale, "low": low, "high": high, "shift": shift}
            scale, shift = first.scale, 0.0
        bias = [*node.inputs[2:], *([] if group.bias is None else [group.bias])]
        ends = LinearEnds.create(
            biased=bool(bias), data_scale=source.scale, data_zero=source.zero, out_scale=scale,
            shift=shift,
        )  # fmt: skip
        read = [rewriter.new(entry) for entry in (*weight.inputs, *bias)]
        vectors = rewriter.make(ends, read, node, f"{node.name} ends")
        given["made"] = "float32" if made is None else made.made
        data = rewriter.new(back.inputs[0])
        for view in views:
            assert view.op is not None
            data = Entry(rewriter.make(view.op, [data], view), 0)
        if isinstance(op, Convolution) and source.zero and any(op.pad or ()):
            data, given["pad"] = self._padded(data, op, source.zero, node), (0,) * len(op.kernel)
        given |= {"unsigned": rewriter.dtypes[data] == UINT8, "then": group.then, "top": group.top / out_scale}
        inputs = [data, rewriter.new(weight.inputs[0]), Entry(vectors, 0), Entry(vectors, 1)]
        if addend is not None:
            given |= {"added": True, "factor": factor}
            inputs.append(rewriter.new(addend.inputs[0]))
        layer = rewriter.make(_LAYERS[type(op)].create(**given), inputs, node)
        rewriter.replace(Entry(group.end, 0), Entry(layer, 0))
        rewriter.note(f"{node.name} works on bytes")

    def _padded(self, data: Entry, op: Convolution, zero: int, like: Node) -> Entry:
        """Bytes with a border of those that stand for 0."""
        width = (0, 0, 0, 0, *(each for pad in op.pad for each in (pad, pad)))
        padding = Pad.create(mode="constant", pad_width=width, constant_value=zero)
        return Entry(self._rewriter.make(padding, [data], like, f"{like.name} padded"), 0)

    def _moved(self, node: Node) -> bool:
        """Do to bytes what only moves numbers, or takes maxima, between the same conversions; False elsewhere."""
        if not isinstance(node.op, QuantizeLinear):
            return False
        inner = node.inputs[0].node
        back = inner.inputs[0].node if inner.inputs else inner
        if not isinstance(back.op, DequantizeLinear) or len(inner.inputs) != 1 or inner.op is None:
            return False
        dtype = self._graph.dtypes[back.inputs[0]]
        if (back.op.scale, back.op.zero, dtype) != (node.op.scale, node.op.zero, node.op.dtype):
            return False
        data = self._rewriter.new(back.inputs[0])
        traits = inner.op.traits
        if isinstance(inner.op, Pooling):
            made = self._pooled(inner, data)
        elif traits.view or (traits.moves and not isinstance(inner.op, Pad)):
            made = self._rewriter.make(inner.op, [data], inner)
        else:
            return False
        if made is None:
            return False
        self._rewriter.replace(Entry(node, 0), Entry(made, 0))
        return True

    def _pooled(self, node: Node, data: Entry) -> Node | None:
        op: Any = node.op
        if op.pool_type != "max" or op.channels_last:
            return None
        given = {name: getattr(op, name) for name in op.attributes()}
        return self._rewriter.make(BytesPooling.create(**given), [data], node)


def _viewed(entry: Entry) -> tuple[Node, list[Node]]:
    """The node of which an entry is a view, and the nodes that make it so, in order."""
    views: list[Node] = []
    while entry.node.op is not None and entry.node.op.traits.view:
        views.insert(0, entry.node)
        entry = entry.node.inputs[0]
    return entry.node, views


def _stays(entry: Entry) -> bool:
    """True for what is the same from run to run."""
    return entry.node.op is None or entry.node.op.traits.once
