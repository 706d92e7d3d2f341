"""Write what CuPy has, and how it is called, to names.json: ``python tests/cupy_stand_in/record.py``.

CuPy must be installed; no GPU is needed. The stand-in of arrays.py has these names and refuses all others, so that an
operator that calls what only NumPy has, or passes an argument that only NumPy takes, fails on any machine.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import cupy

STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
MODULES = ("", "linalg", "fft", "lib.stride_tricks")


def signature(function: Any) -> str | None:
    """Return the parameters, such as ``a, axis=, *, out=``; None if they are unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _from_doc(function)
    parts = [f"{STARS.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '='}" for p in parameters]
    alone = [index for index, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if alone and not any(part[0] == "*" for part in parts[: alone[0]]):
        parts.insert(alone[0], "*")
    return ", ".join(parts)


def _from_doc(function: Any) -> str | None:
    """Return the parameters from the signature that Cython writes into the first line of a docstring."""
    match = re.match(r"[\w.]+\((.*?)\)( ->.*)?$", (function.__doc__ or "").split("\n")[0])
    if match is None:
        return None
    parts = [part.strip().partition("=") for part in match[1].split(",") if part.strip()]
    named = [f"{name.split()[-1]}{equals}" for name, equals, _ in parts]
    return ", ".join([name for name in named if name != "self"])


def names(module: Any) -> dict[str, Any]:
    """Return the functions, ufuncs, types and values of a module."""
    names: dict[str, Any] = {"functions": {}, "ufuncs": {}, "values": []}
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if isinstance(value, cupy.ufunc):
            names["ufuncs"][name] = {"nin": value.nin, "nout": value.nout}
        elif inspect.isclass(value) or not callable(value):
            names["values"].append(name)
        else:
            names["functions"][name] = signature(value)
    return names


def methods() -> dict[str, Any]:
    """Return the methods of an array, and its other attributes."""
    public = {name: getattr(cupy.ndarray, name) for name in dir(cupy.ndarray) if not name.startswith("_")}
    calls = {name: signature(value) for name, value in public.items() if callable(value)}
    return {"methods": calls, "attributes": [name for name in public if name not in calls]}


def main() -> None:
    """Write the file."""
    table: dict[str, Any] = {"cupy": cupy.__version__, "array": methods(), "modules": {}}
    for path in MODULES:
        module: Any = cupy
        for part in filter(None, path.split(".")):
            module = getattr(module, part)
        table["modules"][path] = names(module)
    target = Path(__file__).with_name("names.json")
    target.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
