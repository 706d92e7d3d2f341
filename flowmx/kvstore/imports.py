"""User modules that servers import: they define optimizers and schedules, which are sent by name."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowmx import settings
from flowmx.errors import KVStoreError

__all__ = ["VARIABLE", "add_argument", "advice", "import_all", "with_imports"]

VARIABLE = settings.TABLE["kvstore_import"].variable
"""The variable that names the modules."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--import``."""
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], metavar="MODULE",
        help=f"module with custom optimizers and schedules, which servers import; may be repeated ({VARIABLE})",
    )  # fmt: skip


def with_imports(environ: Mapping[str, str], imports: Iterable[str]) -> dict[str, str]:
    """Return an environment in which servers import some modules, in addition to those that it already names."""
    modules = [*environ.get(VARIABLE, "").split(","), *imports]
    return {**environ} | ({VARIABLE: ",".join(filter(None, modules))} if any(modules) else {})


def import_all(imports: Iterable[str] = ()) -> None:
    """Import the modules that the setting names, and `imports`; the working folder is searched first.

    Raises:
        KVStoreError: a module does not exist, or fails.
    """
    names = [name.strip() for name in [*settings.get().kvstore_import.split(","), *imports]]
    folder = str(Path.cwd())
    if any(names) and folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    for name in filter(None, names):
        try:
            importlib.import_module(name)
        except Exception as error:  # user code runs during the import
            raise KVStoreError(
                f"--import {name}: the module cannot be imported ({type(error).__name__}: {error}): expected one in "
                f"{folder}, or on PYTHONPATH"
            ) from error


def advice(optimizer: Any) -> str:
    """Return advice for an optimizer or schedule whose class servers cannot import; empty for classes of flowmx."""
    for instance in (optimizer, optimizer.lr_scheduler):
        module, name = type(instance).__module__, type(instance).__qualname__
        if instance is None or module.partition(".")[0] in ("flowmx", "mxnet"):
            continue
        if module == "__main__":
            return (
                f"{name} is defined in the program, which servers do not run: move it to a module, such as "
                "schedules.py, import that in the program, and launch with `--import schedules` "
                f"(python -m flowmx launch --import schedules ..., or {VARIABLE}=schedules for the servers)"
            )
        return (
            f"{name} is defined in {module}, which the servers have not imported: launch with `--import {module}` "
            f"(python -m flowmx launch --import {module} ..., or {VARIABLE}={module} for the servers)"
        )
    return ""
