"""The table of the names of ``mx.np``.

A name is one of these:

- :data:`CALLS`: a NumPy function that runs as an operation of the engine (``operator.py``). :data:`REGISTERED` has the
  equivalent operators of the registry for floating-point arrays of the same dtype, which have kernels and gradients.
- :data:`BLOCKING`: the shape or type of the result depends on the content of the arrays, so the call waits for them.
- :data:`METADATA`: a function of dtypes and shapes alone.
- :data:`DEFINED_IN`: functions without a counterpart in NumPy, or with different arguments, by the module here.

``gradients.py`` has the gradients. They are zero or undefined for :data:`WITHOUT_GRADIENT`. The backward pass raises an
error for :data:`NOT_DIFFERENTIABLE`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "ABSENT", "ALIASES", "BLOCKING", "CALLS", "CONSTANTS", "DEFINED_IN", "DTYPES", "FFT", "LINALG", "LINALG_BLOCKING",
    "METADATA", "METHODS", "MOVING", "NOT_DIFFERENTIABLE", "NUMPY1_NAMES", "NUMPY2_NAMES", "REGISTERED",
    "REGISTERED_WITH_NUMBER", "SHAPE_ARGUMENTS", "WITHOUT_GRADIENT", "names", "ufunc",
]  # fmt: skip


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
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

NUMPY2_NAMES = names("""
    acos acosh asin asinh atan atan2 atanh bitwise_count bitwise_invert bitwise_left_shift bitwise_right_shift
    concat cumulative_prod cumulative_sum isdtype matrix_transpose matvec permute_dims pow trapezoid unique_all
    unique_counts unique_inverse unique_values unstack vecdot vecmat linalg.cross linalg.diagonal linalg.matmul
    linalg.matrix_norm linalg.matrix_transpose linalg.outer linalg.svdvals linalg.tensordot linalg.trace
    linalg.vecdot linalg.vector_norm
""")
"""Names that NumPy 2 introduced."""

NUMPY1_NAMES = {} if hasattr(np, "trapezoid") else {"trapezoid": "trapz"}
"""Functions that have another name in NumPy 1."""

CALLS = (_UFUNCS | _OTHERS) - {"put_along_axis"}

BLOCKING = names("""
    allclose apply_along_axis apply_over_axes argwhere array_equal array_equiv bincount compress extract flatnonzero
    histogram histogram2d histogram_bin_edges histogramdd intersect1d ix_ nonzero piecewise poly polydiv polyfit roots
    setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts unique_inverse unique_values
    ravel_multi_index diag_indices_from tril_indices_from triu_indices_from
""")

SHAPE_ARGUMENTS = names("""
    array_split broadcast_to delete hsplit dsplit insert moveaxis pad permute_dims repeat reshape resize roll split tile
    transpose vsplit
""")
"""Calls whose arguments after the first determine the shape of the result. They wait for such arrays."""

METADATA = names("""
    broadcast_shapes can_cast iscomplexobj isdtype isrealobj min_scalar_type ndim promote_types result_type shape
    size
""")

LINALG = names("""
    cholesky cond cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
    matrix_transpose multi_dot norm outer pinv qr slogdet solve svd svdvals tensordot tensorinv tensorsolve trace
    vecdot vector_norm
""")
LINALG_BLOCKING = frozenset(["eig", "eigvals", "lstsq"])
FFT = names("""
    fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2 rfftn
""")

ALIASES = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "alltrue": "all", "amax": "max", "amin": "min",
    "around": "round", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh",
    "bitwise_invert": "invert", "bitwise_left_shift": "left_shift", "bitwise_not": "invert",
    "bitwise_right_shift": "right_shift", "concat": "concatenate", "conj": "conjugate", "degrees": "rad2deg",
    "divide": "true_divide", "fix": "trunc", "in1d": "isin", "mod": "remainder", "permute_dims": "transpose",
    "pow": "power", "product": "prod", "radians": "deg2rad", "round_": "round", "row_stack": "vstack",
    "sometrue": "any", "trapz": "trapezoid",
}  # fmt: skip
"""Other names of a function, and the name of its gradient and operator."""


def _exists(name: str) -> bool:
    owner: Any = np
    for part in ALIASES.get(name, name).split("."):
        owner = getattr(owner, part, None)
    return owner is not None


ABSENT = frozenset(name for name in NUMPY2_NAMES if name not in NUMPY1_NAMES and not _exists(name))
"""The names in :data:`NUMPY2_NAMES` that the installed NumPy does not have."""

DEFINED_IN = {
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
"""The functions that this package implements itself, by module."""

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
"""Equivalent operators of the registry for floating-point arrays of the same dtype."""
REGISTERED_WITH_NUMBER = {
    "add": ("_plus_scalar", "_plus_scalar"),
    "subtract": ("_minus_scalar", "_rminus_scalar"),
    "multiply": ("_mul_scalar", "_mul_scalar"),
    "true_divide": ("_div_scalar", "_rdiv_scalar"),
    "power": ("_power_scalar", "_rpower_scalar"),
}
"""Equivalent operators of the registry for a floating-point array and a number, and for a number and an array."""

WITHOUT_GRADIENT = names("""
    all any argmax argmin argpartition argsort bitwise_and bitwise_count bitwise_or bitwise_xor invert ceil
    count_nonzero digitize equal floor floor_divide full_like gcd greater greater_equal heaviside isclose iscomplex
    isfinite isin isinf isnan isneginf isposinf isreal lcm left_shift less less_equal lexsort linalg.matrix_rank
    logical_and logical_not logical_or logical_xor nanargmax nanargmin nextafter not_equal packbits right_shift rint
    round searchsorted sign signbit spacing trunc unpackbits unravel_index
""")
"""Functions whose gradient is zero wherever it exists."""

NOT_DIFFERENTIABLE = names("""
    allclose apply_along_axis apply_over_axes argwhere array_equal array_equiv diag_indices_from flatnonzero histogram
    histogram2d histogram_bin_edges histogramdd intersect1d ix_ nonzero piecewise poly polydiv polyfit
    ravel_multi_index roots setdiff1d setxor1d tril_indices_from trim_zeros triu_indices_from union1d unique unique_all
    unique_counts unique_inverse unique_values
""")
"""Functions without a gradient: positions, counts and sets, callbacks in Python, and fits and roots of polynomials.
The backward pass raises an error for them."""

MOVING = names("""
    append array_split atleast_1d atleast_2d atleast_3d broadcast_arrays getitem broadcast_to choose column_stack
    concatenate copy delete diag diagflat diagonal dsplit dstack expand_dims flip fliplr flipud hsplit hstack insert
    linalg.diagonal linalg.matrix_transpose matrix_transpose meshgrid moveaxis pad ravel repeat resize roll rollaxis
    rot90 split squeeze stack swapaxes take take_along_axis tile transpose tril triu unstack vsplit vstack where
    fft.fftshift fft.ifftshift
""")
"""Functions that only move elements. One operator computes all of their gradients."""


@cache
def ufunc(name: str) -> np.ufunc | None:
    """Return NumPy's ufunc of a name, or None if it is not a ufunc or accepts more here (``operator.EXTENSIONS``)."""
    function = getattr(np, name, None)
    return function if isinstance(function, np.ufunc) and name != "ldexp" else None
