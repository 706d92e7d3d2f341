"""Operators of ``mx.np`` under the names that MXNet's symbols have for them (``_npi_add``, ``_np_sum``, ...).

:data:`ROWS` says for each name which call of NumPy's it is. It is read in both directions: a node of a file becomes the
call, and a call on symbols becomes a node that MXNet knows. What MXNet has no name for is ``_np_call`` with its form.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowmx.errors import ParameterError
from flowmx.numpy import random as _random
from flowmx.numpy import table
from flowmx.numpy.arguments import names_of
from flowmx.numpy.forms import Slot, encode
from flowmx.numpy.operator import NumPyCall, NumPyReshape, NumPyWaiting
from flowmx.ops.registry.dtypes import BY_NAME, DType, as_dtype
from flowmx.ops.registry.operators import Operator, operator, registered
from flowmx.ops.registry.parameters import literal

__all__ = ["ROWS", "Row", "find", "named_call", "outputs_of"]

Parameters = Mapping[str, Any]


class Row(NamedTuple):
    """One form of an operator.

    Attributes:
        name: MXNet's name.
        function: NumPy's.
        template: the call. A ``_`` is an input, a ``*_`` all of them, another name a parameter.
        given: parameters that must be there (not None), as numbers where they stand in the place of an array.
        missing: those that must not.
        constants: those that have this value.
    """

    name: str
    function: str
    template: ast.Call
    given: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    constants: Parameters = MappingProxyType({})

    def fits(self, parameters: Parameters) -> bool:
        """Tell whether a node's parameters are of this form."""
        return (
            all(parameters.get(each) is not None for each in self.given)
            and all(parameters.get(each) is None for each in self.missing)
            and all(parameters.get(name, _DEFAULTS.get(name)) == value for name, value in self.constants.items())
        )


_DEFAULTS: Parameters = {"weighted": True, "has_weights": False, "mode": "constant", "flag": -1}
"""The values of parameters that are not given, where a row depends on them."""
_IGNORED = table.names("""
    ctx order optimize copy squeeze_axis is_int reflect_type num_args hermitian stop_recursion UPLO is_logit
    repeat infer_range to_begin_arr_given to_end_arr_given
""")
"""Parameters that say nothing which the call needs."""
_TEXTS = frozenset(["subscripts", "mode", "UPLO", "interpolation", "order", "ctx", "msg"])


