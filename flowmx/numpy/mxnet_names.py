"""MXNet's names for the operators of ``mx.np`` in symbols (``_npi_add``, ``_np_sum``, ...).

:data:`ROWS` maps each name to a NumPy call, in both directions: a node of a symbol file becomes the call, and a call on
symbols becomes a node that MXNet can read. A call without a name in MXNet becomes ``_np_call``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowmx.errors import ParameterError
from flowmx.late_binding import late
from flowmx.numpy import random as _random
from flowmx.numpy import table
from flowmx.numpy.arguments import names_of
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.operator import NumPyCall, NumPyDynamicCall, NumPyReshape
from flowmx.ops.registry.dtypes import BY_NAME, DType, as_dtype
from flowmx.ops.registry.operators import Operator, operator, registered_operators
from flowmx.ops.registry.parameters import literal

__all__ = ["ROWS", "Row", "count_outputs", "find", "find_named_call"]

Parameters = Mapping[str, Any]


class Row(NamedTuple):
    """One call form of an operator.

    Attributes:
        name: the name in MXNet.
        function: the NumPy function.
        template: the call. ``_`` is an input, ``*_`` all inputs, any other name a parameter.
        required: names of the parameters that must not be None.
        excluded: names of the parameters that must be None.
        constants: parameters with a fixed value.
    """

    name: str
    function: str
    template: ast.Call
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    constants: Parameters = MappingProxyType({})

    def fits(self, parameters: Parameters) -> bool:
        """Return whether a node's parameters match this form."""
        return (
            all(parameters.get(name) is not None for name in self.required)
            and all(parameters.get(name) is None for name in self.excluded)
            and all(parameters.get(name, _DEFAULTS.get(name)) == value for name, value in self.constants.items())
        )


_DEFAULTS: Parameters = {"weighted": True, "has_weights": False, "mode": "constant", "flag": -1}
"""Default values of the parameters that rows depend on."""
_IGNORED = table.names("""
    ctx order optimize copy squeeze_axis is_int reflect_type num_args hermitian stop_recursion UPLO is_logit
    repeat infer_range to_begin_arr_given to_end_arr_given
""")
"""Parameters that the NumPy call does not need."""
_STRING_PARAMETERS = frozenset(["subscripts", "mode", "UPLO", "interpolation", "order", "ctx", "msg"])


def _row(name: str, text: str, required: str = "", excluded: str = "", **constants: object) -> Row:
    template: Any = ast.parse(text, mode="eval").body
    function = ast.unparse(template.func)
    return Row(
        name,
        table.ALIASES.get(function, function),
        template,
        tuple(required.split()),
        tuple(excluded.split()),
        constants,
    )


def _elementwise() -> Iterator[Row]:
    for function in table.names("""
        absolute arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees exp expm1 trunc floor isfinite
        isinf isnan isneginf isposinf log log10 log1p log2 logical_not negative radians reciprocal rint sign sin sinh
        sqrt square tan tanh bitwise_not
    """):
        yield _row(f"_npi_{function}", f"{function}(_)")
    yield from (_row("_npi_abs", "absolute(_)"), _row("_npi_fix", "trunc(_)"))
    for function in table.names("""
        add subtract multiply true_divide mod power maximum minimum copysign arctan2 hypot lcm ldexp bitwise_and
        bitwise_or bitwise_xor equal not_equal greater greater_equal less less_equal
    """):
        yield _row(f"_npi_{function}", f"{function}(_, _)")
        yield _row(f"_npi_{function}_scalar", f"{function}(_, scalar)")
        if function in ("subtract", "true_divide", "mod", "power", "copysign", "arctan2", "ldexp"):
            yield _row(f"_npi_r{function}_scalar", f"{function}(scalar, _)")


