"""NumPy's BLAS in native calls: small products of matrices, as ``numpy.matmul`` computes them.

A generated function takes the address of BLAS's ``sgemm`` or ``sgemv`` and its arguments as 64-bit integers, so that a
product can be part of a recorded sequence of native calls (see ``recording.py``).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import DATA
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array

Product = Callable[[Array, Array, Array], None]

_NAMES = {"gemm": ("scipy_cblas_sgemm64_", "cblas_sgemm64_"), "gemv": ("scipy_cblas_sgemv64_", "cblas_sgemv64_")}
"""The functions in builds of BLAS with 64-bit integers, such as that of NumPy's wheels."""
_BY_ROWS, _BY_COLUMNS, _PLAIN, _TRANSPOSED = 101, 102, 111, 112

_GEMM = """
  call void %f2(i32 101, i32 %t3, i32 %t4, i64 %w5, i64 %w6, i64 %w7, float 1.0, ptr %d11, i64 %w8,
                ptr %d12, i64 %w9, float 0.0, ptr %d13, i64 %w10)
"""
_GEMV = """
  call void %f2(i32 %t3, i32 %t4, i64 %w5, i64 %w6, float 1.0, ptr %d11, i64 %w7,
                ptr %d12, i64 1, float 0.0, ptr %d13, i64 1)
"""


def _text(call: str, features: frozenset[str]) -> str:
    lines = ["define void @kernel(ptr %data) nounwind {", "entry:"]
    for word in range(2, 14):
        lines.append(f"  %at{word} = getelementptr i64, ptr %data, i64 {word}")
        if word == 2:
            lines.append("  %f2 = load ptr, ptr %at2")
        elif word > 10:
            lines += [
                f"  %array{word} = load ptr, ptr %at{word}",
                f"  %place{word} = getelementptr i8, ptr %array{word}, i64 {DATA}",
                f"  %d{word} = load ptr, ptr %place{word}",
            ]
        else:
            lines.append(f"  %w{word} = load i64, ptr %at{word}")
            if word in (3, 4):
                lines.append(f"  %t{word} = trunc i64 %w{word} to i32")
    return "\n".join([*lines, call, "  ret void", "}", ""])


_gemm, _gemv = Program(partial(_text, _GEMM)), Program(partial(_text, _GEMV))


@lru_cache(2)
def _address(kind: str) -> int:
    """Return the address of a function in NumPy's BLAS; 0 if it is not found."""
    module = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    try:
        library = ctypes.CDLL(module.__file__)  # type: ignore[union-attr]
    except (AttributeError, OSError, TypeError):
        return 0
    for name in _NAMES[kind]:
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def product(
    rows: int, columns: int, terms: int, transpose_a: bool = False, transpose_b: bool = False
) -> Product | None:
    """Return ``function(a, b, out)`` for float32 matrices in C order, bit-identical to ``numpy.matmul``.

    Args:
        rows: the number of rows of the product, above 1.
        columns: the number of its columns, above 1.
        terms: the number of products in each sum, above 1.
        transpose_a: whether ``a`` is stored as (terms, rows).
        transpose_b: whether ``b`` is stored as (columns, terms).

    Returns:
        the function; None if NumPy multiplies such matrices differently, or the call is not compiled (yet).
    """
    if min(rows, columns, terms) < 2:
        return None
    orders = [_TRANSPOSED if transpose else _PLAIN for transpose in (transpose_a, transpose_b)]
    steps = rows if transpose_a else terms, terms if transpose_b else columns, columns
    return _call("gemm", _gemm, (*orders, rows, columns, terms, *steps))


def row_product(columns: int, terms: int) -> Product | None:
    """Return ``function(matrix, row, out)``: a row times a matrix of shape (terms, columns); see :func:`product`."""
    if min(columns, terms) < 2:
        return None
    return _call("gemv", _gemv, (_BY_ROWS, _TRANSPOSED, terms, columns, columns, 0, 0, 0))


def column_product(rows: int, terms: int) -> Product | None:
    """Return ``function(matrix, column, out)``: a matrix of shape (rows, terms) times a column; see :func:`product`."""
    if min(rows, terms) < 2:
        return None
    return _call("gemv", _gemv, (_BY_COLUMNS, _TRANSPOSED, terms, rows, terms, 0, 0, 0))


def _call(kind: str, program: Program, words: tuple[int, ...]) -> Product | None:
    if not _address(kind) or program.get() is None:
        return None
    head, pack_places = struct.pack("11q", 0, 1, _address(kind), *words), struct.Struct("3q").pack

    def multiply(a: Array, b: Array, out: Array) -> None:
        compiled = program.compiled
        assert compiled is not None
        team.run(compiled, head + pack_places(id(a), id(b), id(out)), 1, (a, b, out))

    return multiply
