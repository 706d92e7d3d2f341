"""Export to ONNX files: checks the arguments of ``export_model``, and writes the graph."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import symbol as sym
from flowmx.contrib.onnx import dynamic_lengths
from flowmx.contrib.onnx.converters import ONNXError, exporters, need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Length, Lengths, Varying
from flowmx.contrib.onnx.graph_export import GraphExport, Params, match_inputs, unbound
from flowmx.contrib.onnx.opsets import NEWEST, OLDEST
from flowmx.errors import MXNetError, ShapeError
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray import NDArray
from flowmx.ndarray.files import load_named
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.serialization.atomic import replace_file
from flowmx.symbol import Symbol
from flowmx.symbol.partition import inline_regions

File = str | os.PathLike[str]
Names = Sequence[str | None]


def write_model(
    symbol: Symbol | File, params: object, in_shapes: Sequence[Sequence[int]], in_types: object, path: File,
    dynamic: bool, dynamic_shapes: Sequence[Sequence[Any]] | None, infer_shapes: bool, verbose: bool, opset: int,
) -> None:  # fmt: skip
    """Export a model; see ``export_model``."""
    onnx = need_onnx()
    if not OLDEST <= opset <= NEWEST:
        raise ValueError(f"opset_version is {opset}, expected {OLDEST} to {NEWEST}")
    graph_symbol, values = _symbol(symbol), _params(params)
    inputs = unbound(graph_symbol, values)
    graph_symbol = Symbol(inline_regions(graph_symbol.entries))
    shapes = {node: _shape(node, shape) for node, shape in match_inputs(inputs, in_shapes, "in_shapes").items()}
    templates = None if dynamic_shapes is None else match_inputs(inputs, dynamic_shapes, "dynamic_input_shapes")
    dims, names = _dynamic(graph_symbol, values, shapes, dynamic, templates)
    types = in_types if isinstance(in_types, (list, tuple)) else [in_types] * len(inputs)
    dtypes = {node: as_dtype(dtype) for node, dtype in match_inputs(inputs, types, "in_types").items()}
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


def _symbol(source: Symbol | File) -> Symbol:
    if isinstance(source, Symbol):
        return source
    try:
        path = os.fspath(source)
    except TypeError:
        pass
    else:
        return sym.load(path)
    raise TypeError(f"sym is {type(source).__name__}, expected a Symbol or the name of its file")


def _params(source: object) -> Params:
    """Return parameters by name, without prefixes, from a file, a dict, or a pair of dicts as of load_checkpoint."""
    if isinstance(source, (str, os.PathLike)):
        source = load_named(source)
    if isinstance(source, (list, tuple)) and len(source) == 2 and all(isinstance(part, Mapping) for part in source):
        source = {**source[0], **source[1]}
    if not isinstance(source, Mapping):
        raise TypeError(f"params is {type(source).__name__}, expected a dict, two dicts, or the name of a file")
    plain = {name.removeprefix("arg:").removeprefix("aux:"): value for name, value in source.items()}
    return {name: _array(name, value) for name, value in plain.items()}


def _array(name: str, value: Any) -> NDArray:
    if hasattr(value, "list_data"):  # a gluon Parameter, as in collect_params()
        value = value.data()
    if not isinstance(value, NDArray):
        raise TypeError(f"parameter {name!r} is {type(value).__name__}, expected an NDArray")
    return value


def _shape(node: Node, shape: Sequence[Any]) -> Shape:
    if any(not isinstance(n, int | np.integer) or n < 0 for n in shape):
        raise ValueError(f"in_shapes: {node.name!r} has {tuple(shape)}, expected ints; for dynamic axes use "
                         "dynamic=True and dynamic_input_shapes")  # fmt: skip
    return tuple(int(n) for n in shape)


def _fixed_shapes(nodes: Sequence[Node], params: Params) -> dict[Node, Shape]:
    return {node: params[node.name].shape for node in nodes if node.is_variable and node.name in params}


def _trials(symbol: Symbol, params: Params, dims: Mapping[Node, Lengths]) -> dynamic_lengths.Shapes:
    nodes = topological(symbol.entries)
    try:
        return dynamic_lengths.trials(nodes, _fixed_shapes(nodes, params), dims)
    except ShapeError as error:
        if any(isinstance(length, Varying) for dim in dims.values() for length in dim):
            raise ShapeError(f"the model does not support the dynamic axes in dynamic_input_shapes: {error}") from None
        raise


def _dynamic(
    symbol: Symbol, params: Params, shapes: Mapping[Node, Shape], dynamic: bool, templates: Mapping[Node, Any] | None
) -> tuple[dict[Node, Lengths], dict[Node, Names]]:
    """Return the lengths of the inputs, including varying ones, and the names of dynamic axes."""
    if not dynamic:
        return {node: tuple(shape) for node, shape in shapes.items()}, {}
    nodes = topological(symbol.entries)
    if templates is None:
        return dynamic_lengths.make_dynamic(nodes, _fixed_shapes(nodes, params), shapes), {}
    for node, template in templates.items():
        _check_template(node, template, shapes[node])
    names: dict[Node, Names] = {
        node: [axis if isinstance(axis, str) else None for axis in template] for node, template in templates.items()
    }
    numbers = {
        name: 8 + index for index, name in enumerate(dict.fromkeys(n for axes in names.values() for n in axes if n))
    }

    def dims(by_axis: bool) -> dict[Node, Lengths]:
        return {node: _lengths(template, shapes[node], numbers, by_axis) for node, template in templates.items()}

    try:  # lengths without names are distinguished by their axes, if the graph lets them differ
        dynamic_lengths.trials(nodes, _fixed_shapes(nodes, params), dims(by_axis=True))
    except ShapeError:
        return dims(by_axis=False), names
    return dims(by_axis=True), names


def _lengths(template: Sequence[object], shape: Shape, numbers: Mapping[str, int], by_axis: bool) -> Lengths:
    dims: list[Length] = []
    for axis, (entry, length) in enumerate(zip(template, shape, strict=True)):
        number = numbers[entry] if isinstance(entry, str) else axis if by_axis else 0
        dims.append(dynamic_lengths.varying(length, number) if entry is None or isinstance(entry, str) else length)
    return tuple(dims)


def _check_template(node: Node, template: Sequence[object], shape: Shape) -> None:
    if len(template) != len(shape):
        raise ValueError(f"dynamic_input_shapes: {node.name!r} has {tuple(template)}, expected {len(shape)} axes")
    for entry, length in zip(template, shape, strict=True):
        if entry is not None and not isinstance(entry, str) and entry != length:
            raise ValueError(f"dynamic_input_shapes: {node.name!r} has the length {entry}, but {length} in in_shapes; "
                             "expected the same, or None for a dynamic axis")  # fmt: skip


def supported() -> list[str]:
    """Return all names of the operators that can be exported."""
    from flowmx.ops.registry.operators import registered_operators

    table = exporters()
    return sorted(name for name, cls in registered_operators().items() if cls.name in table)


__all__ = ["MXNetError", "ONNXError", "supported", "write_model"]
