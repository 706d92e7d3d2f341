"""Export and import of ONNX files (``mx.contrib.onnx``, ``mx.onnx``), with MXNet's signatures.

Opset 13 and later are supported. Calling these functions requires the package ``onnx``
(``pip install onnx``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowmx.contrib.onnx.converters import ONNXError

if TYPE_CHECKING:
    from flowmx.gluon import HybridBlock
    from flowmx.ndarray import NDArray
    from flowmx.symbol import Symbol

    File = str | os.PathLike[str]
    InputShapes = Mapping[str, Sequence["int | str | None"]]
    Params = dict[str, NDArray]

__all__ = [
    "ONNXError",
    "export_model",
    "get_model_metadata",
    "get_operator_support",
    "import_model",
    "import_to_gluon",
]


def export_model(
    sym: Symbol | File, params: object, in_shapes: Sequence[Sequence[int]] | None = None, in_types: object = np.float32,
    onnx_file_path: File = "model.onnx", verbose: bool = False, dynamic: bool = False,
    dynamic_input_shapes: Sequence[Sequence[int | str | None]] | None = None, run_shape_inference: bool = False,
    input_type: object = None, input_shape: Sequence[Sequence[int]] | None = None, *, opset_version: int = 13,
) -> File:  # fmt: skip
    """Export a model to an ONNX file, for prediction.

    Args:
        sym: the symbol, or the name of its ``-symbol.json`` file.
        params: its parameters and auxiliary states: a dict (the prefixes ``arg:`` and ``aux:`` are removed), a list of
            two dicts, or the name of a ``.params`` file.
        in_shapes: the shape of each input, in the order of ``sym.list_inputs()`` without the parameters. Labels of
            output layers are not inputs.
        in_types: the dtype of all inputs, or a list of dtypes.
        onnx_file_path: the path of the file.
        verbose: log a summary (at level INFO).
        dynamic: allow dynamic axes: those in ``dynamic_input_shapes``, or by default all that the model permits.
        dynamic_input_shapes: the shape of each input, with None or a name for each dynamic axis.
        run_shape_inference: add the shapes of all values to the file.
        input_type: the former name of ``in_types``.
        input_shape: the former name of ``in_shapes``.
        opset_version: the opset of the file, 13 to 21.

    Returns:
        ``onnx_file_path``.

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: nodes cannot be converted; the message lists them with the reasons. Nothing is written.
        ShapeError: the shapes do not fit the symbol, or an axis cannot be dynamic.
        ValueError: the number of shapes or types is wrong.

    Example:
        >>> mx.onnx.export_model("net-symbol.json", "net-0000.params", [(1, 3, 224, 224)], onnx_file_path="net.onnx",
        ...                      dynamic=True, dynamic_input_shapes=[("batch", 3, 224, 224)])
    """
    from flowmx.contrib.onnx.export import write_model

    shapes = in_shapes if input_shape is None else input_shape
    if shapes is None:
        raise ValueError("in_shapes is missing, expected a list with the shape of each input")
    types = in_types if input_type is None else input_type
    write_model(
        sym, params, shapes, types, onnx_file_path, dynamic, dynamic_input_shapes, run_shape_inference, verbose,
        opset_version,
    )  # fmt: skip
    return onnx_file_path


def get_operator_support(opset_version: int | None = None) -> list[str]:
    """Return the names of the operators that :func:`export_model` supports.

    Args:
        opset_version: ignored: opset 13 is sufficient.
    """
    from flowmx.contrib.onnx.export import supported

    return supported()


def import_model(
    model_file: File, *, input_shapes: InputShapes | None = None, constants: Mapping[str, object] | None = None
) -> tuple[Symbol, Params, Params]:
    """Import an ONNX file as a symbol with parameters.

    Args:
        model_file: the file.
        input_shapes: shapes of inputs by name, required if a node needs an axis length that the file does not define.
            None or a name marks a length that varies; lengths of the same name are equal.
        constants: the content of inputs that are always the same, by name. They are no inputs of the symbol, and the
            branches of ``If`` nodes that they select are the only ones imported.

    Returns:
        the symbol, its parameters, and its auxiliary states, as in ``mx.model.load_checkpoint``.

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: nodes cannot be converted; the message lists them with the reasons.
        OSError: the file cannot be read.
        ValueError: ``input_shapes`` or ``constants`` do not fit the inputs.
    """
    from flowmx.contrib.onnx.graph_import import read_model

    symbol, arguments, auxiliary, _ = read_model(model_file, input_shapes, constants)
    return symbol, arguments, auxiliary


def import_to_gluon(
    model_file: File, ctx: object = None, *, input_shapes: InputShapes | None = None,
    constants: Mapping[str, object] | None = None,
) -> HybridBlock:  # fmt: skip
    """Import an ONNX file as a Gluon block.

    The block is a ``SymbolBlock`` if one graph computes all shapes that the file permits. Otherwise it imports the
    graph again for each shape that it is called with, and its parameters exist after the first call.

    Args:
        model_file: the file.
        ctx: the device or devices of its parameters (default: the current one).
        input_shapes: as in :func:`import_model`.
        constants: as in :func:`import_model`.

    Raises:
        ImportError, ONNXError, OSError, ValueError: as :func:`import_model`.
    """
    from flowmx.contrib.onnx.dynamic_block import as_block

    return as_block(model_file, ctx, input_shapes, constants)


def get_model_metadata(model_file: File) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return the names and shapes of a file's inputs and outputs. The length of a dynamic axis is 0.

    Returns:
        a dict with ``input_tensor_data`` and ``output_tensor_data``, lists of (name, shape).

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: the file is not an ONNX model.
        OSError: it cannot be read.
    """
    from flowmx.contrib.onnx.graph_import import metadata

    return metadata(model_file)
