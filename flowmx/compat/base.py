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
"""Kinds of MXNet's handles. No array here has one: what asks is code that talks to MXNet's C library."""


class SymbolHandle(ctypes.c_void_p):
    """A handle of a symbol, of which ``Symbol(handle)`` makes it again; empty until a function of `_LIB` fills it."""

    symbol: Symbol | None = None

    def fill(self, symbol: Symbol) -> SymbolHandle:
        """Let it be that of a symbol; returns itself."""
        self.symbol, self.value = symbol, id(symbol)
        return self

    def __iter__(self) -> Iterator[Any]:
        if self.symbol is None:
            raise MXNetError("Symbol: the handle is empty")
        return iter(self.symbol._entries)


class _NullType:
    """The type of `_Null`, which stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "_Null"

    def __bool__(self) -> bool:
        return False


_Null = _NullType()


class NotSupportedForSparseNDArray(MXNetError):
    """A function can not work on sparse arrays.

    Args:
        function: it.
        alias: its other name, or None.
        args: its arguments.
    """

    def __init__(self, function: Callable[..., Any], alias: str | None, *args: Any) -> None:
        called = function.__name__ + (f" (namely {alias})" if alias else "")
        kinds = ", ".join(type(each).__name__ for each in args)
        super().__init__(f"{called} does not support sparse arrays; it was given {kinds}")


class InternalError(MXNetError):
    """An error inside MXNet itself, not of its caller."""


error_types: dict[str, type[Exception]] = {}
"""Classes of errors by the names under which they were registered."""


def register_error(func_name: Any = None, cls: type[Exception] | None = None) -> Any:
    """Keep a class of errors under a name, which MXNet's C library would raise by it; usable as a decorator.

    Args:
        func_name: the name, or the class, whose own name then counts.
        cls: the class; without it, a decorator is returned.
    """
    if isinstance(func_name, type):
        error_types[func_name.__name__] = func_name
        return func_name

    def register(given: type[Exception]) -> type[Exception]:
        error_types[str(func_name)] = given
        return given

    return register if cls is None else register(cls)


register = register_error


def py_str(x: bytes | str) -> str:
    """The text of a C string."""
    return x.decode("utf-8") if isinstance(x, bytes) else x


def c_str(string: str) -> ctypes.c_char_p:
    """A C string of a text."""
    return ctypes.c_char_p(string.encode("utf-8"))


def c_array(ctype: Any, values: Sequence[Any]) -> Any:
    """A C array of values, of a type of `ctypes`."""
    return (ctype * len(values))(*values)


def c_str_array(strings: Sequence[str]) -> Any:
    """A C array of C strings."""
    return c_array(ctypes.c_char_p, [each.encode("utf-8") for each in strings])


def c_array_buf(ctype: Any, buf: Any) -> Any:
    """A C array over the memory of an ``array.array``."""
    return (ctype * len(buf)).from_buffer(buf)


def check_call(ret: int) -> None:
    """Raise where a status of MXNet's C library says so.

    Raises:
        MXNetError: it is not 0.
    """
    if ret != 0:
        raise MXNetError(f"a call of a C library has failed with status {ret}")


class _Library:
    """The functions of MXNet's C library that scripts call and that have a meaning here."""

    def MXSetSubgraphPropertyOpNames(self, backend: Any, count: Any, names: Any) -> int:  # noqa: N802
        """Say which operators the partitioner ``default`` or ``default_v2`` chooses."""
        set_op_names(py_str(backend.value), [py_str(each) for each in names])
        return 0

    def MXRemoveSubgraphPropertyOpNames(self, backend: Any) -> int:  # noqa: N802
        """Have it choose none."""
        set_op_names(py_str(backend.value), None)
        return 0

    def MXBuildSubgraphByOpNames(  # noqa: N802
        self, handle: SymbolHandle, backend: Any, count: Any, names: Any, out: Any
    ) -> int:
        """Partition a symbol by the names of operators, into a handle given by reference."""
        chosen = [py_str(each) for each in names]
        out._obj.fill(Symbol(list(handle)).optimize_for(py_str(backend.value), op_names=chosen))
        return 0

    MXSetSubgraphPropertyOpNamesV2 = MXSetSubgraphPropertyOpNames
    MXRemoveSubgraphPropertyOpNamesV2 = MXRemoveSubgraphPropertyOpNames


_LIB = _Library()


def data_dir_default() -> str:
    """:func:`flowmx.download.data_dir_default` as a str."""
    return str(download.data_dir_default())


def data_dir() -> str:
    """:func:`flowmx.download.data_dir` as a str."""
    return str(download.data_dir())


def _as_list(obj: Any) -> Any:
    """A list or tuple as it is, anything else in a list."""
    return obj if isinstance(obj, (list, tuple)) else [obj]


class classproperty:  # noqa: N801
    """A read-only property of a class."""

    def __init__(self, getter: Callable[[Any], Any]) -> None:
        self._getter = getter

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._getter(owner)


def with_metaclass(meta: type, *bases: type) -> Any:
    """A class with a metaclass, to derive others from."""
    return meta("temporary_class", bases, {})


def build_param_doc(
    arg_names: Sequence[str], arg_types: Sequence[str], arg_descs: Sequence[str], remove_dup: bool = True
) -> str:
    """The section of a docstring that lists arguments.

    Args:
        arg_names: their names.
        arg_types: their types.
        arg_descs: their descriptions.
        remove_dup: list a name once.
    """
    seen: set[str] = set()
    lines = []
    for name, kind, about in zip(arg_names, arg_types, arg_descs, strict=True):
        if name == "num_args" or (remove_dup and name in seen):
            continue
        seen.add(name)
        lines.append(f"{name} : {kind}" + (f"\n    {about}" if about else ""))
    return "Parameters\n----------\n{}\n".format("\n".join(lines))


def add_fileline_to_docstring(module: Any, incursive: bool = True) -> None:
    """Do nothing: MXNet writes into docstrings where functions stand, which `inspect` says here."""
