"""File formats by suffix, and checks of suffixes that belong to other formats."""

from __future__ import annotations

import os
from pathlib import PurePath

from flowmx.errors import DataError

__all__ = ["ARRAY_SUFFIXES", "check_states_suffix", "check_suffix", "format_by_suffix"]

ARRAY_SUFFIXES = {
    ".safetensors": "safetensors",
    ".npz": "npz",
    ".npy": "npy",
    ".pt": "torch",
    ".pth": "torch",
}
"""The array format of a suffix. All other suffixes that are not foreign mean MXNet's format."""
_USE_SAFETENSORS = "write a .safetensors file, which other frameworks read"
_EXPORT = "use mx.onnx.export_model"
_FOREIGN = {
    ".h5": _USE_SAFETENSORS,
    ".hdf5": _USE_SAFETENSORS,
    ".keras": _USE_SAFETENSORS,
    ".onnx": _EXPORT,
    ".json": "a symbol's graph is JSON (Symbol.save, export); write arrays to a .params file",
    ".safetensor": "the suffix is .safetensors",
    ".pkl": "flowmx does not pickle arrays; write a .params file",
    ".pickle": "flowmx does not pickle arrays; write a .params file",
    ".ckpt": _USE_SAFETENSORS,
    ".tflite": _EXPORT + ", and convert that",
    ".pb": _EXPORT + ", and convert that",
    ".gguf": "flowmx.serialization.gguf.save writes tensors with metadata",
    ".mat": "write an .npz file, which numpy.load reads",
}
"""Suffixes of formats that are not written, and the advice for each."""


def _suffix(path: str | os.PathLike[str]) -> str:
    return PurePath(os.fspath(path)).suffix.lower()


def format_by_suffix(path: str | os.PathLike[str]) -> str:
    """Return the format of an array file by its suffix; ``params`` (MXNet's) by default.

    Raises:
        DataError: the suffix belongs to an unsupported format.
    """
    suffix = _suffix(path)
    if suffix in _FOREIGN:
        raise DataError(f"save: {os.fspath(path)!r} has the suffix of another format: {_FOREIGN[suffix]}")
    return ARRAY_SUFFIXES.get(suffix, "params")


def check_suffix(path: str | os.PathLike[str], content: str, advice: str, allowed: tuple[str, ...] = ()) -> None:
    """Check the suffix of a file that does not contain arrays.

    Args:
        path: the file.
        content: the kind of content, for the message.
        advice: a suitable name, for the message.
        allowed: suffixes of other formats that are allowed.

    Raises:
        DataError: the suffix belongs to a different format.
    """
    suffix = _suffix(path)
    if suffix not in allowed and (suffix in _FOREIGN or suffix in ARRAY_SUFFIXES):
        onnx = f"; to convert a network, {_EXPORT}" if suffix == ".onnx" else ""
        raise DataError(f"{os.fspath(path)!r} has a suffix that is not for {content}: {advice}{onnx}")


def check_states_suffix(path: str | os.PathLike[str]) -> None:
    """Check the name of a file of optimizer states, as :func:`check_suffix`."""
    check_suffix(path, "optimizer states", "name it 'net.states', for example")