def _row(name: str, text: str, given: str = "", missing: str = "", **constants: Any) -> Row:
    template: Any = ast.parse(text, mode="eval").body
    function = ast.unparse(template.func)
    return Row(
        name, table.RENAMED.get(function, function), template, tuple(given.split()), tuple(missing.split()), constants
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
        yield _row(f"_npi_{name}", f"{function}(_, sections{axis})", sections_given=True)
        yield _row(f"_npi_{name}", f"{function}(_, indices{axis})", sections_given=False)


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
"""The forms of all operators; of several that fit the first holds."""

_WAITING = [
    _row("_npi_unique", "unique(_, return_index=return_index, return_inverse=return_inverse, "
         "return_counts=return_counts, axis=axis)"),
    _row("_npx_nonzero", "argwhere(_)"),
    _row("_npi_nonzero", "argwhere(_)"),
    _row("_npi_eig", "linalg.eig(_)"),
    _row("_npi_eigvals", "linalg.eigvals(_)"),
    _row("_npi_bincount", "bincount(_, minlength=minlength)", has_weights=False),
    _row("_npi_bincount", "bincount(_, weights=_, minlength=minlength)", has_weights=True),
]  # fmt: skip
"""Operators whose results' shapes follow from what arrays hold: a graph of them is run operator by operator."""

_DRAWS = {
    "_npi_uniform": "uniform", "_npi_normal": "normal", "_npi_gumbel": "gumbel", "_npi_logistic": "logistic",
    "_npi_exponential": "exponential", "_npi_rayleigh": "rayleigh", "_npi_gamma": "gamma", "_npi_pareto": "pareto",
    "_npi_powerd": "power", "_npi_weibull": "weibull", "_npi_uniform_n": "uniform", "_npi_normal_n": "normal",
}  # fmt: skip
"""Operators that draw; a parameter that is None there is an input."""

_SECOND_NAMES = {
    "_npi_argsort": "argsort", "_npi_boolean_mask": "_contrib_boolean_mask", "_npi_cast": "Cast",
    "_npi_gather_nd": "gather_nd", "_npi_histogram": "_histogram", "_npi_random_randint": "_random_randint",
    "_npi_rnn_param_concat": "_rnn_param_concat", "_npi_scatter_set_nd": "_scatter_set_nd", "_npi_shuffle": "_shuffle",
    "_npi_slice": "slice", "_npi_slice_assign": "_slice_assign", "_npi_slice_assign_scalar": "_slice_assign_scalar",
    "_npi_sort": "sort", "_npx_relu": "relu", "_npx_sigmoid": "sigmoid", "_npi_hypot_scalar": "_hypot_scalar",
    "_npi_copyto": "_copyto",
}  # fmt: skip
"""Names for operators of the registry."""


# -- from a node of a file to the call -------------------------------------------------------------------------


def read(name: str, value: Any) -> Any:
    """A parameter's value of its text.

    Raises:
        ValueError: the text stands for nothing.
    """
    if not isinstance(value, str) or value == "None":
        return None if isinstance(value, str) else value
    if name == "dtype":
        return as_dtype({"int": "int64", "float": "float64", "bool_": "bool"}.get(value, value))
    if name in _TEXTS:
        return value
    try:
        found = literal(value.strip())
    except (ValueError, SyntaxError):
        return value if name == "ord" and not value.lstrip("-").startswith("inf") else float(value)  # inf and nan
    return _tuples(found)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value


class _Filling:
    """The arguments of a call, made of a template and parameters; inputs are counted."""

    def __init__(self, row: Row, parameters: Parameters, inputs: int | None) -> None:
        self._row, self._parameters, self._all = row, parameters, inputs
        self.count = 0

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        for each in self._row.template.args:
            if isinstance(each, ast.Starred):
                args += self._value(each)
            else:
                args.append(self._value(each))
        kwargs = {str(each.arg): self._value(each.value) for each in self._row.template.keywords}
        return args, {name: value for name, value in kwargs.items() if value is not None}

    def _slot(self) -> Slot:
        self.count += 1
        return Slot(self.count - 1)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._slot() if node.id == "_" else self._parameters.get(node.id)
        if isinstance(node, ast.Starred):
            return [self._slot() for _ in range(self._all or 0)]
        if isinstance(node, ast.List):
            return self._value(node.elts[0])
        if isinstance(node, ast.Tuple):
            return tuple(self._value(each) for each in node.elts)
        if isinstance(node, ast.Call):
            return slice(*(self._value(each) for each in node.args))
        assert isinstance(node, ast.Constant)
        return node.value


def _settled(name: str, given: Parameters) -> dict[str, Any]:
    """A node's parameters, in the types and the form in which the rows want them."""
    made = {key: read(key, value) for key, value in given.items()}
    if made.get("scalar") is not None and "is_int" in made:
        made["scalar"] = (
            int(made["scalar"]) if made["is_int"] and float(made["scalar"]).is_integer() else made["scalar"]
        )
    if "indices" in made:  # MXNet begins them with 0
        made["sections_given"] = bool(made.get("sections"))
        made["indices"] = tuple(made["indices"] or ())[1:]
    if name == "_npi_identity":
        made["shape"] = made["shape"][0]
    if name.startswith("_npi_where_") and "scalar" not in made:
        made["scalar"] = 0.0
    if name == "_npi_arange" and made.get("stop") is None:
        made["start"], made["stop"] = 0, made["start"]
    return made


def outputs_of(function: str, args: Sequence[Any], kwargs: Parameters, count: int) -> int:
    """The number of results of a call, as far as it follows from its arguments.

    Raises:
        NotImplementedError: it follows from shapes.
    """
    ufunc = table.ufunc(function)
    if ufunc is not None:
        return ufunc.nout
    if function in ("split", "array_split", "hsplit", "vsplit", "dsplit"):
        at = kwargs.get("indices_or_sections", args[1] if len(args) > 1 else 1)
        return at if isinstance(at, int) else len(at) + 1
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
            f"mx.sym.np.{function}: the number of its results follows from a shape, which symbols do not have; "
            "use split with a number of parts"
        )
    if function == "unravel_index":
        shape = kwargs.get("shape", args[1] if len(args) > 1 else ())
        return len(shape) if isinstance(shape, tuple) else 1
    if function == "unique":
        flags = ("return_index", "return_inverse", "return_counts")
        return 1 + sum(map(bool, args[1:4])) + sum(bool(kwargs.get(each)) for each in flags)
    return _RESULTS.get(function, 1)


_RESULTS = {"linalg.svd": 3, "linalg.qr": 2, "linalg.eigh": 2, "linalg.eig": 2, "linalg.slogdet": 2}