def _splits() -> Iterator[Row]:
    for name, function in (("split", "split"), ("hsplit", "hsplit"), ("dsplit", "dsplit")):
        axis = ", axis=axis" if name == "split" else ""
        yield _row(f"_npi_{name}", f"{function}(_, sections{axis})", has_sections=True)
        yield _row(f"_npi_{name}", f"{function}(_, indices{axis})", has_sections=False)


ROWS = [
    *_elementwise(),
    *_splits(),
    _row("_np_sum", "sum(_, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial)"),
    _row("_np_prod", "prod(_, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial)"),
    _row("_np_product", "prod(_, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial)"),
    _row("_npi_mean", "mean(_, axis=axis, dtype=dtype, keepdims=keepdims)"),
    _row("_npi_std", "std(_, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)"),
    _row("_npi_var", "var(_, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims)"),
    _row("_np_max", "max(_, axis=axis, keepdims=keepdims, initial=initial)"),
    _row("_np_min", "min(_, axis=axis, keepdims=keepdims, initial=initial)"),
    _row("_np_amax", "max(_, axis=axis, keepdims=keepdims, initial=initial)"),
    _row("_np_amin", "min(_, axis=axis, keepdims=keepdims, initial=initial)"),
    _row("_np_all", "all(_, axis=axis, keepdims=keepdims)"),
    _row("_np_any", "any(_, axis=axis, keepdims=keepdims)"),
    _row("_np_sometrue", "any(_, axis=axis, keepdims=keepdims)"),
    _row("_npi_argmax", "argmax(_, axis=axis, keepdims=keepdims)"),
    _row("_npi_argmin", "argmin(_, axis=axis, keepdims=keepdims)"),
    _row("_npi_average", "average(_, axis=axis, returned=returned)", weighted=False),
    _row("_npi_average", "average(_, axis=axis, weights=_, returned=returned)", weighted=True),
    _row("_npi_percentile", "percentile(_, q_scalar, axis=axis, method=interpolation, keepdims=keepdims)", "q_scalar"),
    _row("_npi_percentile", "percentile(_, _, axis=axis, method=interpolation, keepdims=keepdims)", "", "q_scalar"),
    _row("_np_cumsum", "cumsum(_, axis=axis, dtype=dtype)"),
    _row("_npi_diff", "diff(_, n=n, axis=axis)"),
    _row("_npi_ediff1d", "ediff1d(_, to_end=to_end_scalar, to_begin=to_begin_scalar)"),
    _row("_npi_around", "round(_, decimals=decimals)"),
    _row("_npi_nan_to_num", "nan_to_num(_, nan=nan, posinf=posinf, neginf=neginf)"),
    _row("_npi_clip", "clip(_, a_min, a_max)"),
    _row("_np_copy", "copy(_)"),
    _row("_np_transpose", "transpose(_, axes=axes)"),
    _row("_npi_swapaxes", "swapaxes(_, dim1, dim2)"),
    _row("_np_moveaxis", "moveaxis(_, source, destination)"),
    _row("_np_reshape", "reshape(_, newshape)"),
    _row("_np_squeeze", "squeeze(_, axis=axis)"),
    _row("_npi_expand_dims", "expand_dims(_, axis)"),
    _row("_npi_broadcast_to", "broadcast_to(_, shape)"),
    _row("_npi_tile", "tile(_, reps)"),
    _row("_np_repeat", "repeat(_, repeats, axis=axis)"),
    _row("_np_roll", "roll(_, shift, axis=axis)"),
    _row("_npi_rot90", "rot90(_, k=k, axes=axes)"),
    _row("_npi_flip", "flip(_, axis=axis)"),
    _row("_np_diag", "diag(_, k=k)"),
    _row("_np_diagflat", "diagflat(_, k=k)"),
    _row("_np_diagonal", "diagonal(_, offset=offset, axis1=axis1, axis2=axis2)"),
    _row("_np_trace", "trace(_, offset=offset, axis1=axis1, axis2=axis2)"),
    _row("_npi_tril", "tril(_, k=k)"),
    _row("_npi_take", "take(_, _, axis=axis, mode=mode)"),
    _row("_npi_pad", "pad(_, pad_width, mode=mode, constant_values=constant_value)", mode="constant"),
    _row("_npi_pad", "pad(_, pad_width, mode=mode)", "mode"),
    _row("_npi_concatenate", "concatenate([*_], axis=axis)"),
    _row("_npi_stack", "stack([*_], axis=axis)"),
    _row("_npi_vstack", "vstack([*_])"),
    _row("_npi_hstack", "hstack([*_])"),
    _row("_npi_dstack", "dstack([*_])"),
    _row("_npi_column_stack", "column_stack([*_])"),
    _row("_np_atleast_1d", "atleast_1d(*_)"),
    _row("_np_atleast_2d", "atleast_2d(*_)"),
    _row("_np_atleast_3d", "atleast_3d(*_)"),
    _row("_npi_delete", "delete(_, int_ind, axis=axis)", "int_ind"),
    _row("_npi_delete", "delete(_, slice(start, stop, step), axis=axis)", "step", "int_ind"),
    _row("_npi_insert_scalar", "insert(_, int_ind, val, axis=axis)", "val int_ind"),
    _row("_npi_insert_scalar", "insert(_, int_ind, _, axis=axis)", "int_ind", "val"),
    _row("_npi_insert_slice", "insert(_, slice(start, stop, step), val, axis=axis)", "val step"),
    _row("_npi_insert_slice", "insert(_, slice(start, stop, step), _, axis=axis)", "step", "val"),
    _row("_npi_where", "where(_, _, _)"),
    _row("_npi_where_lscalar", "where(_, scalar, _)"),
    _row("_npi_where_rscalar", "where(_, _, scalar)"),
    _row("_npi_where_scalar2", "where(_, x, y)"),
    _row("_np_dot", "dot(_, _)"),
    _row("_npi_matmul", "matmul(_, _)"),
    _row("_npi_tensordot_int_axes", "tensordot(_, _, axes=axes)", "axes"),
    _row("_npi_tensordot", "tensordot(_, _, axes=(a_axes_summed, b_axes_summed))"),
    _row("_npi_einsum", "einsum(subscripts, *_)"),
    _row("_npi_polyval", "polyval(_, _)"),
    _row("_npi_norm", "linalg.norm(_, keepdims=keepdims)", flag=-2),
    _row("_npi_norm", "linalg.norm(_, axis=axis, keepdims=keepdims)", flag=1),
    _row("_npi_norm", "linalg.norm(_, ord='nuc', axis=axis, keepdims=keepdims)", flag=2),
    _row("_npi_norm", "linalg.norm(_, ord=ord, axis=axis, keepdims=keepdims)", "ord"),
    _row("_npi_svd", "linalg.svd(_, full_matrices=False)"),
    _row("_npi_cholesky", "linalg.cholesky(_)"),
    _row("_npi_inv", "linalg.inv(_)"),
    _row("_npi_det", "linalg.det(_)"),
    _row("_npi_slogdet", "linalg.slogdet(_)"),
    _row("_npi_solve", "linalg.solve(_, _)"),
    _row("_npi_tensorinv", "linalg.tensorinv(_, ind=ind)"),
    _row("_npi_tensorsolve", "linalg.tensorsolve(_, _, axes=a_axes)"),
    _row("_npi_eigh", "linalg.eigh(_)"),
    _row("_npi_eigvalsh", "linalg.eigvalsh(_)"),
    _row("_npi_pinv", "linalg.pinv(_, _)"),
    _row("_npi_pinv_scalar_rcond", "linalg.pinv(_, rcond=rcond)"),
    _row("_npi_zeros", "zeros(shape, dtype=dtype)"),
    _row("_npi_ones", "ones(shape, dtype=dtype)"),
    _row("_npi_full", "full(shape, value, dtype=dtype)"),
    _row("_npi_full_like", "full_like(_, fill_value, dtype=dtype)"),
    _row("_npi_identity", "identity(shape, dtype=dtype)"),
    _row("_npi_eye", "eye(N, M, k, dtype=dtype)"),
    _row("_npi_arange", "arange(start, stop, step, dtype=dtype)"),
    _row("_npi_linspace", "linspace(start, stop, num, endpoint=endpoint, dtype=dtype)"),
    _row("_npi_logspace", "logspace(start, stop, num, endpoint=endpoint, base=base, dtype=dtype)"),
    _row("_npi_indices", "indices(dimensions, dtype=dtype)"),
    *(_row(f"_npi_{name}", f"{name}(M, dtype=dtype)") for name in ("hanning", "hamming", "blackman")),
]
"""The call forms of all operators; the first that fits is used."""

