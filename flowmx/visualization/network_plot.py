"""Drawings of networks with the boxes, labels and colors of MXNet."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node
from flowmx.late_binding import late
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol
from flowmx.visualization.dot import Dot
from flowmx.visualization.symbol_facts import check_symbol, dtypes_of, kind, shapes_of

_WEIGHTS = (
    "_weight", "_bias", "_beta", "_gamma", "_moving_var", "_moving_mean", "_running_var", "_running_mean",
)  # fmt: skip
_BOX = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}
_VARIABLE, _OTHER = "#8dd3c7", "#fccde5"
_COLORS = {
    "Convolution": "#fb8072", "FullyConnected": "#fb8072", "Activation": "#ffffb3", "LeakyReLU": "#ffffb3",
    "BatchNorm": "#bebada", "Pooling": "#80b1d3", "Concat": "#fdb462", "Flatten": "#fdb462", "Reshape": "#fdb462",
}  # fmt: skip
_ONE_EDGE = "_contrib_BilinearResize2D"  # only the shape of its second input is used


def _lengths(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


_LABELS: dict[str, Callable[[Any, Mapping[str, str]], str]] = {
    "Convolution": lambda op, user_parameters: (
        f"Convolution\n{_lengths(op.kernel)}/{_lengths(op.stride) or 1}, {op.num_filter}"
    ),
    "Pooling": lambda op, user_parameters: (
        f"Pooling\n{op.pool_type}, {_lengths(op.kernel) or '[]'}/{_lengths(op.stride) or 1}"
    ),
    "FullyConnected": lambda op, user_parameters: f"FullyConnected\n{op.num_hidden}",
    "Activation": lambda op, user_parameters: f"Activation\n{op.act_type}",
    "LeakyReLU": lambda op, user_parameters: f"LeakyReLU\n{user_parameters.get('act_type', 'Leaky')}",
    "Custom": lambda op, user_parameters: str(op.op_type),
}  # fmt: skip
"""The labels of operators; other boxes are labelled with the node's name."""


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Mapping[str, object] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """Draw a network: a box for each layer, an arrow from each value to its readers.

    Args:
        symbol: the network.
        title: the name of the drawing.
        save_format: the format of the file that ``render`` writes.
        shape: shapes of inputs by name; with it the arrows are labelled with shapes (without the batch).
        dtype: dtypes of inputs by name; with it the arrows are labelled with dtypes.
        node_attrs: graphviz attributes of the boxes, which override the defaults.
        hide_weights: hide variables with the names of parameters.

    Returns:
        a ``graphviz.Digraph`` if the package graphviz is installed (``pip install graphviz``), otherwise a
        :class:`Dot`. Notebooks display both. Without the program ``dot``, flowmx draws, and ``render`` writes SVG.

    Raises:
        TypeError: ``symbol`` is not a symbol.
        ValueError: a shape cannot be inferred.
    """
    check_symbol("plot_network", symbol)
    shapes = None if shape is None else shapes_of("plot_network", symbol, shape)
    dtypes = None if dtype is None else dtypes_of(symbol, dtype)
    nodes = symbol.nodes()
    _warn_about_duplicate_names(nodes)
    dot = _drawing(title, save_format, lambda: _picture(symbol, hide_weights))
    for node in nodes:
        if not is_weight(node):
            attributes = {**_BOX, **(node_attrs or {}), "fillcolor": color_of(node)}
            if node.is_variable:
                attributes["shape"] = "oval"
            dot.node(name=node.name, label=label_of(node), **attributes)
    for node in nodes:
        for entry in node.inputs[:1] if kind(node) == _ONE_EDGE else node.inputs:
            if not (hide_weights and is_weight(entry.node)):
                label = _edge_label(entry, shapes, dtypes)
                dot.edge(tail_name=node.name, head_name=entry.node.name, dir="back", arrowtail="open", label=label)
    return dot


def _drawing(title: str, save_format: str, picture: Callable[[], str]) -> Any:
    try:
        from graphviz import Digraph
    except ImportError:
        return Dot(title, save_format, picture)
    if shutil.which("dot") is not None:
        return Digraph(name=title, format=save_format)

    class SelfDrawingDigraph(Digraph):  # type: ignore[misc]
        """A Digraph that flowmx draws, because graphviz's program is not installed."""

        render, view = Dot.render, Dot.view
        _repr_svg_ = Dot._repr_svg_

        def _repr_mimebundle_(self, *_: object, **__: object) -> dict[str, str]:
            return {"image/svg+xml": picture()}

    digraph = SelfDrawingDigraph(name=title, format=save_format)
    digraph._picture = picture
    return digraph


def _picture(symbol: Symbol, hide_weights: bool) -> str:
    nodes = [node for node in symbol.nodes() if not (hide_weights and is_weight(node))]
    text: str = late("visualization.svg").draw(nodes)
    return text


def color_of(node: Node) -> str:
    """Return the color of a node's box."""
    return _VARIABLE if node.is_variable else _COLORS.get(kind(node), _OTHER)


def is_weight(node: Node) -> bool:
    """Return whether a variable has the name of a parameter."""
    return node.is_variable and node.name.endswith(_WEIGHTS)


def label_of(node: Node) -> str:
    """Return the label of a node's box."""
    label = _LABELS.get(kind(node))
    return node.name if label is None else label(node.op, node.user_parameters)


def _edge_label(entry: Entry, shapes: Mapping[Entry, Shape] | None, dtypes: Mapping[Entry, DType] | None) -> str:
    size = "" if shapes is None else _lengths(shapes[entry][1:])
    return size if dtypes is None else f"{size}({dtypes[entry].type.__name__})"


def _warn_about_duplicate_names(nodes: Sequence[Node]) -> None:
    duplicates = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if duplicates:
        warnings.warn(
            "plot_network: There are multiple variables with the same name in your graph, which are drawn as one: "
            + ", ".join(duplicates),
            RuntimeWarning,
            stacklevel=3,
        )
