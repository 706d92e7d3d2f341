"""oneDNN's C API through ctypes: the library, its constants, and its functions with status checks.

The library comes with the wheel ``onednn-cpu-gomp`` (oneDNN 3.2); :mod:`search` has the places where it may be. If it
is missing, :func:`library` returns None and every operator's forward runs.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import platform
import sys
import weakref
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from flowmx import forks, settings
from flowmx.devices.threads import spin_before_sleep
from flowmx.ops.kernels.onednn import search

Handle = ctypes.c_void_p
Dims = ctypes.c_int64 * 12

_VERSION = (3, 2)
"""The oldest supported version; its interface is stable until the next major version."""
_OPENMP = 2
"""``DNNL_RUNTIME_OMP``, the threads of a build."""
_log = logging.getLogger("flowmx.kernels")

STATUS = ["success", "out of memory", "invalid arguments", "unimplemented", "last implementation reached",
          "runtime error", "not required"]  # fmt: skip


class DType(IntEnum):
    """Data types."""

    F16 = 1
    BF16 = 2
    F32 = 3
    S32 = 4
    S8 = 5
    U8 = 6

    @property
    def nbytes(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


_NEEDS = {DType.BF16: 0x80, DType.F16: 0x100}
"""The bit of ``dnnl_cpu_isa_t`` for 16-bit multiplication (avx512_core_bf16, _fp16), by type."""
_SIZES = {DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.S32: 4, DType.S8: 1, DType.U8: 1}


class Prop(IntEnum):
    """Kinds of propagation."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Alg(IntEnum):
    """Algorithms."""

    CONVOLUTION_DIRECT = 0x1
    ELTWISE_RELU = 0x20
    ELTWISE_TANH = 0x21
    ELTWISE_LINEAR = 0x26
    ELTWISE_LOGISTIC = 0x29
    ELTWISE_SWISH = 0x2C
    ELTWISE_CLIP = 0x2E
    ELTWISE_ROUND = 0x32
    POOLING_MAX = 0x1FF
    POOLING_AVG_INCLUDE_PADDING = 0x2FF
    POOLING_AVG_EXCLUDE_PADDING = 0x3FF
    LRN_ACROSS_CHANNELS = 0xAFF
    BINARY_ADD = 0x1FFF0
    BINARY_MUL = 0x1FFF1


class Query(IntEnum):
    """The queries of a primitive descriptor (``dnnl_query_t``)."""

    IMPLEMENTATION = 8
    SRC = 129
    DIFF_SRC = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DST = 133
    DIFF_DST = 134
    WORKSPACE = 135
    SCRATCHPAD = 136


class Arg(IntEnum):
    """The arguments of a primitive's execution."""

    SRC = 1
    SRC_1 = 2
    SRC_2 = 3
    DST = 17
    DST_1 = 18
    DST_2 = 19
    WEIGHTS = 33
    WEIGHTS_1 = 34
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161
    DIFF_BIAS = 169
    DIFF_SCALE = 255
    DIFF_SHIFT = 256
    ATTR_SCALES = 4096
    ATTR_POST_OP = 32768


USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT = 1, 2, 4
ANY_LAYOUT = 1


_KEPT_PRIMITIVES = 64
"""The capacity of oneDNN's primitive cache: small, since flowmx caches the primitives that it uses."""


_AVX2_VNNI, _AVX512_VNNI = 0x8, 0x40
"""The bits of ``dnnl_cpu_isa_t`` for VNNI among the instructions of AVX2 and of AVX-512."""