_BLOCKING_ROWS = [
    _row("_npi_unique", "unique(_, return_index=return_index, return_inverse=return_inverse, "
         "return_counts=return_counts, axis=axis)"),
    _row("_npx_nonzero", "argwhere(_)"),
    _row("_npi_nonzero", "argwhere(_)"),
    _row("_npi_eig", "linalg.eig(_)"),
    _row("_npi_eigvals", "linalg.eigvals(_)"),
    _row("_npi_bincount", "bincount(_, minlength=minlength)", has_weights=False),
    _row("_npi_bincount", "bincount(_, weights=_, minlength=minlength)", has_weights=True),
]  # fmt: skip
"""Operators whose output shapes depend on the content of arrays. Graphs with one run operator by operator."""

_DISTRIBUTIONS = {
    "_npi_uniform": "uniform", "_npi_normal": "normal", "_npi_gumbel": "gumbel", "_npi_logistic": "logistic",
    "_npi_exponential": "exponential", "_npi_rayleigh": "rayleigh", "_npi_gamma": "gamma", "_npi_pareto": "pareto",
    "_npi_powerd": "power", "_npi_weibull": "weibull", "_npi_uniform_n": "uniform", "_npi_normal_n": "normal",
}  # fmt: skip
"""Random operators and their distributions. A parameter that is None is an input instead."""

