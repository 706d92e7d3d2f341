"""Predictors of model folders and files, with the hooks, the handler and the images that the user asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowmx.artifacts.archives import unpack
from flowmx.errors import AdviceError
from flowmx.serve.handlers import load_handler
from flowmx.serve.images import ImageTransform
from flowmx.serve.mms import Handler, archive_handler, manifest_handler, manifest_name
from flowmx.serve.model_archives import SUFFIX, is_archive
from flowmx.serve.predictor import Predictor

__all__ = ["create_predictor"]

_OF_MODELS = ("shape", "dtype", "epoch", "sizes", "lengths", "finite", "image", "states", "sessions", "constants")
"""Options that handlers have no use for."""
_DEFAULT_NAME = "model"
_MODEL_FILES = ("*-symbol.json", "*.onnx", "config.json")


def create_predictor(
    path: Path, handler: str | None = None, image: ImageTransform | bool | None = None, **options: Any
) -> Predictor:
    """Return the predictor of a model, or of a handler of Multi Model Server.

    Args:
        path: the folder or file of the model; a ``.mar`` file, or the only one of a folder, is unpacked into a
            temporary folder.
        handler: a module or file with hooks or a handler; see :func:`load_handler`.
        image: the options of the image transform; True for none.
        **options: arguments of :class:`Predictor`. Without a name, an archive has that of its manifest or file.

    Raises:
        AdviceError: the folder is an archive of Multi Model Server, and its handler was not named; or options of models
            are given for a handler.
        Exception: the model or the handler cannot be loaded.
    """
    path = _only_archive(path) or path
    archive = unpack(path) if is_archive(path) else None
    folder = path if path.is_dir() else path.parent
    if archive is not None:
        folder, handler = archive.path, handler or archive_handler(path, archive.path)
    hooks = None if handler is None else load_handler(handler, folder)
    if isinstance(hooks, Handler):
        hooks.archive = archive
        if archive is not None:
            options["name"] = options.get("name") or manifest_name(folder) or path.stem
        extra = [name for name in _OF_MODELS if {**options, "image": image}.get(name)]
        if extra:
            raise AdviceError(
                f"{handler} is a handler of Multi Model Server, which reads bodies and loads its model itself",
                f"leave out {', '.join(extra)}", "leave out " + ", ".join(f"--{name}" for name in extra),
            )  # fmt: skip
        options = {name: value for name, value in options.items() if name not in _OF_MODELS}
        options["name"] = options.get("name") or _DEFAULT_NAME
        return Predictor(hooks, **options)
    if hooks is None and path.is_dir() and (named := manifest_handler(path)):
        raise AdviceError(
            f"{path} is a model archive of Multi Model Server, whose code is the handler {named!r}",
            f"pass handler={named!r} to run it", f"pass --handler {named} to run it",
        )  # fmt: skip
    options["name"] = options.get("name") or _DEFAULT_NAME
    decode, encode = (None, None) if hooks is None else (hooks.decode, hooks.encode)
    return Predictor(path, decode=decode, encode=encode, image=image, **options)


def _only_archive(path: Path) -> Path | None:
    """Return the model archive in a folder, or None if it has none.

    Raises:
        ValueError: it has several, or also a model of another format.
    """
    archives = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else []
    models = [*archives, *(file for pattern in _MODEL_FILES for file in sorted(path.glob(pattern)))] if archives else []
    if len(models) > 1:
        raise ValueError(f"{path} must hold one model, found {', '.join(model.name for model in models)}")
    return archives[0] if archives else None
