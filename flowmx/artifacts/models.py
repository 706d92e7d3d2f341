"""Reports of models: symbols with parameters, parameters alone, ONNX, GGUF and Hugging Face's folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowmx.artifacts import sagemaker
from flowmx.artifacts.checkpoints import (
    Checkpoint,
    arrays_of,
    checkpoint_of,
    load_symbol,
    operators_of,
    parameters_of,
    unknown_operators,
    writer_of,
)
from flowmx.artifacts.input_shapes import Shape, inputs_of
from flowmx.artifacts.report import Report, arrays_text, bytes_text, names_text
from flowmx.errors import MXNetError
from flowmx.gluon.model_zoo import vision
from flowmx.gluon.model_zoo.huggingface.folder import read_config
from flowmx.serialization import gguf, symbol_json, tvm_params

__all__ = ["describe_arrays", "describe_checkpoint", "describe_gguf", "describe_onnx", "describe_transformer"]

_SHOWN_OPERATORS = 8
_COMPILED = re.compile(rb'"op"\s*:\s*"tvm_op"')
_LABEL = "label"


def describe_checkpoint(checkpoint: Checkpoint) -> Report:
    """Describe a symbol and its parameters."""
    path = checkpoint.prefix or checkpoint.symbol.parent
    report = Report(path, "a symbol")
    content = checkpoint.symbol.read_bytes()
    if _COMPILED.search(content):
        report.kind = "a graph that TVM compiled"
        report.problem = "its operators are machine code in a separate library; the model before compilation opens here"
        return report
    try:
        graph = symbol_json.parse(content)
    except MXNetError as error:
        report.problem = str(error)
        return report
    operators = operators_of(graph)
    if foreign := unknown_operators(graph):
        report.problem = (
            f"MXNet 1.9.1 does not have the operators {', '.join(foreign)}: a fork of MXNet or a library of operators "
            "defines them"
        )
        return report
    writer = writer_of(graph)
    report.kind = f"a symbol of {writer}"
    report.facts["operators"] = _counts(operators)
    arrays: Mapping[str, Any] = {}
    if checkpoint.params is None:
        report.missing.append(
            f"the parameters: there is no file {path.name}-0000.params in the folder of {checkpoint.symbol.name}"
        )
    else:
        report.kind = f"a checkpoint of {writer}"
        report.facts = {"files": f"{checkpoint.symbol.name}, {checkpoint.params.name}", **report.facts}
        try:
            arrays = parameters_of(arrays_of(checkpoint.params))
        except (MXNetError, OSError) as error:
            report.problem = str(error)
            return report
        report.facts["parameters"] = arrays_text(arrays)
    _add_interface(report, checkpoint, arrays)
    return report


def _add_interface(report: Report, checkpoint: Checkpoint, arrays: Mapping[str, Any]) -> None:
    """Add the inputs, the outputs, what is missing, and the next commands."""
    try:
        symbol, graph = load_symbol(checkpoint.symbol)
    except MXNetError as error:
        report.problem = str(error)
        return
    inputs = inputs_of(symbol, graph, arrays, checkpoint.symbol.parent)
    if checkpoint.params is not None:
        texts = [f"{name} {_shape_text(shape)}".rstrip() for name, shape in inputs.shapes.items()]
        report.facts["inputs"] = ", ".join(texts)
        if inputs.is_guess:
            report.facts["sizes"] = "images of other sizes fit too; this one is usual"
    labels = [name for name in symbol.list_arguments() if name.endswith(_LABEL) and name not in arrays]
    if labels:
        report.facts["labels"] = f"{', '.join(labels)} (of training; predictions do not need them)"
    report.facts["outputs"] = ", ".join(symbol.list_outputs())
    if checkpoint.params is None:
        return
    options = _shape_options(inputs.shapes)
    report.commands += [
        f"flowmx serve {report.path} {options}".rstrip(),
        f"flowmx convert {report.path} {report.path.name}.onnx {options} --check",
    ]


def _describe_array_model(report: Report, model: sagemaker.ArrayModel) -> Report:
    """Complete the report of a model of SageMaker that consists of arrays."""
    report.kind = f"a model of SageMaker's {model.algorithm}"
    report.facts |= model.facts
    if model.symbol is None:
        report.problem = (
            f"how SageMaker's {model.algorithm} computes predictions is not public; convert saves its arrays"
        )
        report.commands.append(f"flowmx convert {report.path} {model.algorithm}.npz")
    else:
        report.facts["inputs"] = f"data ({model.features})"
        report.facts["outputs"] = ", ".join(model.symbol.list_outputs())
        report.commands += [
            f"flowmx serve {report.path}", f"flowmx convert {report.path} {model.algorithm}.onnx --check",
        ]  # fmt: skip
    return report


def _shape_options(inputs: Mapping[str, Shape | None]) -> str:
    texts = {
        name: "SIZES" if shape is None else ",".join("?" if size is None else str(size) for size in shape)
        for name, shape in inputs.items()
    }
    if len(texts) == 1 and (text := next(iter(texts.values()))):
        return f"--shape {text}"
    return " ".join(f"--shape {name}={text}" for name, text in texts.items())


def describe_arrays(path: Path) -> Report:
    """Describe a file of arrays: parameters of a module or of a Gluon block, or any other arrays."""
    symbol = next((file for file in path.parent.glob("*-symbol.json") if checkpoint_of(file).params == path), None)
    if symbol is not None:
        return describe_checkpoint(checkpoint_of(symbol))
    try:
        arrays = arrays_of(path)
    except (MXNetError, OSError) as error:
        return Report(path, "a damaged file of arrays", problem=str(error))
    report = Report(path, "arrays", {"arrays": arrays_text(arrays), "names": names_text(arrays)})
    if (model := sagemaker.read_model(path)) is not None:
        return _describe_array_model(report, model)
    architecture = path.name.partition("-")[0].partition(".params")[0]
    if is_of_tvm(path):
        report.kind = "parameters of a graph that TVM compiled"
    elif any(name.startswith(("arg:", "aux:")) for name in arrays):
        report.kind = "parameters of a module or of an exported block"
        report.missing.append(f"the symbol: there is no file {re.sub('-[0-9]{4}$', '', path.stem)}-symbol.json")
    elif path.suffix == ".params":
        report.kind = "parameters of a Gluon block"
        if architecture in vision.MODEL_NAMES:
            report.facts["network"] = architecture
            report.commands.append(f"net = mx.gluon.model_zoo.vision.get_model({architecture!r}, classes=...)")
        else:
            report.missing.append("the network: the code of the block")
        report.commands.append(f"net.load_parameters({path.name!r})")
    suffix = ".npz" if "0" in arrays else ".safetensors"
    report.commands.append(f"flowmx convert {path} {path.stem}{'-copy' if suffix == path.suffix else ''}{suffix}")
    return report


def _counts(operators: Counter[str]) -> str:
    shown = [f"{name} {count}" for name, count in operators.most_common(_SHOWN_OPERATORS)]
    others = len(operators) - len(shown)
    return ", ".join(shown) + (f" and {others} more kinds" if others > 0 else "")


def _shape_text(shape: Shape | None) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)})" if shape is not None else ""


def is_of_tvm(path: Path) -> bool:
    """Return whether a file has parameters that TVM saved."""
    with path.open("rb") as file:
        return file.read(len(tvm_params.MAGIC)) == tvm_params.MAGIC


def describe_onnx(path: Path) -> Report:
    """Describe an ONNX file."""
    report = Report(path, "an ONNX model", {"size": bytes_text(path.stat().st_size)})
    try:
        import onnx
    except ImportError:
        report.missing.append("the package onnx: pip install onnx")
        return report
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # onnx raises errors of protobuf
        report.problem = f"it cannot be read: {error}"
        return report
    producer = f"{model.producer_name} {model.producer_version}".strip()
    report.kind += f" of {producer}" if producer else ""
    report.facts["operators"] = _counts(Counter(node.op_type for node in model.graph.node))
    parameters = {tensor.name for tensor in model.graph.initializer}
    report.facts["inputs"] = ", ".join(
        _value_text(value) for value in model.graph.input if value.name not in parameters
    )
    report.facts["outputs"] = ", ".join(value.name for value in model.graph.output)
    report.commands += [f"flowmx serve {path}", f"flowmx convert {path} {path.stem}"]
    return report


def _value_text(value: Any) -> str:
    """Return the name and shape of an input of an ONNX graph."""
    sizes = value.type.tensor_type.shape.dim
    return f"{value.name} ({', '.join(str(size.dim_value or size.dim_param or '?') for size in sizes)})"


def describe_gguf(path: Path) -> Report:
    """Describe a language model of llama.cpp."""
    report = Report(path, "a GGUF file of llama.cpp")
    try:
        content = gguf.load(path)
    except (MXNetError, OSError) as error:
        report.problem = str(error)
        return report
    name = content.metadata.get("general.name", "")
    architecture = content.metadata.get("general.architecture", "unknown")
    report.facts = {
        "model": f"{name} ({architecture})" if name else str(architecture),
        "tensors": str(len(content.tensors)),
        "size": bytes_text(path.stat().st_size),
    }
    report.commands += [f"flowmx chat {path}", f"flowmx serve {path}"]
    return report


def describe_transformer(path: Path) -> Report:
    """Describe the folder of a model of Hugging Face's Transformers."""
    report = Report(path, "a model of Hugging Face's Transformers")
    try:
        config = read_config(path)
        kind = config.text("model_type", "unknown")
    except (ValueError, OSError) as error:
        report.problem = str(error)
        return report
    architectures = config.values.get("architectures")
    names = ", ".join(map(str, architectures)) if isinstance(architectures, list) else ""
    report.facts["model"] = f"{names} ({kind})".strip()
    report.commands += [f"flowmx serve {path}", f"flowmx convert {path} {path.name}.onnx --check"]
    return report
