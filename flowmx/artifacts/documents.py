"""JSON files that belong to models and runs: what they describe, and the command for what they belong to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.artifacts.report import Report, bytes_text

__all__ = ["describe_json", "read_json"]

_MAX_SIZE = 16 << 20
_SHOWN_KEYS = 4
_HEAD = 4096
_BLOCK = "-model.json"


class _Kind(NamedTuple):
    """A kind of JSON file.

    Attributes:
        keys: keys of the object, all of which it has.
        kind: what it is.
        command: the next command; ``FILE`` is the file and ``FOLDER`` its folder.
        problem: why it cannot be used as it is; empty if it can.
    """

    keys: tuple[str, ...]
    kind: str
    command: str
    problem: str = ""


_FOLDER = "flowmx inspect FOLDER"
_TENSORFLOW = "convert the original model to ONNX with tf2onnx"

_KINDS = (
    _Kind(("traceEvents",), "a profile", "open it in https://ui.perfetto.dev"),
    _Kind(("why", "actors"), "a report of a process", "flowmx doctor FILE"),
    _Kind(("peft_type",), "the settings of a LoRA adapter", "flowmx serve MODEL --adapter NAME=FOLDER"),
    _Kind(("model_type",), "the settings of a model of Hugging Face's Transformers", _FOLDER),
    _Kind(("weight_map",), "the index of a model in several safetensors files", _FOLDER),
    _Kind(("added_tokens", "model"), "a tokenizer of Hugging Face", _FOLDER),
    _Kind(("mx-mod",), "the manifest of a linear model of SageMaker", _FOLDER),
    _Kind(("predictor_type",), "the settings of a linear model of SageMaker", _FOLDER),
    _Kind(("training_parameters",), "the settings of a model of SageMaker", _FOLDER),
    _Kind(("model", "specificationVersion"), "the manifest of a model of Multi Model Server", "flowmx inspect MODEL"),
    _Kind(("model", "runtime"), "the manifest of a model of Multi Model Server", "flowmx inspect MODEL"),
    _Kind(("artifacts", "groupId"), "the metadata of a model of DJL", _FOLDER),
    _Kind(("learner", "version"), "a model of XGBoost", "", "decision trees are not run here: load it with XGBoost"),
    _Kind(("modelTopology",), "a model of TensorFlow.js", "", _TENSORFLOW),
    _Kind(("weightsManifest",), "a model of TensorFlow.js", "", _TENSORFLOW),
    _Kind(("class_name", "config"), "a network of Keras", "", _TENSORFLOW),
    _Kind(("nbformat", "cells"), "a Jupyter notebook", "jupyter nbconvert --to script FILE"),
    _Kind(("kind", "facts", "commands"), "a report of flowmx inspect", ""),
    _Kind(("devices", "bound_by"), "a report of flowmx plan", ""),
    _Kind(("__kind__", "class"), "a part of a predictor of GluonTS", _FOLDER),
)
"""The kinds of files, the most certain first."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it is damaged, or larger than descriptions of models are."""
    try:
        return json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_SIZE else None
    except (ValueError, RecursionError, OSError):
        return None


def describe_json(path: Path) -> Report:
    """Describe a JSON file by its keys."""
    document = read_json(path)
    report = Report(path, "a JSON file", {"size": bytes_text(path.stat().st_size)}, is_detail=True)
    if _are_shapes(document):
        report.kind = "the shapes of a model's inputs"
        report.facts["inputs"] = ", ".join(f"{row['name']} {tuple(row['shape'][1:])}" for row in document)
        report.commands.append(_command(_FOLDER, path))
        return report
    if path.name in ("hyperparams.json", "hyperparameters.json"):
        report.kind = "the settings of a training by SageMaker"
        report.commands.append(_command(_FOLDER, path))
        return report
    if path.name.endswith(_BLOCK):
        report.kind = "the structure of a Gluon block"
        report.commands.append(f"net.load({str(path).removesuffix(_BLOCK)!r})")
        return report
    keys = document if isinstance(document, dict) else _keys_of_head(path)
    kind = next((kind for kind in _KINDS if all(key in keys for key in kind.keys)), None)
    if kind is None:
        names = ", ".join(str(key)[:40] for key in list(keys)[:_SHOWN_KEYS])
        report.problem = "it describes no model that flowmx knows" + (f"; its keys are {names}" if names else "")
        return report
    report.kind, report.problem = kind.kind, kind.problem
    if kind.command:
        report.commands.append(_command(kind.command, path))
    return report


def _are_shapes(document: object) -> bool:
    """Return whether a document is a ``model-shapes.json`` of SageMaker."""
    return isinstance(document, list) and bool(document) and all(
        isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("shape"), list)
        for row in document
    )  # fmt: skip


def _command(command: str, path: Path) -> str:
    return command.replace("FILE", str(path)).replace("FOLDER", str(path.parent))


def _keys_of_head(path: Path) -> list[str]:
    """Return the keys at the beginning of a file that is too large to be read, or damaged."""
    with path.open("rb") as file:
        return [key.decode("utf-8", "replace") for key in re.findall(rb'"([^"\\]{1,60})"\s*:', file.read(_HEAD))]
