"""Artifacts made ready to load: archives are unpacked, and checkpoints get the names that MXNet gives them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from flowmx.artifacts import sagemaker
from flowmx.artifacts.archives import ScratchFolder, holds_arrays, is_archive, unpack
from flowmx.artifacts.checkpoints import (
    Checkpoint,
    arrays_of,
    checkpoint_of,
    find_checkpoints,
    find_symbols,
    parameters_of,
)
from flowmx.artifacts.input_shapes import Shape, concluded_shapes
from flowmx.serialization import formats

__all__ = ["OpenedArtifact", "open_artifact", "shapes_at"]

_MAX_DEPTH = 3
_HANDLER_SUFFIX = ".mar"
"""The suffix of archives with code, which their handler opens."""
_DECLARATIONS = ("model-shapes.json", "signature.json", "hyperparams.json")


class OpenedArtifact(NamedTuple):
    """An artifact that can be loaded.

    Attributes:
        path: the file or folder to load.
        scratch: the temporary folders with it, which exist as long as these objects.
    """

    path: Path
    scratch: tuple[ScratchFolder, ...] = ()


def open_artifact(path: Path, with_code: bool = False) -> OpenedArtifact:
    """Return a path that can be loaded as a model: a file, a folder, or the prefix of a checkpoint.

    An archive (``model.tar.gz``) is unpacked, also inside another one. A checkpoint whose files have other names than
    MXNet's (``symbol.json`` and ``params``) is linked under MXNet's names. A model of SageMaker that consists of arrays
    becomes a checkpoint. Other paths are returned unchanged.

    Args:
        path: the path.
        with_code: whether to unpack ``.mar`` files too. Their handler, which is code, is not run.

    Raises:
        DataError: an archive is damaged or hostile.
        OSError: a file cannot be read, or the disk is full.
    """
    scratch: list[ScratchFolder] = []
    for _ in range(_MAX_DEPTH):
        archive = _archive_at(path, with_code)
        if archive is None:
            break
        scratch.append(unpack(archive))
        path = _innermost(scratch[-1].path)
    model = _model_of_arrays(path)
    if model is not None and model.symbol is not None:
        scratch.append(ScratchFolder())
        path = scratch[-1].path
        sagemaker.write_checkpoint(model, path)
    checkpoints = find_checkpoints(path) if path.is_dir() else []
    if len(checkpoints) == 1 and checkpoints[0].params is not None and not _has_usual_names(checkpoints[0]):
        scratch.append(ScratchFolder())
        path = _link(checkpoints[0], scratch[-1].path)
    return OpenedArtifact(path, tuple(scratch))


def _archive_at(path: Path, with_code: bool) -> Path | None:
    """Return the archive that a path is, or that is the only model in a folder, or None."""
    if path.is_file():
        return path if _is_opened(path, with_code) else None
    if not path.is_dir() or find_checkpoints(path) or any(path.glob("*.onnx")):
        return None
    files = [file for file in path.iterdir() if _is_opened(file, with_code)]
    names = [file for file in files if sagemaker.is_model_file(file)]  # each machine of a training wrote one
    files = names or files
    return files[0] if len(files) == 1 else None


def _model_of_arrays(path: Path) -> sagemaker.ArrayModel | None:
    """Return the model of SageMaker that a file is, or the file of that name in a folder without a checkpoint."""
    if not path.is_dir():
        return sagemaker.read_model(path)
    files = [] if find_checkpoints(path) else [file for file in path.iterdir() if sagemaker.is_model_file(file)]
    return sagemaker.read_model(files[0]) if len(files) == 1 else None


def _is_opened(path: Path, with_code: bool) -> bool:
    return (with_code or path.suffix != _HANDLER_SUFFIX) and is_archive(path) and not holds_arrays(path)


def _innermost(folder: Path) -> Path:
    """Return the first folder that has more in it than one folder, or the only file if that has arrays."""
    while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
        folder = entries[0]
    files = [file for file in entries if file.is_file()]
    return files[0] if len(files) == 1 and formats.is_array_file(files[0]) else folder


def _has_usual_names(checkpoint: Checkpoint) -> bool:
    prefix, params = checkpoint.prefix, checkpoint.params
    if prefix is None or params is None or not params.name.startswith(f"{prefix.name}-"):
        return False
    epoch = params.name.removeprefix(f"{prefix.name}-").removesuffix(".params")
    return params.suffix == ".params" and len(epoch) == 4 and epoch.isdecimal()


def _link(checkpoint: Checkpoint, folder: Path) -> Path:
    """Link the files of a checkpoint in a folder under MXNet's names; return the folder."""
    assert checkpoint.params is not None
    name = "model" if checkpoint.prefix is None else checkpoint.prefix.name
    files = {f"{name}-symbol.json": checkpoint.symbol, f"{name}-0000.params": checkpoint.params}
    files |= {declaration: checkpoint.symbol.with_name(declaration) for declaration in _DECLARATIONS}
    for target, source in files.items():
        if source.exists():
            try:
                (folder / target).symlink_to(source.resolve())
            except OSError:  # Windows lets only some users make links
                shutil.copyfile(source, folder / target)
    return folder


def shapes_at(path: Path) -> dict[str, Shape] | None:
    """Return the shapes of a sample of the checkpoint at a path; None if they do not follow from its files.

    Args:
        path: its prefix, its symbol's file, or a folder with only this one.
    """
    prefixed = path.with_name(f"{path.name}-symbol.json")
    files = find_symbols(path) if path.is_dir() else [file for file in (prefixed, path) if file.is_file()]
    if len(files) != 1 or not files[0].name.endswith(".json"):
        return None
    checkpoint = checkpoint_of(files[0])
    if checkpoint.params is None:
        return None
    return concluded_shapes(checkpoint.symbol, parameters_of(arrays_of(checkpoint.params)))
