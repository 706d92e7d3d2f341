"""Load machine code into memory without LLVM, whose library takes longer to load than the rest of most first calls.

Compiled functions need little of a linker: code and constants at fixed distances from each other, and calls of
the C library. An object file with anything else in it is left to LLVM's linker.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from functools import lru_cache
from typing import NamedTuple

_HEAD = struct.Struct("<4s12xHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QIIq")  # Elf64_Rela
_OBJECT, _X86_64 = 1, 62
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_WRITE, _ALLOCATED = 1, 2
_DISTANCES = (2, 4)
"""R_X86_64_PC32 and R_X86_64_PLT32: a distance of 32 bits."""
_STUB = struct.Struct("<6sQ2x")
_JUMP = b"\xff\x25\0\0\0\0"
"""A jump to the address that follows: the C library may be further away than 32 bits can express."""
_FUNCTION = b"kernel"


class _Unsupported(Exception):
    """Raised if a file has something that only LLVM can link."""


class _Section(NamedTuple):
    """A section of an object file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


def can_load() -> bool:
    """Return whether the object files of this system are supported."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def load(content: bytes) -> int | None:
    """Return the address of an object file's function ``kernel``, which stays loaded; None if LLVM has to load it."""
    if not can_load():
        return None
    try:
        image, start = _link(content)
        return _map_executable(image) + start
    except (_Unsupported, OSError, struct.error, IndexError, ValueError):
        return None


def _link(content: bytes) -> tuple[bytearray, int]:
    """Link a file's sections into a position-independent image; return it and the offset of the function."""
    magic, kind, machine, _, _, _, offset, _, _, _, _, size, count, _ = _HEAD.unpack_from(content)
    if (magic, kind, machine, size) != (b"\x7fELF", _OBJECT, _X86_64, _SECTION.size):
        raise _Unsupported
    sections = [_Section(*_SECTION.unpack_from(content, offset + at * size)) for at in range(count)]
    image, places = bytearray(), {}
    for number, section in enumerate(sections):
        if not section.flags & _ALLOCATED or not section.size:
            continue
        if section.kind != _PROGRAM or section.flags & _WRITE:
            raise _Unsupported
        image += bytes(-len(image) % max(section.alignment, 1))
        places[number] = len(image)
        image += content[section.offset : section.offset + section.size]
    symbols = _Symbols(content, sections, image, places)
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
                offset, kind, symbol, addend = _RELOCATION.unpack_from(content, at)
                if kind not in _DISTANCES:
                    raise _Unsupported
                place = places[section.info] + offset
                struct.pack_into("<i", image, place, symbols.place(symbol) + addend - place)
    return image, symbols.function()


class _Symbols:
    """The places of a file's symbols in its image; jumps to functions of the C library are added to it."""

    def __init__(self, content: bytes, sections: list[_Section], image: bytearray, places: dict[int, int]) -> None:
        table = next((each for each in sections if each.kind == _SYMBOLS), None)
        if table is None:
            raise _Unsupported
        names = sections[table.link]
        self._names = content[names.offset : names.offset + names.size]
        self._rows = list(_SYMBOL.iter_unpack(content[table.offset : table.offset + table.size]))
        self._image = image
        self._places = places
        self._stubs: dict[int, int] = {}

    def place(self, number: int) -> int:
        """Return the place of a symbol."""
        _, _, _, section, value, _ = self._rows[number]
        if section in self._places:
            return self._places[section] + int(value)
        if section:
            raise _Unsupported
        if number not in self._stubs:
            self._image += bytes(-len(self._image) % _STUB.size)
            self._stubs[number] = len(self._image)
            self._image += _STUB.pack(_JUMP, _in_library(self._name(number)))
        return self._stubs[number]

    def function(self) -> int:
        """Return the place of the function."""
        numbers = [at for at in range(len(self._rows)) if self._name(at) == _FUNCTION]
        if len(numbers) != 1:
            raise _Unsupported
        return self.place(numbers[0])

    def _name(self, number: int) -> bytes:
        start = self._rows[number][0]
        return self._names[start : self._names.index(b"\0", start)]


def _in_library(name: bytes) -> int:
    """Return the address of a function that the process has loaded."""
    try:
        address = ctypes.cast(_process()[name.decode()], ctypes.c_void_p).value
    except AttributeError:
        raise _Unsupported from None
    assert address is not None
    return address


@lru_cache(1)
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _map_executable(image: bytes | bytearray) -> int:
    """Return the address of executable memory with these bytes, which is never freed.

    Raises:
        OSError: the system does not permit executable memory.
    """
    memory = mmap.mmap(-1, len(image))
    memory[:] = bytes(image)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = _process().mprotect
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(len(image)), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return address
