"""Symbols with parameters: the files that belong together, and what can be concluded from them."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowmx import symbol as sym
from flowmx.errors import MXNetError
from flowmx.ops.registry import operators
from flowmx.ops.registry.parameters import literal
from flowmx.serialization import formats, symbol_json
from flowmx.serialization.symbol_json import GraphJSON
from flowmx.symbol import Symbol

__all__ = [
    "Checkpoint",
    "Inputs",
    "Shape",
    "arrays_of",
    "checkpoint_of",
    "declared_shapes",
    "find_checkpoints",
    "inputs_of",
    "load_symbol",
    "operators_of",
    "parameters_of",
    "unknown_operators",
    "writer_of",
]

Shape = tuple[int | None, ...]
"""The shape of one sample; None for a size that is not known."""

_SUFFIX = "-symbol.json"
_LABEL = "label"
_SIZES = (224, 32, 28, 299, 227, 112, 64, 96, 128, 160, 192, 256, 300, 320, 384, 416, 512, 600, 640)
"""Heights and widths of images that are tried first, most usual first."""
_MAX_SIZE = 256
"""The largest height and width that is tried after those."""
_MAX_WORK = 200_000
"""The number of operators whose shapes are inferred to find the size of images."""
_DECLARATIONS = ("model-shapes.json", "signature.json")


class Checkpoint(NamedTuple):
    """The files of a symbol and its parameters.

    Attributes:
        symbol: the file of the symbol.
        params: the file of the parameters, of the latest epoch; None without one.
        prefix: the prefix of both, if they are named as MXNet names them.
    """

    symbol: Path
    params: Path | None
    prefix: Path | None


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a folder; their files have the names of MXNet or of SageMaker."""
    return [checkpoint_of(symbol) for symbol in find_symbols(folder)]


def checkpoint_of(symbol: Path) -> Checkpoint:
    """Return the checkpoint of a symbol's file: its parameters are those of the same prefix, or the only ones there."""
    prefix = symbol.with_name(symbol.name.removesuffix(_SUFFIX)) if symbol.name.endswith(_SUFFIX) else None
    if prefix is not None:
        files = _with_epoch(symbol.parent, prefix.name) or [
            file for name in (f"{prefix.name}.params", prefix.name) if (file := symbol.with_name(name)).is_file()
        ]
        if files:
            return Checkpoint(symbol, files[-1], prefix)
    others = [file for file in (*symbol.parent.glob("*.params"), symbol.with_name("params")) if file.is_file()]
    alone = len(find_symbols(symbol.parent)) == 1
    return Checkpoint(symbol, max(others) if others and alone else None, prefix)


def find_symbols(folder: Path) -> list[Path]:
    """Return the files of symbols in a folder."""
    return sorted({*folder.glob(f"*{_SUFFIX}"), *folder.glob("symbol.json")})


def _with_epoch(folder: Path, prefix: str) -> list[Path]:
    pattern = re.compile(re.escape(prefix) + r"-\d{4}\.params")
    return sorted(file for file in folder.iterdir() if pattern.fullmatch(file.name))


def writer_of(graph: GraphJSON) -> str:
    """Return the name and version of the program that wrote a graph."""
    if "mxnet_version" not in graph.attrs:
        return "MXNet before 0.9"
    major, rest = divmod(graph.version, 10_000)
    return f"MXNet {major}.{rest // 100}.{rest % 100}"


def operators_of(graph: GraphJSON) -> Counter[str]:
    """Return how often each operator occurs in a graph and its subgraphs."""
    counts = Counter(node.op for node in graph.nodes if not node.is_variable)
    for node in graph.nodes:
        for subgraph in node.subgraphs:
            counts += operators_of(subgraph)
    return counts


class Inputs(NamedTuple):
    """The inputs of a symbol.

    Attributes:
        shapes: the shapes of one sample by name, as far as they follow from the files.
        is_guess: whether images of other sizes fit the parameters too.
    """

    shapes: dict[str, Shape]
    is_guess: bool


def inputs_of(symbol: Symbol, graph: GraphJSON, arrays: Mapping[str, Any], folder: Path) -> Inputs:
    """Return the inputs of a symbol that are not parameters or labels.

    A shape is known if the symbol or a file in its folder declares it, or if the first layer and the parameters allow
    only this one. Of several image sizes that fit, the most usual one is returned.
    """
    names = [name for name in symbol.list_inputs() if name not in arrays and not name.endswith(_LABEL)]
    declared = {**_shapes_of_variables(symbol), **declared_shapes(folder), **_shapes_of_settings(folder, names)}
    shapes = {name: declared.get(name) or _shape_by_layer(name, graph, arrays) for name in names}
    is_guess = False
    for name in [name for name in names if name in declared] if len(names) == 1 and arrays else ():
        sizes = declared[name]
        if None not in sizes and not _fits(symbol, {name: (1, *(size or 1 for size in sizes))}, arrays):
            shapes[name] = _shape_by_layer(name, graph, arrays)  # the declaration is that of another model
    if len(names) == 1 and shapes[names[0]][1:] == (None, None):
        shapes[names[0]], is_guess = _complete(symbol, names[0], shapes[names[0]], arrays)
    return Inputs(shapes, is_guess)


def _shapes_of_variables(symbol: Symbol) -> dict[str, Shape]:
    texts = {name: attributes.get("__shape__") for name, attributes in symbol.attr_dict().items()}
    shapes = {name: _parsed_shape(text) for name, text in texts.items() if text}
    return {name: _of_batch(shape) for name, shape in shapes.items() if len(shape) > 1}


