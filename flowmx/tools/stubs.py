"""Write the stubs that give generated functions and methods types and docstrings: ``python -m flowmx.tools.stubs``.

Each stub lies beside the module that it describes. They are no part of the repository: setup.py makes them when flowmx
is built or installed, ``make types`` before it checks.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flowmx.ndarray import functions as nd_functions
from flowmx.ndarray import methods
from flowmx.ops.registry.calling import METHODS
from flowmx.ops.registry.documentation import documentation
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, lookup, registered
from flowmx.ops.registry.parameters import Parameter
from flowmx.symbol import functions as sym_functions

_TYPES: dict[Any, str] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    DType: "Any",
    Shape: "int | Sequence[int]",
    tuple[int | None, ...]: "int | Sequence[int | None] | None",
    tuple[float, ...]: "float | Sequence[float]",
}

_HEADER = """\
# Written by `python -m flowmx.tools.stubs`.
from collections.abc import Callable, Sequence
from typing import Any, Literal

from flowmx.ndarray.array import NDArray
from flowmx.symbol.symbol import Symbol
"""
_OUT = "out: NDArray | Sequence[NDArray] | None = None"
_NAME = "name: str | None = None"


def annotation(parameter: Parameter) -> str:
    """The type of a parameter, as a stub writes it."""
    if parameter.name == "ctx":
        return "Any"
    if parameter.choices:
        text = f"Literal[{', '.join(map(repr, parameter.choices))}]"
    else:
        text = _TYPES[parameter.kind]
    return f"{text} | None" if parameter.optional and text != "Any" else text


def default(value: Any) -> str:
    """A default, as a stub writes it."""
    if isinstance(value, np.dtype):
        return repr(name_of(value))
    return "..." if isinstance(value, float) and not np.isfinite(value) else repr(value)


def arguments(cls: type[Operator], array: str) -> list[str]:
    """The arguments of an operator's function: its inputs, then its parameters.

    Inputs that some instances leave out have the default None. What must be given, but stands behind such
    an argument, has ``...``.
    """
    names = (*cls.arguments, *cls.auxiliary)
    made = []
    if cls.variadic or cls.traits.open_ended:
        made.append(f"*data: {array} | Sequence[{array}]")
        optional = False
    else:
        optional = cls.inputs is not Operator.inputs or array == "Symbol"
        suffix = " | None = None" if optional else ""
        made += [f"{name}: {array}{suffix}" for name in names]
        optional = optional and bool(names)
    for parameter in cls.parameters.values():
        if parameter.name in names:
            continue
        text = f"{parameter.name}: {annotation(parameter)}"
        if parameter.name == cls.variadic and cls.inputs_counted == (1, 0):
            text += " = ..."
        elif not parameter.required:
            text += f" = {default(parameter.default)}"
            optional = optional or not (cls.variadic or cls.traits.open_ended)
        elif optional:
            text += " = ..."
        made.append(text)
    return made


def returned(cls: type[Operator], array: str) -> str:
    """The annotation of an operator's result: Any for arrays whose number depends on the call."""
    return array if array == "Symbol" or cls.outputs is Operator.outputs else "Any"


def definition(name: str, given: list[str], result: str, doc: str) -> str:
    """A function of a stub, with its docstring."""
    quoted = doc.replace("\\", r"\\").replace('"""', r"\"\"\"")
    body = textwrap.indent(f'"""{quoted}\n"""\n', "    ", lambda line: line != "\n")
    return f"def {name}({', '.join(given)}) -> {result}:\n{body}\n"


def written(module: ModuleType) -> str:
    """The header, a module's own imports, and its public functions and classes, of which only docstrings are left."""
    body = ast.parse(inspect.getsource(module)).body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    declared = [*imports[1:], *_declared(body, ast.FunctionDef), *_declared(body, ast.ClassDef)]
    return _HEADER + "".join(f"{ast.unparse(node)}\n\n" for node in declared)


def _declared(body: list[ast.stmt], kind: type[ast.FunctionDef | ast.ClassDef]) -> list[ast.stmt]:
    """The public functions or classes among statements, less their code."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, kind) and not node.name.startswith("_"):
            within = _declared(node.body, ast.FunctionDef) if kind is ast.ClassDef else []
            node.body = [node.body[0], *within]
            found.append(node)
    return found


def public_names() -> list[str]:
    """The operators that are functions of ``mx.nd`` and ``mx.sym``."""
    return sorted(
        name
        for name, cls in registered().items()
        if not cls.traits.hidden and name.isidentifier() and not keyword.iskeyword(name)
    )


def functions_stub(module: ModuleType, array: str, extra: list[str]) -> str:
    """The stub of the functions on arrays or symbols; ``extra`` are the arguments that all of them take."""
    names = public_names()
    shown = [f"    {name!r},\n" for name in names if not name.startswith("_")]
    lines = [written(module), "__all__ = [\n", *shown, "]\n\n"]
    for name in names:
        cls = lookup(name)
        own = [each for each in extra if each.partition(":")[0] not in cls.parameters]
        given = [*arguments(cls, array), *([] if cls.variadic or cls.traits.open_ended else ["*"]), *own]
        given += ["**kwargs: Any"] if cls.traits.open_ended else []
        lines.append(definition(name, given, returned(cls, array), documentation(cls)))
    return "".join(lines)


def methods_stub() -> str:
    """The stub of the methods of arrays that are operators."""
    lines = [written(methods)]
    for name in METHODS:
        cls = lookup(name)
        given = ["self", *arguments(cls, "NDArray")[1:], "*", _OUT]
        made = definition(name, given, returned(cls, "NDArray"), documentation(cls, is_method=True))
        lines.append(textwrap.indent(made, "    "))
    return "".join(lines)


def stubs() -> dict[Path, str]:
    """Every stub's path and content."""
    made = {
        nd_functions: functions_stub(nd_functions, "NDArray", [_OUT, _NAME]),
        methods: methods_stub(),
        sym_functions: functions_stub(sym_functions, "Symbol", [_NAME, "attr: dict[str, str] | None = None"]),
    }
    return {Path(module.__file__ or "").with_suffix(".pyi"): text for module, text in made.items()}


def main() -> None:
    """Write the stubs that are not current."""
    for path, text in stubs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