_ALIASES = {
    "_npi_argsort": "argsort", "_npi_boolean_mask": "_contrib_boolean_mask", "_npi_cast": "Cast",
    "_npi_gather_nd": "gather_nd", "_npi_histogram": "_histogram", "_npi_random_randint": "_random_randint",
    "_npi_rnn_param_concat": "_rnn_param_concat", "_npi_scatter_set_nd": "_scatter_set_nd", "_npi_shuffle": "_shuffle",
    "_npi_slice": "slice", "_npi_slice_assign": "_slice_assign", "_npi_slice_assign_scalar": "_slice_assign_scalar",
    "_npi_sort": "sort", "_npx_relu": "relu", "_npx_sigmoid": "sigmoid", "_npi_hypot_scalar": "_hypot_scalar",
    "_npi_copyto": "_copyto",
}  # fmt: skip
"""Aliases of registered operators: MXNet's name in ``mx.np``, and the operator's name."""


# -- from a node of a symbol file to the call -------------------------------------------------------------------------


def parse_value(name: str, value: object) -> Any:
    """Parse the text of a parameter.

    Raises:
        ValueError: the text is not a value.
    """
    if not isinstance(value, str) or value == "None":
        return None if isinstance(value, str) else value
    if name == "dtype":
        return as_dtype({"int": "int64", "float": "float64", "bool_": "bool"}.get(value, value))
    if name in _STRING_PARAMETERS:
        return value
    try:
        parsed = literal(value.strip())
    except (ValueError, SyntaxError):
        return value if name == "ord" and not value.lstrip("-").startswith("inf") else float(value)  # inf and nan
    return _tuples(parsed)


def _tuples(value: object) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


