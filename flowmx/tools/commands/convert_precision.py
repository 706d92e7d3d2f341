"""``python -m flowmx convert --int8`` and ``--bf16``: a model of float32 as one of fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import io, model
from flowmx import symbol as sym
from flowmx.amp import convert_model
from flowmx.contrib import onnx
from flowmx.contrib.quantization import quantize_model_mkldnn
from flowmx.serve.inputs import Input
from flowmx.serve.loading import load
from flowmx.tools.commands.convert_formats import Job, checkpoint, form, prefix_of

__all__ = ["Lowering", "lower"]

_PIXELS = ((123.68, 116.78, 103.94), (58.0, 58.0, 58.0))
"""Means and deviations of the channels of images, as ``train`` has them."""
_BATCH = 32


class Lowering(NamedTuple):
    """Options of fewer bits.

    Attributes:
        dtype: ``int8`` or ``bfloat16``.
        calibrate: the data that ranges are measured on: .rec, .npz or .npy.
        mode: ``naive``, ``entropy`` or ``none``.
        examples: the number of rows to look at.
        mean: what is taken from the channels of images, one number or three.
        std: what they are divided by.
        exclude: names of layers that stay as they are.
    """

    dtype: str
    calibrate: Path | None = None
    mode: str = "naive"
    examples: int = 256
    mean: tuple[float, ...] = _PIXELS[0]
    std: tuple[float, ...] = _PIXELS[1]
    exclude: tuple[str, ...] = ()


def lower(job: Job, how: Lowering) -> None:
    """Write a checkpoint of fewer bits.

    Raises:
        ValueError: there is no such conversion, or ranges can not be measured on the data.
        OSError: a file can not be read or written.
    """
    if form(job.source) not in ("checkpoint", "symbol", "onnx") or form(job.target) not in ("checkpoint", "symbol"):
        raise ValueError(
            f"{job.source} -> {job.target}: --int8 and --bf16 make a checkpoint of a checkpoint or an ONNX file"
        )
    if form(job.source) == "onnx":
        symbol, arguments, auxiliary = onnx.import_model(job.source)
        inputs = load(job.source, job.shape, job.dtype).inputs
        unread: tuple[str, ...] = ()
        epoch = 0
    else:
        prefix, weights = checkpoint(job.source, job.epoch)
        symbol, epoch = sym.load(f"{prefix}-symbol.json"), int(weights.stem[-4:])
        arguments, auxiliary = model.read_params(str(weights))
        _, inputs, _, unread, _ = load(symbol, job.shape, job.dtype, {**arguments, **auxiliary})
    if how.dtype == "int8":
        data = None if how.mode == "none" else _batches(how, inputs, unread)
        made = quantize_model_mkldnn(
            symbol, arguments, auxiliary, [each.name for each in inputs], list(unread) or None,
            excluded_sym_names=list(how.exclude), calib_mode=how.mode, calib_data=data,
            num_calib_examples=how.examples, quantized_dtype="auto", quantize_mode="full",
        )  # fmt: skip
    else:
        made = convert_model(symbol, arguments, auxiliary, how.dtype, excluded_sym_names=list(how.exclude))
    target = prefix_of(job.target)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    model.save_checkpoint(target, epoch, *made, remove_amp_cast=False)


def _batches(how: Lowering, inputs: list[Input], unread: tuple[str, ...]) -> io.DataIter:
    """The data to measure ranges on."""
    path = how.calibrate
    if path is None:
        raise ValueError("--int8 needs --calibrate FILE, or --mode none, which looks for ranges at each call")
    if path.suffix.lower() == ".rec":
        return _images(path, how, inputs, unread)
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ValueError(f"--calibrate {path}: expected .rec, .npz or .npy")
    arrays = _arrays(path, inputs)
    rows = {each.name: _rows(path, arrays[each.name], each) for each in inputs}
    size = min(_BATCH, how.examples, min(map(len, rows.values())))
    labels = {name: np.zeros(len(next(iter(rows.values()))), np.float32) for name in unread}
    return io.NDArrayIter(rows, labels or None, size, last_batch_handle="discard")


def _arrays(path: Path, inputs: list[Input]) -> dict[str, np.ndarray[Any, Any]]:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        found = {inputs[0].name: found}
    names = [each.name for each in inputs]
    held = list(found)
    if len(names) == 1 and names[0] not in held:
        alone = [name for name in held if name in ("data", "x", "x_train")] or held
        found = {names[0]: found[alone[0]]} if len(alone) == 1 else found
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} holds {', '.join(held) or 'nothing'}, expected {', '.join(names)}")
    return {name: found[name] for name in names}


def _rows(path: Path, given: np.ndarray[Any, Any], to: Input) -> np.ndarray[Any, Any]:
    shape = tuple(size or given.shape[min(at, given.ndim - 1)] for at, size in enumerate(to.shape, 1))
    if not len(given) or given[0].size != np.prod(shape):
        raise ValueError(f"{path}: the rows of {to.name} have shape {given.shape[1:]}, expected {shape}, and some")
    return given.reshape(len(given), *shape).astype(to.dtype)


def _images(path: Path, how: Lowering, inputs: list[Input], unread: tuple[str, ...]) -> io.DataIter:
    (image, *others), shape = inputs, inputs[0].shape
    if others or len(shape) != 3 or shape[0] not in (1, 3) or None in shape:
        raise ValueError(
            f"--calibrate {path}: images are one input of 3 channels, height and width; the inputs are "
            f"{[(each.name, each.shape) for each in inputs]}"
        )
    moments: dict[str, float] = {}
    for label, given in (("mean", how.mean), ("std", how.std)):
        numbers = given * 3 if len(given) == 1 else given
        if len(numbers) != 3:
            raise ValueError(f"--{label} is {given}, expected one number or three")
        moments |= {f"{label}_{channel}": number for channel, number in zip("rgb", numbers, strict=True)}
    height, width = (int(size or 0) for size in shape[1:])
    return io.ImageRecordIter(
        path_imgrec=str(path), data_shape=shape, batch_size=min(_BATCH, how.examples), data_name=image.name,
        label_name=unread[0] if unread else "softmax_label", resize=round(min(height, width) * 8 / 7), **moments,
    )  # fmt: skip
