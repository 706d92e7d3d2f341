"""ONNX files, written and read (``mx.contrib.onnx``, ``mx.onnx``), with MXNet's signatures.

Opset 13 and later. The package ``onnx`` is needed (``pip install 'flowmx[onnx]'``) once one of these is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.contrib.onnx.converters import ONNXError

if TYPE_CHECKING:
    from flowmx.gluon import SymbolBlock
    from flowmx.ndarray import NDArray
    from flowmx.symbol import Symbol

    File = str | os.PathLike[str]
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
    sym: Symbol | File, params: Any, in_shapes: Sequence[Sequence[int]] | None = None, in_types: Any = np.float32,
    onnx_file_path: File = "model.onnx", verbose: bool = False, dynamic: bool = False,
    dynamic_input_shapes: Sequence[Sequence[int | str | None]] | None = None, run_shape_inference: bool = False,
    input_type: Any = None, input_shape: Sequence[Sequence[int]] | None = None, *, opset_version: int = 13,
) -> File:  # fmt: skip
    """Write a model as an ONNX file, for prediction.

    Args:
        sym: the symbol, or the name of its ``-symbol.json`` file.
        params: its parameters and auxiliary states: a dict (``arg:`` and ``aux:`` before names are taken off), a list
            of the two dicts, or the name of a ``.params`` file.
        in_shapes: a shape for each input, in the order of ``sym.list_inputs()`` without the parameters. Labels of
            output layers are no inputs.
        in_types: the dtype of all inputs, or a list of theirs.
        onnx_file_path: where to write.
        verbose: log what was written (at level INFO).
        dynamic: let lengths vary: those that ``dynamic_input_shapes`` says, or else whatever the model lets.
        dynamic_input_shapes: for each input its shape with None, or a name, for each length that may vary.
        run_shape_inference: let ONNX add the shapes of all values to the file.
        input_type: the older name of ``in_types``.
        input_shape: the older name of ``in_shapes``.
        opset_version: the opset to write, 13 to 21.

    Returns:
        ``onnx_file_path``.

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: nodes that ONNX has no counterpart for; names each, and why. Nothing is written.
        ShapeError: the shapes do not fit the symbol, or what is to vary can not.
        ValueError: too few shapes or types, or too many.

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
    """The names of the operators that :func:`export_model` can write.

    Args:
        opset_version: has no effect: what is written needs opset 13 alone.
    """
    from flowmx.contrib.onnx.export import supported

    return supported()


def import_model(
    model_file: File, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Symbol, Params, Params]:
    """Read an ONNX file as a symbol with parameters.

    Args:
        model_file: the file.
        input_shapes: shapes of inputs by name, for a file that leaves lengths open which its nodes need.

    Returns:
        the symbol, its parameters, and its auxiliary states, as ``mx.model.load_checkpoint`` gives them.

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: nodes that there is no counterpart for; names each, and why.
        OSError: the file can not be read.
    """
    from flowmx.contrib.onnx.graph_import import read_model

    symbol, arguments, auxiliary, _ = read_model(model_file, input_shapes)
    return symbol, arguments, auxiliary


def import_to_gluon(
    model_file: File, ctx: Any = None, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> SymbolBlock:
    """Read an ONNX file as a Gluon block.

    Args:
        model_file: the file.
        ctx: the device, or devices, of its parameters (default: the current one).
        input_shapes: as for :func:`import_model`.

    Raises:
        ImportError, ONNXError, OSError: as :func:`import_model`.
    """
    from flowmx.contrib.onnx.graph_import import as_block

    return as_block(model_file, ctx, input_shapes)


def get_model_metadata(model_file: File) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """The names and shapes of a file's inputs and outputs; a length that may vary is 0.

    Returns:
        a dict of ``input_tensor_data`` and ``output_tensor_data``, each a list of (name, shape).

    Raises:
        ImportError: the package onnx is not installed.
        ONNXError: the file is no ONNX model.
        OSError: it can not be read.
    """
    from flowmx.contrib.onnx.graph_import import metadata

    return metadata(model_file)