class _TemplateFiller:
    """Builds the arguments of a call from a template and parameters, and counts the inputs."""

    def __init__(self, row: Row, parameters: Parameters, num_inputs: int | None) -> None:
        self._row, self._parameters, self._num_inputs = row, parameters, num_inputs
        self.count = 0

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args: list[object] = []
        for arg in self._row.template.args:
            if isinstance(arg, ast.Starred):
                args += self._value(arg)
            else:
                args.append(self._value(arg))
        kwargs = {str(keyword.arg): self._value(keyword.value) for keyword in self._row.template.keywords}
        return args, {name: value for name, value in kwargs.items() if value is not None}

    def _slot(self) -> Slot:
        self.count += 1
        return Slot(self.count - 1)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._slot() if node.id == "_" else self._parameters.get(node.id)
        if isinstance(node, ast.Starred):
            return [self._slot() for _ in range(self._num_inputs or 0)]
        if isinstance(node, ast.List):
            return self._value(node.elts[0])
        if isinstance(node, ast.Tuple):
            return tuple(self._value(elt) for elt in node.elts)
        if isinstance(node, ast.Call):
            return slice(*(self._value(arg) for arg in node.args))
        assert isinstance(node, ast.Constant)
        return node.value


def _parse_parameters(name: str, texts: Parameters) -> dict[str, Any]:
    """Parse a node's parameters and convert them to the form that the rows expect."""
    parameters = {key: parse_value(key, value) for key, value in texts.items()}
    if parameters.get("scalar") is not None and "is_int" in parameters:
        parameters["scalar"] = (
            int(parameters["scalar"])
            if parameters["is_int"] and float(parameters["scalar"]).is_integer()
            else parameters["scalar"]
        )
    if "indices" in parameters:  # MXNet prepends a 0
        parameters["has_sections"] = bool(parameters.get("sections"))
        parameters["indices"] = tuple(parameters["indices"] or ())[1:]
    if name == "_npi_identity":
        parameters["shape"] = parameters["shape"][0]
    if name.startswith("_npi_where_") and "scalar" not in parameters:
        parameters["scalar"] = 0.0
    if name == "_npi_arange" and parameters.get("stop") is None:
        parameters["start"], parameters["stop"] = 0, parameters["start"]
    return parameters


def count_outputs(function: str, args: Sequence[object], kwargs: Parameters, count: int) -> int:
    """Return the number of results of a call.

    Raises:
        NotImplementedError: the number depends on the shapes of the arrays.
    """
    ufunc = table.ufunc(function)
    if ufunc is not None:
        return ufunc.nout
    if function in ("split", "array_split", "hsplit", "vsplit", "dsplit"):
        split = kwargs.get("indices_or_sections", args[1] if len(args) > 1 else 1)
        return split if isinstance(split, int) else len(split) + 1
    if function in ("meshgrid", "broadcast_arrays", "atleast_1d", "atleast_2d", "atleast_3d"):
        return count
    if function == "average" and kwargs.get("returned"):
        return 2
    if function == "linalg.svd" and kwargs.get("compute_uv") is False:
        return 1
    if function == "linalg.qr" and kwargs.get("mode", "reduced") in ("r", "raw"):
        return 1
    if function in ("unstack", "gradient"):
        raise NotImplementedError(
            f"mx.sym.np.{function}: the number of results depends on a shape, which symbols do not have; "
            "use split with a number of parts"
        )
    if function == "unravel_index":
        shape = kwargs.get("shape", args[1] if len(args) > 1 else ())
        return len(shape) if isinstance(shape, tuple) else 1
    if function == "unique":
        flags = ("return_index", "return_inverse", "return_counts")
        return 1 + sum(map(bool, args[1:4])) + sum(bool(kwargs.get(flag)) for flag in flags)
    return _OUTPUT_COUNTS.get(function, 1)


_OUTPUT_COUNTS = {"linalg.svd": 3, "linalg.qr": 2, "linalg.eigh": 2, "linalg.eig": 2, "linalg.slogdet": 2}


