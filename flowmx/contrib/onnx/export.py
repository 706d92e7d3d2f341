"""Writing ONNX files: what ``export_model`` was given is read, checked and handed to the graph."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import symbol as sym
from flowmx.contrib.onnx import lengths
from flowmx.contrib.onnx.converters import NEWEST, OLDEST, ONNXError, exporters, need_onnx
from flowmx.contrib.onnx.graph_export import GraphExport, Params, matched, unbound
from flowmx.contrib.onnx.lengths import Length, Lengths, Varying
from flowmx.errors import MXNetError, ShapeError
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray import NDArray
from flowmx.ndarray.creation import load_named
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.serialization.atomic import replace_file
from flowmx.symbol import Symbol
from flowmx.symbol.partition import inlined

File = str | os.PathLike[str]
Names = Sequence[str | None]


def write_model(
    symbol: Symbol | File, params: Any, in_shapes: Sequence[Sequence[int]], in_types: Any, path: File,
    dynamic: bool, dynamic_shapes: Sequence[Sequence[Any]] | None, infer_shapes: bool, verbose: bool, opset: int,
) -> None:  # fmt: skip
    """Write a model; see ``export_model``."""
    onnx = need_onnx()
    if not OLDEST <= opset <= NEWEST:
        raise ValueError(f"opset_version is {opset}, expected {OLDEST} to {NEWEST}")
    graph_symbol, values = _symbol(symbol), _params(params)
    inputs = unbound(graph_symbol, values)
    graph_symbol = Symbol(inlined(graph_symbol._entries))
    shapes = {node: _shape(node, each) for node, each in matched(inputs, in_shapes, "in_shapes").items()}
    wanted = None if dynamic_shapes is None else matched(inputs, dynamic_shapes, "dynamic_input_shapes")
    dims, names = _dynamic(graph_symbol, values, shapes, dynamic, wanted)
    types = in_types if isinstance(in_types, (list, tuple)) else [in_types] * len(inputs)
    dtypes = {node: as_dtype(each) for node, each in matched(inputs, types, "in_types").items()}
    graph = GraphExport(graph_symbol, values, _trials(graph_symbol, values, dims), dtypes, opset)
    graph.run()
    title = graph_symbol.name or "flowmx"
    model = graph.model(title, {Entry(node, 0): names.get(node, (None,) * len(shapes[node])) for node in inputs})
    if infer_shapes:
        model = onnx.shape_inference.infer_shapes(model)
    replace_file(path, [model.SerializeToString()])
    logging.log(
        logging.INFO if verbose else logging.DEBUG,
        "wrote %s: opset %d, inputs %s", path, opset, {node.name: shapes[node] for node in inputs},
    )  # fmt: skip


def _symbol(given: Symbol | File) -> Symbol:
    if isinstance(given, Symbol):
        return given
    try:
        path = os.fspath(given)
    except TypeError:
        pass
    else:
        return sym.load(path)
    raise TypeError(f"sym is {type(given).__name__}, expected a Symbol or the name of its file")


def _params(given: Any) -> Params:
    """Parameters by plain name, from a file, a dict, or the pair of dicts that load_checkpoint gives."""
    if isinstance(given, (str, os.PathLike)):
        given = load_named(given)
    if isinstance(given, (list, tuple)) and len(given) == 2 and all(isinstance(each, Mapping) for each in given):
        given = {**given[0], **given[1]}
    if not isinstance(given, Mapping):
        raise TypeError(f"params is {type(given).__name__}, expected a dict, two of them, or the name of a file")
    plain = {name.removeprefix("arg:").removeprefix("aux:"): value for name, value in given.items()}
    return {name: _array(name, value) for name, value in plain.items()}


def _array(name: str, value: Any) -> NDArray:
    if hasattr(value, "list_data"):  # a gluon Parameter, as collect_params() gives them
        value = value.data()
    if not isinstance(value, NDArray):
        raise TypeError(f"parameter {name!r} is {type(value).__name__}, expected an NDArray")
    return value


def _shape(node: Node, shape: Sequence[Any]) -> Shape:
    if any(not isinstance(n, int | np.integer) or n < 0 for n in shape):
        raise ValueError(f"in_shapes: {node.name!r} has {tuple(shape)}, expected ints; say what may vary with "
                         "dynamic=True and dynamic_input_shapes")  # fmt: skip
    return tuple(int(n) for n in shape)


def _fixed(nodes: Sequence[Node], params: Params) -> dict[Node, Shape]:
    return {node: params[node.name].shape for node in nodes if node.is_variable and node.name in params}


def _trials(symbol: Symbol, params: Params, dims: Mapping[Node, Lengths]) -> lengths.Shapes:
    nodes = topological(symbol._entries)
    try:
        return lengths.trials(nodes, _fixed(nodes, params), dims)
    except ShapeError as error:
        if any(isinstance(length, Varying) for each in dims.values() for length in each):
            raise ShapeError(f"the lengths in dynamic_input_shapes can not vary so: {error}") from None
        raise


def _dynamic(
    symbol: Symbol, params: Params, shapes: Mapping[Node, Shape], dynamic: bool, wanted: Mapping[Node, Any] | None
) -> tuple[dict[Node, Lengths], dict[Node, Names]]:
    """The inputs' lengths, with those that may vary, and the names of these."""
    if not dynamic:
        return {node: tuple(shape) for node, shape in shapes.items()}, {}
    nodes = topological(symbol._entries)
    if wanted is None:
        return lengths.freest(nodes, _fixed(nodes, params), shapes), {}
    for node, asked in wanted.items():
        _check_asked(node, asked, shapes[node])
    names: dict[Node, Names] = {
        node: [each if isinstance(each, str) else None for each in asked] for node, asked in wanted.items()
    }
    numbers = {name: 8 + at for at, name in enumerate(dict.fromkeys(n for each in names.values() for n in each if n))}

    def dims(apart: bool) -> dict[Node, Lengths]:
        return {node: _lengths(asked, shapes[node], numbers, apart) for node, asked in wanted.items()}

    try:  # lengths without names are distinguished by their axes, if the graph lets them differ
        lengths.trials(nodes, _fixed(nodes, params), dims(apart=True))
    except ShapeError:
        return dims(apart=False), names
    return dims(apart=True), names


def _lengths(asked: Sequence[Any], shape: Shape, numbers: Mapping[str, int], apart: bool) -> Lengths:
    made: list[Length] = []
    for axis, (each, length) in enumerate(zip(asked, shape, strict=True)):
        number = numbers[each] if isinstance(each, str) else axis if apart else 0
        made.append(lengths.varying(length, number) if each is None or isinstance(each, str) else length)
    return tuple(made)


def _check_asked(node: Node, asked: Sequence[Any], shape: Shape) -> None:
    if len(asked) != len(shape):
        raise ValueError(f"dynamic_input_shapes: {node.name!r} has {tuple(asked)}, expected {len(shape)} axes")
    for each, length in zip(asked, shape, strict=True):
        if each is not None and not isinstance(each, str) and each != length:
            raise ValueError(f"dynamic_input_shapes: {node.name!r} has a length of {each}, but {length} in in_shapes; "
                             "expected the same, or None where it may vary")  # fmt: skip


def supported() -> list[str]:
    """Every name of every operator that can be written."""
    from flowmx.ops.registry.operators import registered

    table = exporters()
    return sorted(name for name, cls in registered().items() if cls.name in table)


__all__ = ["MXNetError", "ONNXError", "supported", "write_model"]
