"""From LLVM's assembly to functions in memory, by llvmlite, with a cache of machine code on disk.

llvmlite is imported at the first compilation. To choose and order instructions well takes LLVM five times as long as to
do it plainly. The first call of a function gets plain code (:func:`compile_plainly`), which gives the same bits, but
for the signs of NaNs: the text says what is rounded, and in what order.

A file of the cache (:mod:`flowmx.disk_cache`) is named by a digest of the text, LLVM's version, the processor and its
features.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import disk_cache
from flowmx.ops.kernels.llvm.code import DATA

Function = Callable[[bytes], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # releases the interpreter's lock
_PASSES = ("sroa", "simplify_cfg", "instruction_combine")
"""LLVM's passes over a text, in order. It works on vectors already, and its loops are as they should be: what is left
is to keep variables in registers, and to tidy up. LLVM's own choice takes 20 times as long.
"""
_PLAIN = ".plain"
"""The ending of files of plain code."""
_GENERATION = 2
"""Part of the cache key; increase it when :func:`_generate` makes other code of the same text."""

_lock = threading.RLock()
_loaded: dict[str, Compiled] = {}


class Unavailable(Exception):
    """Raised where llvmlite is missing or does not work."""


class Compiled(NamedTuple):
    """A function in memory."""

    call: Function
    """Called with the words of a call."""
    address: int


class _Host(NamedTuple):
    """The compiler for this machine."""

    machine: Any
    plain: Any
    """The one for plain code."""
    engine: Any
    features: frozenset[str]
    identity: str
    """The compiler's and processor's part of the cache key of machine code."""


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
        machine, plain = (
            llvm.Target.from_default_triple().create_target_machine(
                cpu=name, features=features.flatten(), opt=level, reloc="pic", codemodel="small", jit=True
            )
            for level in (3, 0)
        )
        engine = llvm.create_lljit_compiler(machine, use_jit_link=True)
        keep(engine)
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
    return _Host(machine, plain, engine, able, repr(identity))


def knows_arrays() -> bool:
    """Tell whether an array's data pointer is at the offset at which compiled functions read it."""
    if sys.implementation.name != "cpython":
        return False
    array = np.empty(1)
    return ctypes.c_void_p.from_address(id(array) + DATA).value == array.ctypes.data


def available() -> bool:
    """Tell whether functions can be compiled here (imports llvmlite)."""
    return _host() is not None


def features() -> frozenset[str]:
    """The processor's features as LLVM names them; empty where there is no compiler."""
    host = _host()
    return frozenset() if host is None else host.features


def compile(text: str) -> Compiled:
    """The function ``kernel`` of an assembly text, from the cache or compiled now.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        host, key = _key(text)
        return _function(host, disk_cache.folder() / key, lambda: _generate(host, text))


def compile_plainly(text: str) -> tuple[Compiled, Path | None]:
    """The same function, from the cache or compiled now: code that may be slower, and is there in half the time.

    Returns:
        it, and its file for :func:`improve`; None where it is what :func:`compile` gives.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        host, key = _key(text)
        if key in _loaded or (disk_cache.folder() / key).exists():
            return compile(text), None
        path = disk_cache.folder() / f"{key}{_PLAIN}"
        return _function(host, path, lambda: _generate(host, text, True)), path


def improve(text: str, plain: Path) -> Compiled:
    """The function that :func:`compile` gives, where there is plain code; it takes the place of that one's file.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        host, key = _key(text)
        found = _function(host, plain.with_name(key), lambda: _emit(host, host.machine, text), plain.exists())
        with suppress(OSError):
            plain.unlink()
        return found


def _function(host: _Host, path: Path, generate: Callable[[], bytes], is_kept: bool = True) -> Compiled:
    """The function of a file's name, from memory, from the file, or made now."""
    name = path.name
    known = _loaded.get(name)
    if known is None:
        machine_code = disk_cache.read(path)
        if machine_code is None:
            machine_code = generate()
            if is_kept:
                disk_cache.write(path, machine_code)
        known = _loaded[name] = _load(host, name, machine_code)
    return known


def _key(text: str) -> tuple[_Host, str]:
    """The compiler, and the key of a text in the cache.

    Raises:
        Unavailable: llvmlite is missing.
    """
    host = _host()
    if host is None:
        raise Unavailable("llvmlite is not installed")
    return host, disk_cache.digest(f"{host.identity}\n{text}".encode()).hexdigest()


def _generate(host: _Host, text: str, is_plain: bool = False) -> bytes:
    return _emit(host, host.plain if is_plain else host.machine, text)


def _emit(host: _Host, machine: Any, text: str) -> bytes:
    """Machine code by one of the compiler's machines."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(host.machine, llvm.create_pipeline_tuning_options()))
    code: bytes = machine.emit_object(module)
    return code


def _load(host: _Host, key: str, machine_code: bytes) -> Compiled:
    import llvmlite.binding as llvm

    library = llvm.JITLibraryBuilder().add_object_img(machine_code).add_current_process().export_symbol("kernel")
    tracker = library.link(host.engine, key)
    keep(tracker)
    address = tracker["kernel"]
    return Compiled(_PROTOTYPE(address), address)


def keep(thing: Any) -> None:
    """Keep it for ever: a thread may run its code, or look at it, while the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
