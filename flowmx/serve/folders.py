"""Predictors of model folders and files, with the hooks, the handler and the images that the user asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowmx.errors import AdviceError
from flowmx.serve.handlers import load_handler
from flowmx.serve.hooks import Hooks
from flowmx.serve.images import ImageTransform
from flowmx.serve.mms import Handler
from flowmx.serve.model_archives import (
    SUFFIX,
    ModelCode,
    has_code,
    is_archive,
    manifest_handler,
    manifest_name,
    open_code,
)  # fmt: skip
from flowmx.serve.predictor import Predictor

__all__ = ["create_predictor"]

_OF_MODELS = ("shape", "dtype", "epoch", "sizes", "lengths", "finite", "image", "states", "sessions", "constants")
"""Options that handlers have no use for."""
_DEFAULT_NAME = "model"
_MODEL_FILES = ("*-symbol.json", "*.onnx", "config.json")


def create_predictor(
    path: Path, handler: str | None = None, image: ImageTransform | bool | None = None, **options: Any
) -> Predictor:
    """Return the predictor of a model, or of its code: a handler of Multi Model Server, or a script of SageMaker.

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
    code = open_code(path, handler) if has_code(path) and (handler is None or path.is_file()) else None
    hooks = _load_code(path, handler, code)
    name = options.pop("name", None) or (None if code is None or code.is_script else manifest_name(code.folder))
    options["name"] = name or (path.stem if is_archive(path) else _DEFAULT_NAME)
    if isinstance(hooks, Handler):
        _check_options(hooks, {**options, "image": image})
        return Predictor(hooks, **{name: value for name, value in options.items() if name not in _OF_MODELS})
    if hooks is None and path.is_dir() and (named := manifest_handler(path)):
        raise AdviceError(
            f"{path} is a model archive of Multi Model Server, whose code is the handler {named!r}",
            f"pass handler={named!r} to run it", f"pass --handler {named} to run it",
        )  # fmt: skip
    decode, encode = (None, None) if hooks is None else (hooks.decode, hooks.encode)
    return Predictor(path, decode=decode, encode=encode, image=image, **options)


def _load_code(path: Path, handler: str | None, code: ModelCode | None) -> Handler | Hooks | None:
    """Return the handler or the hooks that were named, or the code of a model; None if there is neither."""
    if handler is None:
        return None if code is None else Handler(code)
    folder = code.folder if code is not None else path if path.is_dir() else path.parent
    hooks = load_handler(handler, folder)
    if isinstance(hooks, Handler) and code is not None:
        hooks.scratch = code.scratch
    return hooks


def _check_options(handler: Handler, options: Mapping[str, Any]) -> None:
    """Raise AdviceError if there are options that a handler has no use for."""
    extra = [name for name in _OF_MODELS if options.get(name)]
    if extra:
        raise AdviceError(
            f"the model is its code, {handler.name}, which reads bodies and loads its model itself",
            f"leave out {', '.join(extra)}, or name the model's files without their code",
            "leave out " + ", ".join(f"--{name}" for name in extra) + ", or name the model's files without their code",
        )


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
