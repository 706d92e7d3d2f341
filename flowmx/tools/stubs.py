"""Writes stubs with types and docstrings of generated functions and methods: ``python -m flowmx.tools.stubs``.

A stub is written next to the module that it describes. Stubs are not in the repository: setup.py writes them when
flowmx is built or installed, and ``make types`` before type checking.
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
from flowmx.ops.registry.operators import Operator, Shape, lookup, registered_operators
from flowmx.ops.registry.parameters import Parameter
from flowmx.symbol import functions as sym_functions
from flowmx.tools import numpy_stubs

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
    """Return the annotation of a parameter."""
    if parameter.name == "ctx":
        return "Any"
    if parameter.choices:
        text = f"Literal[{', '.join(map(repr, parameter.choices))}]"
    else:
        text = _TYPES[parameter.kind]
    return f"{text} | None" if parameter.optional and text != "Any" else text


def default(value: Any) -> str:
    """Return the source of a default value."""
    if isinstance(value, np.dtype):
        return repr(name_of(value))
    return "..." if isinstance(value, float) and not np.isfinite(value) else repr(value)


def arguments(cls: type[Operator], array: str) -> list[str]:
    """Return the arguments of an operator's function: its inputs, then its parameters.

    Optional inputs have the default None. Required arguments after an optional one have the default ``...``.
    """
    names = (*cls.arguments, *cls.auxiliary)
    result = []
    if cls.variadic or cls.traits.open_ended:
        result.append(f"*data: {array} | Sequence[{array}]")
        optional = False
    else:
        optional = cls.inputs is not Operator.inputs or array == "Symbol"
        suffix = " | None = None" if optional else ""
        result += [f"{name}: {array}{suffix}" for name in names]
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
        result.append(text)
    return result


def return_type(cls: type[Operator], array: str) -> str:
    """Return the annotation of an operator's result: Any if the number of arrays depends on the call."""
    return array if array == "Symbol" or cls.outputs is Operator.outputs else "Any"


def definition(name: str, args: list[str], result: str, doc: str) -> str:
    """Return the source of a stub function with its docstring."""
    quoted = doc.replace("\\", r"\\").replace('"""', r"\"\"\"")
    body = textwrap.indent(f'"""{quoted}\n"""\n', "    ", lambda line: line != "\n")
    return f"def {name}({', '.join(args)}) -> {result}:\n{body}\n"


def module_stub(module: ModuleType) -> str:
    """Return the header, the module's imports, and its public functions and classes, reduced to their docstrings."""
    body = ast.parse(inspect.getsource(module)).body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    nodes = [*imports[1:], *_declarations(body, ast.FunctionDef), *_declarations(body, ast.ClassDef)]
    return _HEADER + "".join(f"{ast.unparse(node)}\n\n" for node in nodes)


def _declarations(body: list[ast.stmt], kind: type[ast.FunctionDef | ast.ClassDef]) -> list[ast.stmt]:
    """Return the public functions or classes among statements, without their code."""
    result: list[ast.stmt] = []
    for node in body:
        if isinstance(node, kind) and not node.name.startswith("_"):
            methods = _declarations(node.body, ast.FunctionDef) if kind is ast.ClassDef else []
            node.body = [node.body[0], *methods]
            result.append(node)
    return result


def public_names() -> list[str]:
    """Return the names of the operators that are functions of ``mx.nd`` and ``mx.sym``."""
    return sorted(
        name
        for name, cls in registered_operators().items()
        if not cls.traits.hidden and name.isidentifier() and not keyword.iskeyword(name)
    )


def functions_stub(module: ModuleType, array: str, extra: list[str]) -> str:
    """Return the stub of the functions on arrays or symbols; ``extra`` holds the common arguments."""
    names = public_names()
    exported = [f"    {name!r},\n" for name in names if not name.startswith("_")]
    lines = [module_stub(module), "__all__ = [\n", *exported, "]\n\n"]
    for name in names:
        cls = lookup(name)
        common = [argument for argument in extra if argument.partition(":")[0] not in cls.parameters]
        args = [*arguments(cls, array), *([] if cls.variadic or cls.traits.open_ended else ["*"]), *common]
        args += ["**kwargs: Any"] if cls.traits.open_ended else []
        lines.append(definition(name, args, return_type(cls, array), documentation(cls)))
    return "".join(lines)


def methods_stub() -> str:
    """Return the stub of the array methods that are operators."""
    lines = [module_stub(methods)]
    for name in METHODS:
        cls = lookup(name)
        args = ["self", *arguments(cls, "NDArray")[1:], "*", _OUT]
        source = definition(name, args, return_type(cls, "NDArray"), documentation(cls, is_method=True))
        lines.append(textwrap.indent(source, "    "))
    return "".join(lines)


def stubs() -> dict[Path, str]:
    """Return the paths and contents of all stubs."""
    contents = {
        nd_functions: functions_stub(nd_functions, "NDArray", [_OUT, _NAME]),
        methods: methods_stub(),
        sym_functions: functions_stub(sym_functions, "Symbol", [_NAME, "attr: dict[str, str] | None = None"]),
    }
    return {
        **{Path(module.__file__ or "").with_suffix(".pyi"): text for module, text in contents.items()},
        **numpy_stubs.stubs(),
    }


def main() -> None:
    """Write the stubs that have changed."""
    for path, text in stubs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
