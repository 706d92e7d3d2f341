"""Helpers of ``mxnet.base`` that packages import: ctypes conversions, registration of errors, folders, docstrings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flowmx import download
from flowmx.errors import MXNetError
from flowmx.symbol.backends import set_op_names
from flowmx.symbol.symbol import Symbol

__all__ = [
    "NDArrayHandle", "NotSupportedForSparseNDArray", "add_fileline_to_docstring", "build_param_doc", "c_array",
    "c_array_buf", "c_str", "c_str_array", "check_call", "classproperty", "data_dir", "data_dir_default", "mx_float",
    "mx_int", "mx_uint", "py_str", "register_error", "with_metaclass",
]  # fmt: skip

mx_int, mx_uint, mx_float, mx_int64 = ctypes.c_int, ctypes.c_uint, ctypes.c_float, ctypes.c_int64
NDArrayHandle = ExecutorHandle = OpHandle = KVStoreHandle = DataIterHandle = ctypes.c_void_p
"""MXNet's handle types, which only code for MXNet's C library uses. flowmx's arrays have no handles."""


class SymbolHandle(ctypes.c_void_p):
    """A handle of a symbol: ``Symbol(handle)`` returns the symbol. It is empty until a function of `_LIB` fills it."""

    symbol: Symbol | None = None

    def fill(self, symbol: Symbol) -> SymbolHandle:
        """Set the symbol and return the handle."""
        self.symbol, self.value = symbol, id(symbol)
        return self

    def __iter__(self) -> Iterator[Any]:
        if self.symbol is None:
            raise MXNetError("Symbol: the handle is empty")
        return iter(self.symbol.entries)


class _NullType:
    """The type of `_Null`, the value of omitted arguments."""

    def __repr__(self) -> str:
        return "_Null"

    def __bool__(self) -> bool:
        return False


_Null = _NullType()


class NotSupportedForSparseNDArray(MXNetError):
    """A function does not support sparse arrays.

    Args:
        function: the function.
        alias: its other name, or None.
        args: its arguments.
    """

    def __init__(self, function: Callable[..., object], alias: str | None, *args: object) -> None:
        name = function.__name__ + (f" (namely {alias})" if alias else "")
        kinds = ", ".join(type(argument).__name__ for argument in args)
        super().__init__(f"{name} does not support sparse arrays, but received {kinds}")


class InternalError(MXNetError):
    """An internal error of MXNet."""


error_types: dict[str, type[Exception]] = {}
"""Registered error classes by name."""


def register_error(func_name: Any = None, cls: type[Exception] | None = None) -> Any:
    """Register an error class under a name, by which MXNet's C library raises it; usable as a decorator.

    Args:
        func_name: the name; or the class, which is registered under its name.
        cls: the class; if None, a decorator is returned.
    """
    if isinstance(func_name, type):
        error_types[func_name.__name__] = func_name
        return func_name

    def register(error: type[Exception]) -> type[Exception]:
        error_types[str(func_name)] = error
        return error

    return register if cls is None else register(cls)


register = register_error


def py_str(x: bytes | str) -> str:
    """Convert a C string to str."""
    return x.decode("utf-8") if isinstance(x, bytes) else x


def c_str(string: str) -> ctypes.c_char_p:
    """Convert a str to a C string."""
    return ctypes.c_char_p(string.encode("utf-8"))


def c_array(ctype: Any, values: Sequence[Any]) -> Any:
    """Return a C array of values of a `ctypes` type."""
    return (ctype * len(values))(*values)


def c_str_array(strings: Sequence[str]) -> Any:
    """Return a C array of C strings."""
    return c_array(ctypes.c_char_p, [string.encode("utf-8") for string in strings])


def c_array_buf(ctype: Any, buf: Any) -> Any:
    """Return a C array that shares the memory of an ``array.array``."""
    return (ctype * len(buf)).from_buffer(buf)


def check_call(ret: int) -> None:
    """Check a status of MXNet's C library.

    Raises:
        MXNetError: the status is not 0.
    """
    if ret != 0:
        raise MXNetError(f"a call of a C library failed with status {ret}")


class _Library:
    """The functions of MXNet's C library that scripts call and flowmx supports."""

    def MXSetSubgraphPropertyOpNames(self, backend: Any, count: object, names: Any) -> int:  # noqa: N802
        """Set the operators that the partitioner ``default`` or ``default_v2`` selects."""
        set_op_names(py_str(backend.value), [py_str(name) for name in names])
        return 0

    def MXRemoveSubgraphPropertyOpNames(self, backend: Any) -> int:  # noqa: N802
        """Make the partitioner select no operators."""
        set_op_names(py_str(backend.value), None)
        return 0

    def MXBuildSubgraphByOpNames(  # noqa: N802
        self, handle: SymbolHandle, backend: Any, count: object, names: Any, out: Any
    ) -> int:
        """Partition a symbol by operator names, and write the result into a handle passed by reference."""
        op_names = [py_str(name) for name in names]
        out._obj.fill(Symbol(list(handle)).optimize_for(py_str(backend.value), op_names=op_names))
        return 0

    MXSetSubgraphPropertyOpNamesV2 = MXSetSubgraphPropertyOpNames
    MXRemoveSubgraphPropertyOpNamesV2 = MXRemoveSubgraphPropertyOpNames


_LIB = _Library()


def data_dir_default() -> str:
    """Return :func:`flowmx.download.data_dir_default` as a str."""
    return str(download.data_dir_default())


def data_dir() -> str:
    """Return :func:`flowmx.download.data_dir` as a str."""
    return str(download.data_dir())


def _as_list(obj: object) -> Any:
    """Return a list or tuple unchanged, and any other object in a list."""
    return obj if isinstance(obj, (list, tuple)) else [obj]


class classproperty:  # noqa: N801
    """A read-only property of a class."""

    def __init__(self, getter: Callable[[Any], Any]) -> None:
        self._getter = getter

    def __get__(self, instance: object, owner: type) -> Any:
        return self._getter(owner)


def with_metaclass(meta: type, *bases: type) -> Any:
    """Return a base class with a metaclass."""
    return meta("temporary_class", bases, {})


def build_param_doc(
    arg_names: Sequence[str], arg_types: Sequence[str], arg_descs: Sequence[str], remove_dup: bool = True
) -> str:
    """Return the docstring section of arguments.

    Args:
        arg_names: their names.
        arg_types: their types.
        arg_descs: their descriptions.
        remove_dup: whether to list repeated names once.
    """
    listed: set[str] = set()
    lines = []
    for name, kind, about in zip(arg_names, arg_types, arg_descs, strict=True):
        if name == "num_args" or (remove_dup and name in listed):
            continue
        listed.add(name)
        lines.append(f"{name} : {kind}" + (f"\n    {about}" if about else ""))
    return "Parameters\n----------\n{}\n".format("\n".join(lines))


def add_fileline_to_docstring(module: object, incursive: bool = True) -> None:
    """Do nothing. MXNet adds source positions to docstrings; `inspect` provides them here."""
