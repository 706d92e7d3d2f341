"""``python -m flowmx convert``: detect a model's file format, and write it in another one."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from flowmx import model, ndarray
from flowmx import symbol as sym
from flowmx.contrib import onnx
from flowmx.optimizer import convert_states
from flowmx.serialization.atomic import replace_file
from flowmx.serve.loading import load

__all__ = ["CONVERSIONS", "Job", "checkpoint", "convert", "form", "prefix_of", "read_arrays"]

_ENDINGS = {
    ".onnx": "onnx", ".json": "symbol", ".params": "arrays", ".safetensors": "arrays", ".npz": "arrays",
    ".states": "states",
}  # fmt: skip
_SYMBOL = "-symbol.json"


class Job(NamedTuple):
    """Options of a conversion.

    Attributes:
        source: the file, or prefix, or folder.
        target: likewise.
        shape: of a row, or of a row of each input by name.
        dtype: of the inputs.
        batch: rows of a batch; None: any number.
        epoch: of a checkpoint that is read; None: the latest.
        states: the format of optimizer states to write.
        opset: of ONNX.
    """

    source: Path
    target: Path
    shape: Any = None
    dtype: str | None = None
    batch: int | None = None
    epoch: int | None = None
    states: str = "mxnet"
    opset: int = 13


def convert(job: Job) -> None:
    """Write the target.

    Raises:
        ValueError: there is no such conversion, or the source holds something else.
        OSError: a file can not be read or written.
    """
    kinds = form(job.source), form(job.target)
    if kinds not in CONVERSIONS:
        able = sorted({target for source, target in CONVERSIONS if source == kinds[0]})
        raise ValueError(
            f"{job.source} is {_A[kinds[0]]} and {job.target} {_A[kinds[1]]}: from the former there is a way to "
            f"{' and to '.join(_A[each] for each in able)} only"
        )
    if job.source.resolve() == job.target.resolve():
        raise ValueError(f"{job.source} would be written over: give another name")
    CONVERSIONS[kinds](job)


def form(path: Path) -> str:
    """The form of a file, by its name: ``onnx``, ``symbol``, ``arrays``, ``states``, or ``checkpoint``.

    Raises:
        ValueError: its name ends as none of them does.
    """
    found = _ENDINGS.get(path.suffix.lower())
    if found is None and path.suffix and not path.is_dir() and not Path(f"{path}{_SYMBOL}").exists():
        raise ValueError(
            f"{path}: expected a name that ends with {', '.join(_ENDINGS)}, or the prefix or folder of a checkpoint"
        )
    return found or "checkpoint"


_A = {
    "onnx": "an ONNX file", "symbol": "a symbol", "arrays": "a file of arrays", "states": "optimizer states",
    "checkpoint": "a checkpoint",
}  # fmt: skip


# -- models ----------------------------------------------------------------------------------------------------


def checkpoint(path: Path, epoch: int | None = None) -> tuple[str, Path]:
    """The prefix and the file of parameters of a checkpoint.

    Args:
        path: its prefix, its folder, or its symbol.
        epoch: the epoch's number (default: the latest).

    Raises:
        OSError: there is none.
    """
    if path.is_dir():
        found = sorted(path.glob(f"*{_SYMBOL}"))
        if len(found) != 1:
            raise FileNotFoundError(f"{path} holds {len(found)} files ...{_SYMBOL}, expected one")
        path = found[0]
    prefix = str(path).removesuffix(_SYMBOL)
    names = f"{Path(prefix).name}-{'[0-9]' * 4 if epoch is None else f'{epoch:04d}'}.params"
    weights = sorted(Path(prefix).parent.glob(names))
    if not weights or not Path(prefix + _SYMBOL).exists():
        raise FileNotFoundError(f"there is no checkpoint {prefix}{_SYMBOL} with {names}")
    return prefix, weights[-1]


def _to_onnx(job: Job) -> None:
    prefix, weights = checkpoint(job.source, job.epoch)
    symbol = sym.load(prefix + _SYMBOL)
    arguments, auxiliary = model.read_params(str(weights))
    inputs = load(symbol, job.shape, job.dtype, {**arguments, **auxiliary}).inputs  # checks the shapes
    shapes = [tuple(size or 1 for size in (job.batch, *each.shape)) for each in inputs]
    varying = [
        (job.batch or "batch", *(size or f"{each.name}_{i}" for i, size in enumerate(each.shape))) for each in inputs
    ]
    free = any(isinstance(size, str) for sizes in varying for size in sizes)
    onnx.export_model(
        symbol, [arguments, auxiliary], shapes, [each.dtype for each in inputs], job.target, dynamic=free,
        dynamic_input_shapes=varying if free else None, opset_version=job.opset,
    )  # fmt: skip


def prefix_of(target: Path) -> str:
    """The prefix of a checkpoint that is written: the target, its symbol's, or ``model`` in a folder."""
    prefix = str(target / "model" if target.is_dir() else target).removesuffix(_SYMBOL)
    return prefix.removesuffix(".json")


def _from_onnx(job: Job) -> None:
    symbol, arguments, auxiliary = onnx.import_model(job.source)
    prefix = prefix_of(job.target)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    model.save_checkpoint(prefix, 0, symbol, arguments, auxiliary)


def _upgrade(job: Job) -> None:
    sym.load(job.source).save(job.target)


def _renew(job: Job) -> None:
    """A checkpoint as today's versions write it."""
    prefix, weights = checkpoint(job.source, job.epoch)
    target = job.target / Path(prefix).name if job.target.is_dir() else job.target
    target.parent.mkdir(parents=True, exist_ok=True)
    arguments, auxiliary = model.read_params(str(weights))
    model.save_checkpoint(str(target), int(weights.stem[-4:]), sym.load(prefix + _SYMBOL), arguments, auxiliary)


# -- arrays ----------------------------------------------------------------------------------------------------


def read_arrays(path: Path) -> Any:
    """The arrays in a file, by name, or a list of those without; what it is, its content says."""
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with np.load(path, allow_pickle=False) as found:
            return {name: ndarray.array(found[name], dtype=found[name].dtype) for name in found.files}
    return ndarray.load(str(path))


def _arrays(job: Job) -> None:
    arrays = read_arrays(job.source)
    if job.target.suffix.lower() == ".npz":
        _save_npz(job.target, arrays)
    else:
        ndarray.save(str(job.target), arrays)


def _save_npz(path: Path, arrays: Any) -> None:
    named = arrays if isinstance(arrays, dict) else {f"arr_{i}": each for i, each in enumerate(arrays)}
    plain = {name: each.asnumpy() for name, each in named.items()}
    for name, each in plain.items():
        if each.dtype == ml_dtypes.bfloat16:
            raise ValueError(f"{name} is bfloat16, which .npz has no place for: write .safetensors or .params")
    buffer = BytesIO()
    np.savez(buffer, **plain)
    replace_file(path, [buffer.getbuffer()])


def _states(job: Job) -> None:
    convert_states(job.source, job.target, job.states)


CONVERSIONS: dict[tuple[str, str], Callable[[Job], None]] = {
    ("checkpoint", "onnx"): _to_onnx,
    ("symbol", "onnx"): _to_onnx,
    ("onnx", "checkpoint"): _from_onnx,
    ("onnx", "symbol"): _from_onnx,
    ("symbol", "symbol"): _upgrade,
    ("checkpoint", "checkpoint"): _renew,
    ("arrays", "arrays"): _arrays,
    ("states", "states"): _states,
}
"""From the forms of source and target to what makes the one of the other."""