class ExecArg(ctypes.Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = [("arg", ctypes.c_int), ("memory", Handle)]


class OneDNNError(RuntimeError):
    """A call into oneDNN failed."""


class Unsupported(OneDNNError):
    """oneDNN has no implementation for a request."""


class Library:
    """The loaded library with one engine and one stream; calls raise :class:`OneDNNError`.

    Attributes:
        path: its file.
        threads: returns the number of threads of a primitive that the calling thread makes or runs; OpenMP stores it
            per thread. A primitive's scratch memory is sized for the number at its creation, so it must run with the
            same number: more threads would write beyond the end.
        use_threads: sets that number for the calling thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        # Called before each execution, holding the GIL: releasing it would take longer.
        openmp = ctypes.PyDLL("libgomp.so.1")
        self.threads: Callable[[], int] = openmp.omp_get_max_threads
        self.use_threads: Callable[[int], object] = openmp.omp_set_num_threads
        # Called for every execution, so there is no status check in Python.
        self.execute: Callable[..., int] = self._dll.dnnl_primitive_execute
        self.execute.argtypes = [Handle, Handle, ctypes.c_int, ctypes.c_void_p]
        # Holds the GIL, since the call is short.
        self.set_pointer: Callable[..., int] = ctypes.PyDLL(str(path)).dnnl_memory_set_data_handle
        self.set_pointer.argtypes = [Handle, ctypes.c_void_p]
        self._size: Callable[..., int] = self._dll.dnnl_memory_desc_get_size
        self._size.argtypes, self._size.restype = [Handle], ctypes.c_size_t
        self._query: Callable[..., int] = self._dll.dnnl_primitive_desc_query_md
        self._query.argtypes, self._query.restype = [Handle, ctypes.c_int, ctypes.c_int], Handle
        self._equal: Callable[..., int] = self._dll.dnnl_memory_desc_equal
        self._equal.argtypes = [Handle, Handle]
        self.engine = self.create("engine_create", 1, ctypes.c_size_t(0))
        self.call("set_primitive_cache_capacity", _KEPT_PRIMITIVES)
        self.stream = self.create("stream_create", self.engine, 1)

    def create(self, name: str, *arguments: object) -> Handle:
        """Call ``dnnl_NAME(&handle, *arguments)`` and return the new handle.

        Raises:
            Unsupported: there is no implementation.
            OneDNNError: any other failure.
        """
        handle = Handle()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def own(self, owner: object, kind: str, handle: Handle) -> Handle:
        """Return a handle and destroy it (``dnnl_KIND_destroy``) when its owner is freed."""
        weakref.finalize(owner, self._function(f"{kind}_destroy"), handle).atexit = False
        return handle

    def call(self, name: str, *arguments: object) -> None:
        """Call ``dnnl_NAME``."""
        check(name, self._function(name)(*arguments))

    def _function(self, name: str) -> Any:
        """Return ``dnnl_NAME``, cached: a new ctypes function per call would create a reference cycle each time."""
        return getattr(self._dll, f"dnnl_{name}")

    def size(self, desc: Handle) -> int:
        """Return the size in bytes of the memory that a descriptor describes."""
        return int(self._size(desc))

    def equal(self, first: Handle, second: Handle) -> bool:
        """Return whether two memory descriptors are equal."""
        return bool(self._equal(first, second))

    def described(self, primitive_desc: Handle, what: Query, index: int = 0) -> Handle:
        """Return a copy of a memory descriptor of a primitive descriptor."""
        return self.create("memory_desc_clone", Handle(self._query(primitive_desc, what, index)))

    def implementation(self, primitive_desc: Handle) -> str:
        """Return the name of the chosen implementation."""
        text = ctypes.c_char_p()
        self.call("primitive_desc_query", primitive_desc, Query.IMPLEMENTATION, 0, ctypes.byref(text))
        return (text.value or b"").decode()

    @cached_property
    def isa(self) -> int:
        """The processor's instruction sets that oneDNN uses, as bits of ``dnnl_cpu_isa_t``."""
        return int(self._dll.dnnl_get_effective_cpu_isa())

    def multiplies(self, dtype: DType) -> bool:
        """Return whether the processor has instructions for products of this type, and oneDNN may use them."""
        return not ~self.isa & _NEEDS.get(dtype, 0)

    def multiplies_bytes(self) -> bool:
        """Return whether the processor has instructions that sum int8 products exactly."""
        return bool(self.isa & (_AVX512_VNNI | _AVX2_VNNI))

    def sums_int8_exactly(self, implementation: str) -> bool:
        """Return whether an implementation sums int8 products in 32 bits from the first addition on.

        Without VNNI the products of two neighbors are added in 16 bits, which overflow, and some filters are halved.
        """
        if implementation.startswith("ref"):
            return False  # exact, but slower than sums in float32
        return bool(self.isa & _AVX512_VNNI) or (self.multiplies_bytes() and "vnni" in implementation)

    def version(self) -> str:
        """Return the library's version."""
        return ".".join(map(str, self._build().numbers))

    def _build(self) -> _Version:
        self._dll.dnnl_version.restype = ctypes.POINTER(_Version)
        build: _Version = self._dll.dnnl_version().contents
        return build

    def check_build(self, path: Path) -> None:
        """Check that the library is one that flowmx can use: builds of systems and of conda differ.

        Raises:
            OneDNNError: its version or its threads do not fit.
        """
        build = self._build()
        major, minor = build.numbers[:2]
        if major != _VERSION[0] or minor < _VERSION[1]:
            raise OneDNNError(f"its version is {self.version()}, expected {_VERSION[0]}.{_VERSION[1]} or a later one")
        if build.cpu_runtime != _OPENMP:
            raise OneDNNError("it was built without OpenMP, whose threads flowmx shares among kernels")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"libgomp.so") < 0:
                raise OneDNNError("it uses an OpenMP library other than libgomp")


