"""Networks as a table, as a drawing, and the memory of a bound one as a picture (``mx.viz``).

The table and the drawing say what MXNet's say: the same rows, labels and colours. Drawings are graphviz's; without
its package the same drawing comes as text in its language.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowmx.graph import picture
from flowmx.graph.node import Entry, Node
from flowmx.ops.dtypes import DType
from flowmx.ops.registry import Shape
from flowmx.serialization.atomic import replace_file
from flowmx.symbol import Symbol

__all__ = ["Dot", "plot_memory", "plot_network", "print_summary"]

_HEADER = ("Layer (type)", "Output Shape", "Param #", "Previous Layer")
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


# -- the table ---------------------------------------------------------------------------------------------


def print_summary(
    symbol: Symbol,
    shape: Mapping[str, Sequence[int]] | None = None,
    line_length: int = 120,
    positions: Sequence[float] = (0.44, 0.64, 0.74, 1.0),
) -> None:
    """Print a table of the layers: names, output shapes, numbers of parameters, and what comes before.

    The numbers are MXNet's own, which are the true ones for chains of the usual layers and not everywhere: only
    Convolution, FullyConnected, BatchNorm (its moving statistics left out) and Embedding are counted, without ``shape``
    inputs count as of no width, and so do inputs other than the first variable; a FullyConnected counts the channels of
    an image that was not flattened before it. :meth:`flowmx.sym.Symbol.memory_estimate` gives the true sizes.

    Args:
        symbol: the network.
        shape: shapes of inputs by name; without it no shapes are shown.
        line_length: characters of a line.
        positions: where the columns end, as parts of a line or in characters.

    Raises:
        TypeError: ``symbol`` is no symbol.
        ValueError: the shapes are not enough.
    """
    _check_symbol("print_summary", symbol)
    shapes = None if shape is None else _shapes("print_summary", symbol, shape)
    stops = [int(line_length * part) for part in positions] if positions[-1] <= 1 else [int(p) for p in positions]
    nodes = symbol._nodes()
    shown = {nodes[0], symbol._entries[0].node}
    print("_" * line_length)
    _print_row(_HEADER, stops)
    print("=" * line_length)
    total = 0
    for node in nodes:
        if not node.is_variable or node is nodes[0]:
            before = [entry.node for entry in node.inputs if not entry.node.is_variable or entry.node in shown]
            total += _print_layer(node, before, shapes, stops)
            print(("=" if node is nodes[-1] else "_") * line_length)
    print(f"Total params: {total}")
    print("_" * line_length)


def _print_layer(
    node: Node, before: Sequence[Node], shapes: Mapping[Entry, Shape] | None, stops: Sequence[int]
) -> int:  # fmt: skip
    """Print the rows of one layer; returns how many parameters it has."""
    channels = sum(_sizes(each, shapes)[0] for each in before if _sizes(each, shapes))
    parameters = _parameters(node, channels, shapes)
    names = [each.name for each in before] or [""]
    size = "x".join(map(str, _sizes(node, shapes)))
    _print_row((f"{node.name}({_kind(node)})", size, parameters, names[0]), stops)
    for name in names[1:]:
        _print_row(("", "", "", name), stops)
    return parameters


def _print_row(fields: Iterable[object], stops: Sequence[int]) -> None:
    line = ""
    for field, stop in zip(fields, stops, strict=False):
        line = (line + str(field))[:stop].ljust(stop)
    print(line)


def _sizes(node: Node, shapes: Mapping[Entry, Shape] | None) -> Shape:
    """The shape of a node's output without the batch; empty where it is unknown, or one of several numbered ones."""
    named = node.is_variable or node.output_name(0) == f"{node.name}_output"
    return shapes[Entry(node, 0)][1:] if shapes is not None and named else ()


def _parameters(node: Node, channels: int, shapes: Mapping[Entry, Shape] | None) -> int:
    """How many parameters MXNet says that a layer has."""
    op: Any = node.op
    kind = _kind(node)
    if kind == "Convolution":
        count = channels * op.num_filter // op.num_group
        for length in op.kernel:
            count *= length
        return int(count) + (0 if op.no_bias else op.num_filter)
    if kind == "FullyConnected":
        return int((channels + (0 if op.no_bias else 1)) * op.num_hidden)
    if kind == "BatchNorm" and shapes is not None:
        return 2 * shapes[Entry(node, 0)][1]
    return int(op.input_dim * op.output_dim) if kind == "Embedding" else 0


# -- the drawing -------------------------------------------------------------------------------------------