class _MXNetOperator:
    """Mixin for operators that have a name in MXNet, which accept MXNet's parameters."""

    rows: ClassVar[tuple[Row, ...]]
    parameter_names: ClassVar[frozenset[str]]
    name: ClassVar[str]

    @classmethod
    def takes(cls, name: str) -> bool:
        """Return whether the operator has a parameter with this name."""
        return name in cls.parameter_names or name in _IGNORED

    @classmethod
    def create(cls, /, **attributes: object) -> Operator:
        """Create the operator from MXNet's parameters, or from a form (in graph passes).

        Raises:
            ParameterError: a parameter is unknown, or its value is invalid.
        """
        make: Callable[..., Operator] = super().create  # type: ignore[misc]
        if "form" in attributes:
            return make(**attributes)
        for key in attributes:
            if not cls.takes(key):
                names = ", ".join(sorted(cls.parameter_names))
                raise ParameterError(f"{cls.name}: unknown parameter {key!r}, expected one of {names}")
        try:
            parameters = _parse_parameters(cls.name, attributes)
            row = next((row for row in cls.rows if row.fits(parameters)), None)
            if row is None:
                raise ParameterError(f"{cls.name}: unsupported combination of parameters {dict(attributes)}")
            filler = _TemplateFiller(row, parameters, parameters.get("num_args"))
            args, kwargs = filler.arguments()
            return make(
                num_args=filler.count, function=row.function, form=encode(args, kwargs),
                num_outputs=count_outputs(row.function, args, kwargs, filler.count),
            )  # fmt: skip
        except (ValueError, TypeError, SyntaxError, KeyError, IndexError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"{cls.name}: invalid parameters {dict(attributes)}: {error}") from None


def find(name: str) -> type[Operator] | None:
    """Return the operator with this name in MXNet, or None. The operator is registered at its first use."""
    operators = registered_operators()
    if name in operators:
        return operators[name]
    if name in _ALIASES:
        return operators[_ALIASES[name]]
    if name.startswith("_npx_"):
        target = late("numpy_extension").TABLE.get(name.removeprefix("_npx_"), "")
        image = name.removeprefix("_npx_") if name.startswith("_npx__image") else ""
        if target or image in operators:
            return operators[target or image]
    if name == "_npi_reshape":
        return NumPyReshape
    if name in _DISTRIBUTIONS or name == "_npi_bernoulli":
        return _random_operator(name)
    base: Any = NumPyCall
    rows = tuple(row for row in ROWS if row.name == name)
    if not rows:
        base, rows = NumPyDynamicCall, tuple(row for row in _BLOCKING_ROWS if row.name == name)
    if not rows:
        return None
    names = {node.id for row in rows for node in ast.walk(row.template) if isinstance(node, ast.Name)}
    names |= {key for row in rows for key in (*row.constants, *row.required, *row.excluded)}
    names |= {"axis"} if name in ("_npi_hsplit", "_npi_dsplit") else set()
    body = {"rows": rows, "parameter_names": frozenset(names - {"_"}), "__doc__": f"MXNet's ``{name}``, for symbols."}
    return operator(name)(type(name, (_MXNetOperator, base), body, hidden=True))


def _random_operator(name: str) -> type[Operator]:
    """Register and return the operator of a distribution. Parameters that are None become inputs."""
    method = _DISTRIBUTIONS.get(name, "bernoulli")
    names = ("prob", "logit") if method == "bernoulli" else tuple(_random.TABLE[method].parameters)

    class RandomOperator(_random.NumPyRandom, hidden=True):
        @classmethod
        def takes(cls, name: str) -> bool:
            return name in (*names, "size", "dtype") or name in _IGNORED

        @classmethod
        def create(cls, /, **attributes: object) -> Operator:
            if "form" in attributes:
                return super().create(**attributes)
            parameters = {key: parse_value(key, value) for key, value in attributes.items()}
            if method == "bernoulli":
                order: tuple[str, ...] = ("logit",) if parameters.get("is_logit") else ("prob",)
            else:
                order = names
            args: list[object] = []
            for key in order:
                default = None if method == "bernoulli" else _random.TABLE[method].parameters[key]
                number = parameters.get(key, default)
                args.append(Slot(sum(isinstance(arg, Slot) for arg in args)) if number is None else number)
            size = parameters.get("size")
            kwargs = {} if size is None else {"size": size}
            dtype: DType = parameters.get("dtype") or np.dtype(np.float32)
            function = "bernoulli_logit" if order == ("logit",) else method
            if name.endswith("_n"):
                function, kwargs = f"{method}_n", {"size": (size,) if isinstance(size, int) else size or ()}
            count = sum(isinstance(arg, Slot) for arg in args)
            return super().create(num_args=count, function=function, form=encode(args, kwargs), dtype=dtype)

    RandomOperator.__name__ = RandomOperator.__qualname__ = name
    return operator(name)(RandomOperator)


