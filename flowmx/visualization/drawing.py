"""A network as a drawing, with the boxes, labels and colours of MXNet's."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol
from flowmx.visualization.common import check_symbol, dtypes_of, kind, shapes_of
from flowmx.visualization.dot import Dot

_WEIGHTS = (
    "_weight", "_bias", "_beta", "_gamma", "_moving_var", "_moving_mean", "_running_var", "_running_mean",
)  # fmt: skip
_BOX = {"shape": "box", "fixedsize": "true", "width": "1.3", "height": "0.8034", "style": "filled"}
_VARIABLE, _OTHER = "#8dd3c7", "#fccde5"
_COLOURS = {
    "Convolution": "#fb8072", "FullyConnected": "#fb8072", "Activation": "#ffffb3", "LeakyReLU": "#ffffb3",
    "BatchNorm": "#bebada", "Pooling": "#80b1d3", "Concat": "#fdb462", "Flatten": "#fdb462", "Reshape": "#fdb462",
}  # fmt: skip
_ONE_EDGE = "_contrib_BilinearResize2D"  # its second input only lends its shape


def _lengths(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


_LABELS: dict[str, Callable[[Any, Mapping[str, str]], str]] = {
    "Convolution": lambda op, given: f"Convolution\n{_lengths(op.kernel)}/{_lengths(op.stride) or 1}, {op.num_filter}",
    "Pooling": lambda op, given: (
        f"Pooling\n{op.pool_type}, {_lengths(op.kernel) or '[]'}/{_lengths(op.stride) or 1}"
    ),
    "FullyConnected": lambda op, given: f"FullyConnected\n{op.num_hidden}",
    "Activation": lambda op, given: f"Activation\n{op.act_type}",
    "LeakyReLU": lambda op, given: f"LeakyReLU\n{given.get('act_type', 'Leaky')}",
    "Custom": lambda op, given: str(op.op_type),
}  # fmt: skip
"""Labels of operators' boxes; every other box is labelled with the node's name."""


def plot_network(
    symbol: Symbol,
    title: str = "plot",
    save_format: str = "pdf",
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Mapping[str, Any] | None = None,
    node_attrs: Mapping[str, str] | None = None,
    hide_weights: bool = True,
) -> Any:
    """Draw a network: a box for each layer, an arrow from each value to who reads it.

    Args:
        symbol: the network.
        title: the drawing's name.
        save_format: the format of the file that ``render`` writes.
        shape: shapes of inputs by name; shapes (without the batch) are then written at the arrows.
        dtype: dtypes of inputs by name; likewise.
        node_attrs: graphviz's attributes of the boxes, which take precedence over the usual ones.
        hide_weights: leave out variables that are named as parameters are.

    Returns:
        a ``graphviz.Digraph`` where the package graphviz is installed (``pip install flowmx[viz]``), otherwise a
        :class:`Dot`. Notebooks show both. Without the program ``dot`` flowmx draws, and ``render`` writes SVG.

    Raises:
        TypeError: ``symbol`` is no symbol.
        ValueError: the shapes are not enough.
    """
    check_symbol("plot_network", symbol)
    shapes = None if shape is None else shapes_of("plot_network", symbol, shape)
    dtypes = None if dtype is None else dtypes_of(symbol, dtype)
    nodes = symbol._nodes()
    _warn_of_same_names(nodes)
    dot = _drawing(title, save_format, lambda: _picture(symbol, hide_weights))
    for node in nodes:
        if not is_weight(node):
            attributes = {**_BOX, **(node_attrs or {}), "fillcolor": colour_of(node)}
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

    class Drawn(Digraph):  # type: ignore[misc]
        """A Digraph that draws itself: the package alone, without its program, does not."""

        render, view = Dot.render, Dot.view
        _repr_svg_ = Dot._repr_svg_

        def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
            return {"image/svg+xml": picture()}

    made = Drawn(name=title, format=save_format)
    made._picture = picture
    return made


def _picture(symbol: Symbol, hide_weights: bool) -> str:
    from flowmx.visualization.svg import drawn  # which takes labels and colours from here

    return drawn([node for node in symbol._nodes() if not (hide_weights and is_weight(node))])


def colour_of(node: Node) -> str:
    """The colour of a box."""
    return _VARIABLE if node.is_variable else _COLOURS.get(kind(node), _OTHER)


def is_weight(node: Node) -> bool:
    """True where a variable has the name of a parameter."""
    return node.is_variable and node.name.endswith(_WEIGHTS)


def label_of(node: Node) -> str:
    """The label of a node's box."""
    label = _LABELS.get(kind(node))
    return node.name if label is None else label(node.op, node.given)


def _edge_label(entry: Entry, shapes: Mapping[Entry, Shape] | None, dtypes: Mapping[Entry, DType] | None) -> str:
    size = "" if shapes is None else _lengths(shapes[entry][1:])
    return size if dtypes is None else f"{size}({dtypes[entry].type.__name__})"


def _warn_of_same_names(nodes: Sequence[Node]) -> None:
    again = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if again:
        warnings.warn(
            "plot_network: There are multiple variables with the same name in your graph, which are drawn as one: "
            + ", ".join(again),
            RuntimeWarning,
            stacklevel=3,
        )
