"""``convert --check``: compares the written model with the source; onnxruntime runs ONNX files if it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray
from flowmx import symbol as sym
from flowmx.ops.registry.operators import Array
from flowmx.optimizer import Test, Updater
from flowmx.serve.model_loading import Source, load
from flowmx.tools.commands.convert_formats import Job, checkpoint, format_of, read_arrays

__all__ = ["check"]

_TOLERANCE = 1e-4
"""Tolerance of outputs, relative to the largest output."""
_LOW_PRECISION_TOLERANCE = {"int8": 0.25, "bfloat16": 0.05}
"""The same for models of lower precision."""


def check(job: Job, precision: str = "") -> str:
    """Compare source and target; return a description of the comparison.

    Args:
        job: the conversion.
        precision: ``int8`` or ``bfloat16`` if the target has lower precision.

    Raises:
        ValueError: source and target differ.
    """
    if precision:
        return _models(job, _LOW_PRECISION_TOLERANCE[precision])
    return {"arrays": _arrays, "states": _states, "symbol": _symbols}.get(format_of(job.target), _models)(job)


def _models(job: Job, tolerance: float = _TOLERANCE) -> str:
    first = _load(job.source, job, job.epoch)
    rows = {spec.name: _random(spec, job.batch or 2) for spec in first.inputs}
    expected = _outputs(first, rows)
    by = ""
    if format_of(job.target) != "onnx":
        actual = _outputs(_load_target(job, first), rows)
    elif find_spec("onnxruntime") is None:
        actual = _outputs(_load_target(job, first), rows)
        by = " (computed by flowmx; install onnxruntime to check with it)"
    else:
        actual, version = _onnxruntime_outputs(job.target, rows)
        by = f" (computed by onnxruntime {version})"
    difference = _largest_difference(expected, actual)
    if not difference <= tolerance:
        raise ValueError(
            f"the outputs of a random input differ by {difference:.2g} of the largest, expected {tolerance}{by}"
        )
    return f"the outputs of a random input differ by {difference:.2g} of the largest{by}"


def _load_target(job: Job, source: Source) -> Source:
    shape = {spec.name: spec.shape for spec in source.inputs}
    target = _load(job.target, job._replace(shape=shape), None)
    if [spec.name for spec in source.inputs] != [spec.name for spec in target.inputs]:
        raise ValueError(f"the inputs differ: {source.inputs} and {target.inputs}")
    return target


def _onnxruntime_outputs(path: Path, rows: dict[str, Array]) -> tuple[list[Any], str]:
    """Return the outputs that onnxruntime computes, and its version.

    Raises:
        ValueError: it cannot run the file, or the inputs differ.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        if set(names) != set(rows):
            raise ValueError(f"the inputs differ: {list(rows)}, and in the ONNX file {names}")
        return session.run(None, rows), onnxruntime.__version__
    except ValueError:
        raise
    except Exception as error:  # onnxruntime's exceptions have no public base class
        raise ValueError(f"onnxruntime {onnxruntime.__version__} cannot run {path}: {error}") from error


def _load(path: Path, job: Job, epoch: int | None) -> Source:
    if format_of(path) in ("onnx", "pretrained"):
        return load(path, job.shape, job.dtype)
    prefix, weights = checkpoint(path, epoch)
    return load(sym.load(f"{prefix}-symbol.json"), job.shape, job.dtype, str(weights))


def _random(spec: Any, rows: int) -> Array:
    shape = (rows, *(size or 8 for size in spec.shape))
    values = np.random.default_rng(0).uniform(0, 1 if spec.dtype.kind == "f" else 4, shape)
    return values.astype(spec.dtype)


def _outputs(source: Source, rows: dict[str, Array]) -> list[Array]:
    arrays = [ndarray.array(rows[spec.name], dtype=spec.dtype) for spec in source.inputs]
    count = len(arrays[0])
    result = source.block(*arrays, *(ndarray.zeros((count,)) for _ in source.labels))
    return [output.asnumpy() for output in (result if isinstance(result, (list, tuple)) else [result])]


def _largest_difference(first: list[Any], second: list[Any]) -> float:
    """Return the largest difference of two lists of outputs, relative to the largest output."""
    if [output.shape for output in first] != [output.shape for output in second]:
        raise ValueError(f"the outputs have shapes {[e.shape for e in first]} and {[e.shape for e in second]}")
    largest = max((float(np.abs(output).max(initial=0)) for output in first), default=0.0)
    differences = [float(np.abs(a - b).max(initial=0)) for a, b in zip(first, second, strict=True)]
    return max(differences, default=0.0) / (largest or 1.0)


def _symbols(job: Job) -> str:
    if format_of(job.source) == "onnx":
        return _models(job)
    first, second = sym.load(job.source), sym.load(job.target)
    for method in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        if getattr(first, method)() != getattr(second, method)():
            raise ValueError(f"{method} differs: {getattr(first, method)()} and {getattr(second, method)()}")
    if first.tojson() != second.tojson():
        raise ValueError("the symbols differ")
    return f"the same {len(first.get_internals().list_outputs())} nodes"


def _arrays(job: Job) -> str:
    source = checkpoint(job.source, job.epoch)[1] if format_of(job.source) == "checkpoint" else job.source
    first, second = (_named(read_arrays(path)) for path in (source, job.target))
    if first.keys() != second.keys():
        raise ValueError(f"the names differ: {sorted(first.keys() ^ second.keys())[:5]} are in only one of them")
    for name, array in first.items():
        a, b = array.asnumpy(), second[name].asnumpy()
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            raise ValueError(f"{name} differs: {a.dtype} {a.shape} and {b.dtype} {b.shape}")
    return f"the same {len(first)} arrays, bit by bit"


def _named(arrays: Any) -> dict[str, Any]:
    return arrays if isinstance(arrays, dict) else {f"arr_{i}": array for i, array in enumerate(arrays)}


def _states(job: Job) -> str:
    first, second = (_flowmx_states(path) for path in (job.source, job.target))
    if first != second:
        raise ValueError("the states differ")
    return "the same states, bit by bit"


def _flowmx_states(path: Path) -> bytes:
    updater = Updater(Test())
    updater.set_states(path.read_bytes())
    return updater.get_states(False, "flowmx")
