"""Stubs of ``mx.np``: its functions are created from a table, with the signatures of NumPy's; see :mod:`stubs`.

The types of parameters follow from their names and defaults, the types of results from :data:`_RESULTS`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from flowmx.numpy import fft, linalg, methods, table

__all__ = ["stubs"]

_HEADER = """\
# Written by `python -m flowmx.tools.stubs`.
import builtins
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Literal, overload

import numpy
import numpy.typing as npt

from flowmx.devices import Context
from flowmx.numpy.arrays import ndarray as ndarray
"""

_PAIR = "builtins.tuple[ndarray, ndarray]"
_TUPLE = "builtins.tuple[ndarray, ...]"
_RESULTS = {
    _PAIR: """
        divmod modf frexp polydiv histogram unique_counts unique_inverse linalg.eig linalg.eigh linalg.qr linalg.slogdet
    """,
    "builtins.tuple[ndarray, ndarray, ndarray]": "histogram2d linalg.svd",
    "builtins.tuple[ndarray, ndarray, ndarray, ndarray]": "linalg.lstsq",
    "builtins.tuple[list[ndarray], ndarray]": "histogramdd",
    _TUPLE: """
        nonzero unravel_index ix_ diag_indices_from tril_indices triu_indices tril_indices_from triu_indices_from
        unique_all unstack
    """,
    "list[ndarray]": "split array_split hsplit vsplit dsplit meshgrid broadcast_arrays",
    f"ndarray | {_TUPLE}": "gradient",
    "builtins.bool": """
        allclose array_equal array_equiv can_cast iscomplexobj isrealobj isdtype may_share_memory shares_memory
    """,
    "int": "ndim size",
    "builtins.tuple[int, ...]": "shape broadcast_shapes",
    "numpy.dtype[numpy.generic]": "result_type promote_types min_scalar_type",
    "None": "set_printoptions",
}
_RESULT_OF = {name: result for result, listed in _RESULTS.items() for name in listed.split()}
"""The types of results that are not one array."""

_FLAGS = {
    "average": ("returned",), "intersect1d": ("return_indices",), "linspace": ("retstep",), "polyfit": ("full", "cov"),
    "unique": ("return_index", "return_inverse", "return_counts"),
}  # fmt: skip
"""Parameters that add arrays to the result when they are set."""

_TYPES = {
    "int | Sequence[int]": "axis shape newshape new_shape reps dimensions dims",
    "int": "axis1 axis2 axisa axisb axisc axis_ decimals count offset num M N n deg m minlength precision threshold",
    "npt.DTypeLike": "dtype type type1 type2 from_ to",
    "float": "ddof initial rtol atol beta base dx period discont d tol rcond",
    "builtins.bool": "keepdims copy density",
    "ndarray": "out",
    "Context | str": "ctx device",
    "str | Sequence[str]": "order",
    "str": "casting mode kind side method signature bitorder trim indexing",
    "Callable[..., object]": "func func1d",
    "object": "args kwargs kw others operands arrays_and_dtypes funclist append prepend where",
}
_TYPE_OF = {name: text for text, listed in _TYPES.items() for name in listed.split()}
"""The types of parameters by name; others are arrays, or have the type of their default."""

_IMPORTED = frozenset(["__array_namespace_info__", "finfo", "iinfo"])
"""Names of ``info``, which are imported."""

_COMPARISONS, _UNARY = ("eq", "ne", "lt", "le", "gt", "ge"), ("neg", "pos", "abs", "invert")
_SHORT_DEFAULTS = (bool, int, float, str, type(None))


def stubs() -> dict[Path, str]:
    """Return the paths and contents of the stubs of ``mx.np``, its submodules, and the methods of its arrays."""
    package = importlib.import_module("flowmx.numpy")
    modules = {
        package: "".join((_submodules(), _constants(package), _functions(package, "", dir(package)))),
        linalg: f"LinAlgError = numpy.linalg.LinAlgError\n\n{_functions(linalg, 'linalg.', dir(linalg))}",
        fft: _functions(fft, "fft.", dir(fft)),
        methods: _methods(package),
    }
    return {_path(module): f"{_HEADER}\n{text}" for module, text in modules.items()}


def _path(module: ModuleType) -> Path:
    return Path(module.__file__ or "").with_suffix(".pyi")


def _submodules() -> str:
    names = ("_internal", "fft", "linalg", "random")
    imports = [f"from flowmx.numpy import {name} as {name}\n" for name in names]
    info = ", ".join(f"{name} as {name}" for name in sorted(_IMPORTED))
    return "".join([*imports, f"from flowmx.numpy.info import {info}\n\n"])


def _constants(package: ModuleType) -> str:
    lines = ["__all__ = [\n", *(f"    {name!r},\n" for name in dir(package)), "]\n\n"]
    for name in sorted(table.CONSTANTS):
        lines.append(f"{name}: {'None' if table.CONSTANTS[name] is None else 'float'}\n")
    lines += [f"{name} = numpy.{'bool' if name == 'bool_' else name}\n" for name in sorted(table.DTYPES)]
    return "".join([*lines, "\n"])


def _functions(module: ModuleType, prefix: str, names: Iterable[str]) -> str:
    """Return the definitions of a module's functions."""
    functions = ((name, getattr(module, name)) for name in sorted(names))
    return "".join(
        _definition(name, prefix + name, function)
        for name, function in functions
        if inspect.isfunction(function) and name not in _IMPORTED
    )


