"""Tables of networks with the rows and numbers of MXNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol
from flowmx.visualization.symbol_facts import check_symbol, kind, shapes_of

_HEADER = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")


def _convolution(op: Any, channels: int, result: Shape) -> Any:
    return channels * op.num_filter // op.num_group * math.prod(op.kernel) + (0 if op.no_bias else op.num_filter)


_PARAMETERS: dict[str, Callable[[Any, int, Shape], Any]] = {
    "Convolution": _convolution,
    "FullyConnected": lambda op, channels, result: (channels + (0 if op.no_bias else 1)) * op.num_hidden,
    "BatchNorm": lambda op, channels, result: 2 * result[0] if result else 0,
    "Embedding": lambda op, channels, result: op.input_dim * op.output_dim,
}
"""Functions that count the parameters of a layer from its input channels and its output shape without the batch."""


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Sequence[int]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a table of the layers: names, output shapes, numbers of parameters, and previous layers.

    The numbers are those of MXNet, which are only correct for chains of common layers. Only Convolution,
    FullyConnected, BatchNorm (without its moving statistics) and Embedding are counted. Inputs have no channels without
    ``shape``, and except for the first variable. A FullyConnected counts only the channels of an image that was not
    flattened. :meth:`flowmx.sym.Symbol.memory_estimate` returns the correct sizes.

    Args:
        symbol: the network.
        shape: shapes of inputs by name; without it no shapes are printed.
        line_length: the width in characters.
        positions: the ends of the columns, as fractions of a line or in characters.

    Raises:
        TypeError: ``symbol`` is not a symbol.
        ValueError: a shape cannot be inferred.
    """
    check_symbol("print_summary", symbol)
    shapes = None if shape is None else shapes_of("print_summary", symbol, shape)
    stops = [int(line_length * part) for part in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    nodes = symbol.nodes()
    listed_variables = {nodes[0], symbol.entries[0].node}
    print("_" * line_length)
    _print_row(_HEADER, stops)
    print("=" * line_length)
    total = 0
    for node in nodes:
        if not node.is_variable or node is nodes[0]:
            previous = [e.node for e in node.inputs if not e.node.is_variable or e.node in listed_variables]
            total += _print_layer(node, previous, shapes, stops)
            print(("=" if node is nodes[-1] else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _print_layer(
    node: Node, previous: Sequence[Node], shapes: Mapping[Entry, Shape] | None, stops: Sequence[int]
) -> int:  # fmt: skip
    """Print the rows of one layer and return its number of parameters."""
    channels = sum(_sizes(layer, shapes)[0] for layer in previous if _sizes(layer, shapes))
    result = _sizes(node, shapes)
    count = _PARAMETERS.get(kind(node))
    parameters = 0 if count is None else int(count(node.op, channels, result))
    names = [layer.name for layer in previous] or [""]
    _print_row((f"{node.name}({kind(node)})", "x".join(map(str, result)), parameters, names[0]), stops)
    for name in names[1:]:
        _print_row(("", "", "", name), stops)
    return parameters


def _print_row(fields: Iterable[object], stops: Sequence[int]) -> None:
    line = ""
    for field, stop in zip(fields, stops, strict=False):
        line = (line + str(field))[:stop].ljust(stop)
    print(line)


def _sizes(node: Node, shapes: Mapping[Entry, Shape] | None) -> Shape:
    """Return the shape of a node's output without the batch; empty if unknown or if the node has numbered outputs."""
    has_one = node.is_variable or node.output_name(0) == f"{node.name}_output"
    return shapes[Entry(node, 0)][1:] if shapes is not None and has_one else ()
