"""Scripts of SageMaker's MXNet containers: ``code/inference.py`` in a model's folder or archive. They are only read."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NamedTuple

from flowmx.artifacts.archives import holds_arrays, is_archive, texts

__all__ = ["FUNCTIONS", "Script", "find_script"]

FUNCTIONS = ("model_fn", "transform_fn", "input_fn", "predict_fn", "output_fn", "pre_model_fn", "model_warmup_fn")
"""The functions that SageMaker calls in a script."""
_FOLDER = "code"
_DEFAULT = "inference.py"
_PROGRAM = "SAGEMAKER_PROGRAM"
"""The environment variable with the name of the script, as in SageMaker's containers."""
_REQUIREMENTS = "requirements.txt"


class Script(NamedTuple):
    """A script of a model.

    Attributes:
        path: its path in the folder or archive.
        functions: those of SageMaker's functions that it defines.
        requirements: the packages that it needs.
    """

    path: str
    functions: tuple[str, ...]
    requirements: tuple[str, ...] = ()


def find_script(path: Path) -> Script | None:
    """Return the script of a model: the one that ``SAGEMAKER_PROGRAM`` names, ``inference.py``, or the only one.

    Args:
        path: a folder or archive.

    Raises:
        DataError: the archive is damaged or hostile.
    """
    files = _files(path)
    functions = {name: _functions(text) for name, text in files.items() if name.endswith(".py")}
    defining = [name for name, names in functions.items() if names]
    wanted = os.environ.get(_PROGRAM, _DEFAULT)
    name = next((name for name in (wanted, f"{wanted}.py", _DEFAULT) if name in functions), None)
    if name is None and len(defining) == 1:
        name = defining[0]
    if name is None:
        return None
    lines = [line.partition("#")[0].strip() for line in files.get(_REQUIREMENTS, "").splitlines()]
    return Script(f"{_FOLDER}/{name}", functions[name], tuple(line for line in lines if line))


def _files(path: Path) -> Mapping[str, str]:
    """Return the texts of the files in the folder of code, by name."""
    if path.is_dir():
        files = [file for file in (path / _FOLDER).glob("*") if _is_read(file) and file.is_file()]
        return {file.name: file.read_text("utf-8", "replace") for file in files}
    if not is_archive(path) or holds_arrays(path):
        return {}
    inside = texts(path, lambda name: name.parent.name == _FOLDER and len(name.parts) == 2 and _is_read(name))
    return {Path(name).name: text for name, text in inside.items()}


def _is_read(path: PurePath) -> bool:
    return path.suffix == ".py" or path.name == _REQUIREMENTS


def _functions(text: str) -> tuple[str, ...]:
    """Return the names of SageMaker's functions that a script defines or imports; none if it is not valid Python."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = {statement.name for statement in statements if isinstance(statement, ast.FunctionDef)}
    for statement in statements:
        if isinstance(statement, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in statement.names}
    return tuple(name for name in FUNCTIONS if name in names)
