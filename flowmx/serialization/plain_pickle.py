"""The part of Python's pickle format that files of MXNet and PyTorch use, read and written as plain data.

A pickle is a program for a stack machine. Its calls are dangerous, since it can call any function that can be imported.
Here a call only creates a description of the call, an :class:`ObjectRecord`. A few known functions, which create bytes
and numbers, are evaluated. Nothing is ever imported.

A pickle can also refer to one object many times. Keys must therefore be plain values: hashing nested tuples takes
exponential time.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.scanning import check_key


class Name(NamedTuple):
    """The name of a class or function. It is never imported."""

    module: str
    name: str


class ObjectRecord:
    """An object in a pickle: its class, the arguments of its constructor, and its state."""

    def __init__(self, cls: Name, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.cls = cls
        self.arguments = arguments
        self.state = state

    def __repr__(self) -> str:
        return f"a {self.cls.module}.{self.cls.name}"


# -- reading -----------------------------------------------------------------------------------------------


def loads(
    data: bytes, functions: Mapping[Name, Callable[..., Any]] = {}, persistent: Callable[[Any], Any] | None = None
) -> Any:
    """Read a pickle without importing or calling anything it names; unknown objects become :class:`ObjectRecord`.

    Args:
        data: the pickle.
        functions: further functions that are computed, by the names in the pickle.
        persistent: returns the value of a persistent identifier; None rejects them.

    Raises:
        ValueError: the data is not a pickle, or uses opcodes that files of MXNet and PyTorch do not use.
    """
    machine = _Machine({**_FUNCTIONS, **functions}, persistent)
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "STOP":
            return machine.pop()
        execute = _OPCODES.get(name)
        if execute is None:
            raise ValueError(f"unsupported pickle opcode {name}; array files never use it")
        try:
            execute(machine, argument)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"the pickle is damaged: {name} raises {error!r}") from error
    raise ValueError("the pickle has no STOP opcode")


_MARK = object()


class _Machine:
    """The stack machine that runs a pickle."""

    def __init__(self, functions: Mapping[Name, Callable[..., Any]], persistent: Callable[[Any], Any] | None) -> None:
        self._functions = functions
        self._persistent = persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []  # their positions on the stack
        self._memory: dict[int, Any] = {}

    def pop(self) -> Any:
        """Pop the top of the stack."""
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a pickle that pops from an empty stack")
        return self._stack.pop()

    def push(self, value: Any) -> None:
        """Push a value."""
        self._stack.append(value)

    def get(self, number: int) -> None:
        """Push a memoized value."""
        self._stack.append(self._memory[number])

    def pop_tuple(self, size: int) -> None:
        """Replace the topmost values by a tuple of them."""
        self._stack.append(tuple([self.pop() for _ in range(size)][::-1]))

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ValueError(f"a pickle that adds to a value other than a {kind.__name__}")
        return self._stack[-1]

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("a pickle that pops from an empty stack")
        position = self._marks.pop()
        values = self._stack[position + 1 :]
        del self._stack[position:]
        return values

    def mark(self, argument: None) -> None:
        self._marks.append(len(self._stack))
        self._stack.append(_MARK)

    def memoize(self, argument: int | None) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a pickle that memoizes from an empty stack")
        self._memory[len(self._memory) if argument is None else argument] = self._stack[-1]

    def load_persistent(self, argument: None) -> None:
        if self._persistent is None:
            raise ValueError("a pickle with a persistent identifier")
        self._stack.append(self._persistent(self.pop()))

    def make_tuple(self, argument: None) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def make_list(self, argument: None) -> None:
        self._stack.append(self._pop_to_mark())

    def make_dict(self, argument: None) -> None:
        self._stack.append(_pairs(self._pop_to_mark()))

    def append(self, argument: None) -> None:
        value = self.pop()
        self._top(list).append(value)

    def extend(self, argument: None) -> None:
        values = self._pop_to_mark()
        self._top(list).extend(values)

    def set_item(self, argument: None) -> None:
        value, key = self.pop(), self.pop()
        self._top(dict)[_key(key)] = value

    def set_items(self, argument: None) -> None:
        pairs = self._pop_to_mark()
        self._top(dict).update(_pairs(pairs))

    def push_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Name(module, name))

    def pop_global(self, argument: None) -> None:
        name, module = self.pop(), self.pop()
        self._stack.append(Name(str(module), str(name)))

    def call(self, argument: None) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("the pickle calls a value that is not a named function")
        compute = self._functions.get(function)
        self._stack.append(ObjectRecord(function, arguments) if compute is None else compute(*arguments))

    def set_state(self, argument: None) -> None:
        state = self.pop()
        if not self._stack or not isinstance(self._stack[-1], dict):  # drop the attributes of an OrderedDict
            self._top(ObjectRecord).state = state


_Execute = Callable[[_Machine, Any], None]


def _push(make: Callable[[], object]) -> _Execute:
    return lambda machine, _: machine.push(make())


def _pop_tuple(size: int) -> _Execute:
    return lambda machine, _: machine.pop_tuple(size)


_LITERALS = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
)  # fmt: skip
"""Opcodes that push their argument."""

_OPCODES: dict[str, _Execute] = {
    **dict.fromkeys(_LITERALS, _Machine.push),
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_DICT": _push(dict),
    "EMPTY_LIST": _push(list),
    "EMPTY_TUPLE": _push(tuple),
    "TUPLE1": _pop_tuple(1),
    "TUPLE2": _pop_tuple(2),
    "TUPLE3": _pop_tuple(3),
    "MARK": _Machine.mark,
    "TUPLE": _Machine.make_tuple,
    "LIST": _Machine.make_list,
    "DICT": _Machine.make_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.push_global,
    "STACK_GLOBAL": _Machine.pop_global,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.set_state,
    "BINPERSID": _Machine.load_persistent,
}
"""The supported opcodes. Each is run with the machine and the argument from the pickle."""


def _pairs(values: Sequence[object]) -> dict[Any, Any]:
    return dict(zip(map(_key, values[::2]), values[1::2], strict=True))


def _key(value: object) -> Any:
    if not isinstance(value, _KEYS):
        raise ValueError(f"a pickle with a key that is a {type(value).__name__}")
    check_key(value)
    return value


_KEYS = (str, bytes, int, float, type(None))


def _bytes(content: object = b"", encoding: str = "latin-1") -> bytes:
    """Compute ``bytearray()`` or ``_codecs.encode()`` of bytes, or of a str that represents bytes."""
    if isinstance(content, (bytes, bytearray)):
        return bytes(content)
    if isinstance(content, str) and encoding in ("latin-1", "latin1"):
        return content.encode("latin-1")
    raise ValueError(f"a pickle with bytes of {type(content).__name__}")


def _number(dtype: object, content: object) -> Any:
    """Convert a NumPy scalar to a Python number."""
    code = dtype.arguments[0] if isinstance(dtype, ObjectRecord) and dtype.cls == Name("numpy", "dtype") else None
    if not isinstance(code, str) or code[:1] not in "fiub" or code[1:] not in ("1", "2", "4", "8"):
        raise ValueError("a pickle with a NumPy number of an unknown kind")
    return np.frombuffer(_bytes(content), f"<{code}", 1)[0].item()


def _reconstruct(cls: object, base: object = None, state: object = None) -> ObjectRecord:
    """Compute ``copyreg._reconstructor()``: an object whose state follows later."""
    if not isinstance(cls, Name):
        raise ValueError("a pickle that creates an object of a class without a name")
    return ObjectRecord(cls, ())


_FUNCTIONS: dict[Name, Callable[..., Any]] = {
    **{Name(module, "bytearray"): _bytes for module in ("builtins", "__builtin__")},
    Name("_codecs", "encode"): _bytes,
    **{Name(f"numpy.{core}.multiarray", "scalar"): _number for core in ("core", "_core")},
    **{Name(module, "_reconstructor"): _reconstruct for module in ("copyreg", "copy_reg")},
}


# -- writing -----------------------------------------------------------------------------------------------


def dumps(value: object) -> bytes:
    """Return the pickle of a result of :func:`loads`. Bytes are written as bytearrays, as MXNet expects.

    Raises:
        TypeError: it contains an unsupported type.
    """
    return b"".join((b"\x80\x03", *_write(value), b"."))


def _write(value: object) -> Iterator[bytes]:
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"unsupported value {value!r}, expected numbers, strings, arrays, lists and dicts")
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


def _write_object(value: ObjectRecord) -> Iterator[bytes]:
    yield from _write_name(value.cls)
    yield from _write(value.arguments)
    yield b"\x81" if value.arguments == () else b"R"
    if value.state is not None:
        yield from _write(value.state)
        yield b"b"


def _write_sequence(value: list[Any] | tuple[Any, ...]) -> Iterator[bytes]:
    yield b"("
    for item in value:
        yield from _write(item)
    yield b"t" if isinstance(value, tuple) else b"l"


def _write_dict(value: Mapping[Any, Any]) -> Iterator[bytes]:
    yield b"("
    for key, item in value.items():
        yield from _write(key)
        yield from _write(item)
    yield b"d"


_WRITERS: dict[type, Callable[[Any], Iterator[bytes]]] = {
    type(None): lambda value: iter((b"N",)),
    bool: lambda value: iter((b"\x88" if value else b"\x89",)),
    int: _write_int,
    float: lambda value: iter((b"G" + struct.pack(">d", value),)),
    str: _write_text,
    bytes: _write_bytes,
    ObjectRecord: _write_object,
    tuple: _write_sequence,
    list: _write_sequence,
    dict: _write_dict,
}
