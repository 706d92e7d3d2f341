"""The part of Python's pickle format that MXNet's files of optimizer states use, read and written as plain data.

A pickle is a program for a small stack machine, and what makes it dangerous are its calls: of any function that can be
imported. Here a call makes nothing but a description, :class:`Made`, of what was to be called; three functions, which
make bytes and numbers, are known by name and computed. Nothing is imported, whatever a file says.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class Name(NamedTuple):
    """The name of a class or function, which is not looked up."""

    module: str
    name: str


class Made:
    """An object as a pickle describes it: its class, the arguments of its constructor, and its state."""

    def __init__(self, of: Name, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.of = of
        self.arguments = arguments
        self.state = state

    def __repr__(self) -> str:
        return f"a {self.of.module}.{self.of.name}"


# -- reading -----------------------------------------------------------------------------------------------


def loads(data: bytes) -> Any:
    """Read a pickle without executing it: numbers, str, bytes, None, tuples, lists, dicts, :class:`Made` for all else.

    Raises:
        ValueError: it is no pickle, or uses what MXNet's pickles do not.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STOP":
            return machine.pop()
        machine.do(opcode.name, argument)
    raise ValueError("a pickle without an end")


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_GIVEN = frozenset(
    ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
     "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
     "BINBYTES8", "BYTEARRAY8")
)  # fmt: skip
"""Opcodes that put their argument on the stack."""
_IGNORED = frozenset(("PROTO", "FRAME"))
_PUT = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GET = frozenset(("GET", "BINGET", "LONG_BINGET"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack and the memory of the machine that a pickle is a program for."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memory: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Run an instruction."""
        if name in _GIVEN:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _PUT:
            self._memory[argument] = self._stack[-1]
        elif name in _GET:
            self._stack.append(self._memory[argument])
        elif name in _TUPLES:
            self._stack.append(tuple([self.pop() for _ in range(_TUPLES[name])][::-1]))
        elif name not in _IGNORED:
            method = getattr(self, f"_{name.lower()}", None)
            if method is None:
                raise ValueError(f"a pickle with the instruction {name}, which MXNet's have not")
            method(argument)

    def pop(self) -> Any:
        """Take the uppermost value."""
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a pickle that takes more than it has")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ValueError(f"a pickle that adds to something that is no {kind.__name__}")
        return self._stack[-1]

    def _down_to_mark(self) -> list[Any]:
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is _MARK:
                found = self._stack[position + 1 :]
                del self._stack[position:]
                return found
        raise ValueError("a pickle that takes more than it has")

    def _mark(self, argument: None) -> None:
        self._stack.append(_MARK)

    def _memoize(self, argument: None) -> None:
        self._memory[len(self._memory)] = self._stack[-1]

    def _tuple(self, argument: None) -> None:
        self._stack.append(tuple(self._down_to_mark()))

    def _list(self, argument: None) -> None:
        self._stack.append(self._down_to_mark())

    def _dict(self, argument: None) -> None:
        self._stack.append(_paired(self._down_to_mark()))

    def _append(self, argument: None) -> None:
        value = self.pop()
        self._top(list).append(value)

    def _appends(self, argument: None) -> None:
        values = self._down_to_mark()
        self._top(list).extend(values)

    def _setitem(self, argument: None) -> None:
        value, key = self.pop(), self.pop()
        self._top(dict)[key] = value

    def _setitems(self, argument: None) -> None:
        pairs = self._down_to_mark()
        self._top(dict).update(_paired(pairs))

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Name(module, name))

    def _stack_global(self, argument: None) -> None:
        name, module = self.pop(), self.pop()
        self._stack.append(Name(str(module), str(name)))

    def _reduce(self, argument: None) -> None:
        arguments, of = self.pop(), self.pop()
        if not isinstance(of, Name) or not isinstance(arguments, tuple):
            raise ValueError("a pickle that calls something without a name")
        self._stack.append(_called(of, arguments))

    _newobj = _reduce

    def _build(self, argument: None) -> None:
        state = self.pop()
        self._top(Made).state = state


def _paired(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _called(of: Name, arguments: tuple[Any, ...]) -> Any:
    compute = _KNOWN.get(of)
    return Made(of, arguments) if compute is None else compute(*arguments)


def _bytes(content: Any = b"", encoding: str = "latin-1") -> bytes:
    """The bytes that ``bytearray()`` or ``_codecs.encode()`` make of bytes, or of a str that stands for bytes."""
    if isinstance(content, (bytes, bytearray)):
        return bytes(content)
    if isinstance(content, str) and encoding in ("latin-1", "latin1"):
        return content.encode("latin-1")
    raise ValueError(f"a pickle with bytes of {type(content).__name__}")


def _number(dtype: Any, content: Any) -> Any:
    """A NumPy scalar, as Python's number."""
    code = dtype.arguments[0] if isinstance(dtype, Made) and dtype.of == Name("numpy", "dtype") else None
    if not isinstance(code, str) or code[:1] not in "fiub" or code[1:] not in ("1", "2", "4", "8"):
        raise ValueError("a pickle with a NumPy number of an unknown kind")
    return np.frombuffer(_bytes(content), f"<{code}", 1)[0].item()


def _bare(of: Any, base: Any = None, state: Any = None) -> Made:
    """The result of ``copyreg._reconstructor()``: an object whose state comes later."""
    if not isinstance(of, Name):
        raise ValueError("a pickle that makes something without a name")
    return Made(of, ())


_KNOWN: dict[Name, Callable[..., Any]] = {
    **{Name(module, "bytearray"): _bytes for module in ("builtins", "__builtin__")},
    Name("_codecs", "encode"): _bytes,
    **{Name(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
    **{Name(module, "_reconstructor"): _bare for module in ("copyreg", "copy_reg")},
}


# -- writing -----------------------------------------------------------------------------------------------


def dumps(value: Any) -> bytes:
    """The pickle of what :func:`loads` gives, in which bytes stand for bytearrays, as MXNet wants them.

    Raises:
        TypeError: it holds something else.
    """
    return b"".join((b"\x80\x03", *_written(value), b"."))


def _written(value: Any) -> Iterator[bytes]:
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"{value!r} has no place in a file of MXNet's: it holds numbers, text, arrays, lists and dicts")
    yield from write(value)


def _write_int(value: int) -> Iterator[bytes]:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    yield b"\x8a" + bytes([len(content)]) + content


def _write_text(value: str) -> Iterator[bytes]:
    content = value.encode()
    yield b"X" + struct.pack("<I", len(content)) + content


def _write_bytes(value: bytes) -> Iterator[bytes]:
    yield from _write_name(Name("builtins", "bytearray"))
    yield b"B" + struct.pack("<I", len(value))
    yield value
    yield b"\x85R"


def _write_name(value: Name) -> Iterator[bytes]:
    yield b"c%s\n%s\n" % (value.module.encode(), value.name.encode())


def _write_made(value: Made) -> Iterator[bytes]:
    yield from _write_name(value.of)
    yield from _written(value.arguments)
    yield b"\x81" if value.arguments == () else b"R"
    if value.state is not None:
        yield from _written(value.state)
        yield b"b"


def _write_sequence(value: list[Any] | tuple[Any, ...]) -> Iterator[bytes]:
    yield b"("
    for each in value:
        yield from _written(each)
    yield b"t" if isinstance(value, tuple) else b"l"


def _write_dict(value: Mapping[Any, Any]) -> Iterator[bytes]:
    yield b"("
    for key, each in value.items():
        yield from _written(key)
        yield from _written(each)
    yield b"d"


_WRITERS: dict[type, Callable[[Any], Iterator[bytes]]] = {
    type(None): lambda value: iter((b"N",)),
    bool: lambda value: iter((b"\x88" if value else b"\x89",)),
    int: _write_int,
    float: lambda value: iter((b"G" + struct.pack(">d", value),)),
    str: _write_text,
    bytes: _write_bytes,
    Made: _write_made,
    tuple: _write_sequence,
    list: _write_sequence,
    dict: _write_dict,
}
