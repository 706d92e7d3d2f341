"""The predictions of a model as a program for :func:`mx.plan.run`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.artifacts.opening import open_artifact, shapes_at
from flowmx.devices import gpu
from flowmx.serve.compiled_model import Model
from flowmx.serve.inputs import Inputs
from flowmx.serve.model_loading import load
from flowmx.tools.plan.recorder import on_prediction

__all__ = ["predictions"]

_LENGTH = 128
"""The length of an axis of variable length."""


def predictions(path: Path, shape: Any, batch: int, steps: int) -> Callable[[], None]:
    """Return a program that loads a model and computes batches of zeros on the first GPU.

    Args:
        path: the model, in any form that ``flowmx serve`` accepts.
        shape: the shape of a sample, a dict of shapes by input, or None if the model declares it.
        batch: the batch size.
        steps: the number of batches.

    Raises:
        ValueError: the batch size is less than 1.
    """
    if batch < 1:
        raise ValueError(f"plan: the batch size is {batch}, expected at least 1")

    def program() -> None:
        artifact = open_artifact(path)
        source = load(artifact.path, shape or shapes_at(artifact.path))
        source.block.collect_params().reset_ctx(gpu(0))
        model = Model(source, Inputs(source.inputs), gpu(0), 1)
        arrays = [
            np.zeros((batch, *(_LENGTH if size is None else size for size in spec.shape)), spec.dtype)
            for spec in source.inputs
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*simulated without numerics")
            for _ in range(steps):
                model.run(arrays)
                for notify in [*on_prediction]:
                    notify()

    return program
