"""The table of ``mx.np``: for each name what serves it.

A name is one of these:

- a *call*: NumPy's function as an operation of the engine (``operator.py``). Where an operator of the registry does
  the same on floating numbers of one dtype, :data:`REGISTERED` names it: it has kernels of its own, and a gradient;
- *waiting*: the result's shape, or its type, follows from what the arrays hold, so that the call waits for them;
- *host*: an answer about dtypes and shapes, or a constant, without looking at any element;
- one of the functions in the modules of :data:`WRITTEN`, which has no counterpart in NumPy, or differs from it.

Gradients are those of ``gradients.py``. They are zero, or make no sense, for :data:`WITHOUT_GRADIENT`; those of
:data:`REFUSED` are refused by the backward pass that asks for them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "CALLS", "CONSTANTS", "DTYPES", "FFT", "FORMER", "HOST", "LINALG", "LINALG_WAITING", "METHODS", "MOVING",
    "NEWER", "REFUSED", "REGISTERED", "REGISTERED_WITH_NUMBER", "RENAMED", "SHAPED", "WAITING", "WITHOUT_GRADIENT",
    "WRITTEN", "names", "ufunc",
]  # fmt: skip


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_UFUNCS = names("""
    abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh
    bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs
    float_power floor floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside hypot invert isfinite
    isinf isnan lcm ldexp left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and
    logical_not logical_or logical_xor matmul matvec maximum minimum mod modf multiply negative nextafter not_equal
    positive pow power rad2deg radians reciprocal remainder right_shift rint sign signbit sin sinh spacing sqrt
    square subtract tan tanh true_divide trunc vecdot vecmat
""")

_OTHERS = names("""
    all amax amin angle any append argmax argmin argpartition around array_split atleast_1d atleast_2d atleast_3d
    average broadcast_to choose column_stack concat concatenate convolve copy corrcoef correlate count_nonzero cov
    cross cumprod cumsum cumulative_prod cumulative_sum delete diag diagflat diagonal diff digitize dot dsplit
    dstack ediff1d einsum expand_dims fix flip fliplr flipud gradient hsplit hstack i0 imag inner insert interp
    isclose iscomplex isin isneginf isposinf isreal kron lexsort matrix_transpose max mean median min moveaxis
    nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
    nanquantile nanstd nansum nanvar outer packbits pad partition percentile permute_dims polyadd polyder
    polyint polymul polysub polyval prod ptp put_along_axis quantile ravel real repeat resize roll rollaxis rot90
    round searchsorted select sinc split squeeze stack std sum swapaxes take take_along_axis tensordot tile trace
    transpose trapezoid tril triu unpackbits unravel_index unstack unwrap vander var vdot vsplit vstack where
""")

NEWER = names("""
    acos acosh asin asinh atan atan2 atanh bitwise_count bitwise_invert bitwise_left_shift bitwise_right_shift
    concat cumulative_prod cumulative_sum isdtype matrix_transpose matvec permute_dims pow trapezoid unique_all
    unique_counts unique_inverse unique_values unstack vecdot vecmat linalg.cross linalg.diagonal linalg.matmul
    linalg.matrix_norm linalg.matrix_transpose linalg.outer linalg.svdvals linalg.tensordot linalg.trace
    linalg.vecdot linalg.vector_norm
""")
"""Names that came with NumPy 2."""

FORMER = {} if hasattr(np, "trapezoid") else {"trapezoid": "trapz"}
"""Names that NumPy 1 has for functions of MXNet."""

CALLS = (_UFUNCS | _OTHERS) - {"put_along_axis"}

WAITING = names("""
    allclose apply_along_axis apply_over_axes argwhere array_equal array_equiv bincount compress extract flatnonzero
    histogram histogram2d histogram_bin_edges histogramdd intersect1d ix_ nonzero piecewise poly polydiv polyfit roots
    setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts unique_inverse unique_values
    ravel_multi_index diag_indices_from tril_indices_from triu_indices_from
""")

SHAPED = names("""
    array_split broadcast_to delete hsplit dsplit insert moveaxis pad permute_dims repeat reshape resize roll split tile
    transpose vsplit
""")
"""Calls whose arguments after the first say what shape the result has: where they are arrays, they are waited for."""

HOST = names("""
    broadcast_shapes can_cast iscomplexobj isdtype isrealobj min_scalar_type ndim promote_types result_type shape
    size
""")

LINALG = names("""
    cholesky cond cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
    matrix_transpose multi_dot norm outer pinv qr slogdet solve svd svdvals tensordot tensorinv tensorsolve trace
    vecdot vector_norm
""")
LINALG_WAITING = frozenset(["eig", "eigvals", "lstsq"])
FFT = names("""
    fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2 rfftn
