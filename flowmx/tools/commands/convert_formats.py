"""``python -m flowmx convert``: detects a model's file format and writes another one."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from flowmx import model, ndarray
from flowmx import symbol as sym
from flowmx.contrib import onnx
from flowmx.gluon.model_zoo import huggingface
from flowmx.ndarray import NDArray
from flowmx.optimizer import convert_states
from flowmx.serialization import formats, numpy_files
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_large
from flowmx.serve.model_loading import load
from flowmx.symbol import Symbol

__all__ = ["CONVERSIONS", "Job", "checkpoint", "convert", "format_of", "prefix_of", "read_arrays"]

_ENDINGS = {
    ".onnx": "onnx", ".json": "symbol", ".params": "arrays", ".safetensors": "arrays", ".npz": "arrays",
    ".states": "states",
}  # fmt: skip
_SYMBOL = "-symbol.json"
Arrays = dict[str, NDArray]


class Job(NamedTuple):
    """Options of a conversion.

    Attributes:
        source: the file, prefix or folder to read.
        target: the file, prefix or folder to write.
        shape: shape of a row, or a dict of shapes by input.
        dtype: dtype of the inputs.
        batch: batch size; None: any.
        epoch: epoch of the checkpoint to read; None: the latest.
        states: the format of optimizer states to write.
        opset: the ONNX opset.
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
        ValueError: the conversion is not supported, or the source has another content.
        OSError: a file cannot be read or written.
    """
    kinds = format_of(job.source), format_of(job.target)
    if kinds not in CONVERSIONS:
        targets = sorted({target for source, target in CONVERSIONS if source == kinds[0]})
        raise ValueError(
            f"{job.source} is {_KINDS[kinds[0]]} and {job.target} {_KINDS[kinds[1]]}: the former converts only "
            f"to {' or '.join(_KINDS[target] for target in targets)}"
        )
    if job.source.resolve() == job.target.resolve():
        raise ValueError(f"{job.source} would be overwritten: choose another name")
    CONVERSIONS[kinds](job)


_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt")


def format_of(path: Path) -> str:
    """Return the kind of a file by its name, or that of a folder by its files.

    Raises:
        ValueError: the suffix is unknown.
    """
    if huggingface.is_model(path):
        return "pretrained"
    kind = _ENDINGS.get(path.suffix.lower()) or ("arrays" if formats.is_array_file(path) else None)
    if kind is None and path.suffix.lower() in _PICKLES and path.is_file():
        raise ValueError(
            f"{path}: a file of PyTorch or a Python pickle may run code: save the arrays with its program, with "
            "safetensors.torch.save_file or numpy.savez"
        )
    if kind is None and path.suffix and not path.is_dir() and not Path(f"{path}{_SYMBOL}").exists():
        raise ValueError(
            f"{path}: expected a name that ends with {', '.join(_ENDINGS)}, or the prefix or folder of a checkpoint"
        )
    return kind or "checkpoint"


_KINDS = {
    "onnx": "an ONNX file", "symbol": "a symbol", "arrays": "a file of arrays", "states": "optimizer states",
    "checkpoint": "a checkpoint", "pretrained": "a folder of Hugging Face's Transformers",
}  # fmt: skip


# -- models ----------------------------------------------------------------------------------------------------


def checkpoint(path: Path, epoch: int | None = None) -> tuple[str, Path]:
    """Return the prefix and the parameter file of a checkpoint.

    Args:
        path: its prefix, folder or symbol file.
        epoch: the epoch (default: the latest).

    Raises:
        OSError: the checkpoint does not exist.
    """
    if path.is_dir():
        symbols = sorted(path.glob(f"*{_SYMBOL}"))
        if len(symbols) != 1:
            raise FileNotFoundError(f"{path} has {len(symbols)} files *{_SYMBOL}, expected one")
        path = symbols[0]
    prefix = str(path).removesuffix(_SYMBOL)
    names = f"{Path(prefix).name}-{'[0-9]' * 4 if epoch is None else f'{epoch:04d}'}.params"
    weights = sorted(Path(prefix).parent.glob(names))
    if not weights or not Path(prefix + _SYMBOL).exists():
        files = f"{prefix}{_SYMBOL} and {prefix}-{epoch or 0:04d}.params"
        raise FileNotFoundError(f"there is no checkpoint {prefix!r}: expected the files {files}")
    return prefix, weights[-1]


def _to_onnx(job: Job) -> None:
    prefix, weights = checkpoint(job.source, job.epoch)
    arguments, auxiliary = model.read_params(str(weights))
    _export(job, sym.load(prefix + _SYMBOL), arguments, auxiliary)


def _export(job: Job, symbol: Symbol, arguments: Arrays, auxiliary: Arrays, same_lengths: bool = False) -> None:
    """Write an ONNX file; variable lengths of the same axis of all inputs are one if ``same_lengths`` is set."""
    source = load(symbol, job.shape, job.dtype, {**arguments, **auxiliary})  # checks the shapes
    symbol, inputs = symbol if source.symbol is None else source.symbol, source.inputs
    shapes = [tuple(size or 1 for size in (job.batch, *spec.shape)) for spec in inputs]
    named_sizes = [
        (
            job.batch or "batch",
            *(size or f"{'length' if same_lengths else spec.name}_{i}" for i, size in enumerate(spec.shape)),
        )
        for spec in inputs
    ]
    is_dynamic = any(isinstance(size, str) for sizes in named_sizes for size in sizes)
    onnx.export_model(
        symbol, [arguments, auxiliary], shapes, [spec.dtype for spec in inputs], job.target, dynamic=is_dynamic,
        dynamic_input_shapes=named_sizes if is_dynamic else None, opset_version=job.opset,
    )  # fmt: skip


def _pretrained(job: Job) -> tuple[Symbol, Arrays]:
    return huggingface.as_symbol(job.source, job.shape if isinstance(job.shape, dict) else None)


def _pretrained_to_onnx(job: Job) -> None:
    _export(job, *_pretrained(job), {}, same_lengths=True)


def _pretrained_to_checkpoint(job: Job) -> None:
    _save(job, *_pretrained(job), {})


def prefix_of(target: Path) -> str:
    """Return the prefix of the checkpoint to write: the target, its symbol's prefix, or ``model`` in a folder."""
    prefix = str(target / "model" if target.is_dir() else target).removesuffix(_SYMBOL)
    return prefix.removesuffix(".json")


