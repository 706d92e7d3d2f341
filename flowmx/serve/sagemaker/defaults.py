"""The functions that SageMaker's MXNet container uses instead of those that a script leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.gluon import Block
from flowmx.io import NDArrayIter
from flowmx.model import load_checkpoint
from flowmx.module import Module
from flowmx.module.base_module import BaseModule
from flowmx.serve.formats import NPY
from flowmx.serve.replies import JSON_TYPE
from flowmx.serve.sagemaker.formats import CSV, decode, encode

__all__ = ["Defaults", "ModuleDefaults", "defaults_for", "model_fn"]

_PREFIX = "model"
_FILES = (f"{_PREFIX}-symbol.json", f"{_PREFIX}-0000.params", f"{_PREFIX}-shapes.json")


def model_fn(model_dir: str) -> Module:
    """Load the checkpoint ``model`` of the folder as a module.

    Raises:
        FileNotFoundError: a file is missing.
    """
    folder = Path(model_dir)
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)} is missing, which SageMaker's default model_fn reads: define model_fn(model_dir) in "
            "the script"
        )
    inputs = json.loads((folder / _FILES[-1]).read_text())
    shapes = [(row["name"], (1, *row["shape"][1:])) for row in inputs]
    symbol, arguments, auxiliary = load_checkpoint(str(folder / _PREFIX), 0)
    module = Module(symbol, data_names=[name for name, _ in shapes], label_names=None, context=cpu())
    module.bind(for_training=False, data_shapes=shapes)
    module.set_params(arguments, auxiliary, allow_missing=True)
    return module


class Defaults:
    """The functions for a Gluon block, and for models that predict_fn of the script computes."""

    types: tuple[str, ...] = (JSON_TYPE, NPY.type)
    """The supported media types."""

    def input_fn(self, data: str | bytes, content_type: str) -> Any:
        """Return the array in a body."""
        return nd.array(decode(data, content_type, self.types))

    def predict_fn(self, data: Any, model: Any) -> Any:
        """Call the block."""
        return model(data)

    def output_fn(self, prediction: Any, accept: str) -> Any:
        """Return the body with a prediction, and its media type."""
        return encode(prediction.asnumpy().tolist(), accept, self.types)


class ModuleDefaults(Defaults):
    """The functions for a module, whose input_fn also gets the module."""

    types = (JSON_TYPE, CSV, NPY.type)

    def input_fn(self, data: str | bytes, content_type: str, model: Any = None) -> Any:
        """Return an iterator over the array in a body, in batches of the module."""
        ((_, shape),) = model.data_shapes
        array = super().input_fn(data, content_type)
        if content_type == CSV:
            array = array.reshape((-1, *shape[1:]))
        return NDArrayIter(array, batch_size=shape[0], last_batch_handle="pad")

    def predict_fn(self, data: Any, model: Any) -> Any:
        """Predict for the batches."""
        return model.predict(data)


def defaults_for(model: object, needs_predict: bool) -> Defaults:
    """Return the functions for a model.

    Args:
        model: what model_fn returned.
        needs_predict: whether the script has no predict_fn.

    Raises:
        TypeError: it has none, and the model is neither a module nor a block.
    """
    if isinstance(model, BaseModule):
        return ModuleDefaults()
    if needs_predict and not isinstance(model, Block):
        raise TypeError(
            f"model_fn returned a {type(model).__name__}, expected a Module or a Gluon block: define predict_fn or "
            "transform_fn in the script for other models"
        )
    return Defaults()
