"""Models of SageMaker's built-in algorithms that are files of arrays, as symbols with SageMaker's outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flowmx import symbol as sym
from flowmx.errors import MXNetError
from flowmx.serialization import formats, params
from flowmx.symbol import Symbol

__all__ = ["ArrayModel", "is_model_file", "read_model", "write_checkpoint"]

_NAME = "model_algo-1"
"""The name that SageMaker gives the file of a model."""
_PCA = {"mean", "v", "s"}


class ArrayModel(NamedTuple):
    """A model that consists of arrays.

    Attributes:
        algorithm: the name of the algorithm.
        facts: its properties by name.
        symbol: the computation; None if it is not public.
        arrays: the parameters of the symbol.
        features: the number of features of a sample.
    """

    algorithm: str
    facts: dict[str, str]
    symbol: Symbol | None
    arrays: Mapping[str, Any]
    features: int


def is_model_file(path: Path) -> bool:
    """Return whether a file has SageMaker's name for the file of a model."""
    return path.name.partition(".")[0] == _NAME


def read_model(path: Path) -> ArrayModel | None:
    """Return the model in a file of arrays; None for other files."""
    if not path.is_file() or not is_model_file(path):
        return None
    try:
        arrays = formats.load(path)
    except (MXNetError, ValueError):
        return None
    if isinstance(arrays, Mapping):
        return _pca(arrays) if arrays.keys() == _PCA and arrays["v"].ndim == 2 else None
    if [array.ndim for array in arrays] == [2]:
        return _k_means(arrays[0])
    if [array.ndim for array in arrays] == [1, 2]:
        topics, words = arrays[1].shape
        return ArrayModel("LDA", {"topics": str(topics), "words": str(words)}, None, {}, words)
    return None


def _k_means(centers: Any) -> ArrayModel:
    """Return the model that finds the nearest of some centers."""
    clusters, features = centers.shape
    samples, rows = sym.expand_dims(sym.var("data"), axis=1), sym.expand_dims(sym.var("centers"), axis=0)
    distances = sym.sqrt(sym.sum(sym.square(sym.broadcast_sub(samples, rows)), axis=2))
    outputs = sym.Group([
        sym.argmin(distances, axis=1, name="closest_cluster"), sym.min(distances, axis=1, name="distance_to_cluster"),
    ])  # fmt: skip
    return ArrayModel(
        "k-means", {"clusters": str(clusters), "features": str(features)}, outputs, {"centers": centers}, features
    )


def _pca(arrays: Mapping[str, Any]) -> ArrayModel:
    """Return the model that projects a sample on the principal components."""
    features, components = arrays["v"].shape
    centered = sym.broadcast_sub(sym.var("data"), sym.var("mean"))
    parameters = {"mean": arrays["mean"].reshape(1, -1), "v": arrays["v"]}
    return ArrayModel(
        "PCA", {"components": str(components), "features": str(features)},
        sym.dot(centered, sym.var("v"), name="projection"), parameters, features,
    )  # fmt: skip


def write_checkpoint(model: ArrayModel, folder: Path) -> None:
    """Write a model as a checkpoint of MXNet, with the shape of its input."""
    assert model.symbol is not None
    (folder / "model-symbol.json").write_text(model.symbol.tojson())
    params.save(folder / "model-0000.params", {f"arg:{name}": array for name, array in model.arrays.items()})
    (folder / "model-shapes.json").write_text(json.dumps([{"name": "data", "shape": [1, model.features]}]))
