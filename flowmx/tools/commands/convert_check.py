"""``convert --check``: compare the written model with the one that was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray
from flowmx import symbol as sym
from flowmx.optimizer import Test, Updater
from flowmx.serve.loading import Source, load
from flowmx.tools.commands.convert_formats import Job, checkpoint, form, read_arrays

__all__ = ["check"]

_CLOSE = 1e-4
"""The tolerated difference of outputs, relative to the largest of them."""
_CLOSE_IN = {"int8": 0.25, "bfloat16": 0.05}
"""The same of models of fewer bits."""


def check(job: Job, lowered: str = "") -> str:
    """Compare source and target; returns a sentence that says how.

    Args:
        job: what was converted.
        lowered: ``int8`` or ``bfloat16``, where that is what it was converted to.

    Raises:
        ValueError: they differ.
    """
    if lowered:
        return _models(job, _CLOSE_IN[lowered])
    return {"arrays": _arrays, "states": _states, "symbol": _symbols}.get(form(job.target), _models)(job)


def _models(job: Job, close: float = _CLOSE) -> str:
    first = _loaded(job.source, job, job.epoch)
    shape = {each.name: each.shape for each in first.inputs}
    second = _loaded(job.target, job._replace(shape=shape), None)
    if [each.name for each in first.inputs] != [each.name for each in second.inputs]:
        raise ValueError(f"the inputs differ: {first.inputs} and {second.inputs}")
    rows = {each.name: _random(each, job.batch or 2) for each in first.inputs}
    worst = _worst(_outputs(first, rows), _outputs(second, rows))
    if not worst <= close:
        raise ValueError(f"the outputs of a random input differ by {worst:.2g} of the largest, expected {close}")
    return f"the outputs of a random input differ by {worst:.2g} of the largest"


def _loaded(path: Path, job: Job, epoch: int | None) -> Source:
    if form(path) == "onnx":
        return load(path, job.shape, job.dtype)
    prefix, weights = checkpoint(path, epoch)
    return load(sym.load(f"{prefix}-symbol.json"), job.shape, job.dtype, str(weights))


def _random(spec: Any, rows: int) -> np.ndarray[Any, Any]:
    shape = (rows, *(size or 8 for size in spec.shape))
    drawn = np.random.default_rng(0).uniform(0, 1 if spec.dtype.kind == "f" else 4, shape)
    return drawn.astype(spec.dtype)


def _outputs(source: Source, rows: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    given = [ndarray.array(rows[each.name], dtype=each.dtype) for each in source.inputs]
    count = len(given[0])
    found = source.block(*given, *(ndarray.zeros((count,)) for _ in source.unread))
    return [each.asnumpy() for each in (found if isinstance(found, (list, tuple)) else [found])]


def _worst(first: list[Any], second: list[Any]) -> float:
    """The largest difference of two lists of outputs, relative to the largest output."""
    if [each.shape for each in first] != [each.shape for each in second]:
        raise ValueError(f"the outputs have shapes {[e.shape for e in first]} and {[e.shape for e in second]}")
    largest = max((float(np.abs(each).max(initial=0)) for each in first), default=0.0)
    differences = [float(np.abs(a - b).max(initial=0)) for a, b in zip(first, second, strict=True)]
    return max(differences, default=0.0) / (largest or 1.0)


def _symbols(job: Job) -> str:
    if form(job.source) == "onnx":
        return _models(job)
    first, second = sym.load(job.source), sym.load(job.target)
    for what in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        if getattr(first, what)() != getattr(second, what)():
            raise ValueError(f"{what} differs: {getattr(first, what)()} and {getattr(second, what)()}")
    if first.tojson() != second.tojson():
        raise ValueError("the symbols differ")
    return f"the same {len(first.get_internals().list_outputs())} nodes"


def _arrays(job: Job) -> str:
    first, second = (_named(read_arrays(path)) for path in (job.source, job.target))
    if first.keys() != second.keys():
        raise ValueError(f"the names differ: {sorted(first.keys() ^ second.keys())[:5]} are in one of them alone")
    for name, array in first.items():
        a, b = array.asnumpy(), second[name].asnumpy()
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            raise ValueError(f"{name} differs: {a.dtype} {a.shape} and {b.dtype} {b.shape}")
    return f"the same {len(first)} arrays to the bit"


def _named(arrays: Any) -> dict[str, Any]:
    return arrays if isinstance(arrays, dict) else {f"arr_{i}": each for i, each in enumerate(arrays)}


def _states(job: Job) -> str:
    first, second = (_flowmx_states(path) for path in (job.source, job.target))
    if first != second:
        raise ValueError("the states differ")
    return "the same states to the bit"


def _flowmx_states(path: Path) -> bytes:
    updater = Updater(Test())
    updater.set_states(path.read_bytes())
    return updater.get_states(False, "flowmx")
