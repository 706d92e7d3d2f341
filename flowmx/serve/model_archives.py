"""Models with code: archives of Multi Model Server (``.mar``), and folders or archives with a script of SageMaker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flowmx.artifacts.archives import ScratchFolder, unpack
from flowmx.artifacts.scripts import find_script
from flowmx.errors import AdviceError
from flowmx.serve.mms_context import read_manifest

__all__ = ["SUFFIX", "ModelCode", "has_code", "is_archive", "manifest_handler", "manifest_name", "open_code"]

SUFFIX = ".mar"


class ModelCode(NamedTuple):
    """The code of a model.

    Attributes:
        folder: the folder of the model.
        handler: the module or the path of a file in the folder with the code, or the loaded code.
        is_script: whether it is a script of SageMaker.
        scratch: the owner of the folder if it is temporary: the folder exists as long as this object.
    """

    folder: Path
    handler: object
    is_script: bool = False
    scratch: ScratchFolder | None = None


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an archive of Multi Model Server, which may be missing, and not of a folder."""
    return Path(path).suffix == SUFFIX and not Path(path).is_dir()


def has_code(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of a model whose code answers its requests."""
    return is_archive(path) or (Path(path).exists() and find_script(Path(path)) is not None)


def open_code(path: Path, handler: object = None) -> ModelCode:
    """Return the code of a model; an archive is unpacked.

    Args:
        path: its folder or archive.
        handler: the module, file or object with the code (default: as the manifest says, or the script of SageMaker).

    Raises:
        AdviceError: the manifest names no handler.
        DataError: the archive is damaged or hostile.
    """
    is_mms = is_archive(path)
    script = None if handler is not None or is_mms else find_script(path)
    scratch = None if path.is_dir() else unpack(path)
    folder = path if scratch is None else scratch.path
    if handler is None:
        handler = manifest_handler(folder) if script is None else script.path
    if handler is None:
        fault = f"{path} names no handler in MAR-INF/MANIFEST.json" if is_mms else f"{path} has no handler"
        raise AdviceError(fault, "pass handler='MODULE:NAME'", "pass --handler MODULE:NAME")
    return ModelCode(folder, handler, script is not None, scratch)


def manifest_handler(folder: Path) -> str | None:
    """Return the handler that a folder's manifest names, if it has a manifest."""
    model = (read_manifest(folder) or {}).get("model")
    handler = model.get("handler") if isinstance(model, Mapping) else None
    return handler if isinstance(handler, str) else None


def manifest_name(folder: Path) -> str | None:
    """Return the name of the model in a folder's manifest, if it has one."""
    model = (read_manifest(folder) or {}).get("model")
    name = model.get("modelName") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) and name else None
