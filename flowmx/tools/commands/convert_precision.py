"""``python -m flowmx convert --int8`` and ``--bf16``: converts a float32 model to lower precision."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from flowmx import io, model
from flowmx import symbol as sym
from flowmx.amp import convert_model
from flowmx.contrib import onnx
from flowmx.contrib.quantization import quantize_model_mkldnn
from flowmx.ops.registry.operators import Array
from flowmx.serve.inputs import Input
from flowmx.serve.model_loading import load
from flowmx.tools.commands.convert_formats import Job, checkpoint, format_of, prefix_of

__all__ = ["Lowering", "lower"]

_PIXELS = ((123.68, 116.78, 103.94), (58.0, 58.0, 58.0))
"""Means and standard deviations of image channels, as in ``train``."""
_BATCH = 32


class Lowering(NamedTuple):
    """Options of the conversion.

    Attributes:
        dtype: ``int8`` or ``bfloat16``.
        calibrate: the calibration data: .rec, .npz or .npy.
        mode: ``naive``, ``entropy`` or ``none``.
        examples: number of calibration rows.
        mean: means of the image channels, one number or three.
        std: their standard deviations.
        exclude: names of layers to leave unchanged.
    """

    dtype: str
    calibrate: Path | None = None
    mode: str = "naive"
    examples: int = 256
    mean: tuple[float, ...] = _PIXELS[0]
    std: tuple[float, ...] = _PIXELS[1]
    exclude: tuple[str, ...] = ()


def lower(job: Job, options: Lowering) -> None:
    """Write a checkpoint of lower precision.

    Raises:
        ValueError: the conversion is not supported, or the data is not suitable for calibration.
        OSError: a file cannot be read or written.
    """
    source, target = format_of(job.source), format_of(job.target)
    if source not in ("checkpoint", "symbol", "onnx") or target not in ("checkpoint", "symbol"):
        raise ValueError(
            f"{job.source} -> {job.target}: --int8 and --bf16 convert a checkpoint or an ONNX file to a checkpoint"
        )
    if source == "onnx":
        symbol, arguments, auxiliary = onnx.import_model(job.source)
        inputs = load(job.source, job.shape, job.dtype).inputs
        label_names: tuple[str, ...] = ()
        epoch = 0
    else:
        prefix, weights = checkpoint(job.source, job.epoch)
        symbol, epoch = sym.load(f"{prefix}-symbol.json"), int(weights.stem[-4:])
        arguments, auxiliary = model.read_params(str(weights))
        _, inputs, _, label_names, _ = load(symbol, job.shape, job.dtype, {**arguments, **auxiliary})
    if options.dtype == "int8":
        data = None if options.mode == "none" else _batches(options, inputs, label_names)
        converted = quantize_model_mkldnn(
            symbol, arguments, auxiliary, [spec.name for spec in inputs], list(label_names) or None,
            excluded_sym_names=list(options.exclude), calib_mode=options.mode, calib_data=data,
            num_calib_examples=options.examples, quantized_dtype="auto", quantize_mode="full",
        )  # fmt: skip
    else:
        converted = convert_model(symbol, arguments, auxiliary, options.dtype, excluded_sym_names=list(options.exclude))
    target = prefix_of(job.target)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    model.save_checkpoint(target, epoch, *converted, remove_amp_cast=False)


def _batches(options: Lowering, inputs: list[Input], label_names: tuple[str, ...]) -> io.DataIter:
    """Return the calibration data."""
    path = options.calibrate
    if path is None:
        raise ValueError("--int8 needs --calibrate FILE, or --mode none, which computes ranges in each call")
    if path.suffix.lower() == ".rec":
        return _images(path, options, inputs, label_names)
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ValueError(f"--calibrate {path}: expected .rec, .npz or .npy")
    arrays = _arrays(path, inputs)
    rows = {spec.name: _rows(path, arrays[spec.name], spec) for spec in inputs}
    size = min(_BATCH, options.examples, min(map(len, rows.values())))
    labels = {name: np.zeros(len(next(iter(rows.values()))), np.float32) for name in label_names}
    return io.NDArrayIter(rows, labels or None, size, last_batch_handle="discard")


def _arrays(path: Path, inputs: list[Input]) -> dict[str, Array]:
    arrays = np.load(path, allow_pickle=False)
    if isinstance(arrays, np.ndarray):
        arrays = {inputs[0].name: arrays}
    names = [spec.name for spec in inputs]
    available = list(arrays)
    if len(names) == 1 and names[0] not in available:
        candidates = [name for name in available if name in ("data", "x", "x_train")] or available
        arrays = {names[0]: arrays[candidates[0]]} if len(candidates) == 1 else arrays
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{path} has {', '.join(available) or 'no arrays'}, expected {', '.join(names)}")
    return {name: arrays[name] for name in names}


def _rows(path: Path, array: Array, spec: Input) -> Array:
    shape = tuple(size or array.shape[min(at, array.ndim - 1)] for at, size in enumerate(spec.shape, 1))
    if not len(array):
        raise ValueError(f"{path}: {spec.name} has no samples")
    if array[0].size != np.prod(shape):
        raise ValueError(f"{path}: the samples of {spec.name} have shape {array.shape[1:]}, expected {shape}")
    return array.reshape(len(array), *shape).astype(spec.dtype)


def _images(path: Path, options: Lowering, inputs: list[Input], label_names: tuple[str, ...]) -> io.DataIter:
    (image, *others), shape = inputs, inputs[0].shape
    if others or len(shape) != 3 or shape[0] not in (1, 3) or None in shape:
        raise ValueError(
            f"--calibrate {path}: images need one input of 1 or 3 channels, height and width; the inputs are "
            f"{[(spec.name, spec.shape) for spec in inputs]}"
        )
    moments: dict[str, float] = {}
    for label, values in (("mean", options.mean), ("std", options.std)):
        numbers = values * 3 if len(values) == 1 else values
        if len(numbers) != 3:
            raise ValueError(f"--{label} is {values}, expected one number or three")
        moments |= {f"{label}_{channel}": number for channel, number in zip("rgb", numbers, strict=True)}
    height, width = (int(size or 0) for size in shape[1:])
    return io.ImageRecordIter(
        path_imgrec=str(path), data_shape=shape, batch_size=min(_BATCH, options.examples), data_name=image.name,
        label_name=label_names[0] if label_names else "softmax_label",
        resize=round(min(height, width) * 8 / 7), **moments,
    )  # fmt: skip
