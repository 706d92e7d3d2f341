"""From formulas to CUDA C: from the same graphs as the CPU's loops (:mod:`flowmx.ops.formulas.expressions`).

A source has one kernel, ``kernel``, which takes one structure ``Args`` by value: numbers and addresses. The type in
memory (float, double, 16 bits) and the computing type differ: 16-bit elements are widened when read and rounded when
written. No header is included, so NVRTC needs no files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache

from flowmx.ops.formulas.expressions import Expr, evaluation_order, primitives, uniforms
from flowmx.ops.registry.dtypes import NAMES, DType

KEPT = {"float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bfloat16_t"}
"""Element types in memory: NumPy's name and the type in the sources."""

_FLOAT_ONLY = {"scale", "exponent", "mantissa"}
"""Primitives computed by polynomials, with coefficients for float32."""

PRELUDE = """
struct half_t { unsigned short bits; };
struct bfloat16_t { unsigned short bits; };
typedef long long int64;

#ifdef __CUDACC__
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ __forceinline__ unsigned short float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ double widened(double x) { return x; }
__device__ __forceinline__ float widened(half_t x) { return half_to_float(x.bits); }
__device__ __forceinline__ float widened(bfloat16_t x) { return __int_as_float((int)x.bits << 16); }
__device__ __forceinline__ void narrow(float x, float& out) { out = x; }
__device__ __forceinline__ void narrow(double x, double& out) { out = x; }
__device__ __forceinline__ void narrow(float x, half_t& out) { out.bits = float_to_half(x); }
__device__ __forceinline__ void narrow(float x, bfloat16_t& out) {
    unsigned int bits = (unsigned int)__float_as_int(x);
    out.bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to the nearest, ties to even
}

// x * 2^e in two halves, since 2^e may overflow although the product does not.
__device__ __forceinline__ float scaled(float x, float e) {
    int whole = (int)e, first = whole >> 1;
    return x * __int_as_float((first + 127) << 23) * __int_as_float((whole - first + 127) << 23);
}
// The exponent of x, whose mantissa is from the root of 1/2 to that of 2; and that mantissa.
__device__ __forceinline__ int exponent_bits(float x) { return (__float_as_int(x) - 0x3f3504f3) >> 23; }
__device__ __forceinline__ float exponent(float x) { return (float)exponent_bits(x); }
__device__ __forceinline__ float mantissa(float x) {
    return __int_as_float(__float_as_int(x) - (int)((unsigned int)exponent_bits(x) << 23));
}

// Several elements as one memory access. The compiler splits vector stores if it cannot exclude aliasing, so they are
// written in assembly.
template <typename B> __device__ __forceinline__ void put(B* place, B bits) { *place = bits; }
#ifdef __CUDACC__
__device__ __forceinline__ void put(uint4* place, uint4 b) {
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(place), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w) : "memory");
}
__device__ __forceinline__ void put(uint2* place, uint2 b) {
    asm volatile("st.v2.b32 [%0], {%1, %2};" :: "l"(place), "r"(b.x), "r"(b.y) : "memory");
}
#endif
template <int N> struct Bits;
template <> struct Bits<16> { typedef uint4 type; };
template <> struct Bits<8> { typedef uint2 type; };
template <> struct Bits<4> { typedef unsigned int type; };
template <> struct Bits<2> { typedef unsigned short type; };
template <typename T, int N> union Pack {
    typename Bits<sizeof(T) * N>::type bits;
    T at[N];
};
template <int N, typename T> __device__ __forceinline__ Pack<T, N> load(const T* place) {
    Pack<T, N> result;
    result.bits = *reinterpret_cast<const typename Bits<sizeof(T) * N>::type*>(place);
    return result;
}
template <int N, typename T> __device__ __forceinline__ void store(T* place, const Pack<T, N>& pack) {
    put(reinterpret_cast<typename Bits<sizeof(T) * N>::type*>(place), pack.bits);
}
"""

_TEXTS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}",
    "ne": "{0} != {1}", "and": "{0} && {1}", "or": "{0} || {1}", "xor": "{0} != {1}", "select": "{0} ? {1} : {2}",
    "scale": "scaled({0}, {1})", "exponent": "exponent({0})", "mantissa": "mantissa({0})",
}  # fmt: skip
_FUNCTIONS = {
    "fma": "fma", "abs": "fabs", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "copysign": "copysign", "exp": "exp", "log": "log",
}  # fmt: skip
_CONDITIONS = {"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor"}


@cache
def memory_type(dtype: DType) -> str | None:
    """Return the sources' type for elements of a dtype in memory; None if no kernel supports it."""
    return KEPT.get(NAMES.get(dtype, ""))


def compute_type(dtypes: Sequence[DType]) -> str | None:
    """Return the computing type for arrays of these dtypes, ``double`` or ``float``; None if unsupported."""
    names = {memory_type(dtype) for dtype in dtypes}
    if None in names or ("double" in names and len(names) > 1):
        return None
    return "double" if names == {"double"} else "float"


def is_exact(outputs: Sequence[Expr], real: str) -> bool:
    """Return whether formulas are accurate when computed in this type."""
    return real == "float" or not primitives(outputs) & _FLOAT_ONLY


def constant(value: float, real: str) -> str:
    """Return a literal that equals a number bit for bit."""
    if real == "float":
        value = _to_float(value)
    if math.isnan(value):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(value):
        return f"({real})__int_as_float({'0x7f800000' if value > 0 else '(int)0xff800000'})"
    return f"({value.hex()}{'f' if real == 'float' else ''})"


def _to_float(value: float) -> float:
    try:
        narrow: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrow


def lower(
    outputs: Sequence[Expr], names: Mapping[Expr, str], real: str, name: str = "v"
) -> tuple[list[str], list[str]]:
    """Return the statements that compute formulas, and the names of the results.

    Args:
        outputs: the formulas.
        names: the names of inputs and of scalars of the call.
        real: the computing type.
        name: the prefix of the names of intermediate values.
    """
    names_, lines = dict(names), list[str]()
    for expr in evaluation_order(outputs, names_):
        if expr.kind == "number":
            names_[expr] = constant(expr.value, real)
            continue
        names_[expr] = f"{name}{len(lines)}"
        kind = "bool" if expr.kind in _CONDITIONS else real
        lines.append(f"{kind} {names_[expr]} = {_text(expr, [names_[arg] for arg in expr.args], real)};")
    return lines, [names_[output] for output in outputs]


def _text(expr: Expr, operands: Sequence[str], real: str) -> str:
    if expr.kind in _FUNCTIONS:
        return f"{_FUNCTIONS[expr.kind]}{'f' if real == 'float' else ''}({', '.join(operands)})"
    if expr.kind not in _TEXTS:
        raise ValueError(f"there is no primitive {expr.kind!r}")
    return _TEXTS[expr.kind].format(*operands)


class Formulas:
    """Formulas for arrays of given element types, for C sources.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: the dtypes of the inputs, then of the outputs.

    Attributes:
        is_exact: whether C computes them as precisely as the operator's forward.
        uniforms: the scalars of each launch.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        real = compute_type(dtypes)
        self.is_exact = real is not None and is_exact(outputs, real)
        self.uniforms = uniforms(outputs)
        self._outputs = outputs
        self._real = real or "float"
        self._types = [memory_type(dtype) for dtype in dtypes]