class _Named:
    """Base of operators with a name of MXNet's, beside the class of the call that they are."""

    rows: ClassVar[tuple[Row, ...]]
    known: ClassVar[frozenset[str]]
    name: ClassVar[str]

    @classmethod
    def takes(cls, name: str) -> bool:
        """Tell whether it has a parameter of that name."""
        return name in cls.known or name in _IGNORED

    @classmethod
    def create(cls, /, **given: Any) -> Operator:
        """The operator with MXNet's parameters (or, from a pass, with a form).

        Raises:
            ParameterError: unknown or unfit parameters.
        """
        make = super().create  # type: ignore[misc]
        if "form" in given:
            return make(**given)  # type: ignore[no-any-return]
        for each in given:
            if not cls.takes(each):
                raise ParameterError(f"{cls.name}: there is no parameter {each!r}, only {', '.join(sorted(cls.known))}")
        try:
            parameters = _settled(cls.name, given)
            row = next((each for each in cls.rows if each.fits(parameters)), None)
            if row is None:
                raise ParameterError(f"{cls.name}: parameters {dict(given)} are of no form that is known here")
            filling = _Filling(row, parameters, parameters.get("num_args"))
            args, kwargs = filling.arguments()
            return make(  # type: ignore[no-any-return]
                num_args=filling.count, function=row.function, form=encode(args, kwargs),
                num_outputs=outputs_of(row.function, args, kwargs, filling.count),
            )  # fmt: skip
        except (ValueError, TypeError, SyntaxError, KeyError, IndexError) as error:
            if isinstance(error, ParameterError):
                raise
            raise ParameterError(f"{cls.name}: parameters {dict(given)} do not fit: {error}") from None


def find(name: str) -> type[Operator] | None:
    """The operator of a name of MXNet's, registered when it is first asked for; None where there is none."""
    known = registered()
    if name in known:
        return known[name]
    if name in _SECOND_NAMES:
        return known[_SECOND_NAMES[name]]
    if name.startswith("_npx_"):
        from flowmx import numpy_extension

        target = numpy_extension.TABLE.get(name.removeprefix("_npx_"), "")
        image = name.removeprefix("_npx_") if name.startswith("_npx__image") else ""
        if target or image in known:
            return known[target or image]
    if name == "_npi_reshape":
        return NumPyReshape
    if name in _DRAWS or name == "_npi_bernoulli":
        return _drawing(name)
    base: Any = NumPyCall
    rows = tuple(each for each in ROWS if each.name == name)
    if not rows:
        base, rows = NumPyWaiting, tuple(each for each in _WAITING if each.name == name)
    if not rows:
        return None
    names = {each.id for row in rows for each in ast.walk(row.template) if isinstance(each, ast.Name)}
    names |= {each for row in rows for each in (*row.constants, *row.given, *row.missing)}
    names |= {"axis"} if name in ("_npi_hsplit", "_npi_dsplit") else set()
    body = {"rows": rows, "known": frozenset(names - {"_"}), "__doc__": f"``{name}`` of MXNet's symbols."}
    return operator(name)(type(name, (_Named, base), body, hidden=True))


def _drawing(name: str) -> type[Operator]:
    """The operator of a distribution; what is None of its parameters is an input."""
    method = _DRAWS.get(name, "bernoulli")
    names = ("prob", "logit") if method == "bernoulli" else tuple(_random.TABLE[method].parameters)

    class Drawing(_random.NumPyRandom, hidden=True):
        @classmethod
        def takes(cls, name: str) -> bool:
            return name in (*names, "size", "dtype") or name in _IGNORED

        @classmethod
        def create(cls, /, **given: Any) -> Operator:
            if "form" in given:
                return super().create(**given)
            made = {key: read(key, value) for key, value in given.items()}
            if method == "bernoulli":
                wanted: tuple[str, ...] = ("logit",) if made.get("is_logit") else ("prob",)
            else:
                wanted = names
            args: list[Any] = []
            for each in wanted:
                default = None if method == "bernoulli" else _random.TABLE[method].parameters[each]
                number = made.get(each, default)
                args.append(Slot(sum(isinstance(arg, Slot) for arg in args)) if number is None else number)
            size = made.get("size")
            kwargs = {} if size is None else {"size": size}
            dtype: DType = made.get("dtype") or np.dtype(np.float32)
            function = "bernoulli_logit" if wanted == ("logit",) else method
            if name.endswith("_n"):
                function, kwargs = f"{method}_n", {"size": (size,) if isinstance(size, int) else size or ()}
            count = sum(isinstance(arg, Slot) for arg in args)
            return super().create(num_args=count, function=function, form=encode(args, kwargs), dtype=dtype)

    Drawing.__name__ = Drawing.__qualname__ = name
    return operator(name)(Drawing)


# -- from a call on symbols to a node --------------------------------------------------------------------------


@cache
def _rows_of(function: str) -> tuple[Row, ...]:
    return tuple(each for each in ROWS if each.function == function and each.name not in _ONLY_READ)


_ONLY_READ = frozenset(["_npi_abs", "_npi_fix", "_np_product", "_np_amax", "_np_amin", "_np_sometrue", "_npi_identity"])
"""Second names, which are read and not written."""