class Dot:
    """A drawing in graphviz's language, where its package is not installed.

    Attributes:
        name: the graph's name.
        source: the text.
    """

    def __init__(self, name: str, format: str = "pdf") -> None:
        self.name = name
        self.format = format
        self._lines: list[str] = []

    @property
    def source(self) -> str:
        """The text, as the program ``dot`` reads it."""
        return "\n".join([f"digraph {_quoted(self.name)} {{", *self._lines, "}", ""])

    def node(self, name: str, label: str, **attributes: str) -> None:
        """Add a node."""
        self._lines.append(f"\t{_quoted(name)}{_listed({'label': label, **attributes})}")

    def edge(self, tail_name: str, head_name: str, **attributes: str) -> None:
        """Add an edge."""
        self._lines.append(f"\t{_quoted(tail_name)} -> {_quoted(head_name)}{_listed(attributes)}")

    def save(self, filename: str | Path | None = None) -> str:
        """Write the text to a file (default: the name with ``.gv``); returns its path."""
        path = str(filename or f"{self.name}.gv")
        replace_file(path, [self.source.encode()])
        return path

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Needs graphviz.

        Raises:
            ImportError: always; says what to install.
        """
        raise ImportError(
            "this drawing is text only, since the package graphviz is not installed: pip install 'flowmx[viz]' (and "
            "the program dot), and draw it again; or save() the text and run dot on it"
        )

    view = render


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _listed(attributes: Mapping[str, str]) -> str:
    return f" [{' '.join(f'{key}={_quoted(value)}' for key, value in attributes.items())}]"


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
        node_attrs: graphviz's attributes of the boxes, besides and before the usual ones.
        hide_weights: leave out variables that are named as parameters are.

    Returns:
        a ``graphviz.Digraph`` where the package graphviz is installed (``pip install flowmx[viz]``), otherwise a
        :class:`Dot`.

    Raises:
        TypeError: ``symbol`` is no symbol.
        ValueError: the shapes are not enough.
    """
    _check_symbol("plot_network", symbol)
    shapes = None if shape is None else _shapes("plot_network", symbol, shape)
    dtypes = None if dtype is None else _dtypes(symbol, dtype)
    nodes = symbol._nodes()
    _warn_of_same_names(nodes)
    dot = _drawing(title, save_format)
    for node in nodes:
        if not _is_weight(node):
            colour = _VARIABLE if node.is_variable else _COLOURS.get(_kind(node), _OTHER)
            attributes = {**_BOX, **(node_attrs or {}), "fillcolor": colour}
            if node.is_variable:
                attributes["shape"] = "oval"
            dot.node(name=node.name, label=_label(node), **attributes)
    for node in nodes:
        for entry in node.inputs[:1] if _kind(node) == _ONE_EDGE else node.inputs:
            if not (hide_weights and _is_weight(entry.node)):
                label = _edge_label(entry, shapes, dtypes)
                dot.edge(tail_name=node.name, head_name=entry.node.name, dir="back", arrowtail="open", label=label)
    return dot


def _drawing(title: str, save_format: str) -> Any:
    try:
        from graphviz import Digraph
    except ImportError:
        return Dot(title, save_format)
    return Digraph(name=title, format=save_format)


def _is_weight(node: Node) -> bool:
    return node.is_variable and node.name.endswith(_WEIGHTS)


def _label(node: Node) -> str:
    """What a box says."""
    op: Any = node.op
    kind = _kind(node)
    if kind == "Convolution":
        return f"Convolution\n{_lengths(op.kernel)}/{_lengths(op.stride) or 1}, {op.num_filter}"
    if kind == "Pooling":
        return f"Pooling\n{op.pool_type}, {_lengths(op.kernel) or '[]'}/{_lengths(op.stride) or 1}"
    if kind == "FullyConnected":
        return f"FullyConnected\n{op.num_hidden}"
    if kind == "Activation":
        return f"Activation\n{op.act_type}"
    if kind == "LeakyReLU":
        return f"LeakyReLU\n{node.given.get('act_type', 'Leaky')}"
    return str(op.op_type) if kind == "Custom" else node.name


def _edge_label(entry: Entry, shapes: Mapping[Entry, Shape] | None, dtypes: Mapping[Entry, DType] | None) -> str:
    size = "" if shapes is None else _lengths(shapes[entry][1:])
    return size if dtypes is None else f"{size}({dtypes[entry].type.__name__})"


def _lengths(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _warn_of_same_names(nodes: Sequence[Node]) -> None:
    names = [node.name for node in nodes]
    again = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if again:
        warnings.warn(
            f"plot_network: several nodes have the same name, and are drawn as one: {', '.join(again)}",
            RuntimeWarning,
            stacklevel=3,
        )


# -- the memory --------------------------------------------------------------------------------------------


def plot_memory(plan: Any, path: str | Path | None = None) -> str:
    """Draw where the values of a bound network lie in memory, over the steps of its run.

    A bar is a place in memory for a while: its bytes upwards, the steps in which they are needed to the right. Blue are
    values of the forward pass, orange those of the backward pass, green what is only work space. The line is the sum
    of what is alive, and the dashed one its greatest, below which no plan can be.

    Args:
        plan: an executor, or its plan.
        path: where to write the picture: ``.svg``, or ``.png`` where matplotlib is installed.

    Returns:
        the picture as SVG text.

    Raises:
        TypeError: it has no plan.
        ValueError: the path has another ending.
        ImportError: a PNG was asked for without matplotlib.
    """
    return picture.draw(getattr(plan, "plan", plan), path)


# -- of symbols --------------------------------------------------------------------------------------------


def _kind(node: Node) -> str:
    return "null" if node.op is None else node.op.name


def _check_symbol(what: str, symbol: object) -> None:
    if not isinstance(symbol, Symbol):
        raise TypeError(f"{what}: symbol is {type(symbol).__name__}, expected a Symbol")


def _shapes(what: str, symbol: Symbol, given: Mapping[str, Sequence[int]]) -> dict[Entry, Shape]:
    """The shape of everything that is computed."""
    inner = symbol.get_internals()
    found = inner.infer_shape(**given)[1]
    if found is None:
        unknown = [
            name for name, shape in zip(inner.list_outputs(), inner.infer_shape_partial(**given)[1], strict=True)
            if not shape or 0 in shape
        ]  # fmt: skip
        raise ValueError(f"{what}: the shapes given are not enough: unknown are those of {', '.join(unknown[:5])}")
    return dict(zip(inner._entries, found, strict=True))


def _dtypes(symbol: Symbol, given: Mapping[str, Any]) -> dict[Entry, DType]:
    from flowmx.ops.dtypes import as_dtype

    inner = symbol.get_internals()
    found = inner.infer_type(**given)[1] or []
    return dict(zip(inner._entries, map(as_dtype, found), strict=True))