class _Version(ctypes.Structure):
    """``dnnl_version_t``."""

    _fields_ = [
        ("numbers", ctypes.c_int * 3), ("hash", ctypes.c_char_p), ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    ]  # fmt: skip
    numbers: ctypes.Array[ctypes.c_int]
    cpu_runtime: int


def check(name: str, status: int) -> None:
    """Raise if a call into oneDNN failed."""
    if status:
        status_text = STATUS[status] if 0 < status < len(STATUS) else str(status)
        kind = Unsupported if status_text in ("unimplemented", "last implementation reached") else OneDNNError
        raise kind(f"oneDNN: {name} failed: {status_text}")


_lock = forks.lock()
_loaded: list[Library | None] = []


def library() -> Library | None:
    """Return the library, loaded at the first call, or None if it is missing or does not load."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(_load())
    return _loaded[0]


def _load() -> Library | None:
    setting = settings.get().onednn_library
    for path in search.candidates(setting):
        if not path.exists():
            _missing.append(path)
            continue
        try:
            with spin_before_sleep():
                candidate = Library(path)
            candidate.check_build(path)
        except (OSError, OneDNNError, AttributeError) as error:
            _failures.append(f"{path}: {error}")
        else:
            return candidate
    if _failures or _missing:  # otherwise it is switched off
        is_expected = setting or _failures or (sys.platform, platform.machine()) == ("linux", "x86_64")
        _log.log(logging.WARNING if is_expected else logging.INFO, "%s", _description_of_search())
    return None


_failures: list[str] = []
"""Files that could not be loaded, and the reasons."""
_missing: list[Path] = []
"""The places without a file."""


def _description_of_search() -> str:
    """Describe why there is no library, and where it was searched."""
    slower = "convolutions, products and recurrent layers run in NumPy, slower"
    if settings.get().onednn_library:
        text = _failures[0] if _failures else f"FLOWMX_ONEDNN_LIBRARY is {_missing[0]}, which does not exist"
        return f"oneDNN cannot be loaded: {text}; {slower}"
    folders = ", ".join(dict.fromkeys(str(path.parent) for path in _missing))
    text = f"no usable {search.FILE} ({'; '.join(_failures)})" if _failures else f"there is no {search.FILE}"
    return (
        f"oneDNN is not installed: {text} in {folders}; pip install {search.DISTRIBUTION}, or set "
        f"FLOWMX_ONEDNN_LIBRARY to the file; {slower}"
    )


def status() -> str:
    """Describe the library for reports: its version and file, or where it was searched."""
    if not _loaded:
        return "oneDNN was not needed yet"
    loaded = _loaded[0]
    if loaded is not None:
        return f"oneDNN {loaded.version()} from {loaded.path}"
    return _description_of_search() if _failures or _missing else "oneDNN is switched off by FLOWMX_ONEDNN_LIBRARY"
