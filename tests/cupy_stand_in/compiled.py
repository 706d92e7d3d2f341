"""CUDA C on the host: ``RawModule`` for the stand-in, by g++.

A kernel's source is compiled as C++ with the words of CUDA C defined away, and run block by block. The threads of a
block take turns: each runs to its next barrier (or shuffle), on a separate stack. So the results are those of a GPU,
except races between two barriers; the speed on a GPU cannot be measured here.

Every source takes one structure ``Args`` by value in a kernel called ``kernel``.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SHIM = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <stdlib.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __align__(n) alignas(n)
#define __grid_constant__

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct Dim { unsigned x, y, z; };
static Dim blockIdx, threadIdx, blockDim, gridDim;

static inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
static inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
static inline float half_to_float(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
static inline unsigned short float_to_half(float x) {
    _Float16 h = (_Float16)x;
    unsigned short bits;
    memcpy(&bits, &h, 2);
    return bits;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <typename T> static inline T max(T a, T b) { return a > b ? a : b; }
template <typename T> static inline T min(T a, T b) { return a < b ? a : b; }

struct Fiber { ucontext_t context; char* stack; bool done; };
static ucontext_t scheduler;
static Fiber* fibers;
static unsigned current;
static double slots[1024];

static void pause_here() { swapcontext(&fibers[current].context, &scheduler); }
static inline void __syncthreads() { pause_here(); }
static inline void __syncwarp() { pause_here(); }
template <typename T> static T exchange(T value, unsigned from) {
    memcpy(&slots[current], &value, sizeof(T));
    pause_here();
    T found;
    memcpy(&found, &slots[from < blockDim.x ? from : current], sizeof(T));
    pause_here();
    return found;
}
template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask) { return exchange(value, current ^ mask); }
template <typename T> static T __shfl_down_sync(unsigned, T value, int by) { return exchange(value, current + by); }
template <typename T> static T __shfl_sync(unsigned, T value, int lane) {
    return exchange(value, (current & ~31u) + lane);
}
template <typename T> static T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
#define __ldg(place) (*(place))

"""

DRIVER = r"""
static const Args* kernel_args;
static void body() { kernel(*kernel_args); fibers[current].done = true; pause_here(); }

static void run_block(bool with_barriers) {
    if (!with_barriers) {
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel(*kernel_args);
        return;
    }
    for (unsigned t = 0; t < blockDim.x; ++t) {
        fibers[t].done = false;
        getcontext(&fibers[t].context);
        fibers[t].context.uc_stack.ss_sp = fibers[t].stack;
        fibers[t].context.uc_stack.ss_size = 1 << 16;
        fibers[t].context.uc_link = &scheduler;
        makecontext(&fibers[t].context, body, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (unsigned t = 0; t < blockDim.x; ++t) {
            if (fibers[t].done) continue;
            current = t;
            threadIdx.x = t;
            swapcontext(&scheduler, &fibers[t].context);
            alive = alive || !fibers[t].done;
        }
    }
}

extern "C" void launch(const unsigned* grid, unsigned threads, const void* args, int with_barriers) {
    kernel_args = (const Args*)args;
    threadIdx = {0, 0, 0};
    blockDim = {threads, 1, 1};
    gridDim = {grid[0], grid[1], grid[2]};
    if (with_barriers && !fibers) {
        fibers = (Fiber*)calloc(1024, sizeof(Fiber));
        for (int t = 0; t < 1024; ++t) fibers[t].stack = (char*)malloc(1 << 16);
    }
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) run_block(with_barriers);
}
"""

COMPILER = shutil.which("g++")


@cache
def _folder() -> Any:
    return tempfile.TemporaryDirectory(prefix="flowmx-kernels-")


@cache
def _shim() -> Path:
    """Return the shim, compiled once: to parse math.h takes longer than to compile most kernels."""
    path = Path(_folder().name) / "shim.h"
    path.write_text(SHIM)
    _run_compiler("-x", "c++-header", path, "-o", f"{path}.gch")
    return path


def _run_compiler(*arguments: str | Path) -> None:
    assert COMPILER is not None
    options = ["-std=c++17", "-O0", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"]
    process = subprocess.run([COMPILER, *options, *arguments], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"it does not compile:\n{process.stderr}")


@cache
def _compile(code: str) -> Any:
    """Compile a source, and return its function ``launch``."""
    path = Path(_folder().name) / hashlib.sha256(code.encode()).hexdigest()
    source = path.with_suffix(".cc")
    source.write_text(f"{code}\n{DRIVER}")
    _run_compiler("-shared", "-include", _shim(), source, "-o", path)
    return ctypes.CDLL(str(path)).launch


class RawModule:
    """The part of ``cupy.RawModule`` that kernels use."""

    def __init__(self, code: str, options: tuple[str, ...] = ()) -> None:
        self._code = code

    def get_function(self, name: str) -> Any:
        """Return the only kernel, ``kernel``."""
        assert name == "kernel"
        launch, code = _compile(self._code), self._code
        with_barriers = any(word in code for word in ("__syncthreads()", "__shfl", "__syncwarp()"))

        def call(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0) -> None:
            (packed,) = args
            # CuPy passes a NumPy array of one element by value.
            assert isinstance(packed, np.ndarray)
            assert packed.size == 1
            assert 0 < block[0] <= 1024
            assert packed.nbytes <= 4096
            assert all(0 < each < 1 << 31 for each in grid)
            dims = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
            launch(dims, ctypes.c_uint(block[0]), ctypes.c_void_p(packed.ctypes.data), ctypes.c_int(with_barriers))

        return call
