"""Write the stubs that give generated functions and methods their types: ``python -m flowmx.tools.stubs``.

Each stub stands beside the module that it describes. A test holds them current.
"""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.ops.registry.calling import METHODS
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Operator, Shape, lookup, registered
from flowmx.ops.registry.parameters import Parameter

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
# Written by `python -m flowmx.tools.stubs`; a test holds it current.
# ruff: noqa

from collections.abc import Callable, Sequence
from typing import Any, Literal

"""

_ARRAY_HEAD = """\
from flowmx.ndarray.array import NDArray
from flowmx.ops.registry.operators import Operator

_Out = NDArray | Sequence[NDArray] | None

def call(cls: type[Operator], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
def function_for(name: str) -> Callable[..., Any]: ...
def op(name: str, /, *args: Any, **kwargs: Any) -> Any: ...
"""

_SYMBOL_HEAD = """\
from flowmx.symbol.symbol import Symbol

def function_for(name: str) -> Callable[..., Symbol]: ...
def op(name: str, /, *args: Any, **kwargs: Any) -> Symbol: ...
"""

_METHODS_HEAD = """\
from flowmx.ndarray.array import NDArray

_Out = NDArray | Sequence[NDArray] | None

def method_for(name: str) -> Callable[..., Any]: ...

class Methods:
    def transpose(self, *axes: int | Sequence[int] | None, **kwargs: Any) -> NDArray: ...
    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray: ...
    def flatten(self, inplace: bool = False) -> NDArray: ...
    def squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False) -> NDArray: ...
    def split_v2(
        self, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False
    ) -> Any: ...
"""


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
    if cls.variadic or cls.open_ended:
        made.append(f"*data: {array} | Sequence[{array}]")
        optional = False
    else:
        optional = cls.inputs is not Operator.inputs or array == "Symbol"
        suffix = " | None = None" if optional else ""
        made += [f"{name}: {array}{suffix}" for name in names]
        optional = optional and bool(names)
    for parameter in cls.parameters.values():
        counts_inputs = parameter.name == cls.variadic and cls.inputs_counted == (1, 0)
        if counts_inputs or parameter.name in names:
            continue
        text = f"{parameter.name}: {annotation(parameter)}"
        if not parameter.required:
            text += f" = {default(parameter.default)}"
            optional = optional or not (cls.variadic or cls.open_ended)
        elif optional:
            text += " = ..."
        made.append(text)
    return made


def returned(cls: type[Operator], array: str) -> str:
    """The annotation of an operator's result: Any for arrays whose number depends on the call."""
    return array if array == "Symbol" or cls.outputs is Operator.outputs else "Any"


def _public() -> list[str]:
    return sorted(
        name
        for name, cls in registered().items()
        if not cls.hidden and name.isidentifier() and not keyword.iskeyword(name)
    )


def functions_stub(array: str, head: str, extra: list[str]) -> str:
    """The stub of the functions on arrays or symbols; ``extra`` are the arguments that all of them take."""
    names = _public()
    shown = [f"    {name!r},\n" for name in names if not name.startswith("_")]
    lines = [_HEADER, head, "\n__all__ = [\n", *shown, "]\n\n"]
    for name in names:
        cls = lookup(name)
        own = [each for each in extra if each.partition(":")[0] not in cls.parameters]
        given = [*arguments(cls, array), *([] if cls.variadic or cls.open_ended else ["*"]), *own]
        given += ["**kwargs: Any"] if cls.open_ended else []
        lines.append(f"def {name}({', '.join(given)}) -> {returned(cls, array)}: ...\n")
    return "".join(lines)


def methods_stub() -> str:
    """The stub of the methods of arrays that are operators."""
    lines = [_HEADER, _METHODS_HEAD]
    for name in METHODS:
        cls = lookup(name)
        given = ", ".join(["self", *arguments(cls, "NDArray")[1:], "*", "out: _Out = None"])
        lines.append(f"    def {name}({given}) -> {returned(cls, 'NDArray')}: ...\n")
    return "".join(lines)


def stubs() -> dict[Path, str]:
    """Every stub's path and content."""
    folder = Path(__file__).parent.parent
    return {
        folder / "ndarray" / "functions.pyi": functions_stub(
            "NDArray", _ARRAY_HEAD, ["out: _Out = None", "name: str | None = None"]
        ),
        folder / "ndarray" / "methods.pyi": methods_stub(),
        folder / "symbol" / "functions.pyi": functions_stub(
            "Symbol", _SYMBOL_HEAD, ["name: str | None = None", "attr: dict[str, str] | None = None"]
        ),
    }


def main() -> None:
    """Write the stubs that are not current."""
    for path, text in stubs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