# -- from a call on symbols to a node --------------------------------------------------------------------------


@cache
def _rows_of(function: str) -> tuple[Row, ...]:
    return tuple(row for row in ROWS if row.function == function and row.name not in _READ_ONLY_ALIASES)


_READ_ONLY_ALIASES = frozenset(
    ["_npi_abs", "_npi_fix", "_np_product", "_np_amax", "_np_amin", "_np_sometrue", "_npi_identity"]
)
"""Aliases that are read from symbol files but never written."""


def find_named_call(
    function: str, args: Sequence[object], kwargs: Parameters, is_input: Callable[[Any], bool]
) -> tuple[str, dict[str, str], list[Any]] | None:
    """Return MXNet's operator for a NumPy call (name, parameters as text, inputs), or None.

    Args:
        function: the NumPy function.
        args: its arguments, in the order of :data:`ROWS`.
        kwargs: its keyword arguments.
        is_input: returns whether a value is a symbol.
    """
    for row in _rows_of(function):
        operands = _TemplateMatcher(row, is_input).match(list(args), dict(kwargs))
        if operands is not None:
            return row.name, *operands
    swapped = _SWAPPED_FUNCTIONS.get(function)
    if swapped and len(args) == 2 and not kwargs and not is_input(args[0]) and is_input(args[1]):
        return find_named_call(swapped, args[::-1], kwargs, is_input)
    return None


_SWAPPED_FUNCTIONS = {
    **{name: name for name in ("add", "multiply", "maximum", "minimum", "hypot", "lcm", "bitwise_and", "bitwise_or",
                               "bitwise_xor", "equal", "not_equal")},
    "greater": "less", "less": "greater", "greater_equal": "less_equal", "less_equal": "greater_equal",
}  # fmt: skip
"""For each binary function, the equivalent function of the swapped operands."""