def _from_onnx(job: Job) -> None:
    _save(job, *onnx.import_model(job.source))


def _save(job: Job, symbol: Symbol, arguments: Arrays, auxiliary: Arrays) -> None:
    prefix = prefix_of(job.target)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    model.save_checkpoint(prefix, 0, symbol, arguments, auxiliary)


def _parameters(job: Job) -> None:
    _, weights = checkpoint(job.source, job.epoch)
    _arrays(job._replace(source=weights))


def _upgrade(job: Job) -> None:
    sym.load(job.source).save(job.target)


def _renew(job: Job) -> None:
    """Rewrite a checkpoint in the current format."""
    prefix, weights = checkpoint(job.source, job.epoch)
    target = job.target / Path(prefix).name if job.target.is_dir() else job.target
    target.parent.mkdir(parents=True, exist_ok=True)
    arguments, auxiliary = model.read_params(str(weights))
    model.save_checkpoint(str(target), int(weights.stem[-4:]), sym.load(prefix + _SYMBOL), arguments, auxiliary)


# -- arrays ----------------------------------------------------------------------------------------------------


def read_arrays(path: Path) -> Any:
    """Read the arrays of a file by name, or as a list if they have no names. The content determines the format."""
    if zipfile.is_zipfile(path) and numpy_files.is_npz(read_large(path)):
        with np.load(path, allow_pickle=False) as file:
            return {name: ndarray.array(file[name], dtype=file[name].dtype) for name in file.files}
    return ndarray.load(str(path))


def _arrays(job: Job) -> None:
    arrays = read_arrays(job.source)
    if job.target.suffix.lower() == ".npz":
        _save_npz(job.target, arrays)
    else:
        ndarray.save(str(job.target), arrays)


def _save_npz(path: Path, arrays: Any) -> None:
    by_name = arrays if isinstance(arrays, dict) else {f"arr_{i}": array for i, array in enumerate(arrays)}
    plain = {name: array.asnumpy() for name, array in by_name.items()}
    for name, array in plain.items():
        if array.dtype == ml_dtypes.bfloat16:
            raise ValueError(f"{name} is bfloat16, which .npz does not support: write .safetensors or .params")
    buffer = BytesIO()
    np.savez(buffer, **plain)
    replace_file(path, [buffer.getbuffer()])


def _states(job: Job) -> None:
    convert_states(job.source, job.target, job.states)


CONVERSIONS: dict[tuple[str, str], Callable[[Job], None]] = {
    ("checkpoint", "onnx"): _to_onnx,
    ("symbol", "onnx"): _to_onnx,
    ("pretrained", "onnx"): _pretrained_to_onnx,
    ("pretrained", "checkpoint"): _pretrained_to_checkpoint,
    ("onnx", "checkpoint"): _from_onnx,
    ("onnx", "symbol"): _from_onnx,
    ("symbol", "symbol"): _upgrade,
    ("checkpoint", "checkpoint"): _renew,
    ("checkpoint", "arrays"): _parameters,
    ("arrays", "arrays"): _arrays,
    ("states", "states"): _states,
}
"""Conversion functions by the kinds of source and target."""
