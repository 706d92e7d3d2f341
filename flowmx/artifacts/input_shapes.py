"""The shapes of a model's inputs, as far as they follow from its files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.errors import MXNetError
from flowmx.ops.registry.parameters import literal
from flowmx.serialization.symbol_json import GraphJSON, NodeJSON, parse
from flowmx.symbol import Symbol, load_json

__all__ = ["Inputs", "Shape", "concluded_shapes", "declared_shapes", "inputs_of"]

Shape = tuple[int | None, ...]
"""The shape of one sample; None for a size that is not known."""

_LABEL = "label"
_SIZES = (224, 32, 28, 299, 227, 112, 64, 96, 128, 160, 192, 256, 300, 320, 384, 416, 512, 600, 640)
"""Heights and widths of images that are tried first, most usual first."""
_MAX_SIZE = 256
"""The largest height and width that is tried after those."""
_MAX_WORK = 200_000
"""The number of operators whose shapes are inferred to find the size of images."""
_DECLARATIONS = ("model-shapes.json", "signature.json")


class Inputs(NamedTuple):
    """The inputs of a symbol.

    Attributes:
        shapes: the shapes of one sample by name; None for a shape that does not follow from the files.
        is_guess: whether images of other sizes fit the parameters too.
    """

    shapes: dict[str, Shape | None]
    is_guess: bool


def inputs_of(symbol: Symbol, graph: GraphJSON, arrays: Mapping[str, Any], folder: Path) -> Inputs:
    """Return the inputs of a symbol that are not parameters or labels.

    A shape is known if the symbol or a file in its folder declares it, or if the first layer and the parameters allow
    only this one. Of several image sizes that fit, the most usual one is returned.
    """
    names = [name for name in symbol.list_inputs() if name not in arrays and not name.endswith(_LABEL)]
    declared = {**_shapes_of_variables(symbol), **declared_shapes(folder), **_shapes_of_settings(folder, names)}
    shapes: dict[str, Shape | None] = {
        name: declared.get(name) or _shape_by_layer(name, graph, arrays) for name in names
    }
    is_guess = False
    for name in [name for name in names if name in declared] if len(names) == 1 and arrays else ():
        sizes = declared[name]
        if None not in sizes and not _fits(symbol, {name: (1, *(size or 1 for size in sizes))}, arrays):
            shapes[name] = _shape_by_layer(name, graph, arrays)  # the declaration is that of another model
    if len(names) == 1 and (shape := shapes[names[0]]) is not None and shape[1:] == (None, None):
        shapes[names[0]], is_guess = _complete(symbol, names[0], shape, arrays)
    return Inputs(_with_inferred(symbol, shapes, arrays), is_guess)


def concluded_shapes(symbol: Path, arrays: Mapping[str, Any]) -> dict[str, Shape] | None:
    """Return the shapes of all inputs of a checkpoint; None if one does not follow from its files.

    Args:
        symbol: the file of the symbol.
        arrays: the parameters by name.
    """
    content = symbol.read_bytes()
    inputs = inputs_of(load_json(content), parse(content), arrays, symbol.parent)
    shapes = {name: shape for name, shape in inputs.shapes.items() if shape is not None and None not in shape}
    return shapes if shapes and not inputs.is_guess and len(shapes) == len(inputs.shapes) else None


def _with_inferred(
    symbol: Symbol, shapes: dict[str, Shape | None], arrays: Mapping[str, Any]
) -> dict[str, Shape | None]:
    """Return shapes with those that follow from the other inputs and the parameters."""
    if None not in shapes.values() or not any(shapes.values()):
        return shapes
    batches = {name: (1, *(size or 0 for size in shape)) for name, shape in shapes.items() if shape is not None}
    try:
        arguments, _, _ = symbol.infer_shape_partial(**batches)
    except (MXNetError, ValueError):
        return shapes
    inferred = {
        name: tuple(shape[1:])
        for name, shape in zip(symbol.list_arguments(), arguments or (), strict=True)
        if shape and shape[0] == 1 and 0 not in shape
    }
    return {name: inferred.get(name) if shape is None else shape for name, shape in shapes.items()}


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
    """Return the shapes that the ``model.toml`` of a repository, or the settings of SageMaker's training, declare."""
    try:
        shape = tomllib.loads((folder / "model.toml").read_text()).get("shape")
    except (OSError, ValueError):
        shape = _image_shape(folder)
    by_name = shape if isinstance(shape, dict) else dict.fromkeys(names if len(names) == 1 else (), shape)
    return {
        name: tuple(size or None for size in sizes)
        for name, sizes in by_name.items()
        if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    }


def _image_shape(folder: Path) -> list[int] | None:
    """Return the shape of images in SageMaker's ``hyperparams.json``, such as ``3,224,224`` or ``512``."""
    try:
        text = json.loads((folder / "hyperparams.json").read_text())["image_shape"]
        sizes = [int(size) for size in str(text).split(",")]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return [3, sizes[0], sizes[0]] if len(sizes) == 1 else sizes


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


def _shape_by_layer(name: str, graph: GraphJSON, arrays: Mapping[str, Any]) -> Shape | None:
    """Return the shape that the layer behind an input demands; None if it is not known."""
    for node in _readers(name, graph):
        weights = [graph.nodes[entry.node].name for entry in node.inputs[1:]]
        shape = next((tuple(arrays[weight].shape) for weight in weights if weight in arrays), ())
        if node.op == "Convolution" and len(shape) > 2 and not node.attrs.get("layout", "NCHW").endswith("C"):
            return (shape[1] * int(node.attrs.get("num_group", 1)), *(None,) * (len(shape) - 2))
        if node.op == "FullyConnected" and len(shape) == 2:
            return (shape[1],)
        if node.op == "dot" and len(shape) == 2:
            return (shape[node.attrs.get("transpose_b", "False") in ("True", "1")],)
        if node.op == "Embedding":
            return (None,)
    return None


def _readers(name: str, graph: GraphJSON) -> Iterator[NodeJSON]:
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
    "Activation", "amp_cast", "square", "log1p", "log", "sqrt", "clip", "cast_storage",
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
        arguments, _, states = symbol.infer_shape_partial(**shapes)
    except (MXNetError, ValueError):
        return False
    expected = [
        *zip(symbol.list_arguments(), arguments or (), strict=True),
        *zip(symbol.list_auxiliary_states(), states or (), strict=True),
    ]
    complete = [(name, tuple(shape)) for name, shape in expected if shape and 0 not in shape]
    return all(name not in arrays or tuple(arrays[name].shape) == shape for name, shape in complete)
