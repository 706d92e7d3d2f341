"""Record which methods MXNet 1.9.1 calls in the programs of `programs.py`.

    python -m tests.hooks.record

Run it with a Python that has MXNet 1.9.1; it writes `hooks.json` in the folder of fixtures.
"""

import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.hooks.programs import PROGRAMS
from tests.hooks.spying import Spy

PATH = Path(__file__).parent.parent / "fixtures" / "hooks.json"
MODES = {"patched": True, "subclass": False}


def calls(mx: Any, program: str, mode: str, names: Any = None) -> dict[str, list[str]]:
    """Run a program; return the methods that it calls, by class."""
    for seed in (np.random.seed, mx.random.seed, random.seed):
        seed(0)
    spy = Spy(names, MODES[mode])
    try:
        PROGRAMS[program](mx, spy)
    finally:
        spy.close()
    calls_by_program: dict[str, list[str]] = {}
    for key in sorted(spy.counts):
        cls, _, name = key.partition(".")
        calls_by_program.setdefault(cls, []).append(name)
    return calls_by_program


if __name__ == "__main__":
    np.__dict__["bool"] = bool  # what MXNet 1.9.1 expects of NumPy
    mxnet = importlib.import_module("mxnet")
    recorded = {name: {mode: calls(mxnet, name, mode) for mode in MODES} for name in PROGRAMS}
    lines = ",\n".join(f'"{name}": {json.dumps(by_mode, separators=(",", ":"))}' for name, by_mode in recorded.items())
    PATH.write_text(f"{{\n{lines}\n}}\n")
