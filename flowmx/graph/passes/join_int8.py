"""int8 prediction: layers between dequantize and quantize operators, as in quantized ONNX models, compute in int8.

A layer with dequantized data and weight becomes one step together with the addition, the activation and the quantize
operator after it. Operators that only move elements, or take maxima, run on int8 if the scale and zero point before and
after them are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, is_run_invariant
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.fuse import activation_of
from flowmx.ops.arrays.padding import Pad
from flowmx.ops.math.binary import SUMS
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.quantization.int8_layers import Int8Convolution, Int8FullyConnected, layer_parameters
from flowmx.ops.quantization.ranges import INT8, UINT8
from flowmx.ops.quantization.zero_point import (
    BytesPooling,
    DequantizeConstant,
    DequantizeLinear,
    LinearEnds,
    QuantizeLinear,
)
from flowmx.ops.registry.operators import Operator

_LAYERS: dict[type, type[Operator]] = {Convolution: Int8Convolution, FullyConnected: Int8FullyConnected}
_FROM_INT8 = 128
"""The offset that maps int8 to uint8."""


def join_bytes(graph: Graph, options: Options) -> Graph:
    """Make layers between dequantize and quantize operators compute in int8."""
    if graph.train or graph.heads or not any(isinstance(node.op, DequantizeLinear) for node in graph.nodes()):
        return graph
    return _Joining(_to_unsigned(graph)).result()


def _readers(graph: Graph) -> dict[Entry, list[Node]]:
    readers: dict[Entry, list[Node]] = {}
    for node in graph.nodes():
        for entry in node.inputs:
            readers.setdefault(entry, []).append(node)
    return readers


def _to_unsigned(graph: Graph) -> Graph:
    """Replace int8 that has its zero point below 0 with uint8, so that nonnegative values start at 0."""
    rewriter, readers, results = Rewriter(graph), _readers(graph), set(graph.results())
    for node in rewriter.nodes:
        op, output = node.op, Entry(node, 0)
        users = readers.get(output, [])
        if (
            isinstance(op, QuantizeLinear)
            and op.dtype == INT8
            and op.zero < 0
            and output not in results
            and all(isinstance(user.op, DequantizeLinear) and user.op.zero == op.zero for user in users)
        ):
            other = QuantizeLinear.create(scale=op.scale, zero=op.zero + _FROM_INT8, out_dtype="uint8")
            new = rewriter.make(other, [rewriter.new(node.inputs[0])], node)
            for user in users:
                assert isinstance(user.op, DequantizeLinear)
                back = DequantizeLinear.create(scale=user.op.scale, zero=user.op.zero + _FROM_INT8)
                rewriter.replace(Entry(user, 0), Entry(rewriter.make(back, [Entry(new, 0)], user), 0))
        elif op is not None and not rewriter.is_replaced(output):
            rewriter.keep(node)
    return rewriter.result()


@dataclass
class _Group:
    """A layer and the operators to join with it.

    Attributes:
        layer: the floating-point layer.
        end: the last node that it replaces.
        inner: the nodes in between, in order.
        bias: the vector that is added to each row, if the layer has no bias.
        addend: the dequantize node of the addend.
        activation: the activation, as in :class:`Int8`.
        top: the upper bound of clip, in floating point.
        quantize: the quantize operator of the output; None if that stays floating point.
        inner_quantize: an earlier one, before the addend or the activation.
    """

    layer: Node
    end: Node
    inner: list[Node] = field(default_factory=list)
    bias: Entry | None = None
    addend: Node | None = None
    activation: str = ""
    top: float = 0.0
    quantize: QuantizeLinear | None = None
    inner_quantize: QuantizeLinear | None = None


class _Joining:
    """The joining of layers in one graph."""

    def __init__(self, graph: Graph) -> None:
        self._rewriter = Rewriter(graph)
        self._graph = graph
        self._users = _readers(graph)
        self._results = set(graph.results())
        groups: dict[Node, _Group] = {}
        members: set[Node] = set()
        for node in reversed(self._rewriter.nodes):
            if node not in members and self._is_layer(node):
                group = self._group_of(node, members)
                groups[group.end] = group
                members.update((group.layer, *group.inner, group.end))
        for node in self._rewriter.nodes:
            if node in groups:
                self._replace(groups[node])
            elif node.op is not None and node not in members and not self._move(node):
                self._rewriter.keep(node)

    def result(self) -> Graph:
        """Return the new graph."""
        return self._rewriter.result()

    def _is_layer(self, node: Node) -> bool:
        if type(node.op) not in _LAYERS or not isinstance(_split_views(node.inputs[0])[0].op, DequantizeLinear):
            return False
        weight = node.inputs[1].node
        if not isinstance(weight.op, DequantizeConstant) or self._graph.dtypes[weight.inputs[0]] != INT8:
            return False
        if self._graph.shapes[weight.inputs[1]] != (1,) and weight.op.axis != 0:
            return False
        plain = not isinstance(node.op, Convolution) or (node.op.layout in (None, "NCHW") and len(node.op.kernel) == 2)
        return plain and all(is_run_invariant(entry.node) for entry in node.inputs[2:])

    def _only_user(self, node: Node) -> Node | None:
        """Return the only reader of a node's output, or None if there are several or it is a result."""
        entry = Entry(node, 0)
        users = self._users.get(entry, [])
        return users[0] if len(users) == 1 and entry not in self._results else None

    def _group_of(self, layer: Node, members: set[Node]) -> _Group:
        """Return a layer with all operators that can be joined with it."""
        group = _Group(layer, layer)
        self._add_bias(group)
        self._add_activation(group)
        self._add_quantize(group)
        if group.quantize is not None and not group.activation:
            self._extend(group, members)
        return group

    def _add_bias(self, group: _Group) -> None:
        """Join the addition of a constant vector to the rows of a product."""
        user, op = self._only_user(group.end), group.layer.op
        if user is None or not isinstance(user.op, SUMS) or not isinstance(op, FullyConnected) or not op.no_bias:
            return
        others = [entry for entry in user.inputs if entry.node is not group.end]
        if len(others) == 1 and is_run_invariant(others[0].node) and self._graph.shapes[others[0]] == (op.num_hidden,):
            self._append(group, user)
            group.bias = others[0]

    def _add_activation(self, group: _Group) -> None:
        user = self._only_user(group.end)
        kind = "" if user is None else activation_of(user)
        if user is not None and kind in ("relu", "clip"):
            self._append(group, user)
            group.activation, group.top = kind, getattr(user.op, "a_max", 0.0)

    def _add_quantize(self, group: _Group) -> None:
        user = self._only_user(group.end)
        # Kernels apply the activation last, after adding the zero point, which must then be 0.
        if user is not None and isinstance(user.op, QuantizeLinear) and not (group.activation and user.op.zero):
            self._append(group, user)
            group.quantize = user.op

    def _extend(self, group: _Group, members: set[Node]) -> None:
        """Join an addition or activation after a quantize and dequantize pair, and the quantize operator after it."""
        back = self._only_user(group.end)
        if back is None or not isinstance(back.op, DequantizeLinear):
            return
        wide = _Group(group.layer, back, [*group.inner, group.end], group.bias, inner_quantize=group.quantize)
        total = self._only_user(back)
        if total is not None and isinstance(total.op, SUMS) and isinstance(group.layer.op, Convolution):
            wide.addend = self._other(total, back)
            if wide.addend is None:
                return
            self._append(wide, total)
        self._add_activation(wide)
        if wide.end is not back:
            self._add_quantize(wide)
        if wide.quantize is not None and not members.intersection((*wide.inner, wide.end)):
            group.__dict__.update(wide.__dict__)

    def _other(self, total: Node, back: Node) -> Node | None:
        """Return the dequantize node that a node adds to another one, if all shapes are equal."""
        others = [entry.node for entry in total.inputs if entry.node is not back]
        shapes = {self._graph.shapes[entry] for entry in (*total.inputs, Entry(total, 0))}
        fits = len(others) == 1 and isinstance(others[0].op, DequantizeLinear) and len(shapes) == 1
        return others[0] if fits else None

    @staticmethod
    def _append(group: _Group, node: Node) -> None:
        if group.end is not group.layer:
            group.inner.append(group.end)
        group.end = node

    def _replace(self, group: _Group) -> None:
        """Replace a group with a layer that computes in int8.

        In units of the output's scale, the output is the scaled sums + factor * addend + shift. If the group quantizes
        twice, the sums are first rounded to the inner scale and clamped to the inner dtype.
        """
        rewriter, node, op = self._rewriter, group.layer, group.layer.op
        assert op is not None
        (back, views), weight = _split_views(node.inputs[0]), node.inputs[1].node
        source, quantize, addend = back.op, group.quantize, group.addend
        assert isinstance(source, DequantizeLinear)
        out_scale, shift, factor = 1.0, 0.0, 0.0
        if quantize is not None:
            out_scale, shift = quantize.scale, float(quantize.zero)
        parameters: dict[str, object] = {**layer_parameters(op), "scaled": True, "no_bias": False}
        if addend is not None:
            assert isinstance(addend.op, DequantizeLinear)
            factor = addend.op.scale / out_scale
            shift -= factor * addend.op.zero
        scale, inner = out_scale, group.inner_quantize
        if inner is not None:
            info = np.iinfo(inner.dtype)
            low, high = float(info.min - inner.zero), float(info.max - inner.zero)
            parameters |= {"inner": inner.scale / out_scale, "low": low, "high": high, "shift": shift}
            scale, shift = inner.scale, 0.0
        # The vectors of scales and biases, computed once.
        bias = [*node.inputs[2:], *([] if group.bias is None else [group.bias])]
        ends = LinearEnds.create(
            biased=bool(bias), data_scale=source.scale, data_zero=source.zero, out_scale=scale,
            shift=shift,
        )  # fmt: skip
        constants = [rewriter.new(entry) for entry in (*weight.inputs, *bias)]
        vectors = rewriter.make(ends, constants, node, f"{node.name} ends")
        parameters["out_dtype"] = "float32" if quantize is None else quantize.out_dtype
        # The layer on the undequantized data.
        data = rewriter.new(back.inputs[0])
        for view in views:
            assert view.op is not None
            data = Entry(rewriter.make(view.op, [data], view), 0)
        if isinstance(op, Convolution) and source.zero and any(op.pad or ()):
            data, parameters["pad"] = self._pad(data, op, source.zero, node), (0,) * len(op.kernel)
        parameters |= {
            "unsigned": rewriter.dtypes[data] == UINT8,
            "activation": group.activation,
            "top": group.top / out_scale,
        }
        inputs = [data, rewriter.new(weight.inputs[0]), Entry(vectors, 0), Entry(vectors, 1)]
        if addend is not None:
            parameters |= {"has_addend": True, "factor": factor}
            inputs.append(rewriter.new(addend.inputs[0]))
        layer = rewriter.make(_LAYERS[type(op)].create(**parameters), inputs, node)
        rewriter.replace(Entry(group.end, 0), Entry(layer, 0))
        rewriter.note(f"{node.name} computes in int8")

    def _pad(self, data: Entry, op: Convolution, zero: int, like: Node) -> Entry:
        """Pad with the byte that represents 0."""
        width = (0, 0, 0, 0, *(count for pad in op.pad for count in (pad, pad)))
        padding = Pad.create(mode="constant", pad_width=width, constant_value=zero)
        return Entry(self._rewriter.make(padding, [data], like, f"{like.name} padded"), 0)

    def _move(self, node: Node) -> bool:
        """Run an operator that moves elements or takes maxima on int8; return False if the scales differ."""
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
            moved = self._pool(inner, data)
        elif traits.view or (traits.moves and not isinstance(inner.op, Pad)):
            moved = self._rewriter.make(inner.op, [data], inner)
        else:
            return False
        if moved is None:
            return False
        self._rewriter.replace(Entry(node, 0), Entry(moved, 0))
        return True

    def _pool(self, node: Node, data: Entry) -> Node | None:
        op: Any = node.op
        if op.pool_type != "max" or op.channels_last:
            return None
        parameters = {name: getattr(op, name) for name in op.attributes()}
        return self._rewriter.make(BytesPooling.create(**parameters), [data], node)


def _split_views(entry: Entry) -> tuple[Node, list[Node]]:
    """Return the node that an entry is a view of, and the view nodes in order."""
    views: list[Node] = []
    while entry.node.op is not None and entry.node.op.traits.view:
        views.insert(0, entry.node)
        entry = entry.node.inputs[0]
    return entry.node, views