def named_call(
    function: str, args: Sequence[Any], kwargs: Parameters, is_input: Callable[[Any], bool]
) -> tuple[str, dict[str, str], list[Any]] | None:
    """MXNet's operator for a call of NumPy's: its name, parameters as text, and inputs; None where there is none.

    Args:
        function: NumPy's function.
        args: its arguments, as :data:`ROWS` order them.
        kwargs: those by name.
        is_input: tells symbols from what else there is.
    """
    for row in _rows_of(function):
        found = _Matching(row, is_input).match(list(args), dict(kwargs))
        if found is not None:
            return row.name, *found
    swapped = _SWAPPED.get(function)
    if swapped and len(args) == 2 and not kwargs and not is_input(args[0]) and is_input(args[1]):
        return named_call(swapped, args[::-1], kwargs, is_input)
    return None


_SWAPPED = {
    **{each: each for each in ("add", "multiply", "maximum", "minimum", "hypot", "lcm", "bitwise_and", "bitwise_or",
                               "bitwise_xor", "equal", "not_equal")},
    "greater": "less", "less": "greater", "greater_equal": "less_equal", "less_equal": "greater_equal",
}  # fmt: skip
"""Functions of two operands, and the one that gives the same of the operands in the other order."""


class _Matching:
    """A call against a row: the inputs and the parameters where it is of that form."""

    def __init__(self, row: Row, is_input: Callable[[Any], bool]) -> None:
        self._row, self._is_input = row, is_input
        self.inputs: list[Any] = []
        self.parameters: dict[str, Any] = {}

    def match(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[dict[str, str], list[Any]] | None:
        template, row = self._row.template, self._row
        at = 0
        for each in template.args:
            if isinstance(each, ast.Starred):
                if not args[at:] or not all(map(self._is_input, args[at:])):
                    return None
                self.inputs += args[at:]
                self.parameters["num_args"] = len(args[at:])
                at = len(args)
            elif at < len(args):
                if not self._takes(each, args[at]):
                    return None
                at += 1
            else:
                return None
        by_name = {str(each.arg): each.value for each in template.keywords}
        # What the template has by name may have been given by place.
        names = list(names_of(row.function)) if args[at:] else []
        if len(args) > max(at, len(names)):
            return None
        given = {**dict(zip(names[at:], args[at:], strict=False)), **kwargs}
        for name, node in by_name.items():
            value = given.pop(name, None)
            if value is None:
                if isinstance(node, ast.Name) and node.id == "_":
                    return None
            elif not self._takes(node, value):
                return None
        if any(value is not None for value in given.values()):
            return None
        return self._finished()

    def _finished(self) -> tuple[dict[str, str], list[Any]] | None:
        found, name = self.parameters, self._row.name
        constants = dict(self._row.constants)
        if "sections_given" in constants:
            at = found.pop("sections", 0) if constants.pop("sections_given") else 0
            indices = [0, *found.pop("indices")] if "indices" in found else []
            found |= {"indices": indices, "sections": at, "squeeze_axis": False}
            found.setdefault("axis", {"_npi_hsplit": 1, "_npi_dsplit": 2}.get(name, 0))
        if any(found.get(key, value) != value for key, value in constants.items()):
            return None
        found |= constants
        if name == "_npi_pad" and found.get("mode") in ("wrap", "mean", "median", "linear_ramp", "empty"):
            return None
        if name in ("_npi_concatenate", "_npi_stack"):
            found.setdefault("axis", 0)
        if "scalar" in found and not name.startswith("_npi_where"):
            found["is_int"] = isinstance(found["scalar"], int)
        for key in ("scalar", "x", "y"):
            if key in found:
                found[key] = float(found[key])
        if name == "_npi_take":
            found.setdefault("mode", "raise")
            if "axis" not in found:
                return None
        if name == "_np_roll" and isinstance(found.get("shift"), np.ndarray):
            return None
        return {key: _text(value) for key, value in found.items()}, self.inputs

    def _takes(self, node: ast.expr, value: Any) -> bool:
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
        if not isinstance(node, ast.Name) or _has_input(value, self._is_input) or not self._is_right(node.id, value):
            return False
        self.parameters[node.id] = value
        return True

    def _is_right(self, name: str, value: Any) -> bool:
        """Tell whether MXNet's operator takes a value for a parameter: for some it is more particular than NumPy."""
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


def _has_input(value: Any, is_input: Callable[[Any], bool]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_input(each, is_input) for each in value)
    return is_input(value)


def _text(value: Any) -> str:
    if isinstance(value, (np.dtype, type)):
        return np.dtype(value).name
    return str(_plain(value))


def _plain(value: Any) -> Any:
    """Lists as tuples, and NumPy's numbers as Python's."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each) for each in value) if value else value
    return value.item() if isinstance(value, np.generic) else value