class _TemplateMatcher:
    """Matches a call with a row, and collects the inputs and parameters of the call."""

    def __init__(self, row: Row, is_input: Callable[[Any], bool]) -> None:
        self._row, self._is_input = row, is_input
        self.inputs: list[Any] = []
        self.parameters: dict[str, Any] = {}

    def match(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[dict[str, str], list[Any]] | None:
        template, row = self._row.template, self._row
        position = 0
        for arg in template.args:
            if isinstance(arg, ast.Starred):
                if not args[position:] or not all(map(self._is_input, args[position:])):
                    return None
                self.inputs += args[position:]
                self.parameters["num_args"] = len(args[position:])
                position = len(args)
            elif position < len(args):
                if not self._takes(arg, args[position]):
                    return None
                position += 1
            else:
                return None
        by_name = {str(keyword.arg): keyword.value for keyword in template.keywords}
        # Keywords of the template may be positional arguments in the call.
        names = list(names_of(row.function)) if args[position:] else []
        if len(args) > max(position, len(names)):
            return None
        keywords = {**dict(zip(names[position:], args[position:], strict=False)), **kwargs}
        for name, node in by_name.items():
            value = keywords.pop(name, None)
            if value is None:
                if isinstance(node, ast.Name) and node.id == "_":
                    return None
            elif not self._takes(node, value):
                return None
        if any(value is not None for value in keywords.values()):
            return None
        return self._final_parameters()

    def _final_parameters(self) -> tuple[dict[str, str], list[Any]] | None:
        parameters, name = self.parameters, self._row.name
        constants = dict(self._row.constants)
        if "has_sections" in constants:
            sections = parameters.pop("sections", 0) if constants.pop("has_sections") else 0
            indices = [0, *parameters.pop("indices")] if "indices" in parameters else []
            parameters |= {"indices": indices, "sections": sections, "squeeze_axis": False}
            parameters.setdefault("axis", {"_npi_hsplit": 1, "_npi_dsplit": 2}.get(name, 0))
        if any(parameters.get(key, value) != value for key, value in constants.items()):
            return None
        parameters |= constants
        if name == "_npi_pad" and parameters.get("mode") in ("wrap", "mean", "median", "linear_ramp", "empty"):
            return None
        if name in ("_npi_concatenate", "_npi_stack"):
            parameters.setdefault("axis", 0)
        if "scalar" in parameters and not name.startswith("_npi_where"):
            parameters["is_int"] = isinstance(parameters["scalar"], int)
        for key in ("scalar", "x", "y"):
            if key in parameters:
                parameters[key] = float(parameters[key])
        if name == "_npi_take":
            parameters.setdefault("mode", "raise")
            if "axis" not in parameters:
                return None
        if name == "_np_roll" and isinstance(parameters.get("shift"), np.ndarray):
            return None
        return {key: _text(value) for key, value in parameters.items()}, self.inputs

    def _takes(self, node: ast.expr, value: object) -> bool:
        if isinstance(node, ast.Name) and node.id == "_":
            if self._is_input(value):
                self.inputs.append(value)
                return True
            return False
        if isinstance(node, ast.List):
            if not isinstance(value, (list, tuple)) or not value or not all(map(self._is_input, value)):
                return False
            self.inputs += value
            self.parameters["num_args"] = len(value)
            return True
        if isinstance(node, ast.Constant):
            return bool(node.value == value)
        if isinstance(node, ast.Tuple):
            if not isinstance(value, (list, tuple)) or len(value) != len(node.elts):
                return False
            pairs = [(v,) if isinstance(v, int) else v for v in value]
            return all(self._takes(*pair) for pair in zip(node.elts, pairs, strict=True))
        if not isinstance(node, ast.Name) or _has_input(value, self._is_input) or not self._is_accepted(node.id, value):
            return False
        self.parameters[node.id] = value
        return True

    def _is_accepted(self, name: str, value: Any) -> bool:
        """Return whether MXNet's operator, which accepts less than NumPy, accepts the value of a parameter."""
        if name in ("scalar", "x", "y", "value", "fill_value", "constant_value", "a_min", "a_max"):
            return isinstance(value, (int, float)) and not (isinstance(value, bool) and name != "scalar")
        if name == "axes" and self._row.name == "_npi_tensordot_int_axes":
            return isinstance(value, int)
        if name == "sections":
            return isinstance(value, int)
        if name == "indices":
            return isinstance(value, (list, tuple))
        if name == "repeats":
            return isinstance(value, int)
        if name == "axis" and self._row.name in ("_npi_expand_dims", "_npi_argmax", "_npi_argmin"):
            return isinstance(value, int)
        if name == "dtype":
            return np.dtype(value) in BY_NAME.values()
        return isinstance(value, (int, float, str, tuple, list, np.integer))


def _has_input(value: object, is_input: Callable[[Any], bool]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_input(item, is_input) for item in value)
    return is_input(value)


def _text(value: object) -> str:
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name
    return str(_to_plain(value))


def _to_plain(value: object) -> Any:
    """Convert lists to tuples, and NumPy scalars to Python numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(_to_plain(item) for item in value) if value else value
    return value.item() if isinstance(value, np.generic) else value
