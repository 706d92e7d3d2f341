"""Suggestions for unknown names: the most similar name, or the equivalent of another library's name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["EQUIVALENTS", "did_you_mean", "nearest", "note_similar_files"]

EQUIVALENTS = {
    "avgpool2d": "Pooling",
    "batchnorm1d": "BatchNorm",
    "batchnorm2d": "BatchNorm",
    "conv1d": "Convolution",
    "conv2d": "Convolution",
    "conv3d": "Convolution",
    "convtranspose2d": "Deconvolution",
    "dense": "FullyConnected",
    "linear": "FullyConnected",
    "matmul": "dot",
    "maxpool2d": "Pooling",
    "cat": "concat",
    "permute": "transpose",
    "view": "reshape",
}
"""Operator names of other libraries in lower case, and the equivalent operators."""


def nearest(
    name: str, names: Iterable[str], equivalents: Mapping[str, str] | None = None, cutoff: float = 0.6
) -> str | None:
    """Return the name that was probably meant, if any.

    The same name in another case has precedence, then the equivalent of another library's name, then the most similar
    name.

    Args:
        name: the unknown name.
        names: the existing names.
        equivalents: equivalents of names of other libraries, by their names in lower case.
        cutoff: the minimum similarity, from 0 to 1.

    Example:
        >>> nearest("convolution", ["Convolution", "Deconvolution"])
        'Convolution'
    """
    from difflib import get_close_matches  # here, because the import is slow

    spelled: dict[str, list[str]] = {}
    for candidate in names:
        spelled.setdefault(candidate.lower(), []).append(candidate)
    key = name.lower()
    if key not in spelled:
        other = equivalents.get(key, "").lower() if equivalents else ""
        similar = [other] if other in spelled else get_close_matches(key, spelled, n=1, cutoff=cutoff)
        if not similar:
            return None
        key = similar[0]
    return get_close_matches(name, spelled[key], n=1, cutoff=0)[0]


def did_you_mean(name: str, names: Iterable[str], equivalents: Mapping[str, str] | None = None) -> str:
    """Return the end of a message, ``"; did you mean 'sgd'?"``, or "" if no name is similar; see :func:`nearest`."""
    suggestion = nearest(name, names, equivalents)
    return f"; did you mean {suggestion!r}?" if suggestion is not None else ""


_EPOCH = re.compile(r"(.+-)\d{4}\.params")
"""The name of a checkpoint's parameter file."""
_MAX_SHOWN = 5


def note_similar_files(error: FileNotFoundError) -> None:
    """Add a note to an error: the other epochs of a missing checkpoint, or the file with the most similar name."""
    path = Path(os.fsdecode(error.filename or ""))
    try:
        names = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        error.add_note(f"flowmx: there is no folder {str(path.parent)!r}; the working folder is {str(Path.cwd())!r}")
        return
    match = _EPOCH.fullmatch(path.name)
    similar = [name for name in names if match and re.fullmatch(rf"{re.escape(match[1])}\d{{4}}\.params", name)]
    if not similar:
        similar = [name for name in [nearest(path.name, names)] if name is not None]
    if similar:
        omitted = f"{similar[0]}, ..., " if len(similar) > _MAX_SHOWN else ""
        error.add_note(f"flowmx: the folder has {omitted}{', '.join(similar[-_MAX_SHOWN:])}")
