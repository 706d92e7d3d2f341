"""``flowmx run``: a program written for MXNet, on flowmx."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flowmx import compat
from flowmx.compat.package import install_as_mxnet
from flowmx.tools import script, usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run a script or a module in whose process ``import mxnet`` gives flowmx; returns its exit status."""
    given = list(argv)
    own = given[:2] if given[:1] == ["-m"] else [each for each in given[:1] if each.startswith("-")]
    parser = usage.parser(
        "run",
        "Run a script or a module as Python would, where `import mxnet` is flowmx: in its process, and in those that "
        "it starts with Python.",
        ["train.py --epochs 3", "-m package.train --epochs 3"],
        {1: "it failed; the program's own status, if it has one"},
        "flowmx run SCRIPT [arguments]\n       flowmx run -m MODULE [arguments]",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    module: str | None = parser.parse_args(own).module
    program = given[len(own) :]
    if module is None and not program:
        parser.error("give a SCRIPT, or -m and a MODULE")
    install_as_mxnet()
    _tell_children()
    try:
        if module is None:
            script.run(program)
        else:
            script.run_module(module, program)
    except script.Ended as ended:
        return ended.status
    return usage.FINE


def _tell_children() -> None:
    """Have processes that the program starts find a package ``mxnet`` that is flowmx."""
    folder = str(Path(compat.__file__).parent / "shim")
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if not known else f"{folder}{os.pathsep}{known}"