""")

RENAMED = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "alltrue": "all", "amax": "max", "amin": "min",
    "around": "round", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh",
    "bitwise_invert": "invert", "bitwise_left_shift": "left_shift", "bitwise_not": "invert",
    "bitwise_right_shift": "right_shift", "concat": "concatenate", "conj": "conjugate", "degrees": "rad2deg",
    "divide": "true_divide", "fix": "trunc", "in1d": "isin", "mod": "remainder", "permute_dims": "transpose",
    "pow": "power", "product": "prod", "radians": "deg2rad", "round_": "round", "row_stack": "vstack",
    "sometrue": "any", "trapz": "trapezoid",
}  # fmt: skip
"""Other names of a function, and the one that its gradient and its operator are under."""

WRITTEN = {
    "creation": names("""
    arange array asarray ascontiguousarray astype blackman empty empty_like eye frombuffer from_dlpack full
    full_like genfromtxt hamming hanning identity indices linspace logspace ones ones_like tri tril_indices
    triu_indices zeros zeros_like bartlett kaiser geomspace
"""),
    "shaping": names("""
    argsort broadcast_arrays clip may_share_memory meshgrid msort reshape set_printoptions shares_memory sort
"""),
    "info": ["__array_namespace_info__", "finfo", "iinfo"],
}
"""The functions that are written out, by the module that they are in."""

CONSTANTS: dict[str, Any] = {
    "pi": np.pi, "e": np.e, "inf": np.inf, "nan": np.nan, "euler_gamma": np.euler_gamma, "newaxis": None, "NAN": np.nan,
    "NaN": np.nan, "NINF": -np.inf, "PINF": np.inf, "NZERO": -0.0, "PZERO": 0.0, "Inf": np.inf,
}  # fmt: skip
DTYPES = names("""
    bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 dtype
""")

METHODS = names("""
    all any argmax argmin argsort clip conj conjugate cumprod cumsum diagonal dot max mean min nonzero prod ptp
    repeat round searchsorted squeeze std sum swapaxes take trace var flip tile abs sign sin cos tan arcsin arccos
    arctan degrees radians sinh cosh tanh arcsinh arccosh arctanh exp expm1 log log10 log2 log1p sqrt cbrt square
    reciprocal rint fix floor ceil trunc expand_dims nansum nanprod sort diag split
""")
"""Functions that are methods of their first argument."""

REGISTERED = {
    "add": "broadcast_add", "subtract": "broadcast_sub", "multiply": "broadcast_mul", "true_divide": "broadcast_div",
    "negative": "negative", "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "sin": "sin", "cos": "cos",
    "square": "square", "absolute": "abs", "expm1": "expm1", "log1p": "log1p", "log2": "log2", "log10": "log10",
    "tan": "tan", "arcsin": "arcsin", "arccos": "arccos", "arctan": "arctan", "sinh": "sinh", "cosh": "cosh",
    "arcsinh": "arcsinh", "arccosh": "arccosh", "arctanh": "arctanh", "cbrt": "cbrt",
}  # fmt: skip
"""Operators of the registry that do the same on floating numbers of one dtype."""
REGISTERED_WITH_NUMBER = {
    "add": ("_plus_scalar", "_plus_scalar"),
    "subtract": ("_minus_scalar", "_rminus_scalar"),
    "multiply": ("_mul_scalar", "_mul_scalar"),
    "true_divide": ("_div_scalar", "_rdiv_scalar"),
    "power": ("_power_scalar", "_rpower_scalar"),
}
"""Those for a floating array and a number, and for a number and an array."""

WITHOUT_GRADIENT = names("""
    all any argmax argmin argpartition argsort bitwise_and bitwise_count bitwise_or bitwise_xor invert ceil
    count_nonzero digitize equal floor floor_divide full_like gcd greater greater_equal heaviside isclose iscomplex
    isfinite isin isinf isnan isneginf isposinf isreal lcm left_shift less less_equal lexsort linalg.matrix_rank
    logical_and logical_not logical_or logical_xor nanargmax nanargmin nextafter not_equal packbits right_shift rint
    round searchsorted sign signbit spacing trunc unpackbits unravel_index
""")
"""Functions whose gradient is zero wherever there is one."""

REFUSED = names("""
    allclose apply_along_axis apply_over_axes argwhere array_equal array_equiv diag_indices_from flatnonzero histogram
    histogram2d histogram_bin_edges histogramdd intersect1d ix_ nonzero piecewise poly polydiv polyfit
    ravel_multi_index roots setdiff1d setxor1d tril_indices_from trim_zeros triu_indices_from union1d unique unique_all
    unique_counts unique_inverse unique_values
""")
"""Functions without a gradient, which backward passes refuse: those of positions, counts and sets, those that call
functions in Python, and fits and roots of polynomials."""

MOVING = names("""
    append array_split atleast_1d atleast_2d atleast_3d broadcast_arrays getitem broadcast_to choose column_stack
    concatenate copy delete diag diagflat diagonal dsplit dstack expand_dims flip fliplr flipud hsplit hstack insert
    linalg.diagonal linalg.matrix_transpose matrix_transpose meshgrid moveaxis pad ravel repeat resize roll rollaxis
    rot90 split squeeze stack swapaxes take take_along_axis tile transpose tril triu unstack vsplit vstack where
    fft.fftshift fft.ifftshift
""")
"""Functions that only move elements: one operator is the gradient of all."""


@cache
def ufunc(name: str) -> np.ufunc | None:
    """NumPy's ufunc of a name; None where that is none, or takes more here (``operator.OWN``)."""
    found = getattr(np, name, None)
    return found if isinstance(found, np.ufunc) and name != "ldexp" else None
