"""Writes stubs with types and docstrings of generated functions and methods: ``python -m flowmx.tools.stubs``.

A stub is written next to the module that it describes. Stubs are not in the repository: setup.py writes them when
flowmx is built or installed, and ``make types`` before type checking.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flowmx.ndarray import contrib, image, linalg, methods, sparse
from flowmx.ndarray import functions as nd_functions
from flowmx.ops.registry.calling import METHODS
from flowmx.ops.registry.documentation import documentation
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, lookup, registered_operators
from flowmx.ops.registry.parameters import Parameter
from flowmx.symbol import contrib as sym_contrib
from flowmx.symbol import functions as sym_functions
from flowmx.symbol import image as sym_image
from flowmx.symbol import linalg as sym_linalg
from flowmx.symbol import sparse as sym_sparse
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
from typing import Any, Literal, overload

from flowmx.ndarray.array import NDArray
from flowmx.symbol.symbol import Symbol
"""
_OUT = "out: NDArray | Sequence[NDArray] | None = None"
_NAME = "name: str | None = None"
_ARRAYS = "list[NDArray]"
_SEVERAL = {
    "SliceChannel": ("num_outputs: Literal[1]", "num_outputs: int"),
    "topk": ("ret_typ: Literal['value', 'indices', 'mask'] = 'indices'", "ret_typ: Literal['both']"),
    "_sample_multinomial": ("get_prob: Literal[False] = False", "get_prob: Literal[True]"),
    "RNN": ("state_outputs: Literal[False] = False", "state_outputs: Literal[True]"),
}
"""The parameter of an operator that determines whether it returns one array or a list, with its types for either."""
_ND_DERIVED = {contrib: "_contrib_", image: "_image_", linalg: "_linalg_", sparse: ""}
_SYM_DERIVED = {sym_contrib: "_contrib_", sym_image: "_image_", sym_linalg: "_linalg_", sym_sparse: ""}
"""Modules of ``mx.nd`` and ``mx.sym`` with functions of operators, and the prefixes of these operators' names."""


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


def results(cls: type[Operator], array: str) -> list[tuple[str | None, str]]:
    """Return pairs of a required parameter (or None) and the annotation of an operator's result.

    A list of arrays is an NDArray if it cannot be told from one by a parameter's type: both can be unpacked.
    """
    if array == "Symbol" or cls.name not in _SEVERAL:
        return [(None, array)]
    one, several = _SEVERAL[cls.name]
    return [(one, array), (several, _ARRAYS)]


def definition(name: str, args: list[str], choices: list[tuple[str | None, str]], doc: str) -> str:
    """Return the source of a stub function with its docstring, with an overload for each type of its result."""
    quoted = doc.replace("\\", r"\\").replace('"""', r"\"\"\"")
    body = textwrap.indent(f'"""{quoted}\n"""\n', "    ", lambda line: line != "\n")
    if len(choices) == 1:
        return f"def {name}({', '.join(args)}) -> {choices[0][1]}:\n{body}\n"
    overloads = []
    for parameter, result in choices:
        ignored = "  # type: ignore[overload-overlap]" if "Literal[1]" in (parameter or "") else ""  # an int too
        overloads.append(
            f"@overload\ndef {name}({', '.join(_with(args, parameter or ''))}) -> {result}:{ignored}\n{body}\n"
        )
    return "".join(overloads)


def _with(args: list[str], parameter: str) -> list[str]:
    """Return arguments with one replaced; one without a default becomes the first that is passed by name only."""
    label = parameter.partition(":")[0]
    at = next(index for index, each in enumerate(args) if each.partition(":")[0] == label)
    if "=" in parameter or "=" not in args[at]:
        return [*args[:at], parameter, *args[at + 1 :]]
    rest = [*args[:at], *args[at + 1 :]]
    return [*rest[: rest.index("*") + 1], parameter, *rest[rest.index("*") + 1 :]]


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
        lines.append(definition(name, args, results(cls, array), documentation(cls)))
    return "".join(lines)


def methods_stub() -> str:
    """Return the stub of the array methods that are operators."""
    lines = [module_stub(methods)]
    for name in METHODS:
        cls = lookup(name)
        args = ["self", *arguments(cls, "NDArray")[1:], "*", _OUT]
        source = definition(name, args, results(cls, "NDArray"), documentation(cls, is_method=True))
        lines.append(textwrap.indent(source, "    "))
    return "".join(lines)


def derived_stub(module: ModuleType, functions: ModuleType, prefix: str) -> str:
    """Return the stub of a module whose names are those of operators, without a prefix.

    Args:
        module: the module; names that it defines itself come first.
        functions: the module of all operators.
        prefix: the prefix, such as ``_linalg_``.
    """
    operators = set(public_names())
    own = _own_names(module)
    sources = {name: next((each for each in _sources(prefix, name) if each in operators), None) for name in dir(module)}
    derived = {name: source for name, source in sources.items() if source and name not in own}
    imports = [f"from {functions.__name__} import {source} as {name}\n" for name, source in derived.items()]
    exported = [f"    {name!r},\n" for name in sorted({*module.__all__} & (derived.keys() | own))]
    return "".join([module_stub(module), *imports, "\n__all__ = [\n", *exported, "]\n"])


def _own_names(module: ModuleType) -> set[str]:
    """Return the names that the source of a module defines; its variables also have operators that were looked up."""
    names: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imported = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            names |= {*import_module(str(node.module)).__all__} if "*" in imported else imported  # type: ignore[union-attr]
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names - {"__all__"}


def _sources(prefix: str, name: str) -> tuple[str, ...]:
    return (prefix + name,) if prefix else (f"_sparse_{name}", name)


def stubs() -> dict[Path, str]:
    """Return the paths and contents of all stubs."""
    contents = {
        nd_functions: functions_stub(nd_functions, "NDArray", [_OUT, _NAME]),
        methods: methods_stub(),
        sym_functions: functions_stub(sym_functions, "Symbol", [_NAME, "attr: dict[str, str] | None = None"]),
        **{module: derived_stub(module, nd_functions, prefix) for module, prefix in _ND_DERIVED.items()},
        **{module: derived_stub(module, sym_functions, prefix) for module, prefix in _SYM_DERIVED.items()},
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