def _methods(package: ModuleType) -> str:
    """Return the class of the methods that are functions of their first argument."""
    lines = ["class Methods:\n", f'    """{inspect.getdoc(methods.Methods)}"""\n\n']
    for name in _COMPARISONS:
        ignored = "  # type: ignore[override]" if name in ("eq", "ne") else ""  # object's return a bool
        lines.append(f"    def __{name}__(self, other: object) -> ndarray: ...{ignored}\n")
    lines += [f"    def __{name}__(self) -> ndarray: ...\n" for name in _UNARY]
    for name in sorted(table.METHODS):
        text = _definition(name, name, getattr(package, name, getattr(methods.Methods, name)), is_method=True)
        lines += [f"    {line}\n" if line else "\n" for line in text.splitlines()]
    return "".join(lines)


def _definition(name: str, path: str, function: Callable[..., object], is_method: bool = False) -> str:
    """Return the source of a stub function, with an overload where parameters add arrays to the result."""
    parameters = list(inspect.signature(function).parameters.values())
    doc = (inspect.getdoc(function) or "").replace("\\", r"\\")
    result = _RESULT_OF.get(path, "ndarray")
    flags = _FLAGS.get(path, ())
    lines = []
    if flags:
        fixed = dict.fromkeys(flags, "Literal[False]")
        lines += ["@overload", f"def {name}({_arguments(parameters, is_method, fixed)}) -> ndarray: ...", "@overload"]
        result = f"ndarray | {_TUPLE}"
    lines += [f"def {name}({_arguments(parameters, is_method)}) -> {result}:", f'    """{doc}"""', "", ""]
    return "\n".join(lines)


def _arguments(parameters: list[inspect.Parameter], is_method: bool, fixed: dict[str, str] | None = None) -> str:
    """Return the parameters of a function; those of a method begin with ``self``.

    Args:
        parameters: the parameters.
        is_method: whether the first parameter is ``self``.
        fixed: the types of some parameters, by name.
    """
    kind = inspect.Parameter
    shown = list(_shown(parameters))
    if is_method:
        rest = [each.replace(kind=_movable(each)) for each in shown[1:]]
        shown = [kind("self", kind.POSITIONAL_OR_KEYWORD), *rest]
    texts: list[str] = []
    for at, each in enumerate(shown):
        if each.kind is kind.KEYWORD_ONLY and "*" not in texts and not any(text.startswith("*") for text in texts):
            texts.append("*")
        texts.append(_argument(each, (fixed or {}).get(each.name)))
        last = at + 1 == len(shown) or shown[at + 1].kind is not kind.POSITIONAL_ONLY
        if each.kind is kind.POSITIONAL_ONLY and last:
            texts.append("/")
    return ", ".join(texts)


def _movable(parameter: inspect.Parameter) -> inspect._ParameterKind:
    kind = inspect.Parameter
    return kind.POSITIONAL_OR_KEYWORD if parameter.kind is kind.POSITIONAL_ONLY else parameter.kind


def _shown(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield the parameters without NumPy's ``subok``, which has no meaning here."""
    return (each for each in parameters if each.name != "subok")


def _argument(parameter: inspect.Parameter, fixed: str | None) -> str:
    """Return a parameter with its type and default."""
    kind, default = inspect.Parameter, parameter.default
    if parameter.name == "self":
        return "self"
    text = fixed or _type(parameter)
    if parameter.kind is kind.VAR_POSITIONAL:
        return f"*{parameter.name}: {text}"
    if parameter.kind is kind.VAR_KEYWORD:
        return f"**{parameter.name}: object"
    if default is kind.empty:
        return f"{parameter.name}: {text}"
    shown = repr(default) if type(default) in _SHORT_DEFAULTS else "..."
    return f"{parameter.name}: {text} = {shown}"


def _type(parameter: inspect.Parameter) -> str:
    """Return the type of a parameter."""
    default, name = parameter.default, parameter.name
    if name in _TYPE_OF:
        text = _TYPE_OF[name]
    elif type(default) in (bool, int, float, str):
        text = "builtins.bool" if type(default) is bool else type(default).__name__
    else:
        text = "npt.ArrayLike"
    if name == "axis":
        return f"{text} | None"
    if name == "out" and isinstance(default, tuple):
        return f"{_TUPLE} | None"
    return f"{text} | None" if default is None and text != "object" else text
