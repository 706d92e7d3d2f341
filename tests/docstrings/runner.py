"""Run the examples of docstrings on one system: ``python runner.py [flowmx|mxnet]``.

Docstrings come as lines of JSON on the standard input; for each a line goes back, with what its examples printed or
raised. Output written directly to the file descriptors goes to standard error.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
from typing import Any

SHOWN = {"NDArray", "ndarray", "CSRNDArray", "RowSparseNDArray", "Symbol", "_Symbol"}
"""The types of values that are shown when a variable is assigned."""
SECONDS = 20
"""The most for an example."""


def prepare(system: str) -> None:
    """Make MXNet importable."""
    if system == "flowmx":
        import flowmx

        flowmx.install_as_mxnet()


_PRINTED: dict[str, Any] = {}
"""NumPy's options of printing, which examples change."""


def names(of_numpy: bool) -> dict[str, Any]:
    """The names that examples take for granted."""
    import mxnet as mx
    import numpy

    variables = {
        "mx": mx, "mxnet": mx, "nd": mx.nd, "sym": mx.sym, "gluon": mx.gluon, "nn": mx.gluon.nn,
        "autograd": mx.autograd, "npx": mx.npx, "np": mx.np if of_numpy else numpy, "numpy": numpy, "_np": numpy,
    }  # fmt: skip
    return {"__name__": "__main__", **variables}


def run(docstring: dict[str, Any]) -> list[list[str]]:
    """For each example ``["printed", text]`` or ``["raised", the exception's types, its message]``.

    They are run twice, since calls of a known form take other ways than first ones; the second outcome counts.
    """
    once(docstring)
    return once(docstring)


def once(docstring: dict[str, Any]) -> list[list[str]]:
    """Run all examples of a docstring."""
    import mxnet as mx
    import numpy as np

    (mx.npx.set_np if docstring["of_numpy"] else mx.npx.reset_np)()
    mx.random.seed(0)
    np.random.seed(0)
    random.seed(0)
    space = names(docstring["of_numpy"])
    np.set_printoptions(**_PRINTED)
    return [example(line, space) for line in docstring["lines"]]


def example(line: str, space: dict[str, Any]) -> list[str]:
    """The outcome of an example."""
    printed = io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(line.rstrip() + "\n", "<example>", "single"), space)  # what the documentation's readers run
            for name in bound(line):
                show(name, space.get(name))
        return ["printed", printed.getvalue()]
    except BaseException as error:
        types = [each.__name__ for each in type(error).__mro__ if each is not object]
        with contextlib.suppress(Exception):
            return ["raised", " ".join(types), str(error)[:400]]
        return ["raised", " ".join(types), ""]
    finally:
        signal.alarm(0)


def bound(line: str) -> list[str]:
    """The variables that an example assigns to."""
    targets = [
        target
        for each in ast.parse(line.strip()).body
        if isinstance(each, ast.Assign | ast.AugAssign)
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def show(name: str, value: Any) -> None:
    """Print the value of a variable that is made of arrays, symbols and numbers."""
    parts = value if isinstance(value, list | tuple) else [value]
    kinds = {type(each).__module__.split(".")[0] for each in parts}
    if kinds <= {"builtins", "numpy"} or {type(each).__name__ for each in parts} <= SHOWN:
        print(f"{name}: {value!r}")


def too_long(*_: Any) -> None:
    """End an example."""
    raise TimeoutError(f"it takes more than {SECONDS} s")


def main() -> None:
    """Run the docstrings as they come."""
    system = sys.argv[1] if len(sys.argv) > 1 else "flowmx"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, too_long)
    prepare(system)
    import numpy as np

    _PRINTED.update(np.get_printoptions())
    _PRINTED["legacy"] = _PRINTED["legacy"] or False
    for name, value in (("NINF", -np.inf), ("PINF", np.inf), ("Inf", np.inf), ("infty", np.inf), ("NaN", np.nan)):
        vars(np).setdefault(name, value)  # NumPy 2 has them no more
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line))), file=answers, flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
