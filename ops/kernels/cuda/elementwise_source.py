"""From formulas to CUDA C: the same graphs that the CPU's loops are made of (:mod:`flowmx.ops.formulas.expressions`).

A source has one kernel, ``kernel``, which takes one structure ``Args`` by value: numbers and addresses. What elements
are kept in (float, double, 16 bits) and what they are computed in is apart: 16 bits are widened as they are read and
rounded as they are written. No header is included, so that NVRTC needs nothing but itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache

from flowmx.ops.formulas.expressions import Expr, in_order, kinds, uniforms
from flowmx.ops.registry.dtypes import NAMES, DType

KEPT = {"float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bfloat16_t"}
"""Element types in memory: NumPy's name, and the type in the sources."""

_FLOAT_ONLY = {"scale", "exponent", "mantissa"}
"""Primitives of polynomials, whose coefficients are those of float32."""

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
    out.bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to the nearest, halves to even
}

// x * 2^e in two halves, since 2^e by itself may overflow where the product does not.
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

// Several elements as one access to memory. The compiler takes stores of vectors apart where it cannot tell that the
// places are not those of others, so they are written out.
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
    Pack<T, N> found;
    found.bits = *reinterpret_cast<const typename Bits<sizeof(T) * N>::type*>(place);
    return found;
}
template <int N, typename T> __device__ __forceinline__ void store(T* place, const Pack<T, N>& given) {
    put(reinterpret_cast<typename Bits<sizeof(T) * N>::type*>(place), given.bits);
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
def kept(dtype: DType) -> str | None:
    """The sources' type for elements of a dtype in memory; None where no kernel takes it."""
    return KEPT.get(NAMES.get(dtype, ""))


def computed_in(dtypes: Sequence[DType]) -> str | None:
    """The type to compute in for arrays of these dtypes, ``double`` or ``float``; None where no kernel takes them."""
    names = {kept(dtype) for dtype in dtypes}
    if None in names or ("double" in names and len(names) > 1):
        return None
    return "double" if names == {"double"} else "float"


def is_exact(outputs: Sequence[Expr], real: str) -> bool:
    """Tell whether formulas are accurate when they are computed in this type."""
    return real == "float" or not kinds(outputs) & _FLOAT_ONLY


def constant(value: float, real: str) -> str:
    """A number as a literal that is it to the last bit."""
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
    outputs: Sequence[Expr], given: Mapping[Expr, str], real: str, name: str = "v"
) -> tuple[list[str], list[str]]:
    """The statements that compute formulas, and what the results are called.

    Args:
        outputs: the formulas.
        given: what inputs, and what comes with the call, are called.
        real: what to compute in.
        name: begins the names of what is in between.
    """
    known, lines = dict(given), list[str]()
    for expr in in_order(outputs, known):
        if expr.kind == "number":
            known[expr] = constant(expr.value, real)
            continue
        known[expr] = f"{name}{len(lines)}"
        kind = "bool" if expr.kind in _CONDITIONS else real
        lines.append(f"{kind} {known[expr]} = {_text(expr, [known[arg] for arg in expr.args], real)};")
    return lines, [known[output] for output in outputs]


def _text(expr: Expr, operands: Sequence[str], real: str) -> str:
    if expr.kind in _FUNCTIONS:
        return f"{_FUNCTIONS[expr.kind]}{'f' if real == 'float' else ''}({', '.join(operands)})"
    if expr.kind not in _TEXTS:
        raise ValueError(f"there is no primitive {expr.kind!r}")
    return _TEXTS[expr.kind].format(*operands)


class Formulas:
    """Formulas for arrays of given element types, to be written as C.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: of the inputs and then of the outputs.

    Attributes:
        is_exact: whether C computes them as precisely as the plain forward.
        uniforms: what comes with each launch as a number.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        real = computed_in(dtypes)
        self.is_exact = real is not None and is_exact(outputs, real)
        self.uniforms = uniforms(outputs)
        self._outputs = outputs
        self._real = real or "float"
        self._kept = [kept(dtype) for dtype in dtypes]
