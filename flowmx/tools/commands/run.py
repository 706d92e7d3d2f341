"""``flowmx run``: runs a program written for MXNet on flowmx."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flowmx import compat
from flowmx.compat.package import install_as_mxnet
from flowmx.tools import script, usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run a script or a module with ``import mxnet`` importing flowmx; return its exit status."""
    words = list(argv)
    options = words[:2] if words[:1] == ["-m"] else [word for word in words[:1] if word.startswith("-")]
    parser = usage.parser(
        "run",
        "Run a script or a module as Python does, with `import mxnet` importing flowmx, also in the Python processes "
        "that it starts. A program that imports flowmx needs no command. `flowmx train` runs a script with settings, "
        "or trains a model without a script; `flowmx launch` runs a program as a distributed job.",
        ["train.py --epochs 3", "-m package.train --epochs 3"],
        {1: "failure, or the exit status of the program"},
        "flowmx run SCRIPT [arguments]\n       flowmx run -m MODULE [arguments]",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    module: str | None = parser.parse_args(options).module
    program = words[len(options) :]
    if module is None and not program:
        parser.error("expected a SCRIPT, or -m MODULE")
    install_as_mxnet()
    _prepare_children()
    try:
        if module is None:
            script.run(program)
        else:
            script.run_module(module, program)
    except script.ScriptExit as error:
        return error.status
    return usage.SUCCESS


def _prepare_children() -> None:
    """Make ``mxnet`` an alias of flowmx in the processes that the program starts."""
    folder = str(Path(compat.__file__).parent / "shim")
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if not path else f"{folder}{os.pathsep}{path}"