def _parsed_shape(text: str) -> tuple[int, ...]:
    """Return the shape that a symbol declares; empty if the text is not a shape."""
    try:
        shape = literal(text)
    except (ValueError, SyntaxError):
        return ()
    return shape if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape) else ()


def _of_batch(shape: Sequence[int]) -> Shape:
    """Return the shape of one sample of a batch; sizes of 0 are unknown."""
    return tuple(size or None for size in shape[1:])


def _shapes_of_settings(folder: Path, names: Sequence[str]) -> dict[str, Shape]:
    """Return the shapes that the ``model.toml`` of a model in a repository declares."""
    try:
        shape = tomllib.loads((folder / "model.toml").read_text()).get("shape")
    except (OSError, ValueError):
        return {}
    by_name = shape if isinstance(shape, dict) else dict.fromkeys(names if len(names) == 1 else (), shape)
    return {
        name: tuple(size or None for size in sizes)
        for name, sizes in by_name.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def declared_shapes(folder: Path) -> dict[str, Shape]:
    """Return the shapes that the files of SageMaker and Multi Model Server declare."""
    shapes: dict[str, Shape] = {}
    for name in _DECLARATIONS:
        try:
            document = json.loads((folder / name).read_text())
        except (OSError, ValueError):
            continue
        rows = document.get("inputs") if isinstance(document, dict) else document
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict):
                continue
            key, shape = row.get("name", row.get("data_name")), row.get("shape", row.get("data_shape"))
            if isinstance(key, str) and isinstance(shape, list) and all(isinstance(size, int) for size in shape):
                shapes[key] = _of_batch(shape)
    return shapes


def _shape_by_layer(name: str, graph: GraphJSON, arrays: Mapping[str, Any]) -> Shape:
    """Return the shape that the layer behind an input demands; empty if it is not known."""
    for node in _readers(name, graph):
        weights = [graph.nodes[entry.node].name for entry in node.inputs[1:]]
        shape = next((tuple(arrays[weight].shape) for weight in weights if weight in arrays), ())
        if node.op == "Convolution" and len(shape) > 2 and not node.attrs.get("layout", "NCHW").endswith("C"):
            return (shape[1] * int(node.attrs.get("num_group", 1)), *(None,) * (len(shape) - 2))
        if node.op == "FullyConnected" and len(shape) == 2:
            return (shape[1],)
        if node.op == "Embedding":
            return (None,)
    return ()


def _readers(name: str, graph: GraphJSON) -> Iterator[symbol_json.NodeJSON]:
    """Yield the operators that read an input, also through operators that keep its shape."""
    sources = {at for at, node in enumerate(graph.nodes) if node.is_variable and node.name == name}
    for at, node in enumerate(graph.nodes):
        if node.is_variable or not node.inputs or node.inputs[0].node not in sources:
            continue
        if node.op in _KEEP_SHAPES:
            sources.add(at)
        else:
            yield node


_KEEP_SHAPES = {
    "BatchNorm", "Cast", "Dropout", "_copy", "_minus_scalar", "_plus_scalar", "_mul_scalar", "_div_scalar",
    "elemwise_add", "elemwise_sub", "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "identity",
    "Activation", "amp_cast",
}  # fmt: skip


def _complete(symbol: Symbol, name: str, shape: Shape, arrays: Mapping[str, Any]) -> tuple[Shape, bool]:
    """Return the shape of an image with the first usual size that fits the parameters, and whether another one fits."""
    channels = shape[0] or 1
    sizes = [*_SIZES, *(size for size in range(1, _MAX_SIZE) if size not in _SIZES)]
    for size in sizes[: max(1, _MAX_WORK // len(symbol.get_internals()))]:
        if _fits(symbol, {name: (1, channels, size, size)}, arrays):
            return (channels, size, size), _fits(symbol, {name: (1, channels, 2 * size, 2 * size)}, arrays)
    return shape, False


def _fits(symbol: Symbol, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Any]) -> bool:
    """Return whether the parameters have the shapes that inputs of these shapes demand."""
    try:
        arguments, _, states = symbol.infer_shape(**shapes)
    except (MXNetError, ValueError):
        return False
    if arguments is None or states is None:
        return False
    expected: Iterable[tuple[str, Any]] = [
        *zip(symbol.list_arguments(), arguments, strict=True),
        *zip(symbol.list_auxiliary_states(), states, strict=True),
    ]
    return all(name not in arrays or tuple(arrays[name].shape) == tuple(shape) for name, shape in expected)


def unknown_operators(graph: GraphJSON) -> list[str]:
    """Return the names of operators in a graph that MXNet 1.9.1 does not have."""
    return sorted(name for name in operators_of(graph) if operators.find(name) is None)


def arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name, or by number if they have no names.

    Raises:
        FileFormatError: the file is damaged.
        OSError: it cannot be read.
    """
    arrays = formats.load(path, keep_sparse=True)
    return dict(arrays) if isinstance(arrays, Mapping) else {str(at): array for at, array in enumerate(arrays)}


def parameters_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by the names of a symbol, without the prefixes of arguments and auxiliary states."""
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}


def load_symbol(path: Path) -> tuple[Symbol, GraphJSON]:
    """Return a symbol, and its graph as the file has it.

    Raises:
        MXNetError: the file is damaged, or has an unknown operator.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    return sym.load_json(text), symbol_json.parse(text)
