"""NumPy's BLAS in native calls: small products of matrices, as ``numpy.matmul`` computes them.

A generated function takes the address of BLAS's ``sgemm`` and its arguments as words, so that a product can be a record
of a native run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import DATA
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array

_NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_")
"""The function in builds of BLAS with 64-bit integers, such as that of NumPy's wheels."""
_PLAIN, _TRANSPOSED = 111, 112

_TEXT = """
define void @kernel(ptr %data) nounwind {
entry:
{loads}
  call void %f2(i32 101, i32 %t3, i32 %t4, i64 %w5, i64 %w6, i64 %w7, float 1.0, ptr %d11, i64 %w8,
                ptr %d12, i64 %w9, float 0.0, ptr %d13, i64 %w10)
  ret void
}
"""


def _text(features: frozenset[str]) -> str:
    lines = []
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
    return _TEXT.replace("{loads}", "\n".join(lines))


_program = Program(_text)


@lru_cache(1)
def _address() -> int:
    """Return the address of ``sgemm`` in NumPy's BLAS; 0 if it is not found."""
    module = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    try:
        library = ctypes.CDLL(module.__file__)  # type: ignore[union-attr]
    except (AttributeError, OSError, TypeError):
        return 0
    for name in _NAMES:
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def product(rows: int, columns: int, terms: int, turn_a: bool) -> Callable[[Array, Array, Array], None] | None:
    """Return ``function(a, b, out)`` for float32 matrices in C order, with the bits of ``numpy.matmul``.

    Args:
        rows: the number of rows of the product, above 1.
        columns: the number of its columns, above 1.
        terms: the number of products in each sum, above 1.
        turn_a: whether ``a`` is stored as (terms, rows).

    Returns:
        the function; None if NumPy multiplies such matrices differently, or the call is not compiled (yet).
    """
    if min(rows, columns, terms) < 2 or not _address() or _program.get() is None:
        return None
    head = (0, 1, _address(), _TRANSPOSED if turn_a else _PLAIN, _PLAIN, rows, columns, terms,
            rows if turn_a else terms, columns, columns)  # fmt: skip
    pack_head, pack_places = struct.Struct(f"{len(head)}q").pack(*head), struct.Struct("3q").pack

    def multiply(a: Array, b: Array, out: Array) -> None:
        compiled = _program.compiled
        assert compiled is not None
        team.run(compiled, pack_head + pack_places(id(a), id(b), id(out)), 1, (a, b, out))

    return multiply
