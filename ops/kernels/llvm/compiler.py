"""Compile LLVM assembly to functions in memory with llvmlite, and cache the machine code on disk.

llvmlite is imported at the first compilation. A program whose functions are all in the cache never imports it; what
LLVM reports about the machine is cached too. Optimized code takes LLVM five times as long as baseline code. The first
call of a function gets baseline code (:func:`compile_baseline`), whose results are bit-identical, except for the signs
of NaNs: the text fixes the roundings and their order.

A file of the cache (:mod:`flowmx.disk_cache`) is named by a digest of the text, LLVM's version, the processor and its
features.
"""

from __future__ import annotations

import ctypes
import marshal
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import disk_cache, forks
from flowmx.ops.kernels.llvm import object_files
from flowmx.ops.kernels.llvm.assembly import DATA

Function = Callable[[bytes], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # releases the interpreter's lock
_PASSES = ("sroa", "simplify_cfg", "instruction_combine")
"""LLVM's passes over a text, in order. The text already works on vectors, and its loops need no change. The passes only
keep variables in registers (the first, which baseline code has too) and tidy up. LLVM's default passes take 20
times as long.
"""
_BASELINE = ".plain"
"""The suffix of files of baseline code."""
_GENERATION = 3
"""Part of the cache key; increase it when :func:`_emit` emits different code for the same text."""

_MACHINE = ".machine"
"""The suffix of files with LLVM's report about a machine."""

_lock = forks.lock()
_loaded: dict[str, Compiled] = {}
_loads: list[str] = []
"""The functions in the order in which they were loaded."""


class Unavailable(Exception):
    """Raised if llvmlite is missing or does not work."""


class Compiled(NamedTuple):
    """A function in memory."""

    call: Function
    """Called with the words of a call."""
    address: int


class _Machine(NamedTuple):
    """The machine, as LLVM describes it.

    Attributes:
        features: the processor's features.
        identity: the part of the cache key that identifies the compiler and the processor.
    """

    features: frozenset[str]
    identity: str


class _Host(NamedTuple):
    """The compiler for this machine."""

    best: Any
    baseline: Any
    """The target machine for baseline code."""
    linker: Any
    machine: _Machine


def _host() -> _Host | None:
    """Return the compiler, or None if llvmlite is missing or does not support this machine."""
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
        best, baseline = (
            llvm.Target.from_default_triple().create_target_machine(
                cpu=name, features=features.flatten(), opt=level, reloc="pic", codemodel="small", jit=True
            )
            for level in (3, 0)
        )
        linker = llvm.create_lljit_compiler(best, use_jit_link=True)
        keep(linker)
    except (ImportError, OSError, RuntimeError):
        return None
    supported = frozenset(feature for feature, is_supported in features.items() if is_supported)
    identity = (
        _GENERATION,
        llvmlite.__version__,
        llvm.llvm_version_info,
        llvm.get_default_triple(),
        name,
        features.flatten(),
    )
    return _Host(best, baseline, linker, _Machine(supported, repr(identity)))


def _machine() -> _Machine | None:
    """Return the machine, from the cache or as LLVM reports it now; None if there is no compiler for it."""
    with _lock:
        return _cached_machine()


@lru_cache(maxsize=1)
def _cached_machine() -> _Machine | None:
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
    """Return the file with what LLVM reports about this machine; None if it must be asked each time."""
    package = find_spec("llvmlite") if object_files.can_load() and knows_arrays() else None
    if package is None:
        return None
    key = repr((_GENERATION, disk_cache.stamp(Path(package.origin or "")), disk_cache.processor()))
    return disk_cache.folder() / f"{disk_cache.digest(key.encode()).hexdigest()}{_MACHINE}"


def is_known() -> bool:
    """Return whether cached functions can be found without LLVM."""
    path = _machine_path()
    return path is not None and path.exists()


def load() -> None:
    """Import LLVM, if it is installed."""
    _host()


def load_count() -> int:
    """Return the number of loaded functions; if it has grown, recorded calls may be replaced by faster functions."""
    return len(_loads)


def knows_arrays() -> bool:
    """Return whether an array's data pointer is at the offset at which compiled functions read it."""
    if sys.implementation.name != "cpython":
        return False
    array = np.empty(1)
    return ctypes.c_void_p.from_address(id(array) + DATA).value == array.ctypes.data


def available() -> bool:
    """Return whether functions can be compiled here."""
    return _machine() is not None


def features() -> frozenset[str]:
    """Return the processor's features as LLVM names them; empty if there is no compiler."""
    machine = _machine()
    return frozenset() if machine is None else machine.features


def has(feature: str) -> bool:
    """Return whether the processor has a feature; "" needs none, and every 64-bit ARM processor converts float16."""
    return not feature or feature in features() or (feature == "f16c" and platform.machine() in ("aarch64", "arm64"))


def compile(text: str) -> Compiled:
    """Return the function ``kernel`` of an assembly text, from the cache or compiled now.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        return _function(disk_cache.folder() / _key(text), lambda: _emit(text))


def compile_baseline(text: str) -> tuple[Compiled, Path | None]:
    """Return the function of :func:`compile`: from the cache, or compiled now, perhaps as baseline code.

    Returns:
        the function, and its file for :func:`improve`; None instead of a file if the function is already optimized.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        key = _key(text)
        if key in _loaded or (disk_cache.folder() / key).exists():
            return compile(text), None
        path = disk_cache.folder() / f"{key}{_BASELINE}"
        return _function(path, lambda: _emit(text, is_baseline=True)), path


def improve(text: str, baseline: Path) -> Compiled:
    """Return the function that :func:`compile` returns, and replace the file of its baseline code.

    Raises:
        Unavailable: llvmlite is missing.
    """
    with _lock:
        function = _function(baseline.with_name(_key(text)), lambda: _emit(text), baseline.exists())
        with suppress(OSError):
            baseline.unlink()
        return function


def _function(path: Path, generate: Callable[[], bytes], is_cached: bool = True) -> Compiled:
    """Return the function of a file name: from memory, from the file, or generated now."""
    name = path.name
    function = _loaded.get(name)
    if function is None:
        machine_code = disk_cache.read(path)
        if machine_code is None:
            machine_code = generate()
            if is_cached:
                disk_cache.write(path, machine_code)
        function = _loaded[name] = _load(name, machine_code)
        _loads.append(name)
    return function


def _key(text: str) -> str:
    """Return the key of a text in the cache.

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


def _emit(text: str, is_baseline: bool = False) -> bytes:
    """Return the machine code of a text."""
    host = _compiler()
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES[:1] if is_baseline else _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(host.best, llvm.create_pipeline_tuning_options()))
    code: bytes = (host.baseline if is_baseline else host.best).emit_object(module)
    return code


def _load(key: str, machine_code: bytes) -> Compiled:
    address = object_files.load(machine_code)
    if address is None:
        linker = _compiler().linker
        import llvmlite.binding as llvm

        library = llvm.JITLibraryBuilder().add_object_img(machine_code).add_current_process().export_symbol("kernel")
        tracker = library.link(linker, key)
        keep(tracker)
        address = tracker["kernel"]
    return Compiled(_PROTOTYPE(address), address)


def keep(thing: object) -> None:
    """Keep an object forever: a thread may still run its code, or read it, while the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
