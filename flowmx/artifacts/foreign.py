"""Files of other programs that flowmx does not open: what they are, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowmx.artifacts.report import Report, bytes_text

__all__ = ["describe_foreign", "owner_of", "reason_of_pickle"]


class _Kind(NamedTuple):
    """A kind of file.

    Attributes:
        pattern: the first bytes, as a regular expression.
        suffixes: the suffixes of names; empty if the bytes suffice.
        kind: what it is.
        problem: why it is not opened, and what to do.
    """

    pattern: bytes
    suffixes: tuple[str, ...]
    kind: str
    problem: str


_TREES = "decision trees are not run here: load the model with {}, or convert it to ONNX with onnxmltools"
_DETECTED = "convert the original model to ONNX, then inspect the .onnx file"
_CODE = "machine code is not opened here: the model before compilation opens"
_UNPACK = "this compression is not read: unpack the file and inspect the result"

_KINDS = (
    _Kind(rb"version https://git-lfs", (), "a pointer of Git LFS", "the file itself is missing: git lfs pull gets it"),
    _Kind(rb"\s*(<!doctype html|<html)", (), "a web page", "the download failed: get the file itself"),
    _Kind(rb"\x89HDF", (), "an HDF5 file, as Keras writes it",
          "HDF5 is not read: convert the model to ONNX with tf2onnx, then inspect the .onnx file"),
    _Kind(rb"RD[XA][23]\n|X\n\0\0\0[\2\3]", (), "an R data file",
          "R objects are not read: in R, mx.model.save() writes a symbol and parameters"),
    _Kind(rb"HDF5-based Julia Data Format|Julia data file", (), "a Julia data file",
          "HDF5 is not read: in Julia, mx.save_checkpoint() writes a symbol and parameters"),
    _Kind(rb"binf|\{L\0\0\0\0\0\0\0.learner|\{\s*\"learner\"\s*:", (), "a model of XGBoost", _TREES.format("XGBoost")),
    _Kind(rb".{16,256}\0(binary|reg|multi|rank|count):", (), "a model of XGBoost", _TREES.format("XGBoost")),
    _Kind(rb"tree\nversion=", (), "a model of LightGBM", _TREES.format("LightGBM")),
    _Kind(rb"CBM1", (), "a model of CatBoost", _TREES.format("CatBoost")),
    _Kind(rb"\xba\x16\x4f\x2f", (), "word vectors or a classifier of fastText or BlazingText",
          "this model is not run here: load it with fasttext.load_model()"),
    _Kind(rb"\d+ \d+\n\S+( -?\d)", (".txt", ".vec"), "word vectors",
          "vectors are not served: mx.contrib.text.embedding.CustomEmbedding reads them"),
    _Kind(rb"....TFL3", (), "a model of TensorFlow Lite", "convert it to ONNX with tf2onnx"),
    _Kind(rb"", (".pb", ".pbtxt"), "a graph of TensorFlow", "convert it to ONNX with tf2onnx"),
    _Kind(rb"\x80\x02\x8a\nl\xfc\x9cF\xf9", (), "a file that PyTorch before 1.6 wrote",
          "load it with PyTorch and save it again: torch.save(model.state_dict(), ...)"),
    _Kind(rb"\x7fELF|\xcf\xfa\xed\xfe|MZ|!<arch>|\0asm", (), "a program or library", _CODE),
    _Kind(rb"", (".caffemodel", ".prototxt"), "a model of Caffe", _DETECTED),
    _Kind(rb"7767517\n", (), "a network of ncnn", _DETECTED),
    _Kind(rb"", (".pdparams", ".pdmodel", ".pdiparams"), "a model of PaddlePaddle", "convert it with paddle2onnx"),
    _Kind(rb"", (".mlmodel",), "a model of Core ML", _DETECTED),
    _Kind(rb"\s*<\?xml[^>]*>\s*<net |\s*<net ", (), "a network of OpenVINO", _DETECTED),
    _Kind(rb"\[net(work)?\]", (".cfg",), "a network of Darknet", _DETECTED),
    _Kind(rb"", (".engine", ".plan", ".trt"), "a compiled network of TensorRT", _CODE),
    _Kind(rb"MATLAB 5", (), "a MATLAB file", "MATLAB arrays are not read: save them with scipy.io and numpy.savez"),
    _Kind(rb"PAR1|ARROW1|FEA1|Obj\x01", (), "a table (Parquet, Arrow or Avro)",
          "tables are not read: pandas reads it, and numpy.savez saves its arrays"),
    _Kind(rb"7z\xbc\xaf\x27\x1c|Rar!|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18", (), "an archive (7z, RAR, Zstandard or LZ4)",
          _UNPACK),
)  # fmt: skip
"""The kinds of files, the most certain first."""

_COMPILED = tuple(re.compile(kind.pattern, re.IGNORECASE | re.DOTALL) for kind in _KINDS)


def describe_foreign(path: Path, start: bytes) -> Report | None:
    """Return the report of a file of another program, by its first bytes and its name; None for other files."""
    suffix = path.suffix.lower()
    for kind, pattern in zip(_KINDS, _COMPILED, strict=True):
        if (not kind.suffixes or suffix in kind.suffixes) and pattern.match(start):
            return Report(path, kind.kind, {"size": bytes_text(path.stat().st_size)}, problem=kind.problem)
    return None


_OWNERS = {
    "xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost", "sklearn": "scikit-learn",
    "joblib": "scikit-learn", "autogluon": "AutoGluon", "gluonts": "GluonTS", "gluoncv": "GluonCV",
    "gluonnlp": "GluonNLP", "torch": "PyTorch", "tensorflow": "TensorFlow", "keras": "Keras", "jax": "JAX",
    "pandas": "pandas", "sockeye": "Sockeye",
}  # fmt: skip
"""Programs by the modules that their pickles name."""


def owner_of(modules: Sequence[str]) -> str:
    """Return the program whose objects a pickle has; empty if it is not known."""
    return next((_OWNERS[name] for name in _OWNERS if name in modules), "")


def reason_of_pickle(modules: Sequence[str]) -> str:
    """Return why a pickle is not opened, with the program that wrote it, if it is known."""
    owner = owner_of(modules) or "the program that wrote it"
    return f"opening a pickle runs its code: load it with {owner}, and save its arrays with numpy.savez, or export ONNX"
