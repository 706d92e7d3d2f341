"""From LLVM's assembly to functions in memory, by llvmlite, with a cache of machine code on disk.

llvmlite is imported at the first compilation. A program whose functions are all in the cache does without it; what LLVM
knows of the machine is kept there too. To choose and order instructions well takes LLVM five times as long as
to do it plainly. The first call of a function gets plain code (:func:`compile_plainly`), which gives the same bits, but
for the signs of NaNs: the text says what is rounded, and in what order.

A file of the cache (:mod:`flowmx.disk_cache`) is named by a digest of the text, LLVM's version, the processor and its
features.
"""

from __future__ import annotations

import ctypes
import marshal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import disk_cache
from flowmx.ops.kernels.llvm import objects
from flowmx.ops.kernels.llvm.code import DATA

Function = Callable[[bytes], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # releases the interpreter's lock
_PASSES = ("sroa", "simplify_cfg", "instruction_combine")
"""LLVM's passes over a text, in order. It works on vectors already, and its loops are as they should be: what is left
is to keep variables in registers (the first, which plain code has too), and to tidy up. LLVM's own choice takes 20
times as long.
"""
_PLAIN = ".plain"
"""The ending of files of plain code."""
_GENERATION = 3
"""Part of the cache key; increase it when :func:`_emit` makes other code of the same text."""

_MACHINE = ".machine"
"""The ending of files with what LLVM knows of a machine."""

_lock = threading.RLock()
_loaded: dict[str, Compiled] = {}


class Unavailable(Exception):
    """Raised where llvmlite is missing or does not work."""


class Compiled(NamedTuple):
    """A function in memory."""

    call: Function
    """Called with the words of a call."""
    address: int


class _Machine(NamedTuple):
    """The machine as LLVM knows it.

    Attributes:
        features: what the processor can do.
        identity: the compiler's and processor's part of the cache key of machine code.
    """

    features: frozenset[str]
    identity: str


class _Host(NamedTuple):
    """The compiler for this machine."""

    best: Any
    plain: Any
    """The one for plain code."""
    linker: Any
    machine: _Machine


def _host() -> _Host | None:
    """The compiler set up, or None where llvmlite is missing or does not know this machine."""
    with _lock:
        return _set_up()


@lru_cache(maxsize=1)
def _set_up() -> _Host | None:
    if not knows_arrays():
        return None
    try:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
        best, plain = (
            llvm.Target.from_default_triple().create_target_machine(
                cpu=name, features=features.flatten(), opt=level, reloc="pic", codemodel="small", jit=True
            )
            for level in (3, 0)
        )
        linker = llvm.create_lljit_compiler(best, use_jit_link=True)
        keep(linker)
    except (ImportError, OSError, RuntimeError):
        return None
    able = frozenset(feature for feature, has in features.items() if has)
    identity = (
        _GENERATION,
        llvmlite.__version__,
        llvm.llvm_version_info,
        llvm.get_default_triple(),
        name,
        features.flatten(),
    )
    return _Host(best, plain, linker, _Machine(able, repr(identity)))


def _machine() -> _Machine | None:
    """The machine, from the cache or as LLVM says now; None where there is no compiler for it."""
    with _lock:
        return _known_machine()


@lru_cache(maxsize=1)
def _known_machine() -> _Machine | None:
    path = _machine_path()
    content = None if path is None else disk_cache.read(path)
    if content is not None:
        features, identity = marshal.loads(content)
        return _Machine(frozenset(features), identity)
    host = _host()
    if host is not None and path is not None:
        disk_cache.write(path, marshal.dumps((sorted(host.machine.features), host.machine.identity)))
    return None if host is None else host.machine


def _machine_path() -> Path | None:
    """The file with what LLVM knows of this machine; None where it has to be asked each time."""
    found = find_spec("llvmlite") if objects.can_load() and knows_arrays() else None
    if found is None:
        return None
    key = repr((_GENERATION, disk_cache.stamp(Path(found.origin or "")), disk_cache.processor()))
    return disk_cache.folder() / f"{disk_cache.digest(key.encode()).hexdigest()}{_MACHINE}"


def is_known() -> bool:
    """Tell whether functions in the cache can be found without LLVM."""
    path = _machine_path()
    return path is not None and path.exists()


def load() -> None:
    """Import LLVM, where it is there."""
    _host()


def knows_arrays() -> bool:
    """Tell whether an array's data pointer is at the offset at which compiled functions read it."""
    if sys.implementation.name != "cpython":
        return False
    array = np.empty(1)
    return ctypes.c_void_p.from_address(id(array) + DATA).value == array.ctypes.data


def available() -> bool:
    """Tell whether functions can be compiled here."""
    return _machine() is not None


def features() -> frozenset[str]:
    """The processor's features as LLVM names them; empty where there is no compiler."""
    machine = _machine()
    return frozenset() if machine is None else machine.features


def compile(text: str) -> Compiled:
    """The function ``kernel`` of an assembly text, from the cache or compiled now.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        return _function(disk_cache.folder() / _key(text), lambda: _emit(text))


def compile_plainly(text: str) -> tuple[Compiled, Path | None]:
    """The same function, from the cache or compiled now: code that may be slower, and is there in half the time.

    Returns:
        it, and its file for :func:`improve`; None where it is what :func:`compile` gives.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        key = _key(text)
        if key in _loaded or (disk_cache.folder() / key).exists():
            return compile(text), None
        path = disk_cache.folder() / f"{key}{_PLAIN}"
        return _function(path, lambda: _emit(text, is_plain=True)), path


def improve(text: str, plain: Path) -> Compiled:
    """The function that :func:`compile` gives, where there is plain code; it takes the place of that one's file.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        found = _function(plain.with_name(_key(text)), lambda: _emit(text), plain.exists())
        with suppress(OSError):
            plain.unlink()
        return found


def _function(path: Path, generate: Callable[[], bytes], is_kept: bool = True) -> Compiled:
    """The function of a file's name, from memory, from the file, or made now."""
    name = path.name
    known = _loaded.get(name)
    if known is None:
        machine_code = disk_cache.read(path)
        if machine_code is None:
            machine_code = generate()
            if is_kept:
                disk_cache.write(path, machine_code)
        known = _loaded[name] = _load(name, machine_code)
    return known


def _key(text: str) -> str:
    """The key of a text in the cache.

    Raises:
        Unavailable: llvmlite is missing.
    """
    machine = _machine()
    if machine is None:
        raise Unavailable("llvmlite is not installed")
    return disk_cache.digest(f"{machine.identity}\n{text}".encode()).hexdigest()


def _compiler() -> _Host:
    host = _host()
    if host is None:
        raise Unavailable("llvmlite does not work")
    return host


def _emit(text: str, is_plain: bool = False) -> bytes:
    """Machine code of a text."""
    host = _compiler()
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES[:1] if is_plain else _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(host.best, llvm.create_pipeline_tuning_options()))
    code: bytes = (host.plain if is_plain else host.best).emit_object(module)
    return code


def _load(key: str, machine_code: bytes) -> Compiled:
    address = objects.load(machine_code)
    if address is None:
        linker = _compiler().linker
        import llvmlite.binding as llvm

        library = llvm.JITLibraryBuilder().add_object_img(machine_code).add_current_process().export_symbol("kernel")
        tracker = library.link(linker, key)
        keep(tracker)
        address = tracker["kernel"]
    return Compiled(_PROTOTYPE(address), address)


def keep(thing: Any) -> None:
    """Keep it for ever: a thread may run its code, or look at it, while the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
