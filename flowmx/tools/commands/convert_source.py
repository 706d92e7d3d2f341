"""``convert --to``: write a model as source code of another framework, and compare both."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from flowmx import ndarray
from flowmx.contrib.onnx.dynamic_lengths import Lengths, varying
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization import safetensors
from flowmx.serialization.atomic import replace_file
from flowmx.serve.model_loading import load
from flowmx.source_code import Source, to_gluon, to_torch
from flowmx.source_code.check import compare, compare_block, random_inputs
from flowmx.symbol import Symbol
from flowmx.tools.commands.convert_formats import Job

__all__ = ["write"]

_OUTPUT_TOLERANCE = 1e-5
_GRADIENT_TOLERANCE = 1e-4
_BATCH = 2
_LENGTH = 8
"""The variable lengths of random inputs."""


class _Model(NamedTuple):
    symbol: Symbol
    arrays: Mapping[str, NDArray]
    lengths: Mapping[str, Lengths]
    types: Mapping[str, DType]


def write(job: Job, target: str, python: str | None) -> str:
    """Write a model as source code; return the description of the files and of the comparison.

    Args:
        job: the conversion.
        target: ``torch`` or ``gluon``.
        python: the interpreter that has torch; None for this one.

    Raises:
        ValueError: the model cannot be written, or the outputs differ.
        OSError: a file cannot be read or written.
    """
    if job.target.suffix != ".py":
        raise ValueError(f"{job.target} is the file to write, expected a name that ends with .py")
    if not job.target.stem.isidentifier():
        raise ValueError(f"{job.target.name} is the name of a module, expected letters, digits and underscores")
    model = _load(job)
    weights = job.target.with_suffix(".params" if target == "gluon" else ".safetensors")
    to_source = to_gluon if target == "gluon" else to_torch
    source = to_source(model.symbol, model.arrays, model.lengths, model.types, _class_name(job.target), weights.name)
    job.target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(job.target, [source.text.encode()])
    state = source.state_dict()
    if target == "gluon":
        ndarray.save(str(weights), {name: ndarray.array(array, dtype=array.dtype) for name, array in state.items()})
        result = _check_gluon(source, model, weights)
    else:
        safetensors.save(weights, state)
        result = _check(source, model, python)
    return f"{job.target} ({source.text.count(chr(10))} lines), {weights}: {result}"


def _load(job: Job) -> _Model:
    loaded = load(job.source, job.shape, job.dtype, epoch=job.epoch)
    if loaded.symbol is None:
        raise ValueError(f"{job.source} computes shapes while it runs: expected a model of one graph")
    arrays = {name: parameter.data() for name, parameter in loaded.block.collect_params().items()}
    types = {spec.name: spec.dtype for spec in loaded.inputs}
    batch = varying(job.batch or _BATCH, 0)
    lengths: dict[str, Lengths] = {
        spec.name: (batch, *(varying(_LENGTH, 1) if size is None else size for size in spec.shape))
        for spec in loaded.inputs
    }
    return _Model(loaded.symbol, arrays, lengths, types)


def _class_name(target: Path) -> str:
    parts = [part for part in re.split("[^0-9a-zA-Z]+", target.stem) if part]
    return "".join(part[0].upper() + part[1:] for part in parts)


def _check(source: Source, model: _Model, python: str | None) -> str:
    """Compare the module with the model, if an interpreter has torch.

    Raises:
        ValueError: outputs or gradients differ.
    """
    if python is None and find_spec("torch") is None:
        return "not checked, because torch is not installed (name an interpreter that has it: --python PATH)"
    inputs = _random(model)
    differences = compare(source, model.symbol, inputs, python or sys.executable)
    text = (
        f"for random inputs, the outputs differ by {differences.outputs:.2g} and the gradients by "
        f"{differences.gradients:.2g} of the largest"
    )
    if not (differences.outputs <= _OUTPUT_TOLERANCE and differences.gradients <= _GRADIENT_TOLERANCE):
        raise ValueError(
            f"{text}, expected {_OUTPUT_TOLERANCE} and {_GRADIENT_TOLERANCE} "
            f"({differences.output_name}, {differences.gradient_name})"
        )
    return text


def _check_gluon(source: Source, model: _Model, weights: Path) -> str:
    """Compare the outputs of the block with those of the model.

    Raises:
        ValueError: they differ.
    """
    difference = compare_block(source, model.symbol, _random(model), weights)
    text = f"for random inputs, the outputs differ by {difference:.2g} of the largest"
    if not difference <= _OUTPUT_TOLERANCE:
        raise ValueError(f"{text}, expected {_OUTPUT_TOLERANCE}")
    return text


def _random(model: _Model) -> dict[str, Array]:
    shapes = {name: tuple(n if isinstance(n, int) else n.first for n in each) for name, each in model.lengths.items()}
    return random_inputs(shapes, model.types)
